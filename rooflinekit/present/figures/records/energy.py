"""What an energy roofline shows: FLOP per joule over FLOP per byte, of kernels and of the best that there could be.

As in Choi, Bedard, Fowler, Vuduc: A Roofline Model of Energy (IPDPS 2013): where traffic takes the energy, a joule buys
FLOP in proportion to intensity; where arithmetic does, it buys a constant number. The bend is round, for both are paid.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError
from rooflinekit.ir.op import Math
from rooflinekit.model.energy import PowerLaw
from rooflinekit.model.machine import Machine, flop_energy
from rooflinekit.model.timing import load_of
from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPoint:
    """Kernels of one kind."""

    kind: str
    intensity: float  # FLOP by bytes of DRAM traffic
    flop_per_joule: float
    joules: float  # without the waits between kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyRoof:
    """The most FLOP that a joule buys in one format, over intensity."""

    math: str
    intensity: NDArray[np.float64]
    flop_per_joule: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFigure:
    """Roofs of a device and the kernels of a step on it."""

    device: str
    points: tuple[EnergyPoint, ...]  # the most joules first
    roofs: tuple[EnergyRoof, ...]


def energy_figure(prediction: Prediction) -> EnergyFigure:
    """The figure of a prediction. Raises InputError where its device's power is not known, or nothing computes."""
    law, energy = PowerLaw.of(prediction.machine), prediction.energy
    if law is None or energy is None:
        raise InputError(
            f"{prediction.machine.name}: its specification states no board_power or no process_nm, so joules are not "
            "known: add them, or name another GPU"
        )
    points = _points(prediction)
    if not points:
        raise InputError(f"{prediction.graph_name}: no kernel computes: there are no FLOP to buy")
    multiplied = {t.kernel.math for t in prediction.timings if t.kernel.cost.gemms}
    maths = sorted(multiplied or {Math.FP32}, key=lambda math: math.value)
    low, high = min(p.intensity for p in points) / 3, max(p.intensity for p in points) * 3
    span = np.geomspace(min(low, 0.1), max(high, 1e3), 200)
    roofs = tuple(energy_roof(law, prediction.machine, math, span) for math in maths)
    return EnergyFigure(device=prediction.machine.device.short_title, points=points, roofs=roofs)


def _points(p: Prediction) -> tuple[EnergyPoint, ...]:
    assert p.energy is not None
    load = load_of(p.timings, p.machine)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for i, span in enumerate(p.spans):
        kernel = span.timing.kernel
        joules = p.energy.spans_j[i] - p.energy.idle_w * span.waited_s
        for place, value in enumerate((float(kernel.cost.flop), float(load.dram_bytes[i]), joules)):
            sums[kernel.kind][place] += value
    found = [
        EnergyPoint(kind=kind, intensity=flop / moved, flop_per_joule=flop / joules, joules=joules)
        for kind, (flop, moved, joules) in sums.items()
        if flop > 0 and moved > 0 and joules > 0
    ]
    return tuple(sorted(found, key=lambda point: -point.joules))


def energy_roof(law: PowerLaw, machine: Machine, math: Math, intensity: NDArray[np.float64]) -> EnergyRoof:
    """The most FLOP of a format that a joule buys: at the datasheet's rates, every byte once through cache and DRAM."""
    rate = machine.matrix_rate(math)
    seconds = np.maximum(1 / min(rate.peak, rate.limit), 1 / (intensity * machine.bandwidth))  # of a FLOP
    joules = (
        (law.idle_w + law.clocks_w) * seconds
        + (1 - law.idle_w / law.board_w)
        * flop_energy(machine.device, machine.values, math, tensor_core=rate.on_tensor_core)
        + (law.dram_j + law.cache_j) / intensity
    )
    joules = np.minimum(joules, law.kept(law.board_w) * seconds)  # what the controller sees, and the law does not
    return EnergyRoof(math=math.value, intensity=intensity, flop_per_joule=1 / joules)
