"""The roofs of devices, the one that each kernel is judged against, shares of them, crossings, and roofs of energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import FORMATS, Device, vector_math
from rooflinekit.ir.keyed import lists, sums
from rooflinekit.ir.op import Math
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.present.figures.records.figure import L2, DeviceFacts, Figure, Floor, Point, Provenance, Roof, RoofKind
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.energy import PowerLaw
from rooflinekit.timing.machine import Machine, flop_energy
from rooflinekit.timing.memory_system import levels
from rooflinekit.timing.timings import Timing, load_of

_ANY = "every roof"


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
    name = f"{vector_math(kernel.math)} vector"
    rate = machine.vector_rate(kernel.math)
    if kernel.cost.gemms:
        rate = machine.matrix_rate(kernel.math, tensor_core=kernel.tensor_core)
        if kernel.tensor_core and kernel.math.value in device.matrix_peak:
            name = f"{kernel.math} matrix"
    return stated_roof(device.name, "compute", name, rate.peak), rate.share


def main_roofs(kernels: Iterable[Kernel], machine: Machine) -> tuple[Roof, Roof]:
    """The datasheet's roof of memory, and the one of arithmetic under which most of these kernels' FLOP are."""
    flop = sums((ceiling(kernel, machine)[0], float(kernel.cost.flop)) for kernel in kernels)
    every = _compute(machine.device)
    return _memory(machine.device), max(flop, key=flop.__getitem__, default=every[-1])


def _sustained(machine: Machine, roof: Roof) -> float:
    """The share of a roof that kernels reach at best: one number for a unit, whatever a figure shows of it.

    On CUDA cores products and other arithmetic reach different shares: the roof is the higher one.
    """
    name, _, unit = roof.name.partition(" ")
    math = Math(name)
    if unit == "matrix":
        return machine.matrix_rate(math).share
    products = machine.matrix_rate(vector_math(math), tensor_core=False)
    return max(machine.vector_rate(math).share, products.share)


def facts_of(part: Prediction | Machine | Device) -> DeviceFacts:
    """The facts of the device that a caption states."""
    device = part if isinstance(part, Device) else part.device if isinstance(part, Machine) else part.machine.device
    matrix_hz = device.tensor_clock if device.matrix_peak else device.clock.boost
    return DeviceFacts(
        name=device.name, display_name=device.title, clock_hz=device.clock.boost, matrix_clock_hz=matrix_hz
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
    return stated_roof(device.name, "memory", device.dram.type or "DRAM", device.dram.bandwidth)


def _compute(device: Device) -> list[Roof]:
    """Every compute roof of the device, the lowest first."""
    tables = {"vector": device.vector_peak, "matrix": device.matrix_peak}
    found = [
        stated_roof(device.name, "compute", f"{math} {unit}", table[math])
        for unit, table in tables.items()
        for math in FORMATS
        if math in table
    ]
    return sorted(found, key=lambda roof: roof.value)


def stated_roof(device: str, kind: RoofKind, name: str, value: float) -> Roof:
    """A roof by the datasheet."""
    unit: Literal["byte/s", "flop/s"] = "flop/s" if kind == "compute" else "byte/s"
    return Roof(device=device, kind=kind, name=name, value=value, unit=unit, provenance="datasheet")


def _shared(roof: Roof, share: float, machine: Machine) -> Roof:
    # Constants of a GPU that was not measured are those of others.
    origin: Provenance = "fitted share" if machine.constants.measured else "default share"
    return replace(roof, value=roof.value * share, provenance=origin, share=share)


def levels_of(timings: Sequence[Timing], machine: Machine) -> dict[int, tuple[float, float]]:
    """Bytes that each kernel moves at DRAM and at the L2, by `id` of its timing."""
    found = levels([t.kernel for t in timings], [(t.unlimited or t).memory_s for t in timings], machine)
    return {id(timing): pair for timing, pair in zip(timings, found, strict=True)}


def l2_roof(machine: Machine) -> Roof:
    """The bandwidth of the L2 as a roof; no datasheet states it."""
    origin: Provenance = "fitted" if machine.constants.measured else "default"
    return replace(stated_roof(machine.device.name, "memory", L2, machine.l2_bandwidth), provenance=origin)


def floor_of(prediction: Prediction, series: str) -> Floor:
    """What a kernel takes before it works, and how many of the step work for less."""
    return Floor(
        series=series, device=prediction.machine.name,
        start_s=min(timing.launch_s for timing in prediction.timings),
        median_bytes=float(median(float(timing.kernel.bytes) for timing in prediction.timings)),
        kernels=sum(timing.launch_s > timing.busy_s for timing in prediction.timings),
    )  # fmt: skip


def normalized_view(figure: Figure) -> Figure:
    """The figure to draw: FLOP in seconds at the peak of their own roof, bytes in seconds at the memory's.

    Intensity is then relative to the ridge and performance a share of the peak, and all roofs are one. A whole step is
    judged by the highest roof of its device.
    """
    memory = {device.name: figure.memory_roof(device.name).value for device in figure.devices}
    peaks = {(r.device, r.name): r.value for r in figure.roofs if r.provenance == "datasheet" and r.kind == "compute"}
    highest = {name: max((v for (device, _), v in peaks.items() if device == name), default=1.0) for name in memory}

    def relative(point: Point) -> Point:
        peak = peaks.get((point.device, point.roof), highest[point.device])
        moved = {name: getattr(point, name) / memory[point.device] for name in ("bytes", "dram_bytes", "l2_bytes")}
        return replace(point, device=_ANY, roof="peak" if point.flop else "bandwidth", flop=point.flop / peak, **moved)

    paths = [
        replace(path, stops=tuple(
            replace(stop, flop=stop.flop / highest[stop.device], bytes=stop.bytes / memory[stop.device])
            for stop in path.stops
        ))
        for path in figure.trajectories
    ]  # fmt: skip
    common = Roof(device=_ANY, kind="memory", name="bandwidth", value=1.0, unit="share", provenance="datasheet")
    return replace(
        figure, devices=(DeviceFacts(name=_ANY, display_name="", clock_hz=0.0, matrix_clock_hz=0.0),),
        series=tuple(replace(series, device=_ANY) for series in figure.series),
        roofs=(common, replace(common, kind="compute", name="peak")), points=tuple(map(relative, figure.points)),
        rail=tuple(map(relative, figure.rail)), trajectories=tuple(paths), floors=(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where roofs of two devices meet, in FLOP/byte and FLOP/s."""

    left: str  # the device that is ahead below this intensity
    right: str
    by: str  # the roofs that are compared
    at: tuple[float, float]


