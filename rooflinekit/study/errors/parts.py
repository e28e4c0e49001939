"""Of what a prediction's error consists: independent parts, each with its weight in the step and its spread.

A predicted step is off by ln(measured / predicted) = Σ weight · part. The parts are those of `Prediction.interval`:
what the kernels of a family share on a device, each kernel's own, and the host's; and two of the network, as a whole
and in what issuing it takes. The step's time is proportional to the times of kernels and host together, so their
weights are two shares of one, and inputs that are copied the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Phase
from rooflinekit.model.families import OF_A_BACKWARD_PASS, UNMODELLED, base_of, residuals_of, unmodelled
from rooflinekit.model.roofline import Timing
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.errors.components import ISSUING, NETWORK

#: Levels that plain intervals leave out.
BEYOND_INTERVALS = ("issuing", "network")

_STEP = 1.02  # of the host's times, to see by how much the step follows them


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an error: of a family, of an operator, of the host, of the network."""

    level: str  # "family", "unmodelled", "kernel", "host", "issuing", "network"
    family: str = ""  # in any format; of what is unmodelled, which of UNMODELLED
    unit: str = ""  # the family in the format that it runs in on this device, by which spreads are kept
    name: str = ""  # of the first op whose kernel it is; equal shapes count as one
    cost: Cost | None = None


WHOLE = Part("network")
ISSUED = Part("issuing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A part's weight in what is measured, times its spread, in ln."""

    weight: float
    spread: float

    @property
    def size(self) -> float:
        """By how much this part moves the time, one standard deviation, in ln."""
        return self.weight * self.spread


def parts_of(p: Prediction, names: Mapping[str, str] | None = None) -> dict[Part, Loaded]:
    """The parts of a whole step's error. names: of ops, the op whose kernel counts as theirs (see `leaders`)."""
    host = host_weight(p)
    kernels = max(0.0, 1.0 - host - p.terms()["input"] / p.total_s) if p.total_s else 0.0
    found = {part: replace(one, weight=one.weight * kernels) for part, one in kernel_parts(p, names).items()}
    if host:
        found[Part("host")] = Loaded(weight=host, spread=p.host.spread)
        found[ISSUED] = Loaded(weight=host, spread=ISSUING.value)
    found[WHOLE] = Loaded(weight=1.0, spread=of_network(p))
    return found


def of_network(p: Prediction) -> float:
    """What a network is off by itself; of a training step also what its backward pass is, of which no op tells."""
    learns = any(timing.kernel.phase is Phase.BACKWARD for timing in p.timings)
    return math.hypot(NETWORK.value, OF_A_BACKWARD_PASS) if learns else NETWORK.value


def kernel_parts(
    p: Prediction, names: Mapping[str, str] | None = None, timings: Sequence[Timing] | None = None
) -> dict[Part, Loaded]:
    """The parts of the kernels' error, or of some kernels' of the step, by their shares of these kernels' time."""
    names = leaders(p) if names is None else names
    timings = p.timings if timings is None else timings
    total = sum(timing.total_s for timing in timings)
    weights: dict[Part, float] = defaultdict(float)
    counts: dict[Part, int] = defaultdict(int)
    for timing in timings:
        kernel = timing.kernel
        share = timing.total_s / total
        family, unit = base_of(kernel), residuals_of(kernel, p.machine)
        weights[Part("family", family, unit)] += share
        alone = Part("kernel", family, unit, names.get(kernel.name, kernel.name), kernel.cost)
        weights[alone] += share
        counts[alone] += 1
    spreads = p.machine.constants.spreads

    def spread(part: Part, share: float) -> float:
        known = spreads[part.unit]
        if part.level == "family":
            return known.systematic
        return (
            math.sqrt(float(known.random_variance(share * total, counts[part]))) / (share * total)
            if share
            else known.random
        )

    return {part: Loaded(weight=weight, spread=spread(part, weight)) for part, weight in weights.items()}


def untold_parts(timings: Sequence[Timing]) -> dict[Part, Loaded]:
    """What those of some kernels share of which no like was measured, by their shares of these kernels' time.

    Ratios alone know it: with these parts transfers between kindred chips were off by 21.1 and 13.3 % in place of 20.0
    and 12.4 (KernelBench compiled and eager, `benchmarks/transfer_accuracy.py`).
    """
    total = sum(timing.total_s for timing in timings)
    weights: dict[str, float] = defaultdict(float)
    for timing in timings:
        weights[unmodelled(timing.kernel)] += timing.total_s / total
    return {
        Part("unmodelled", name): Loaded(weight=weight, spread=UNMODELLED[name])
        for name, weight in weights.items()
        if name
    }


def leaders(p: Prediction) -> dict[str, str]:
    """For each kernel's name that of the first with the same work, which is as wrong."""
    first: dict[tuple[str, str, Cost], str] = {}
    return {
        timing.kernel.name: first.setdefault(
            (residuals_of(timing.kernel, p.machine), timing.kernel.kind, timing.kernel.cost), timing.kernel.name
        )
        for timing in p.timings
    }


def host_weight(p: Prediction) -> float:
    """By what share of 1 % the step grows when the host's times grow by 1 %."""
    if p.machine.device.kind == "cpu" or not p.timeline.idle_s:
        return 0.0
    slower = predict_graph(p.graph, p.machine, scaled(p.host, _STEP), p.execution)
    return min(1.0, max(0.0, (slower.total_s / p.total_s - 1) / (_STEP - 1)))


def scaled(host: Host, factor: float) -> Host:
    """A host all of whose times are so many times as long; its bandwidths stay."""
    times = ("launch", "launch_latency", "sync", "step", "compiled_launch", "guards", "graph_launch")
    changed = {name: getattr(host, name) * factor for name in times}
    return host.model_copy(
        update={**changed, "dispatch": {name: seconds * factor for name, seconds in host.dispatch.items()}}
    )
