"""The options that describe a workload, shared by the subcommands; what they say is a `Workload`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.cli import guide
from rooflinekit.cli.command import Answer, Command, Options, progress_line, tell
from rooflinekit.cli.options import GPUS, HOSTS, Draft, devices_of
from rooflinekit.cli.parse import assumed_of, inputs_of, integer, integers, limits_of, sizes_of
from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import mode_of

if TYPE_CHECKING:
    from rooflinekit.api.measured import Correction, MeasuredStep
    from rooflinekit.model.machine import Machine

_START = 32  # where the search for a size begins, unless the size is given; it ends at the same place from anywhere
_UNNAMED = "unnamed"  # the host that is meant where none is named

#: Sizes named in --input become options, which typer cannot know beforehand.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}

NO_GPU = "--gpu is missing: name one or more, such as --gpu nvidia-l4 (see `rooflinekit devices`)"
NO_INPUT = "--input is missing: the sizes that the model is called with, such as --input batch,3,224,224"

_Mode = Annotated[str, "inference, training, or forward (training mode without gradients)"]


class Described(Options):
    """A workload in words."""

    input: Annotated[
        list[str] | None,
        "--input -i",
        "an argument of the model, by sizes and format: 'batch,3,224,224', 'batch,seq:int64', 'mask=batch,seq'; "
        "repeatable; models of libraries have a default",
    ] = None
    gpu: Annotated[
        list[str] | None,
        "--gpu -g",
        "a GPU that `rooflinekit devices` lists, or a specification's path; repeatable",
        GPUS,
    ] = None
    size: Annotated[list[str] | None, "a size that --input names: 'batch=32', or --batch 32"] = None
    mode: _Mode = "inference"
    optimizer: Annotated[str | None, "an optimizer of torch.optim, such as SGD or AdamW"] = None
    dtype: Annotated[str | None, "the format that weights and inputs are converted to: bf16, fp16, fp32"] = None
    tf32: Annotated[bool | None, "allow TF32 everywhere or nowhere; by default only in convolutions"] = None
    autocast: Annotated[str | None, "run within torch.autocast: bf16 or fp16; the weights keep their format"] = None
    channels_last: Annotated[bool, "hold model and inputs in the channels-last memory format"] = False
    like: Annotated[str | None, "the release of PyTorch to predict, such as 1.12 (see docs/execution.md)"] = None
    inference_mode: Annotated[bool, "run within torch.inference_mode instead of torch.no_grad"] = False
    loss: Annotated[
        str | None, "a function of torch.nn.functional, such as cross_entropy, of the output and each --target"
    ] = None
    loss_target: Annotated[
        list[str] | None, "--target", "a further argument of the loss, written like --input; repeatable"
    ] = None
    execution: Annotated[str, "how PyTorch runs it: eager, compiled, cuda-graph, reduce-overhead or max-autotune"] = (
        "eager"
    )
    sync: Annotated[str, "when the CPU waits for the GPU: after each 'step' or 'op', or never ('none')"] = "step"
    copy: Annotated[str, "where inputs are copied from: 'pageable' or 'pinned' memory, or 'none'"] = "none"
    non_blocking: Annotated[bool, "with --copy pinned: the CPU does not wait for the copy"] = False
    loader_rate: Annotated[
        float | None, "samples a second that the data loader delivers; by default it never delays the step"
    ] = None
    attention: Annotated[
        str | None,
        "--attention KERNEL",
        "the kernel of attention, where it can run: cudnn, flash, flash-3, flash-4, efficient, math, triton, aotriton, "
        "ck or aiter; by default PyTorch's choice",
    ] = None
    host: Annotated[
        str, "the CPU that issues work to the GPU: one that `rooflinekit hosts` lists, or a path", HOSTS
    ] = _UNNAMED
    burst: Annotated[bool, "predict one step on a cool GPU, before the power limit lowers its clock"] = False
    power_limit: Annotated[
        str | None, "--power-limit WATTS", "a power limit below the board's own, such as '250 W' (see docs/energy.md)"
    ] = None
    sm_clock: Annotated[str | None, "--sm-clock CLOCK", "the highest clock of the SMs, such as '1.2 GHz'"] = None
    constants: Annotated[
        Path | None, "--constants FILE", "constants that `rooflinekit calibrate` wrote, instead of the shipped ones"
    ] = None
    assume: Annotated[
        list[str] | None,
        "--assume NAME=VALUE",
        "a value that only the data of a run decides: a number, a share up to 1.0, true or false; repeatable",
    ] = None
    strict: Annotated[bool, "fail on ops without a cost rule and on sizes that depend on data"] = False
    cache: Annotated[bool, "keep the trace, so that the next command starts at once"] = True
    verbose: Annotated[bool, "say on standard error why a trace could not be kept"] = False
    allow_draft: Draft = False


class _Training(Described):
    mode: _Mode = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the options say: how targets are called and traced, and on what they are predicted."""

    described: Described
    args: tuple[rk.Input, ...]
    called: bool  # whether any input is given, by place or by name
    sizes: dict[str, int]
    gpus: tuple[str, ...]
    host: str
    execution: dict[str, Any]  # of Execution
    optimizer: str | None
    loss: str | None
    options: dict[str, Any]  # of workflows.trace, keyword inputs among them
    sought: tuple[str, ...] = ()  # sizes that the command looks for, and that nobody gave
    lists: dict[str, Sequence[int]] = field(default_factory=dict)  # instead of `sizes`, where each may have many
    limits: dict[str, float] = field(default_factory=dict)  # of model.energy.limited

    @property
    def named_host(self) -> str | None:
        """The host that is named; None for a cluster's own."""
        return None if self.host == _UNNAMED else self.host

    @property
    def allow_draft(self) -> bool:
        """Whether drafts of specifications are accepted."""
        return self.described.allow_draft

    @property
    def run_as(self) -> rk.Execution:
        """How it runs."""
        return rk.Execution(**self.execution)

    @property
    def executions(self) -> list[rk.Execution]:
        """How it runs, where --execution may be a list."""
        words = self.execution["backend"].split(",")
        return [rk.Execution(**{**self.execution, "backend": word.strip()}) for word in words]

    def heading(self, graph: rk.Graph) -> str:
        """The first line of an answer: the workload, its sizes and executions."""
        from rooflinekit.step.report import heading

        return heading(graph, self.sizes, self.executions)

    def devices(self, names: Sequence[str] | None = None) -> list[rk.Device]:
        """The GPUs, or others that are named."""
        return devices_of(self.gpus if names is None else names, (), allow_draft=self.allow_draft)

    def on(self, *gpus: str) -> Workload:
        """The same workload on these GPUs."""
        return replace(self, gpus=gpus)

    def running(self, backend: str) -> Workload:
        """The same workload, executed by this backend."""
        return replace(self, execution={**self.execution, "backend": backend})

    def predict(self, *targets: str, sizes_open: bool = False) -> list[list[rk.Prediction]]:
        """For each target its predictions, one a GPU; each target is traced once, with `sizes_open` for all sizes."""
        from rooflinekit.step.prediction import predict_graph

        # Everything that can be wrong is looked at before the slow part.
        machines, host, execution = self.setting()
        return [
            [predict_graph(graph, machine, host, execution) for machine in machines]
            for graph in self.trace(*targets, sizes_open=sizes_open)
        ]

    def setting(self) -> tuple[list[Machine], rk.Host, rk.Execution]:
        """The GPUs with their constants, the host, and how it runs."""
        from rooflinekit.model.energy import limited
        from rooflinekit.step.execution import check_release

        check_release(self.options["like"], self.run_as)
        devices, host = self.devices(), rk.load_host(self.host)
        return [limited(machine, **self.limits) for machine in self._machines(devices)], host, self.run_as

    def _machines(self, devices: Sequence[rk.Device]) -> list[Machine]:
        from rooflinekit.calibrate.fitting.files import fits_for
        from rooflinekit.model.machine import Machine

        fits = fits_for(devices, self.described.constants)
        burst = self.described.burst
        return [Machine.of(device, fit, burst=burst) for device, fit in zip(devices, fits, strict=True)]

    def correction(self, step: MeasuredStep | None, graph: rk.Graph) -> Correction | None:
        """What the step makes of predictions of this workload; None without one. Limits of power are theirs."""
        if step is None:
            return None
        _, host, execution = self.setting()
        here, *_ = self._machines([step.device, *self.devices()])
        return step.correction(graph, host, execution, machine=here)

    def trace(self, *targets: str, sizes_open: bool = False) -> list[rk.Graph]:
        """Each target's graph at the sizes given, traced once; with `sizes_open` for all sizes."""
        from rooflinekit.api.targets import TargetTrace

        found = []
        for target in targets:
            traced = TargetTrace(
                target=target,
                args=self.args,
                options={"sizes": self.sizes, "fixed": None if sizes_open else True, **self.options},
                optimizer=self.optimizer,
                loss=self.loss,
                following=_progress,
                kept=self.described.cache,
                unkept=tell if self.described.verbose else None,
            )
            graph = traced()
            found.append(graph.at(**{name: value for name, value in self.sizes.items() if name in graph.dims}))
        return found

    def team(self, target: str, **options: Any) -> Callable[..., rk.ParallelPrediction]:
        """The step on a cluster, with its sizes open, by further options of `rk.parallel`."""
        (graph,) = self.trace(target, sizes_open=True)
        limits = {"power_limit": self.limits.get("power_w"), "sm_clock": self.limits.get("clock")}
        return functools.partial(
            rk.parallel, graph, host=self.named_host, execution=self.run_as, **{**limits, **options}
        )

    def check_alone(self) -> None:
        """Raises InputError for GPUs that are named beside a cluster."""
        if self.gpus:
            raise InputError("--gpu: a cluster has GPUs of its own; leave out --gpu or --cluster")

    def check_trains(self, why: str = "steps on several devices are training steps:") -> None:
        """Raises InputError for what is no training step: steps on several devices are."""
        if self.options["mode"] != "training":
            raise InputError(f"--cluster: {why} add --mode training")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, str], None] | None]:
    """A line on standard error that follows a long trace; only on a terminal."""
    with progress_line(f"tracing {name}") as say:

        def advance(entered: int, path: str) -> None:
            if say and entered % 16 == 1:  # drawing costs more than tracing a module
                say(f"tracing {name}: {entered} modules, now in {path or 'the root'}")

        yield advance if say else None