def crossings(figure: Figure) -> tuple[Crossing, ...]:
    """All pairs of devices of which one has the faster memory and the other the higher peak, by their datasheets.

    Steps are compared by the highest roofs that they use, devices alone by the highest that both have.
    """
    stated = [roof for roof in figure.roofs if roof.provenance == "datasheet"]
    slopes = {roof.device: roof.value for roof in stated if roof.kind == "memory"}
    compute = lists((roof.device, (roof.name, roof.value)) for roof in stated if roof.kind == "compute")
    levels = {device: dict(named) for device, named in compute.items()}
    found = []
    for a, b in permutations((device for device in slopes if device in levels), 2):
        one, two = (max(levels[device], key=levels[device].__getitem__) for device in (a, b))
        if not figure.series and not figure.trajectories:
            common = (name for name in levels[a] if name in levels[b])
            one = two = max(common, key=levels[a].__getitem__, default="")
        if one in levels[a] and slopes[a] > slopes[b] and levels[a][one] < levels[b][two]:
            level = levels[a][one]
            by = one if one == two else f"{one} and {two}"
            found.append(Crossing(left=a, right=b, by=by, at=(level / slopes[b], level)))
    return tuple(found)


# What an energy roofline shows: FLOP per joule over FLOP per byte, of kernels and of the best that there could be.
#
# As in Choi, Bedard, Fowler, Vuduc: A Roofline Model of Energy (IPDPS 2013): where traffic takes the energy, a joule
# buys FLOP in proportion to intensity; where arithmetic does, a constant number. The bend is round, for both are paid.


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPoint:
    """Kernels of one kind."""

    kind: str
    intensity: float  # FLOP by bytes of DRAM traffic
    flop_per_joule: float
    joules: float  # without the waits between kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFigure:
    """Roofs of a device and the kernels of a step on it."""

    device: str
    points: tuple[EnergyPoint, ...]  # the most joules first
    intensity: NDArray[np.float64]
    roofs: Mapping[str, NDArray[np.float64]]  # the most FLOP that a joule buys at each intensity, by format


def energy_figure(prediction: Prediction) -> EnergyFigure:
    """The figure of a prediction. Raises InputError where its device's power is not known, or nothing computes."""
    law, energy = PowerLaw.of(prediction.machine), prediction.energy
    if law is None or energy is None:
        raise InputError(
            f"{prediction.machine.name}: its specification states no board_power or no process_nm, so joules are not "
            "known: add them, or name another GPU"
        )
    load = load_of(prediction.timings, prediction.machine)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for i, run in enumerate(prediction.spans):
        kernel = run.timing.kernel
        spent = energy.spans_j[i] - energy.idle_w * run.waited_s
        for place, value in enumerate((float(kernel.cost.flop), float(load.dram_bytes[i]), spent)):
            totals[kernel.kind][place] += value
    found = [
        EnergyPoint(kind=kind, intensity=flop / moved, flop_per_joule=flop / joules, joules=joules)
        for kind, (flop, moved, joules) in totals.items()
        if flop > 0 and moved > 0 and joules > 0
    ]
    points = tuple(sorted(found, key=lambda point: -point.joules))
    if not points:
        raise InputError(f"{prediction.graph_name}: no kernel computes: there are no FLOP to buy")
    multiplied = {t.kernel.math for t in prediction.timings if t.kernel.cost.gemms}
    maths = sorted(multiplied or {Math.FP32}, key=lambda math: math.value)
    low, high = min(p.intensity for p in points) / 3, max(p.intensity for p in points) * 3
    span = np.geomspace(min(low, 0.1), max(high, 1e3), 200)
    roofs = {math.value: energy_roof(law, prediction.machine, math, span) for math in maths}
    return EnergyFigure(device=prediction.machine.device.short_title, points=points, intensity=span, roofs=roofs)


def energy_roof(law: PowerLaw, machine: Machine, math: Math, intensity: NDArray[np.float64]) -> NDArray[np.float64]:
    """The most FLOP of a format that a joule buys: at the datasheet's rates, every byte once through cache and DRAM."""
    rate = machine.matrix_rate(math)
    seconds = np.maximum(1 / min(rate.peak, rate.limit), 1 / (intensity * machine.bandwidth))  # of a FLOP
    joules = (
        (law.idle_w + law.clocks_w) * seconds
        + (1 - law.idle_w / law.board_w)
        * flop_energy(machine.device, machine.values, math, tensor_core=rate.on_tensor_core)
        + (law.dram_j + law.cache_j) / intensity
    )
    return 1 / np.minimum(joules, law.kept(law.board_w) * seconds)  # what the controller sees, and the law does not
