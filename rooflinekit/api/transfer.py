"""The walk from a measured step on one device to the same network on another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rooflinekit.api.measured import MeasuredStep
from rooflinekit.api.predict import device_of, host_of, machines_of, predict
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir.graph import Graph
from rooflinekit.step.execution import Backend, Execution
from rooflinekit.step.prediction import predict_graph
from rooflinekit.step.variants import other_way
from rooflinekit.study.transfer.transferred import Transferred, transferred


def transfer(
    measured: object,
    workload: Graph | Callable[..., Any],
    *inputs: Any,
    to: str | Path | Device,
    measured_on: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    to_host: str | Path | Host | None = None,
    execution: Execution | Backend = "eager",
    there: Mapping[str, Any] | None = None,
    **options: Any,
) -> Transferred:
    """How long a step takes on a GPU that nobody has here, by what it takes on the one that is here.

    measured: what was measured, best first: a `Profile` (a trace with shapes: operator by operator), a `Validation` (of
        `measure_model`, or loaded from its file), seconds on the device by kind of op, or seconds of a step. Or as on
        the command line: "31.2 ms", or a file or folder that says one of these.
    workload, inputs, execution, host, options: of the step that was measured, as `predict` takes them.
    measured_on: the device that it was measured on; by default the one that the trace or record names.
    to: the device to predict for. to_host: its host, by default the same.
    there: what else differs there: sizes, `execution`, `autocast`, `channels_last`.

    The result is a Prediction with the correction as a term of its own, and an interval that is as much narrower as
    such measurements are worth (docs/transfer.md). Raises what `predict` raises, and InputError for a measurement that
    cannot be of this step.

    >>> found = transfer(31.2e-3, graph, measured_on="rtx-3090", to="rtx-4090", batch=64)  # doctest: +SKIP
    """
    step = MeasuredStep.of(measured, measured_on) if measured is not None else None
    if step is None:
        raise InputError("measured: expected a time, a file or a profile of the step; got None")
    source = predict(workload, *inputs, gpu=step.device, host=host, execution=execution, **options)
    same = predict_graph(source.graph, machines_of([device_of(to)])[0], source.host, source.execution)
    target = other_way(same, there or {}, None if to_host is None else host_of(to_host))
    return transferred(step.evidence, source, target)
