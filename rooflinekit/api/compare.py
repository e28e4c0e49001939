"""The walks that set predictions beside each other: one workload on many GPUs, changed, or measured elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rooflinekit.api.keywords import check_mode, with_named
from rooflinekit.api.measured import MeasuredStep, corrected
from rooflinekit.api.parallel import parallel
from rooflinekit.api.predict import check_listed, graph_of, in_base, machine_of, machines_of, predict
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.distributed.records import Strategy
from rooflinekit.errors import InputError, check_word
from rooflinekit.hardware.catalog import offered_gpus
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, device_of, host_of
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph, traced_with
from rooflinekit.ir.inputs import Mode, Release
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.variants import variant_of
from rooflinekit.study.compare.cost import Bounds, Price, Pricing
from rooflinekit.study.compare.gpus import SORTS, GpuComparison, compare_machines
from rooflinekit.study.explain import advice
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.study.transfer.transferred import Transferred, correcting, on_several
from rooflinekit.timing.machine import Calibration, Machine

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory


@checked
def compare_gpus(
    workload: Graph | Callable[..., Any] | str,
    *inputs: Any,
    gpus: Sequence[str | Path | Device | Machine] | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    mode: Mode | None = None,
    burst: bool = False,
    sort: str = "time",
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
    price: Price | Pricing | None = None,
    max_watts: str | float | None = None,
    max_cost: float | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given,
) -> GpuComparison:
    """One workload on many GPUs: how fast, whether it fits, for how much money and power, and why in this order.

    workload: a traced Graph; or a model, followed by its inputs.
    gpus: names, aliases, paths of specifications, or Devices; by default every shipped GPU that is no draft, and that
        PyTorch sees as one device.
    sort: "time", "per-dollar" (of the launch price, or with `price` of that), "per-watt" (the board's limit),
        "share-of-peak", "price", "energy", or with `price` "cost".
    measured: a step that was timed on one GPU, on which all predictions then rest: what `transfer` takes, or as on the
        command line "31.2 ms", or a file. measured_on: the device, by default the one that the file names. measured_at:
        what was otherwise: sizes, `execution`, `autocast`, `channels_last`, such as {"batch": 8}.
    price: of one GPU, the same for all or by a table (`Price`, `Pricing`). max_watts, max_cost: leave out GPUs that
        draw more on average, or on which a million samples cost more.
    dtype, autocast, optimizer, loss, like, name: with a model, as in `trace`. options: a number for each named size;
    with a model also the other options of `trace`.

    Raises what `predict` raises, but for GPUs that cannot run it: the result names them.

    >>> found = compare_gpus(graph, gpus=["nvidia-l4", "nvidia-t4"], batch=8)  # doctest: +SKIP
    >>> found.table, str(found)  # doctest: +SKIP
    """
    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    bounds = Bounds(price=price, max_watts=in_base("max_watts", max_watts, "W"), max_cost=max_cost)
    bounds.check(sort)
    check_word("sort", sort, SORTS)
    machines = machines_of(offered_gpus() if gpus is None else gpus, burst=burst)
    if isinstance(workload, Graph):
        check_mode(workload, mode)
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more: name GPUs as gpus=[…]")
    graph = graph_of(workload, inputs, given, mode=mode or "inference")
    step = MeasuredStep.of(measured, measured_on, measured_at)
    there, execution = host_of(host), execution_of(execution)
    corrected = None if step is None else step.correction(graph, there, execution, burst=burst)
    return compare_machines(graph, machines, there, execution, sort, corrected, bounds)


@checked
def advise(
    p: Prediction,
    gpus: Sequence[str | Path | Device] = (),
    *,
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
) -> advice.Advice:
    """What would make this step faster, each candidate predicted again, ranked by the time that it saves.

    Tried: twice the batch, channels last, autocast in both formats, torch.compile and CUDA graphs, autocast together
    with each torch.compile, copies from pinned memory, layers without recurrence instead of those with it, other
    kernels of attention, the optimizer's fused form, and the other GPUs given. What cannot be predicted, or does not
    fit the memory, is left out, and said with the reason. The model is traced again where a candidate asks for it.

    measured, measured_on, measured_at: a step that was timed somewhere, on which the step and all candidates then rest;
    see `compare_gpus`. A `Transferred` prediction rests on its own measurement.

    Raises DeviceNotFoundError or SpecError for the GPUs, and InputError for a measurement that cannot be of this step.

    >>> print(advise(p, gpus=["nvidia-l40s"]))  # doctest: +SKIP
    """
    check_listed(gpus, least=0)
    _, correct = corrected(p, measured, measured_on, measured_at)
    return advice.advise(p.plain if isinstance(p, Transferred) else p, gpus, correct)


_OF_PREDICT = ("burst", "constants", "power_limit", "sm_clock")  # options that are none of the trace's


@overload
def transfer(
    measured: object, workload: Graph | Callable[..., Any], *inputs: Any, to: str | Path | Device,
    cluster: None = ..., gpus: None = ..., strategy: None = ...,
    measured_on: str | Path | Device | None = ..., host: str | Path | Host = ...,
    to_host: str | Path | Host | None = ..., execution: Execution | Backend = ...,
    there: Mapping[str, Any] | None = ..., dtype: Format | None = ..., autocast: Format | None = ...,
    optimizer: OptimizerFactory | str | None = ..., loss: Loss | str | None = ..., like: str | Release | None = ...,
    name: str | None = ..., mode: Mode | None = ..., power_limit: str | float | None = ...,
    sm_clock: str | float | None = ..., constants: str | Path | Calibration | None = ..., **options: Given,
) -> Transferred: ...  # fmt: skip
@overload
def transfer(
    measured: object, workload: Graph | Callable[..., Any], *inputs: Any, cluster: str | Path | Cluster, to: None = ...,
    gpus: int | Sequence[int] | None = ..., strategy: str | Strategy | None = ...,
    measured_on: str | Path | Device | None = ..., host: str | Path | Host = ...,
    to_host: str | Path | Host | None = ..., execution: Execution | Backend = ...,
    there: Mapping[str, Any] | None = ..., dtype: Format | None = ..., autocast: Format | None = ...,
    optimizer: OptimizerFactory | str | None = ..., loss: Loss | str | None = ..., like: str | Release | None = ...,
    name: str | None = ..., mode: Mode | None = ..., power_limit: str | float | None = ...,
    sm_clock: str | float | None = ..., constants: str | Path | Calibration | None = ..., **options: Given,
) -> ParallelPrediction: ...  # fmt: skip
@checked
def transfer(
    measured: object,
    workload: Graph | Callable[..., Any],
    *inputs: Any,
    to: str | Path | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    gpus: int | Sequence[int] | None = None,
    strategy: str | Strategy | None = None,
    measured_on: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    to_host: str | Path | Host | None = None,
    execution: Execution | Backend = "eager",
    there: Mapping[str, Any] | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    mode: Mode | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
    constants: str | Path | Calibration | None = None,
    **options: Given,
) -> Transferred | ParallelPrediction:
    """How long a step takes on a GPU that nobody has here, by what it takes on the one that is here.

    measured: what was measured, best first: a `Profile` (a trace with shapes: operator by operator), a `Validation` (of
        `measure_model`, or loaded from its file), seconds on the device by kind of op, or seconds of a step. Or as on
        the command line: "31.2 ms", or a file or folder that says one of these.
    workload, inputs, execution, host, options: of the step that was measured, as `predict` takes them.
    measured_on: the device that it was measured on; by default the one that the trace or record names.
    to: the device to predict for. to_host: its host, by default the same.
    cluster, gpus, strategy: in its place several devices, as `parallel` takes them, for training steps. Each device's
        own part of the step is corrected; communication is as predicted.
    dtype, autocast, optimizer, loss, like, name, mode, power_limit, sm_clock, constants: likewise.
    there: what else differs there: sizes, `execution`, `autocast`, `channels_last`. On a cluster `batch` is that of all
        devices together.

    The result is a Prediction, or of a cluster a ParallelPrediction, with the correction as a term of its own, and an
    interval that is as much narrower as such measurements are worth (docs/transfer.md). Raises what `predict` and
    `parallel` raise, and InputError for a measurement that cannot be of this step.

    >>> found = transfer(31.2e-3, graph, measured_on="rtx-3090", to="rtx-4090", batch=64)  # doctest: +SKIP
    >>> found = transfer(31.2e-3, step, measured_on="rtx-3090", cluster="dgx-a100", gpus=4, batch=64,
    ...                  there={"batch": 256})  # doctest: +SKIP
    """
    given = with_named(
        options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name, mode=mode,
        power_limit=power_limit, sm_clock=sm_clock, constants=constants,
    )  # fmt: skip
    if (to is None) == (cluster is None):
        raise InputError("transfer: expected to=…, a device, or cluster=…")
    if cluster is None and (gpus, strategy) != (None, None):
        raise InputError("gpus, strategy: only several devices have them: give cluster=… too")
    step = MeasuredStep.of(measured, measured_on) if measured is not None else None
    if step is None:
        raise InputError("measured: expected a time, a file or a profile of the step; got None")
    if cluster is not None and not isinstance(workload, Graph):  # parts of the batch need its size open
        own = {name: given.pop(name) for name in _OF_PREDICT if name in given}
        workload, inputs = graph_of(workload, inputs, given, sizes_open=True, mode="training"), ()
        given = own
    source = predict(workload, *inputs, gpu=step.device, host=host, execution=execution, **given)
    if cluster is not None:
        return transferred_to_cluster(
            step.evidence, source, there or {}, cluster=cluster, gpus=gpus, strategy=strategy, host=to_host
        )
    same = source.again(machine=machine_of(device_of(to)))
    (found,) = transferred(step.evidence, source, [same], there or {}, to_host)
    return found


def transferred(
    evidence: Evidence, source: Prediction, same: Sequence[Prediction], there: Mapping[str, Any],
    host: str | Path | Host | None,
) -> list[Transferred]:  # fmt: skip
    """The same step on other devices, with what differs there, corrected by what the evidence says of the source's."""
    corrected, to_host = correcting(evidence, source), None if host is None else host_of(host)
    return [corrected(variant_of(p, there, to_host)) for p in same]


def transferred_to_cluster(
    evidence: Evidence,
    source: Prediction,
    there: Mapping[str, Any],
    *,
    cluster: str | Path | Cluster,
    gpus: int | Sequence[int] | None,
    strategy: str | Strategy | None,
    host: str | Path | Host | None,
) -> ParallelPrediction:
    """The source's step on several devices, corrected by what the evidence says of it on one."""
    if source.mode != "training":
        raise InputError("cluster: steps on several devices are training steps: trace with mode='training'")
    variant = variant_of(source, there) if there else source
    graph = traced_with(source.graph, autocast=variant.graph.autocast, channels_last=variant.graph.channels_last)
    sizes: dict[str, Any] = dict(variant.sizes)
    found = parallel(
        graph, cluster=cluster, gpus=gpus, strategy=strategy, host=host, execution=variant.execution, **sizes
    )
    return on_several(correcting(evidence, source), found)
