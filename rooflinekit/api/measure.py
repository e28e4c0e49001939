"""A real model timed on the hardware at hand, beside its prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.api import predict as workflows
from rooflinekit.api.keywords import inputs_of, model_of
from rooflinekit.cost.table import Rule
from rooflinekit.errors import InputError, MeasureError
from rooflinekit.files import write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_device, load_host
from rooflinekit.hardware.yaml_file import spec_text
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.ir.inputs import Input, Mode, mode_of, open_names
from rooflinekit.ir.sizes import check_dims
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.timing.machine import Calibration

if TYPE_CHECKING:
    from rooflinekit.calibrate.local_hardware.model_run import Place
    from rooflinekit.study.profile.matching import Validation
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory


@checked
def measure_model(
    model: Callable[..., Any] | str,
    *inputs: Any,
    device: str | None = None,
    gpu: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    threads: int | None = None,
    mode: Mode = "inference",
    loss: Loss | str | None = None,
    targets: Sequence[Any] = (),
    optimizer: OptimizerFactory | str | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    tf32: bool | None = None,
    channels_last: bool = False,
    inference_mode: bool = False,
    burst: bool = False,
    constants: str | Path | Calibration | None = None,
    rules: Mapping[str, Rule] | None = None,
    strict: bool = False,
    name: str | None = None,
    by_op: bool = True,
    precision: float = 0.01,
    samples: int = 100,
    budget_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
    **options: Given,
) -> Validation:
    """Is the prediction right? One step of a model, timed on the hardware at hand and predicted for it.

    model: an `nn.Module`. A copy of it runs, so that it is left as it was; parameters on the meta device are
        initialized by their modules.
    inputs: as `rk.trace` has them. Where a tensor is described by an `Input`, its numbers are random.
    device: "cuda", "cuda:1" or "cpu"; by default the first GPU, or the CPU where PyTorch sees none.
    gpu: the specification that is predicted for: name, alias, path or Device; by default that of the hardware's name.
    host: as in `rk.predict`. execution: likewise; steps are timed one by one, or with sync "none" in long loops.
    threads: on a CPU, how many cores compute, in both; by default all of its specification.
    mode, loss, targets, optimizer, dtype, autocast, tf32, channels_last, inference_mode, rules, strict, name: as in
        `rk.trace`. A step of training is what is traced: gradients begin empty, and the optimizer works on many tensors
        at once.
    burst, constants: as in `rk.predict`.
    by_op: whether a few more steps run under torch's profiler, for the times of ops.
    precision, samples, budget_s: a step is sampled until its median is known to this relative precision, at most so
        many times and seconds.
    progress: called with what is being done.
    options: a number for each named size, and keyword inputs.

    Raises what `rk.trace` and `rk.predict` raise, and MeasureError for a model that cannot be run, or not in this way.
    """
    expect(0 < precision < 1, "precision", "a share between 0 and 1, such as 0.01", precision)
    expect(samples >= 1, "samples", "a positive number", samples)
    expect(budget_s > 0, "budget_s", "a positive number of seconds", budget_s)
    how, mode = execution_of(execution), mode_of(mode)
    found, place = hardware_for(device, gpu, how, threads)
    from rooflinekit.calibrate.local_hardware import model_run
    from rooflinekit.study.profile.matching import compare_run
    from rooflinekit.tracing.targets import loss_of, optimizer_of
    from rooflinekit.tracing.tracer import Step

    inputs = tuple(inputs_of(model, inputs, options))
    model, name = model_of(model, name, place.device)
    loss, optimizer = loss_of(loss), optimizer_of(optimizer)
    say = progress or (lambda _: None)

    names = open_names((inputs, options, tuple(targets)))
    sizes = check_dims({n: value for n, value in options.items() if n in names}, names, complete=True)
    by_name: dict[str, Any] = {n: value for n, value in options.items() if n not in names}
    training: dict[str, Any] = {"loss": loss, "targets": tuple(targets), "optimizer": optimizer}
    kept: dict[str, Any] = {"dtype": dtype, "autocast": autocast, "tf32": tf32, "channels_last": channels_last}
    say("tracing")
    graph = workflows.trace(
        model, *inputs, mode=mode, sizes=sizes, fixed=True, name=name, rules=rules, strict=strict,
        inference_mode=inference_mode, **training, **kept, **by_name,
    )  # fmt: skip
    prediction = workflows.predict(graph, found, host=host, execution=how, burst=burst, constants=constants)
    same = {name: getattr(graph, name) for name in ("mode", "autocast", "channels_last", "inference_mode")}
    step = Step(model=model, args=inputs, kwargs=by_name, **same, **training)
    run = model_run.measure_step(
        step,
        place,
        model_run.Care(precision=precision, samples=samples, budget_s=budget_s),
        backend=how.backend,
        wait_each=how.sync == "step",
        dtype=None if dtype is None else Input(dtype=str(dtype)).dtype,
        tf32=tf32,
        sizes=sizes,
        by_op=by_op,
        progress=say,
    )
    told = {word: value if value is None or isinstance(value, bool) else str(value) for word, value in kept.items()}
    return compare_run(
        run,
        prediction,
        inputs=_described(inputs, by_name),
        options={**told, "optimizer": getattr(optimizer, "__name__", None if optimizer is None else "given")},
        threads=place.threads or 0,
    )


def measure_host(
    device: str | None, out: Path, *, budget_s: float, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Times what this machine's CPU spends on issuing ops, and writes its specification.

    The result has `op_s`, seconds of an op, and `slowness`, how many times longer than on another host that is: None on
    a CPU alone, of which nothing follows for a GPU. device, progress: as of `measure_model`. Raises MeasureError where
    nothing could be timed within the budget, and OutputError for a file that cannot be written.
    """
    from rooflinekit.calibrate.bench import timers
    from rooflinekit.calibrate.hosts import draft
    from rooflinekit.calibrate.local_hardware import hardware as local_hardware
    from rooflinekit.calibrate.local_hardware.model_run import default_device

    kind, index = local_hardware.parse_device(device or default_device())
    timer, base = timers.timer_of(kind, index, 0.0), load_host(draft.BASE)
    found = draft.measure_host(kind, timer, out.stem, budget_s=budget_s, progress=progress or (lambda name: None))
    heading = "The host at hand. Made by `rooflinekit measure --host-only`; see `sources` for what was measured."
    write_text(spec_text(found, heading), out)
    slowness = draft.slowness(found, base) if kind == "cuda" else None
    op_s = found.dispatch_s("default")
    return {"file": str(out), "measured_on": kind, "op_s": op_s, "slowness": slowness, "against": base.name}


