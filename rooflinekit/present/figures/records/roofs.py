"""The roofs of devices, and the one that each kernel is judged against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rooflinekit.hardware.device import FORMATS, Device
from rooflinekit.ir.op import Math
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import levels
from rooflinekit.model.timing import Timing
from rooflinekit.present.figures.records.figure import L2, DeviceFacts, Floor, Provenance, Roof
from rooflinekit.step.prediction import Prediction


def roofs_of(part: Prediction | Machine | Device) -> tuple[Roof, ...]:
    """The roofs that one part of a figure brings: memory, and arithmetic, each by datasheet and by sustained share.

    A prediction brings the arithmetic that its kernels use, a machine and a device all of theirs. A device has no
    shares.
    """
    if isinstance(part, Device):
        return (_memory(part), *_compute(part))
    machine = part.machine if isinstance(part, Prediction) else part
    if isinstance(part, Prediction):
        used = dict.fromkeys(ceiling(t.kernel, machine)[0] for t in part.timings if t.kernel.cost.flop)
    else:
        used = dict.fromkeys(_compute(machine.device))
    ceilings = [(roof, _sustained(machine, roof)) for roof in used]
    memory = _memory(machine.device)
    found = [memory, _shared(memory, machine.bandwidth_share, machine)]
    for roof, share_of_peak in sorted(ceilings, key=lambda pair: pair[0].value):
        found += [roof, _shared(roof, share_of_peak, machine)]
    return tuple(dict.fromkeys(found))


def ceiling(kernel: Kernel, machine: Machine) -> tuple[Roof, float]:
    """The compute roof that a kernel is judged against, by the datasheet, and the share of it that its kind sustains.

    Products are judged by the unit that runs them, everything else by the CUDA cores. Raises FormatError for
    arithmetic that the device does not have.
    """
    device = machine.device
    name = f"{Math.FP64 if kernel.math is Math.FP64 else Math.FP32} vector"
    rate = machine.vector_rate(kernel.math)
    if kernel.cost.gemms:
        rate = machine.matrix_rate(kernel.math, tensor_core=kernel.tensor_core)
        if kernel.tensor_core and kernel.math.value in device.matrix_peak:
            name = f"{kernel.math} matrix"
    return _roof(device, name, rate.peak), rate.share


def main_roofs(kernels: Iterable[Kernel], machine: Machine) -> tuple[Roof, Roof]:
    """The datasheet's roof of memory, and the one of arithmetic under which most of these kernels' FLOP are."""
    flop: dict[Roof, float] = {}
    for kernel in kernels:
        roof, _ = ceiling(kernel, machine)
        flop[roof] = flop.get(roof, 0.0) + float(kernel.cost.flop)
    every = _compute(machine.device)
    return _memory(machine.device), max(flop, key=flop.__getitem__, default=every[-1])


def _sustained(machine: Machine, roof: Roof) -> float:
    """The share of a roof that kernels reach at best: one number for a unit, whatever a figure shows of it.

    On CUDA cores products and other arithmetic reach different shares: the roof is the higher one.
    """
    math, _, unit = roof.name.partition(" ")
    if unit == "matrix":
        return machine.matrix_rate(Math(math)).share
    return max(machine.constants.value("vector_share"), machine.constants.value("simt_share"))


def facts_of(part: Prediction | Machine | Device) -> DeviceFacts:
    """What a caption says of the device."""
    device = part if isinstance(part, Device) else part.device if isinstance(part, Machine) else part.machine.device
    return DeviceFacts(
        name=device.name,
        display_name=device.display_name or device.name,
        clock_hz=device.clock.boost,
        matrix_clock_hz=device.tensor_clock if device.matrix_peak else device.clock.boost,
    )


def highest(roofs: Iterable[Roof]) -> tuple[Roof, ...]:
    """Each roof once: of several that differ in their share alone, the highest."""
    best: dict[tuple[str, str, Provenance], Roof] = {}
    for roof in roofs:
        key = (roof.device, roof.name, roof.provenance)
        if key not in best or roof.value > best[key].value:
            best[key] = roof
    return tuple(best.values())


def _memory(device: Device) -> Roof:
    return Roof(
        device=device.name,
        kind="memory",
        name=device.dram.type or "DRAM",
        value=device.dram.bandwidth,
        unit="byte/s",
        provenance="datasheet",
    )


def _compute(device: Device) -> list[Roof]:
    """Every arithmetic of the device, the lowest first."""
    tables = {"vector": device.vector_peak, "matrix": device.matrix_peak}
    found = [
        _roof(device, f"{math} {unit}", table[math])
        for unit, table in tables.items()
        for math in FORMATS
        if math in table
    ]
    return sorted(found, key=lambda roof: roof.value)


def _roof(device: Device, name: str, value: float) -> Roof:
    return Roof(device=device.name, kind="compute", name=name, value=value, unit="flop/s", provenance="datasheet")


def _shared(roof: Roof, share: float, machine: Machine) -> Roof:
    # Constants of a GPU that was not measured are those of others.
    origin: Provenance = "fitted share" if machine.constants.measured else "default share"
    return Roof(
        device=roof.device,
        kind=roof.kind,
        name=roof.name,
        value=roof.value * share,
        unit=roof.unit,
        provenance=origin,
        share=share,
    )


# Traffic by level of memory, the roof of the L2, and what starting kernels costs.


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