def _workload(
    told: Described, context: typer.Context, target: str | None, solved: str | None, *, needs_gpu: bool = True,
    needs_input: bool = True, many_sizes: bool = False, needs_sizes: bool = True,
) -> Workload:  # fmt: skip
    """needs_gpu, needs_input: whether --gpu and --input have to be given. many_sizes: whether a size may be a list.
    needs_sizes: whether each size then has to be named. solved: a size that is looked for, and need not be given.
    """
    mode = mode_of(told.mode, "--mode")
    for option, given in (("--optimizer", told.optimizer), ("--loss", told.loss), ("--target", told.loss_target)):
        if given and mode != "training":
            raise InputError(f"{option} belongs to --mode training")
    if told.loss_target and told.loss is None:
        raise InputError("--target is an argument of the loss: name one, such as --loss cross_entropy")
    from rooflinekit.api.keywords import usual_inputs
    from rooflinekit.ir.graph import autocast_format
    from rooflinekit.ir.inputs import Release, open_names
    from rooflinekit.ir.sizes import check_dims, check_names

    args, kwargs = inputs_of(told.input or [])
    args = args if told.input or not target else usual_inputs(target, kept=told.cache)
    targets, named = inputs_of(told.loss_target or [])
    if named:
        raise InputError(
            f"--target {next(iter(named))}=…: targets have no names; the loss gets them in the order given"
        )
    if target is not None and needs_input and not (args or kwargs):
        from rooflinekit.tracing.targets import check_target

        check_target(target)  # what is no model has no input that is missing
    names = open_names((args, kwargs, targets))
    sizes: dict[str, int] = {}
    start: dict[str, int] = {}
    lists: dict[str, Sequence[int]] = {}
    # A misspelled option first: --gup l4 is no missing --gpu.
    words = sizes_of(told.size or [], context.args, names, guide.option_names(context.command))
    if many_sizes:
        lists = {name: integers(*word) for name, word in words.items()}
    else:
        sizes = {name: integer(*word) for name, word in words.items()}
    if not (args or kwargs) and needs_input:
        raise InputError(NO_INPUT)
    if not told.gpu and needs_gpu:
        raise InputError(NO_GPU)
    if many_sizes:
        check_names(lists, names, complete=needs_sizes)
    else:
        if solved is not None and solved in names and solved not in sizes:
            start = {solved: _START}
        sizes = check_dims({**start, **sizes}, names, complete=True)
    return Workload(
        described=told,
        args=args,
        called=bool(args or kwargs),
        sizes=sizes,
        sought=tuple(start),
        lists=lists,
        gpus=tuple(told.gpu or ()),
        host=told.host,
        execution={
            "backend": told.execution,
            **{name: getattr(told, name) for name in ("sync", "copy", "non_blocking", "loader_rate", "attention")},
        },
        optimizer=told.optimizer,
        loss=told.loss,
        limits=limits_of(told.power_limit, told.sm_clock),
        options={
            "mode": mode,
            **{name: getattr(told, name) for name in ("dtype", "tf32", "strict", "channels_last", "inference_mode")},
            "autocast": autocast_format(told.autocast),
            "like": None if told.like is None else Release.parse(told.like),
            "targets": targets,
            **({"assume": assumed_of(told.assume)} if told.assume else {}),
            **_keywords(kwargs),
        },
    )