def hardware_for(
    device: str | None,
    gpu: str | Path | Device | None,
    execution: Execution,
    threads: int | None,
    *,
    allow_draft: bool = False,
    options: tuple[str, str] = ("device", "gpu="),
) -> tuple[Device, Place]:
    """The specification that is predicted for, and where the model runs: all that can be refused before it is built.

    The arguments are those of `measure_model`; options: what messages call device and gpu. Raises what it raises.
    """
    if execution.sync == "op":
        raise MeasureError(
            "execution sync 'op': PyTorch has no such mode that could be measured; choose 'step' or 'none'"
        )
    from rooflinekit.calibrate.local_hardware import hardware as local_hardware
    from rooflinekit.calibrate.local_hardware import model_run

    kind, index = local_hardware.parse_device(device or model_run.default_device(), options[0])
    if kind == "cuda" and threads is not None:
        raise InputError(f"threads: belong to a CPU that is measured; got {threads} on a GPU")
    place = model_run.Place.of(kind, index)
    place.check(execution.backend)
    if gpu is None:
        gpu = local_hardware.specification(kind, index, None, allow_draft=allow_draft, option=options[1])
    elif not isinstance(gpu, Device):
        gpu = load_device(str(gpu), allow_draft=allow_draft)
    if gpu.kind != ("gpu" if kind == "cuda" else "cpu"):
        raise InputError(
            f"{gpu.name} is a {gpu.kind.upper()}, but the model is to run on {place.device}; name the specification of "
            "that"
        )
    if kind == "cuda":
        return gpu, place
    found = local_hardware.on_threads(gpu, threads)
    return found, replace(place, threads=found.sm_count)


def _described(inputs: Sequence[Any], keyword_inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """What the model is called with, as the command line writes it; values that are no tensors as they are."""

    def text(value: Any) -> str:
        if not isinstance(value, Input) and hasattr(value, "shape") and hasattr(value, "dtype"):
            value = Input(*value.shape, dtype=str(value.dtype))
        if not isinstance(value, Input):
            return repr(value)
        return f"{','.join(map(str, value.shape))}:{value.dtype.value}"

    return (*map(text, inputs), *(f"{name}={text(value)}" for name, value in keyword_inputs.items()))
