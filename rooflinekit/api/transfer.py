"""The walk from a measured step on one device to the same network on another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rooflinekit.api.keywords import with_named
from rooflinekit.api.measured import MeasuredStep
from rooflinekit.api.parallel import graph_at, parallel
from rooflinekit.api.predict import device_of, host_of, machines_of, predict
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.distributed.records import Strategy
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph, traced_with
from rooflinekit.ir.inputs import Mode, Release
from rooflinekit.model.machine import Calibration
from rooflinekit.step.execution import Backend, Execution
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.variants import other_way
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.study.transfer.transferred import Transferred, correcting, on_several, transferred

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory

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
        raise InputError("gpus, strategy: of several devices: give cluster=… too")
    step = MeasuredStep.of(measured, measured_on) if measured is not None else None
    if step is None:
        raise InputError("measured: expected a time, a file or a profile of the step; got None")
    if cluster is not None and not isinstance(workload, Graph):  # parts of the batch need its size open
        own = {name: given.pop(name) for name in _OF_PREDICT if name in given}
        workload, inputs, given = graph_at(workload, inputs, given), (), own
    source = predict(workload, *inputs, gpu=step.device, host=host, execution=execution, **given)
    if cluster is not None:
        return transferred_to_cluster(
            step.evidence, source, there or {}, cluster=cluster, gpus=gpus, strategy=strategy, host=to_host
        )
    same = predict_graph(source.graph, machines_of([device_of(to)])[0], source.host, source.execution)
    target = other_way(same, there or {}, None if to_host is None else host_of(to_host))
    return transferred(step.evidence, source, target)


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
    way = other_way(source, there) if there else source
    graph = traced_with(source.graph, autocast=way.graph.autocast, channels_last=way.graph.channels_last)
    sizes: dict[str, Any] = dict(way.sizes)
    found = parallel(graph, cluster=cluster, gpus=gpus, strategy=strategy, host=host, execution=way.execution, **sizes)
    return on_several(correcting(evidence, source), found)
