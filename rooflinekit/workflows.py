"""The walks through the pipe: trace, predict, sweep, compare, fit, calibrate. Each goes down, none back up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from rooflinekit.calibrate.fits import constants_for, load_fit
from rooflinekit.cost.table import Rule, price_all
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_device, load_host
from rooflinekit.hardware.specs import devices as shipped_devices
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Input, open_names
from rooflinekit.ir.origin import Origin, autocast_format
from rooflinekit.ir.release import Release
from rooflinekit.ir.sizes import check_dims
from rooflinekit.ir.tensor import DType
from rooflinekit.model.machine import Calibration, Machine
from rooflinekit.present.progress import counting
from rooflinekit.step.execution import Backend, Execution, check_release
from rooflinekit.step.prediction import Prediction, predict_graph

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.serve import Serving
    from rooflinekit.serving.settings import Engine
    from rooflinekit.serving.step_times import CollectiveTime
    from rooflinekit.study.gpu_comparison import GpuComparison
    from rooflinekit.study.search import Found
    from rooflinekit.study.sweep_plan import Plan
    from rooflinekit.study.sweep_points import Memory
    from rooflinekit.tracing.step import Loss, Mode, OptimizerFactory

Progress = Callable[[int, str], None]
Workloads: TypeAlias = "Graph | Callable[..., Any] | Mapping[str, Graph | Callable[..., Any]] | pd.DataFrame"

_CONVERTIBLE = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def trace(
    model: Callable[..., Any],
    *inputs: Any,
    mode: Mode = "inference",
    loss: Loss | None = None,
    targets: Sequence[Any] = (),
    optimizer: OptimizerFactory | None = None,
    dtype: str | DType | None = None,
    autocast: str | DType | None = None,
    channels_last: bool = False,
    tf32: bool | None = None,
    like: str | Release | None = None,
    sizes: Mapping[str, int] | None = None,
    fixed: bool = False,
    name: str | None = None,
    rules: Mapping[str, Rule] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    **keyword_inputs: Any,
) -> Graph:
    """The operators of one step of `model`, priced, with named sizes left open.

    model: an `nn.Module` or any callable. It is left exactly as it was.
    inputs, keyword_inputs: what it is called with; each tensor as an `Input` (or a tensor, of which only shape and
        format are used), nested in lists and dicts as the model likes, other values as they are.
    mode: "inference" (evaluation mode, no gradients) or "training" (forward, loss, backward, optimizer step).
    loss: callable(output, *targets); by default the output's own `loss`, else the sum of the outputs.
    targets: further `Input`s, handed to `loss`.
    optimizer: builds an optimizer from a list of parameters, such as `torch.optim.SGD`.
    dtype: converts floating-point weights and inputs, like `model.to(dtype)`.
    autocast: "float16" or "bfloat16" runs model and loss within `torch.autocast("cuda", …)`: weights stay as they are.
    channels_last: puts model and inputs into that layout, like `.to(memory_format=torch.channels_last)`.
    tf32: whether fp32 products may run as tf32: everywhere, nowhere, or (None) where PyTorch's defaults allow it,
        in convolutions.
    like: the release of PyTorch to trace as, such as "1.12": see docs/execution.md for what differs.
    sizes: example values for named sizes, where the model accepts only some; with `fixed` they are traced as numbers.
    rules: cost rules by op kind for this call. strict: raise UnknownOpError for an op without one.
    progress: called with the number of modules entered so far and the path of the newest.

    Raises InputError, SizeError, TraceError or UnknownOpError.
    """
    from rooflinekit.tracing.step import Step
    from rooflinekit.tracing.tracer import trace as traced

    if mode not in ("inference", "training"):
        raise InputError(f"mode: expected 'inference' or 'training'; got {mode!r}")
    if mode == "inference" and (loss, optimizer, tuple(targets)) != (None, None, ()):
        raise InputError("loss, targets and optimizer belong to mode='training'")
    if not isinstance(channels_last, bool):
        raise InputError(f"channels_last: expected True or False; got {channels_last!r}")
    release = like if like is None or isinstance(like, Release) else Release.parse(like)
    step = Step(
        model=model,
        args=inputs,
        kwargs=keyword_inputs,
        mode=mode,
        loss=loss,
        targets=tuple(targets),
        optimizer=optimizer,
        autocast=autocast_format(autocast),
        channels_last=channels_last,
        like=release,
    )
    found = traced(step, dtype=_convertible(dtype), sizes=sizes, fixed=fixed, progress=progress)
    graph = Graph(
        name=name or found.name,
        mode=mode,
        inputs=found.inputs,
        weights=found.weights,
        outputs=found.outputs,
        gradients=found.gradients,
        priced=price_all(found.ops, rules, "raise" if strict else "traffic"),
        held=found.held,
        dims=found.dims,
        sizes=MappingProxyType(dict(sizes or {}) if fixed else {}),
        conditions=found.conditions,
        tf32=tf32 if release is None else release.tf32(tf32),
        autocast=step.autocast,
        channels_last=channels_last,
        like=release,
        fx=found.fx,
    )
    again = partial(
        trace, model, *inputs, mode=mode, loss=loss, targets=targets, optimizer=optimizer, dtype=dtype,
        autocast=autocast, channels_last=channels_last, tf32=tf32, like=like, sizes=sizes, fixed=fixed, name=name,
        rules=rules, strict=strict, **keyword_inputs,
    )  # fmt: skip
    return replace(graph.with_forced(found.forced), origin=Origin(trace=again, optimizer=optimizer))


def predict(
    workload: Graph | Callable[..., Any],
    *inputs: Any,
    gpu: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    mode: Mode = "inference",
    burst: bool = False,
    constants: str | Path | Calibration | None = None,
    **options: Any,
) -> Prediction:
    """How long one step takes on a GPU, and why.

    workload: a traced Graph, followed by the GPU: `predict(graph, "nvidia-l4", batch=8)`; or a model, followed by its
        inputs: `predict(model, x, gpu="nvidia-l4", batch=8)`.
    gpu: name, alias, path of a specification, or Device. host: likewise, the CPU that issues the work.
    burst: a single step on a cool GPU, over before the board's power lowers the clock (a second or so); by default the
        rate is what the power sustains.
    constants: a fit of this GPU, such as `rooflinekit calibrate` writes, in the place of the shipped one.
    options: a number for each named size; with a model also the options of `trace`.

    Raises what `trace` and `load_device` raise, FormatError for arithmetic that the GPU does not have, and SpecError
    for a fit that cannot be read, or is of another device.
    """
    if gpu is None and inputs:
        *inputs, gpu = inputs  # type: ignore[assignment]
    device = _device(gpu)
    if isinstance(workload, Graph):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more")
        graph = workload.at(**options)
    else:
        graph = _traced_at(workload, inputs, mode, options)
    machine = Machine.of(device, _constants(constants, device), burst=burst)
    return predict_graph(graph, machine, _host(host), _execution(execution))


@overload
def sweep(
    workload: Workloads,
    *inputs: Any,
    gpus: Sequence[str | Path | Device],
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode = "inference",
    memory: Memory = True,
    executor: Executor | None = None,
    workers: int | None = None,
    out: None = None,
    **options: Any,
) -> pd.DataFrame: ...


@overload
def sweep(
    workload: Workloads,
    *inputs: Any,
    gpus: Sequence[str | Path | Device],
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode = "inference",
    memory: Memory = True,
    executor: Executor | None = None,
    workers: int | None = None,
    out: str | Path,
    **options: Any,
) -> Path: ...


def sweep(
    workload: Workloads,
    *inputs: Any,
    gpus: Sequence[str | Path | Device],
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode = "inference",
    memory: Memory = True,
    executor: Executor | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> pd.DataFrame | Path:
    """Many predictions at once, as a DataFrame or in a file; each is what `predict` says.

    workload: a Graph, or a model followed by its inputs, or several of them by name: one row a model, GPU, execution
        and combination of sizes, with total_s, its 90 % interval low_s to high_s, gpu_s, cpu_s, regime, throughput (of
        the size named batch, a second), fits and peak_bytes. Or a DataFrame of ops as in a campaign (columns op, dtype
        and the sizes): the same with a column of seconds a GPU, the time of the op's kernels as a profiler sees it.
    gpus: names, aliases, paths of specifications, or Devices. execution: one, or a list.
    memory: whether there are columns of it, or ("peak") peak_bytes alone: following the allocator, which `fits` takes
        where it is not plain, can be most of a large sweep's time.
    executor: any `concurrent.futures.Executor`; or workers: how many processes. By default large sweeps take all cores.
    out: a file to write instead, .csv or .json; or a folder, .parquet, which grows piece by piece and is gone on with
        where it stopped. The result is then its path. See docs/sweeps.md.
    options: for each named size a number, list or range; with a model also the options of `trace`.

    Raises what `predict` raises, InputError for a table with something that cannot be timed, and OutputError for a
    folder of another sweep.
    """
    import pandas as pd

    from rooflinekit.study import sweep_run
    from rooflinekit.study.sweep_file import check_out

    machines = _machines(gpus)
    sweep_run.check_workers(executor, workers)
    if isinstance(workload, pd.DataFrame):
        if inputs or options:
            raise InputError(f"a table of ops has its sizes in columns; got {', '.join(options) or repr(inputs[0])}")
        if out is not None or executor is not None or workers is not None:
            raise InputError("a table of ops is timed at once: leave out, executor and workers out")
        from rooflinekit.study.sweep import sweep_table

        return sweep_table(workload, machines)
    if out is not None:
        check_out(Path(out))
    graphs, sizes = _open_graphs(workload, inputs, mode, options)
    plan = swept(graphs, machines, _host(host), execution, sizes, memory=memory)
    with counting("sweep", plan.rows) as progress:
        if out is None:
            return sweep_run.run(plan, executor=executor, workers=workers, progress=progress)
        return sweep_run.run_to_file(plan, Path(out), executor=executor, workers=workers, progress=progress)


def search(
    workload: Graph | Callable[..., Any] | Mapping[str, Graph | Callable[..., Any]],
    *inputs: Any,
    gpus: Sequence[str | Path | Device],
    minimize: str = "time",
    require: Sequence[str] = (),
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode = "inference",
    **options: Any,
) -> Found:
    """The fastest, cheapest or smallest configuration that fits and meets what is asked of it.

    minimize: "time", "dollars" (launch price by throughput), "memory" or "price".
    require: bounds such as "time<0.1 s", "high<=200 ms" (the end of the 90 % interval), "throughput>=1000",
        "memory<16 GB", "price<=5000", "batch>=8".
    options: for each named size a number, list or range to choose from; with a model also the options of `trace`. The
        rest is as in `sweep`. Up to 200 000 predictions all are made; beyond, differential evolution chooses sizes.

    Raises what `sweep` raises, and InputError for a goal or requirement that cannot be read.

    >>> found = search(graph, gpus=["nvidia-l4", "nvidia-t4"], minimize="dollars", batch=range(1, 257),
    ...                require=["time<0.05"])  # doctest: +SKIP
    >>> found.best, found.table, str(found)  # doctest: +SKIP
    """
    from rooflinekit.study.search import search_plan

    machines = _machines(gpus)
    graphs, sizes = _open_graphs(workload, inputs, mode, options)
    return search_plan(swept(graphs, machines, _host(host), execution, sizes), minimize, require)


def swept(
    graphs: Graph | Mapping[str, Graph],
    machines: Sequence[Machine],
    host: Host,
    execution: Execution | Backend | Sequence[Execution | Backend],
    sizes: Mapping[str, Any],
    *,
    memory: Memory = True,
) -> Plan:
    """The plan of a sweep: its axes are the models, the GPUs and the executions."""
    from rooflinekit.study.sweep_plan import Axis, plan_of

    several = isinstance(graphs, Mapping)
    named: Mapping[str, Graph] = graphs if isinstance(graphs, Mapping) else {graphs.name: graphs}
    single = isinstance(execution, str | Execution)
    executions = [_execution(one) for one in ([execution] if isinstance(execution, str | Execution) else execution)]
    if not named or not executions:
        raise InputError(f"{'execution' if named else 'models'}: expected one or more; got none")
    for one, graph in product(executions, named.values()):
        check_release(graph.like, one)
    axes = (
        Axis(name="model", choices={name: {"graph": graph} for name, graph in named.items()}, shown=several),
        Axis(name="gpu", choices={machine.name: {"machine": machine} for machine in machines}),
        Axis(name="execution", choices={str(one): {"execution": one} for one in executions}, shown=not single),
    )
    return plan_of(axes, {"host": host}, sizes, memory=memory)


def _open_graphs(
    workload: Workloads, inputs: Sequence[Any], mode: Mode, options: dict[str, Any]
) -> tuple[Graph | dict[str, Graph], dict[str, Any]]:
    """The graph, or one a name, and the sizes among the options."""
    each: dict[str, Any] = dict(workload) if isinstance(workload, Mapping) else {"": workload}
    if all(isinstance(one, Graph) for one in each.values()):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more")
        graphs, sizes = each, dict(options)
    else:
        sizes = {name: options.pop(name) for name in open_names((inputs, options)) if name in options}
        graphs = {
            name: one if isinstance(one, Graph) else trace(one, *inputs, mode=mode, **options)
            for name, one in each.items()
        }
    return (graphs if isinstance(workload, Mapping) else graphs[""]), sizes


def compare_gpus(
    workload: Graph | Callable[..., Any],
    *inputs: Any,
    gpus: Sequence[str | Path | Device] | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    mode: Mode = "inference",
    burst: bool = False,
    sort: str = "time",
    **options: Any,
) -> GpuComparison:
    """One workload on many GPUs: how fast, whether it fits, for how much money and power, and why in this order.

    workload: a traced Graph; or a model, followed by its inputs.
    gpus: names, aliases, paths of specifications, or Devices; by default every shipped GPU that is no draft.
    sort: "time", "per-dollar" (launch price), "per-watt", "share-of-peak" or "price".
    options: a number for each named size; with a model also the options of `trace`.

    Raises what `predict` raises, but for GPUs that cannot run it: the result names them.

    >>> found = compare_gpus(graph, gpus=["nvidia-l4", "nvidia-t4"], batch=8)  # doctest: +SKIP
    >>> found.table, str(found)  # doctest: +SKIP
    """
    from rooflinekit.study.gpu_comparison import compare_machines

    machines = _machines(gpus if gpus is not None else [d for d in shipped_devices() if d.kind == "gpu"], burst=burst)
    if isinstance(workload, Graph):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more: name GPUs as gpus=[…]")
        graph = workload.at(**options)
    else:
        graph = _traced_at(workload, inputs, mode, options)
    return compare_machines(graph, machines, _host(host), _execution(execution), sort)


def serve(
    decoder: Decoder,
    gpu: str | Path | Device,
    *,
    batch: int,
    input: int,
    output: int,
    weights: str = "bf16",
    kv: str = "bf16",
    tp: int = 1,
    collective_s: CollectiveTime | None = None,
    engine: Engine | None = None,
    spread: float = 0.2,
    host: str | Path | Host = DEFAULT_HOST,
) -> Serving:
    """A language model served to `batch` clients, each with requests of `input` tokens and answers of `output`.

    weights: "bf16", "fp16", "fp8", "fp8-dynamic", "int8" or "int4". kv: format of the cache of keys and values.
    tp: GPUs that share each layer; above 1 it takes collective_s, a function of bytes and number of GPUs that gives the
    seconds of an all-reduce. engine: its settings. spread: how much the answers' lengths differ, as a share of output;
    0 lets clients that begin together go on together.

    Raises what `load_device` raises, FormatError for arithmetic that the GPU does not have, and InputError for another
    word, or where not one request fits.

    >>> found = serve(decoder, "nvidia-l4", batch=8, input=1024, output=256)  # doctest: +SKIP
    >>> found.ttft_s, found.tpot_s, found.tokens_per_s, found.largest_batch(4096)  # doctest: +SKIP
    """
    from rooflinekit.serving.engine import Stream
    from rooflinekit.serving.serve import check_stream, serve_on
    from rooflinekit.serving.settings import Engine

    check_stream(batch, input, output)
    (machine,) = _machines([gpu])
    stream = Stream(clients=batch, input=input, output=output, spread=spread)
    return serve_on(
        decoder, machine, _host(host), stream, engine or Engine(),
        weights=weights, kv=kv, tp=tp, collective_s=collective_s,
    )  # fmt: skip


def _machines(gpus: Sequence[str | Path | Device], *, burst: bool = False) -> tuple[Machine, ...]:
    """Each GPU with the constants that were fitted on it, or on others."""
    if isinstance(gpus, str | Path | Device) or not gpus:
        raise InputError(f"gpus: expected a list of names, paths or Devices; got {gpus!r}")
    devices = [_device(gpu) for gpu in gpus]
    names = [device.name for device in devices]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"gpus: {twice[0]!r} is given twice")
    return tuple(Machine.of(device, constants_for(device), burst=burst) for device in devices)


def _device(gpu: object) -> Device:
    if not isinstance(gpu, str | Path | Device):
        raise InputError(f"gpu: expected a name, a path or a Device; got {gpu!r}")
    return gpu if isinstance(gpu, Device) else load_device(gpu)


def _constants(given: str | Path | Calibration | None, device: Device) -> Calibration:
    if given is None:
        return constants_for(device)
    return given if isinstance(given, Calibration) else load_fit(Path(given), device)


def _host(host: str | Path | Host) -> Host:
    return host if isinstance(host, Host) else load_host(host)


def _execution(execution: Execution | Backend) -> Execution:
    return execution if isinstance(execution, Execution) else Execution(backend=execution)


def _traced_at(model: Callable[..., Any], inputs: Sequence[Any], mode: Mode, options: dict[str, Any]) -> Graph:
    """The model traced at numbers: exact for these sizes, and faster than with open ones."""
    names = open_names((inputs, options))
    sizes = {name: options.pop(name) for name in tuple(options) if name in names}
    check_dims(sizes, names, complete=True)
    return trace(model, *inputs, mode=mode, sizes=sizes, fixed=True, **options)


def _convertible(dtype: str | DType | None) -> DType | None:
    if dtype is None:
        return None
    wanted = Input(dtype=dtype).dtype
    if wanted not in _CONVERTIBLE:
        known = ", ".join(_CONVERTIBLE)
        raise InputError(
            f"dtype {wanted.value!r}: PyTorch runs whole networks in {known}; products in 8 bits are ops of their own "
            "(torch._scaled_mm), so trace a model that calls them"
        )
    return wanted
