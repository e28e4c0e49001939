"""Traffic by level of memory, the roof of the L2, and what starting kernels costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import levels
from rooflinekit.model.roofline import Timing
from rooflinekit.present.figures.records.figure import L2, Floor, Roof
from rooflinekit.step.prediction import Prediction


def levels_of(timings: Sequence[Timing], machine: Machine) -> dict[int, tuple[float, float]]:
    """Bytes that each kernel moves at DRAM and at the L2, by `id` of its timing."""
    found = levels([t.kernel for t in timings], [(t.unlimited or t).memory_s for t in timings], machine)
    return {id(timing): pair for timing, pair in zip(timings, found, strict=True)}


def l2_roof(machine: Machine) -> Roof:
    """What the L2 gives: no datasheet states it."""
    return Roof(
        device=machine.device.name,
        kind="memory",
        name=L2,
        value=machine.l2_bandwidth,
        unit="byte/s",
        provenance="fitted" if machine.constants.measured else "default",
    )


def floor_of(prediction: Prediction, series: str) -> Floor:
    """What a kernel takes before it works, and how many of the step work for less."""
    machine = prediction.machine
    return Floor(
        series=series,
        device=machine.name,
        start_s=min(timing.launch_s for timing in prediction.timings),
        median_bytes=float(median(float(timing.kernel.bytes) for timing in prediction.timings)),
        kernels=sum(timing.launch_s > timing.busy_s for timing in prediction.timings),
    )
