"""From where on something else limits: sizes and bandwidths at which two sides of a prediction are equal.

All are searched on predictions, not on formulas: tiles, caches, launches and the CPU's work are in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scipy.optimize import brentq

from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import opened
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Bound
from rooflinekit.step.capacity import largest
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.variants import BATCH
from rooflinekit.study.compare.intensity import is_within, part_of
from rooflinekit.units import format_quantity

#: Where searches for a size end; a power of 2.
MOST = 2**16
_WIDEST = 64.0  # bandwidths are searched up to so many times the stated one, and down to its part


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCrossover:
    """The size from which something holds: at `value`, and not at one less; None where it does not up to `MOST`."""

    what: str
    size: str
    value: int | None
    at: Prediction | None  # at this size

    def __str__(self) -> str:
        if self.value is None or self.at is None:
            return f"{self.what}: at no {self.size} up to {MOST}"
        memory = "" if self.at.memory.fits else f", which does not fit the memory of {self.at.machine.name}"
        return f"{self.what}: from {self.size} {self.value} on{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthCrossover:
    """The DRAM bandwidth, in byte/s, at which a second GPU takes as long as the first; None where none does."""

    first: Prediction
    second: Prediction  # as its specification states it
    bandwidth: float | None
    at: Prediction | None  # the second with this bandwidth

    def __str__(self) -> str:
        first, second = self.first.machine, self.second.machine
        stated = format_quantity(second.bandwidth, "byte/s")
        if self.bandwidth is None:
            always = "slower" if self.second.total_s > self.first.total_s else "faster"
            return f"{second.name} is {always} than {first.name} at any DRAM bandwidth near its own {stated}"
        found = format_quantity(self.bandwidth, "byte/s")
        side = "less" if self.second.total_s > self.first.total_s else "more"
        return f"{second.name} is faster than {first.name} from {found} of DRAM bandwidth on; it has {side}: {stated}"


@checked
def compute_bound_from(
    p: Prediction, size: str = BATCH, *, module: str | None = None, op: str | None = None
) -> SizeCrossover:
    """The smallest batch, or other named size, at which a step, a module or an op is compute-bound.

    Compute-bound as in `Prediction.regime`: more of its time goes to arithmetic at its roof than to traffic, to what
    reaches neither roof, and to waits. Sizes are doubled until it holds, and halved from there; where it comes and
    goes, as tiles fill, it is the first such place that this finds. Raises InputError for an unknown module or op, and
    SizeError for an unknown size.
    """
    name, chosen = part_of(p.graph, module=module, op=op)
    names = {priced.op.name for priced in chosen}
    whole_step = module is None and op is None

    def belongs(kernel: Kernel) -> bool:
        return kernel.name.partition(":")[0] in names if module is None else is_within(kernel.module, module)

    if not any(belongs(timing.kernel) for timing in p.timings):
        raise InputError(
            f"{name} runs no kernel of its own: it is a view, or fused with others ({p.execution.backend})"
        )

    def holds(found: Prediction) -> bool:
        return (found.regime if whole_step else _regime(found, belongs)) == "compute"

    return _first(p, size, f"{name} is compute-bound on {p.machine.name}", holds)


def _regime(p: Prediction, belongs: Callable[[Kernel], bool]) -> Bound:
    """Where most of the time of some of the kernels goes."""
    seconds: dict[Bound, float] = dict.fromkeys(("compute", "memory", "latency", "overhead"), 0.0)
    for span in p.spans:
        timing = span.timing
        if belongs(timing.kernel):
            for name, part in timing.parts().items():
                seconds[name] += part
            seconds["overhead"] += span.waited_s
    return max(seconds, key=seconds.__getitem__)


@checked
def gpu_bound_from(p: Prediction, size: str = BATCH) -> SizeCrossover:
    """The smallest batch, or other named size, from which the CPU no longer limits.

    That is where the kernels take at least as long as the CPU needs to issue them. Searched as in
    `compute_bound_from`. Raises SizeError for an unknown size.
    """
    what = f"the kernels on {p.machine.name} take longer than {p.host.name} to issue them"
    return _first(p, size, what, lambda found: found.gpu_s >= found.cpu_s)


def _first(p: Prediction, size: str, what: str, holds: Callable[[Prediction], bool]) -> SizeCrossover:
    whole = opened(p.graph, size)
    others = {name: value for name, value in p.sizes.items() if name in whole.dims and name != size}

    def at(value: int) -> Prediction:
        return predict_graph(whole.at(**others, **{size: value}), p.machine, p.host, p.execution)

    below = largest(lambda value: not holds(at(value)), MOST)
    if below == MOST:
        return SizeCrossover(what=what, size=size, value=None, at=None)
    return SizeCrossover(what=what, size=size, value=below + 1, at=at(below + 1))


@checked
def bandwidth_to_match(p: Prediction, gpu: str | Path | Device) -> BandwidthCrossover:
    """The DRAM bandwidth at which another GPU would take as long as this step does: with more it is faster.

    The other GPU keeps all else: peaks, caches, the constants fitted for it. Searched between a 64th and 64 times its
    stated bandwidth. Raises InputError for the GPU that the step is on, DeviceNotFoundError or SpecError.
    """
    device = gpu if isinstance(gpu, Device) else load_device(gpu)
    if device == p.machine.device:
        raise InputError(f"{device.name} is the GPU of the step: name another one")
    constants = constants_for(device)

    def at(bandwidth: float) -> Prediction:
        changed = device.replace(dram={"bandwidth": bandwidth})
        return predict_graph(p.graph, Machine.of(changed, constants, burst=p.machine.burst), p.host, p.execution)

    def behind(exponent: float) -> float:
        return math.log(at(stated * math.exp(exponent)).total_s / p.total_s)

    stated, end = device.dram.bandwidth, math.log(_WIDEST)
    second = at(stated)
    if behind(-end) * behind(end) > 0:
        return BandwidthCrossover(first=p, second=second, bandwidth=None, at=None)
    bandwidth = stated * math.exp(brentq(behind, -end, end, xtol=1e-12, rtol=1e-12))
    return BandwidthCrossover(first=p, second=second, bandwidth=bandwidth, at=at(bandwidth))
