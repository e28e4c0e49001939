"""The walk that puts one workload on many GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.api.keywords import with_named
from rooflinekit.api.measured import MeasuredStep
from rooflinekit.api.predict import host_of, in_base, machines_of, traced_at
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, devices
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Mode, Release
from rooflinekit.step.execution import Backend, Execution, execution_of

if TYPE_CHECKING:
    from rooflinekit.study.compare.cost import Price, Pricing
    from rooflinekit.study.compare.gpus import GpuComparison
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory


@checked
def compare_gpus(
    workload: Graph | Callable[..., Any] | str,
    *inputs: Any,
    gpus: Sequence[str | Path | Device] | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Backend = "eager",
    mode: Mode = "inference",
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
    from rooflinekit.study.compare.cost import Bounds
    from rooflinekit.study.compare.gpus import compare_machines

    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    bounds = Bounds(price=price, max_watts=in_base(max_watts, "W"), max_cost=max_cost)
    bounds.check(sort)
    machines = machines_of(gpus if gpus is not None else _comparable(), burst=burst)
    if isinstance(workload, Graph):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more: name GPUs as gpus=[…]")
        graph = workload.at(**given)
    else:
        graph = traced_at(workload, inputs, {"mode": mode, **given})
    step = MeasuredStep.of(measured, measured_on, measured_at)
    there, way = host_of(host), execution_of(execution)
    corrected = None if step is None else step.correction(graph, there, way, burst=burst)
    return compare_machines(graph, machines, there, way, sort, corrected, bounds)


def _comparable() -> list[Device]:
    return [device for device in devices() if device.kind == "gpu" and not device.caution]
