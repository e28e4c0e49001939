"""The walks through the pipe: trace, predict. Each goes down, none back up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooflinekit.api.keywords import check_keywords, check_traced, further_inputs, inputs_of, model_of
from rooflinekit.calibrate.fitting.files import constants_for, load_fit
from rooflinekit.cost.table import Rule, price_all
from rooflinekit.errors import InputError, TraceError, UnitError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, device_of, host_of
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.coverage import Assumption
from rooflinekit.ir.graph import Graph, Origin, autocast_format
from rooflinekit.ir.inputs import Input, Mode, Release, mode_of, open_names
from rooflinekit.ir.op import DType
from rooflinekit.ir.sizes import check_dims, shown
from rooflinekit.step.allocator import Settings as Settings
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.timing.energy import limited
from rooflinekit.timing.machine import Calibration, Machine
from rooflinekit.units import parse_quantity

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory, Step

Progress = Callable[[int, str], None]

_CONVERTIBLE = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


@checked
def trace(
    model: Callable[..., Any] | str,
    *inputs: Any,
    mode: Mode = "inference",
    loss: Loss | str | None = None,
    targets: Sequence[Any] = (),
    optimizer: OptimizerFactory | str | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    channels_last: bool = False,
    tf32: bool | None = None,
    like: str | Release | None = None,
    inference_mode: bool = False,
    sizes: Mapping[str, int] | None = None,
    fixed: bool | Collection[str] | None = None,
    assume: Mapping[str, Any] | None = None,
    name: str | None = None,
    rules: Mapping[str, Rule] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    keywords: Mapping[str, Any] | None = None,
    **keyword_inputs: Given,
) -> Graph:
    """The operators of one step of `model`, priced, with named sizes left open.

    model: an `nn.Module`, any callable, or a name as on the command line, "timm:resnet50". It is left exactly as it
        was, whatever happens; so are torch's defaults, its random state and what the model's code keeps. Traces of
        several threads wait for one another; meanwhile other threads may run other models, but for regions of
        `torch.autocast("cpu")`: their operators follow CUDA's lists.
    inputs, keyword_inputs: what it is called with; each tensor as an `Input` (or a tensor, of which only shape and
        format are used), nested in lists and dicts as the model likes, other values as they are. Where none is given,
        a model by name gets images of its library's own size, or token ids; "batch" and "seq" stay open.
    mode: "inference" (evaluation mode, no gradients), "training" (forward, loss, backward, optimizer step), or
        "forward" (a forward pass without gradients in training mode: dropout drops, batch norm takes the batch's
        statistics and updates its own).
    loss: callable(output, *targets), or its name in torch.nn.functional, "cross_entropy"; by default the output's own
        `loss`, else the sum of the outputs.
    targets: further `Input`s, handed to `loss`.
    optimizer: builds an optimizer from a list of parameters, such as `torch.optim.SGD`, or its name: "AdamW".
    dtype: converts floating-point weights and inputs, like `model.to(dtype)`: "bfloat16", "bf16", `torch.bfloat16`.
    autocast: "float16" or "bfloat16", by any name, runs model and loss within `torch.autocast("cuda", …)`: weights stay
        as they are.
    channels_last: puts model and inputs into that layout, like `.to(memory_format=torch.channels_last)`.
    tf32: whether fp32 products may run as tf32: everywhere, nowhere, or (None) where PyTorch's defaults allow it,
        in convolutions.
    like: the release of PyTorch to trace as, such as "1.12": see docs/execution.md for what differs.
    inference_mode: within `torch.inference_mode()` instead of `torch.no_grad()`: the same kernels, and less for the CPU
        to keep about each tensor.
    sizes: example values for named sizes, where the model accepts only some; with `fixed` they, or those that it names,
        are traced as numbers. By default all stay open that can, unless that takes very long (`Graph.forced` says
        so); with fixed=False however long it takes.
    assume: numbers that data decide, by the names under which the counts list them: a number of elements, a share of
        the most that there can be (a float up to 1.0), or True or False.
    rules: cost rules by op kind for this call. strict: raise UnknownOpError for an op without one.
    keywords: further keyword_inputs, for those that are named as an argument of this function, such as "mode".
    progress: called with the number of modules entered so far and the path of the newest.

    Raises InputError, SizeError, TraceError or UnknownOpError.
    """
    from rooflinekit.tracing.assumed import check_assumed
    from rooflinekit.tracing.targets import loss_of, optimizer_of
    from rooflinekit.tracing.tracer import Step
    from rooflinekit.tracing.tracer import trace as traced

    if tf32 not in (None, True, False):
        raise InputError(f"tf32: expected True, False or None; got {shown(tf32)}")
    inputs = tuple(inputs_of(model, inputs, keyword_inputs))
    mode, (model, name) = mode_of(mode), model_of(model, name)
    if inference_mode and mode == "training":
        raise InputError("inference_mode: a training step needs gradients; choose mode='inference' or 'forward'")
    if mode != "training" and (loss, optimizer, tuple(targets)) != (None, None, ()):
        raise InputError("loss, targets and optimizer belong to mode='training'")
    loss, optimizer = loss_of(loss), optimizer_of(optimizer)
    if not isinstance(channels_last, bool):
        raise InputError(f"channels_last: expected True or False; got {channels_last!r}")
    check_keywords(model, keyword_inputs, trace)
    release = like if like is None or isinstance(like, Release) else Release.parse(like)
    step = Step(
        model=model,
        args=inputs,
        kwargs={**keyword_inputs, **further_inputs(keywords)},
        mode=mode,
        loss=loss,
        targets=tuple(targets),
        optimizer=optimizer,
        autocast=autocast_format(autocast),
        channels_last=channels_last,
        like=release,
        assume=check_assumed(assume),
        inference_mode=inference_mode,
    )
    given = dict(sizes or {})
    numbers = given.keys() if fixed is True else set(fixed or ())
    found = traced(step, dtype=_convertible(dtype), sizes=sizes, fixed=fixed, progress=progress)
    graph = replace(
        found,
        name=name or found.name,
        priced=price_all(found.ops, rules, "raise" if strict else "traffic"),
        sizes=MappingProxyType({name: size for name, size in given.items() if name in numbers}),
        forced=(),
        examples=MappingProxyType({name: size for name, size in given.items() if name not in numbers}),
        tf32=tf32 if release is None else release.tf32(tf32),
        trains_with=_trains_with(step),
    )
    if strict:
        _check_founded(found.assumptions)
    named: dict[str, Any] = {**keyword_inputs}
    again = partial(
        trace, model, *inputs, mode=mode, loss=loss, targets=targets, optimizer=optimizer, dtype=dtype,
        autocast=autocast, channels_last=channels_last, tf32=tf32, like=like, inference_mode=inference_mode,
        sizes=sizes, fixed=fixed, assume=assume, name=name, rules=rules, strict=strict, keywords=keywords,
        **named,
    )  # fmt: skip
    return replace(graph.with_forced(found.forced), origin=Origin(trace=again, optimizer=optimizer))


def _trains_with(step: Step) -> str:
    """What a training step has beside forward and backward, in words; "" of another step."""
    if step.mode != "training":
        return ""

    def called(builder: Any) -> str:
        while isinstance(builder, partial):
            builder = next((one for one in builder.args if callable(one)), builder.func)
        return str(getattr(builder, "__name__", type(builder).__name__)).strip("<>")

    words = {
        name: builder and called(builder) for name, builder in (("loss", step.loss), ("optimizer", step.optimizer))
    }
    return ", ".join(f"{name} {builder}" if builder else f"no {name} named" for name, builder in words.items())


def _check_founded(assumptions: Sequence[Assumption]) -> None:
    """Raises TraceError where a number was taken for no reason but that one had to be."""
    for assumption in assumptions:
        if not assumption.ground.founded:
            raise TraceError(
                f"strict: the data of a run decide {assumption}: give a value with assume={{{assumption.name!r}: …}}",
                where=assumption.where,
            )


class Untraced:
    """A workload that is traced, once, when a walk has looked at all else that it is given."""

    def __init__(self, trace: Callable[[], Graph]) -> None:
        self._trace = cache(trace)

    def __call__(self) -> Graph:
        """The graph at the sizes given."""
        return self._trace()


@checked
def predict(
    workload: Graph | Callable[..., Any] | str,
    *inputs: Any,
    gpu: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    mode: Mode | None = None,
    loss: Loss | str | None = None,
    targets: Sequence[Any] = (),
    optimizer: OptimizerFactory | str | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    channels_last: bool = False,
    tf32: bool | None = None,
    like: str | Release | None = None,
    inference_mode: bool = False,
    assume: Mapping[str, Any] | None = None,
    name: str | None = None,
    rules: Mapping[str, Rule] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    keywords: Mapping[str, Any] | None = None,
    burst: bool = False,
    constants: str | Path | Calibration | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
    **sizes: Given,
) -> Prediction:
    """How long one step takes on a GPU, and why.

    workload: a traced Graph, followed by the GPU: `predict(graph, "nvidia-l4", batch=8)`; or a model, or its name as on
        the command line, followed by its inputs: `predict("timm:resnet50", x, gpu="nvidia-l4", batch=8)`.
    gpu: name, alias, path of a specification, or Device. host: likewise, the CPU that issues the work.
    execution: "eager", "compiled", "cuda-graph", "reduce-overhead", "max-autotune" or another backend of `Execution`,
        or one with `sync`, `copy` and the rest.
    mode to keywords: for a model, not for a Graph, as in `trace`: mode "inference" (the default), "training" or
        "forward"; loss "cross_entropy" and optimizer "AdamW", or what is called; dtype and autocast "float16" or
        "bfloat16".
    burst: a single step on a cool GPU, over before the board's power lowers the clock (a second or so); by default the
        rate is what the power sustains.
    constants: a fit of this GPU, such as `rooflinekit calibrate` writes, instead of the shipped one.
    power_limit, sm_clock: limits below the board's own, as text ("250 W", "1.2 GHz") or in W and Hz.
    sizes: a number for each named size; with a model also its inputs by name.

    Raises what `trace` and `load_device` raise, FormatError for arithmetic that the GPU does not have, and SpecError
    for a fit that cannot be read, or is of another device; InputError for a limit that the board cannot hold.
    """
    options: dict[str, Any] = {
        "mode": mode, "loss": loss, "targets": targets, "optimizer": optimizer, "dtype": dtype, "autocast": autocast,
        "channels_last": channels_last, "tf32": tf32, "like": like, "inference_mode": inference_mode, "assume": assume,
        "name": name, "rules": rules, "strict": strict, "progress": progress, "keywords": keywords,
    }  # fmt: skip
    if gpu is None and inputs and isinstance(inputs[-1], str | Path | Device):
        *inputs, gpu = inputs  # type: ignore[assignment]
    if not isinstance(workload, Graph):
        inputs = tuple(inputs_of(workload, inputs, sizes))
        workload, options["name"] = model_of(workload, name)
        check_keywords(workload, sizes, predict, sizes=open_names((inputs, targets, sizes)))
    device = device_of(gpu)
    if isinstance(workload, Graph):
        check_traced(workload, inputs, sizes, options, predict)
    graph = graph_of(workload, inputs, {**sizes}, **{**options, "mode": mode or "inference"})
    if isinstance(constants, str | Path):
        constants = load_fit(Path(constants), device)
    machine = machine_of(device, constants, power_limit, sm_clock, burst=burst)
    return predict_graph(graph, machine, host_of(host), execution_of(execution))


def in_base(name: str, given: str | float | None, unit: str) -> float | None:
    """A quantity as text, or a number in base units as it is. Raises UnitError for a text that is none, by its name."""
    try:
        return parse_quantity(given, unit) if isinstance(given, str) else given
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None


def machine_of(
    gpu: str | Path | Device,
    constants: Calibration | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
    *,
    burst: bool = False,
) -> Machine:
    """A GPU with its constants, by default those that were fitted on it or on others, under limits of power and clock.

    Raises InputError for a limit that the board cannot hold.
    """
    device = device_of(gpu)
    machine = Machine.of(device, constants or constants_for(device), burst=burst)
    return limited(machine, power_w=in_base("power_limit", power_limit, "W"), clock=in_base("sm_clock", sm_clock, "Hz"))


def check_listed(gpus: Sequence[str | Path | Device | Machine], *, least: int = 1) -> None:
    """Raises InputError for one GPU where several are taken, whose letters would be names, and for fewer."""
    if isinstance(gpus, str | Path | Device) or len(gpus) < least:
        raise InputError(f"gpus: expected a list of names, paths or Devices; got {gpus!r}")


def machines_of(gpus: Sequence[str | Path | Device | Machine], *, burst: bool = False) -> tuple[Machine, ...]:
    """Each GPU with the constants that were fitted on it, or on others; a Machine has its own, and its limits.

    Raises InputError for no list of GPUs, and for one that is given twice.
    """
    check_listed(gpus)
    machines = tuple(gpu if isinstance(gpu, Machine) else machine_of(gpu, burst=burst) for gpu in gpus)
    names = [machine.name for machine in machines]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"gpus: {twice[0]!r} is given twice")
    return machines


def graph_of(
    workload: Graph | Callable[..., Any] | str, inputs: Sequence[Any], given: dict[str, Any],
    *, sizes_open: bool = False, **options: Any,
) -> Graph:  # fmt: skip
    """The graph at the sizes given; a model is traced with them, as numbers unless they are to stay open.

    given: a number for each named size, and of a model further options of `trace`, which come before `options`.
    Traced at numbers it is exact for these sizes, and faster than with open ones.
    """
    if isinstance(workload, Untraced):
        workload = workload()
    if isinstance(workload, Graph):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more")
        return workload.at(**given)
    options |= given
    inputs = inputs_of(workload, inputs, options)
    names = open_names((inputs, options))  # targets among the options
    sizes = {name: options.pop(name) for name in tuple(options) if name in names}
    check_dims(sizes, names, complete=True)
    graph = trace(workload, *inputs, sizes=sizes, fixed=None if sizes_open else True, **options)
    return graph.at(**{name: size for name, size in sizes.items() if name in graph.dims}) if sizes_open else graph


def _convertible(dtype: Format | None) -> DType | None:
    if dtype is None:
        return None
    wanted = Input(dtype=str(dtype)).dtype
    if wanted not in _CONVERTIBLE:
        known = ", ".join(_CONVERTIBLE)
        raise InputError(
            f"dtype {wanted.value!r}: PyTorch runs whole networks in {known}; products in 8 bits are ops of their own "
            "(torch._scaled_mm), so trace a model that calls them"
        )
    return wanted
