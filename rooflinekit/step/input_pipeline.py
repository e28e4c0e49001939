"""What a step waits for before it can compute: copies of its inputs, and the loader that makes them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.points import integer
from rooflinekit.model.collectives import PAYLOAD_SHARE
from rooflinekit.step.execution import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor on its way to the device."""

    name: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """What a step is fed with."""

    transfers: tuple[Transfer, ...] = ()
    blocking: bool = True  # whether the CPU waits for each
    supply_s: float = 0.0  # that the loader needs for the step's samples


def copy_rate(device: Device, host: Host, *, pinned: bool) -> float:
    """byte/s from the host's memory to the device: the host's figure, or what the device's link takes, if less."""
    of_host = host.copy_bandwidth_pinned if pinned else host.copy_bandwidth_pageable
    if device.pcie is None:
        return of_host
    return min(of_host, device.pcie.bandwidth_per_direction * PAYLOAD_SHARE)


def input_pipeline_of(graph: Graph, device: Device, host: Host, execution: Execution) -> InputPipeline:
    """What feeds a step of this graph, whose sizes are numbers. The inputs of a CPU's step are where it needs them.

    Raises InputError for a rate of samples where there is no input to count them by.
    """
    transfers: tuple[Transfer, ...] = ()
    if execution.copy != "none" and device.kind != "cpu":
        rate = copy_rate(device, host, pinned=execution.copy == "pinned")
        sizes = {spec.name: integer(spec.bytes) for spec in graph.inputs}
        transfers = tuple(Transfer(name=name, bytes=size, seconds=size / rate) for name, size in sizes.items())
    return InputPipeline(transfers=transfers, blocking=not execution.non_blocking, supply_s=_supply_s(graph, execution))


def _supply_s(graph: Graph, execution: Execution) -> float:
    if execution.loader_rate is None:
        return 0.0
    shape = graph.inputs[0].shape if graph.inputs else ()
    if not shape:
        raise InputError(
            f"execution loader_rate: {graph.name} has no input whose first dimension would be the number of samples"
        )
    return integer(shape[0]) / execution.loader_rate