def _keywords(given: dict[str, rk.Input]) -> dict[str, Any]:
    """Inputs by name as arguments of `trace`, those that it has itself among its `keywords`."""
    from rooflinekit.api.keywords import options_of

    taken = options_of(rk.trace) if given else ()
    own = {name: value for name, value in given.items() if name in taken}
    return {name: value for name, value in given.items() if name not in own} | ({"keywords": own} if own else {})


def describes_workload(
    *, solves: str | None = None, training: bool = False, **needs: bool
) -> Callable[[Command], Command]:
    """Decorator: the subcommand takes the options of a workload, and gets what they say as `workload`.

    solves: the command's argument that names a size which is looked for. training: whether --mode is that without being
    given. needs: as of `_workload`.
    """

    def described_by(command: Command) -> Command:
        @functools.wraps(command)
        def with_workload(call: typer.Context, described: Described, **values: Any) -> Answer | None:
            target, solved = values.get("target", values.get("target_a")), solves and values[solves]
            return command(workload=_workload(described, call, target, solved, **needs), **values)

        signature = inspect.signature(command, eval_str=True)
        more = {"call": typer.Context, "described": _Training if training else Described}
        own = [one for name, one in signature.parameters.items() if name != "workload"]
        own += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in more.items()]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        with_workload.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_workload.registered = {"context_settings": OPEN}  # type: ignore[attr-defined]
        return with_workload

    return described_by
