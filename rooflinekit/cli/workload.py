"""The options that describe a workload, shared by the subcommands; what they say is a `Workload`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rooflinekit.api.workload import UNNAMED, Workload, mode_of, open_names
from rooflinekit.cli import guide
from rooflinekit.cli.command import Answer, Command, Options, progress_line, tell
from rooflinekit.cli.options import GPUS, HOSTS, Drafts
from rooflinekit.cli.parse import assumed_of, inputs_of, integer, integers, limits_of, sizes_of
from rooflinekit.errors import InputError

#: Sizes named in --input become options, which typer cannot know beforehand.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}

NO_GPU = "--gpu is missing: name one or more, such as --gpu nvidia-l4 (see `rooflinekit devices`)"
NO_INPUT = "--input is missing: the sizes that the model is called with, such as --input batch,3,224,224"

_Mode = Annotated[str, "inference, training, or forward (training mode without gradients)"]


class Described(Options):
    """A workload in"""

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
    ] = UNNAMED
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
    allow_draft: Drafts = False


class _Training(Described):
    mode: _Mode = "training"


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
    args, kwargs = inputs_of(told.input or [])
    if not told.input and target:
        from rooflinekit.api.keywords import usual_inputs

        args = usual_inputs(target, kept=told.cache, needed=needs_input)
    targets, named = inputs_of(told.loss_target or [])
    if named:
        raise InputError(
            f"--target {next(iter(named))}=…: targets have no names; the loss gets them in the order given"
        )
    # A misspelled option first: --gup l4 is no missing --gpu.
    names = open_names((args, kwargs, targets))
    sized = sizes_of(told.size or [], context.args, names, guide.option_names(context.command))
    sizes: dict[str, Any] = {name: integers(*word) if many_sizes else integer(*word) for name, word in sized.items()}
    if not (args or kwargs) and needs_input:
        raise InputError(NO_INPUT)
    if not told.gpu and needs_gpu:
        raise InputError(NO_GPU)
    fields = ("dtype", "tf32", "strict", "channels_last", "inference_mode", "autocast", "like")
    runs = ("sync", "copy", "non_blocking", "loader_rate", "attention")
    return Workload.of(
        args, kwargs, sizes, many=many_sizes, complete=needs_sizes, solved=solved,
        options={
            "mode": mode, "targets": targets, **{name: getattr(told, name) for name in fields},
            **({"assume": assumed_of(told.assume)} if told.assume else {}),
        },
        gpus=tuple(told.gpu or ()), host=told.host, optimizer=told.optimizer, loss=told.loss,
        execution={"backend": told.execution, **{name: getattr(told, name) for name in runs}},
        limits=limits_of(told.power_limit, told.sm_clock), constants=told.constants, burst=told.burst,
        kept=told.cache, allow_draft=told.allow_draft, following=_progress, unkept=tell if told.verbose else None,
    )  # fmt: skip


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
