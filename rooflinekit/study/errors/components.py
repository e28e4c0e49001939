"""What predictions are off by, part by part: correlations and spreads, with sources; and how certain ratios are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import chain, count
from types import MappingProxyType
from typing import Any

from rooflinekit.calibrate.fitting.files import architecture_of
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import CPU_TIMES, Host
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir import keyed
from rooflinekit.ir.cost import Cost
from rooflinekit.step.bounds import by_host
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.estimate import around, away, deviations
from rooflinekit.timing.families import SERVED, SERVING, UNMODELLED, base_of, of_the_step, residuals_of, unmodelled
from rooflinekit.timing.timings import Timing

# Each number stands below its meaning and its source. Those of kernels timed alone are medians over pairs of GPUs of
# the correlation of ln(measured / predicted) of equal shapes about each GPU's mean (benchmarks/transfer/components.py).
# Those "of steps" are the most likely values for whole steps of one half of the networks of timm and KernelBench, by a
# hash of their families (the same with --estimate).


class Chips(StrEnum):
    """How alike the chips of two devices are, as far as libraries choose kernels and limits decide."""

    SAME = "same"  # one device
    ONE = "one"  # as many multiprocessors of one architecture, with whatever memory
    KINDRED = "kindred"  # of one vendor and both with stacked memory, or both without
    FOREIGN = "foreign"


#: Correlation between kindred chips of a kernel's own error, by family, of kernels timed alone. Stacked memory goes
#: with much bandwidth for the arithmetic and with large shared memory: what limits a kernel, and which tiles libraries
#: take, is alike among chips that have it, and among those that have not. Foreign chips have 0: over 1,558 pairs of
#: KernelBench's steps that kernels decide, ranks of errors have a correlation of 0.00 there (kindred 0.39, one 0.91).
KERNEL: Mapping[str, float] = MappingProxyType(
    {
        "attention": 0.85, "convolution": 0.54, "elementwise": 0.87, "normalization": 0.81, "product": 0.38,
        "serving": 0.30, "softmax": 0.73,
    }
)  # fmt: skip
OTHER_KERNEL = 0.73  # their median

_LIKE = {
    "batched product": "product",
    "convolution gradient": "convolution",
    "convolution weight gradient": "convolution",
    **dict.fromkeys(SERVED.values(), SERVING),
    "unusual convolution": "convolution",
    "decoding": "attention",
}


def _by_chips(one: float, kindred: float, foreign: float) -> Mapping[Chips, float]:
    return MappingProxyType({Chips.SAME: 1.0, Chips.ONE: one, Chips.KINDRED: kindred, Chips.FOREIGN: foreign})


#: By how much less than among shapes timed alone a kernel's error within a whole step carries over; of steps.
IN_STEPS = _by_chips(0.91, 0.87, 0.0)

#: Correlation of the error that all kernels of a family share on a GPU; of steps. It is of the GPU's constants: on
#: another chip it says nothing, and must move no step there.
SHARED = _by_chips(0.94, 0.0, 0.0)


def of_kernels(family: str, chips: Chips) -> float:
    """The correlation for kernels of a family in any format, one of `timing.families`, within whole steps."""
    return alone(family, chips) * IN_STEPS[chips]


def alone(family: str, chips: Chips) -> float:
    """The correlation for kernels that were timed alone; 1 on one chip."""
    if chips is not Chips.KINDRED:
        return 0.0 if chips is Chips.FOREIGN else 1.0
    return KERNEL.get(family, KERNEL.get(_LIKE.get(family, ""), OTHER_KERNEL))


#: Correlation of one kernel's error with that of the same operator on another unit, in another format or on another
#: layout there, and at another size. Stated; no measurement tells it.
OTHER_UNIT = OTHER_SIZE = 0.5

#: Correlation of the errors of two hosts' times, in ln, and of two that nobody named; of steps.
OTHER_HOST = 0.0

#: What a whole network is off by beyond its kernels, in ln, and how much of that it is off by on another device; of
#: steps.
NETWORK = 0.08
NETWORKS = _by_chips(0.81, 0.92, 0.0)

#: The same of what a training step is off by besides (`timing.families.OF_A_BACKWARD_PASS`): how its program was
#: written, which kernels its optimizer has, which batch it says it has. That is the same on every chip. Stated: half.
PROGRAMS = _by_chips(1.0, 0.5, 0.5)

#: Correlation between different chips of what inductor's kernels, transposed convolutions and sums share
#: (`timing.families.UNMODELLED`): the forms of kernels that the model does not know are the same on every chip. The
#: most likely value for compiled steps of one half of KernelBench's problems; the other half agrees
#: (benchmarks/networks/comparison.py --estimate).
UNMODELLED_KERNELS = 0.9

#: What issuing one network takes longer than its host's pace tells, in ln: Python between the operators, their numbers
#: of arguments, and trials of other days. The most likely value for pairs of steps that wait for one CPU (likewise).
ISSUING = 0.2
#: The correlation of that with the same on another host: KernelBench's steps that wait for the CPU, on pairs of its
#: hosts, about each host's median: 0.4 to 0.7.
ISSUING_ELSEWHERE = 0.5

#: How often errors are much larger than their spreads: the degrees of freedom of Student's distribution; of steps.
FREEDOM = 4.2

#: How well two measurements of one step on one device agree, in ln: clocks, drivers, releases. timm's steps measured
#: again with a later release of PyTorch; repeats of benchmark scripts 0.1 to 2 %.
MEASURED = 0.02


# Of what a prediction's error consists: independent parts, each with its weight in the step and its spread.
#
# A predicted step is off by ln(measured / predicted) = Σ weight · part. The parts are those of `Prediction.interval`:
# what the kernels of a family share on a device, each kernel's own, and the host's; and two of the network, as a whole
# and in what issuing it takes. The step's time is proportional to the times of kernels and host together, so their
# weights are two shares of one, and inputs that are copied the rest.


#: Levels that plain intervals leave out.
BEYOND_INTERVALS = ("issuing", "network", "program")

_STEP = 1.02  # of the host's times, to see by how much the step follows them


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an error: of a family, of an operator, of the host, of the network."""

    level: str  # "family", "unmodelled", "kernel", "host", "issuing", "network", "program"
    family: str = ""  # in any format; of what is unmodelled, which of UNMODELLED
    unit: str = ""  # the family in the format that it runs in on this device, by which spreads are kept
    name: str = ""  # of the first op whose kernel it is; equal shapes count as one
    cost: Cost | None = None


WHOLE = Part("network")
PROGRAM = Part("program")
ISSUED = Part("issuing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A part's weight in what is measured, times its spread, in ln."""

    weight: float
    spread: float

    @property
    def size(self) -> float:
        """The change of the time by one standard deviation of this part, in ln."""
        return self.weight * self.spread


def parts_of(p: Prediction, names: Mapping[str, str] | None = None) -> dict[Part, Loaded]:
    """The parts of a whole step's error. names: of ops, the op whose kernel counts as theirs (see `leaders`)."""
    host = host_weight(p)
    kernels = max(0.0, 1.0 - host - p.terms()["input"] / p.total_s) if p.total_s else 0.0
    found = {part: replace(one, weight=one.weight * kernels) for part, one in kernel_parts(p, names).items()}
    if host:
        found[Part("host")] = Loaded(weight=host, spread=p.host.spread)
        found[ISSUED] = Loaded(weight=host, spread=ISSUING)
    return found | of_network(p)


def of_network(p: Prediction) -> dict[Part, Loaded]:
    """What a network is off by itself; of a training step also what its program is, of which no op tells."""
    program = of_the_step((timing.kernel for timing in p.timings), 0.0)
    parts = {WHOLE: NETWORK, PROGRAM: program} if program else {WHOLE: NETWORK}
    return {part: Loaded(weight=1.0, spread=spread) for part, spread in parts.items()}


def kernel_parts(
    p: Prediction, names: Mapping[str, str] | None = None, timings: Sequence[Timing] | None = None
) -> dict[Part, Loaded]:
    """The parts of the kernels' error, or of some kernels' of the step, by their shares of these kernels' time."""
    names = leaders(p) if names is None else names
    timings = p.timings if timings is None else timings
    total = sum(timing.total_s for timing in timings)
    found: dict[Part, list[Any]] = {}  # of each its weight, and how many kernels it is of
    for timing in timings:
        kernel = timing.kernel
        share = timing.total_s / total
        family, unit = base_of(kernel), residuals_of(kernel, p.machine)
        alone = Part("kernel", family, unit, names.get(kernel.name, kernel.name), kernel.cost)
        for part in (Part("family", family, unit), alone):
            own = found.setdefault(part, [0.0, 0])
            own[0] += share
            own[1] += 1
    spreads = p.machine.constants.spreads

    def spread(part: Part, share: float, count: int) -> float:
        known, taken = spreads[part.unit], share * total
        if part.level == "family":
            return known.systematic
        return math.sqrt(float(known.random_variance(taken, count))) / taken if share else known.random

    return {part: Loaded(weight=weight, spread=spread(part, weight, n)) for part, (weight, n) in found.items()}


def unmodelled_parts(timings: Sequence[Timing]) -> dict[Part, Loaded]:
    """What those of some kernels share of which no like was measured, by their shares of these kernels' time.

    Ratios alone know it: with these parts transfers between kindred chips were off by 21.1 and 13.3 % in place of 20.0
    and 12.4 (KernelBench compiled and eager, `benchmarks/transfer/accuracy.py`).
    """
    total = sum(timing.total_s for timing in timings)
    weights = keyed.sums((unmodelled(timing.kernel), timing.total_s / total) for timing in timings)
    told = (item for item in weights.items() if item[0])
    return {Part("unmodelled", name): Loaded(weight=weight, spread=UNMODELLED[name]) for name, weight in told}


_First = dict[tuple[str, str, Cost], str]  # of kernels with the same work, what the first is called


def leaders(p: Prediction, first: _First | None = None, prefix: str = "") -> dict[str, str]:
    """For each kernel's name that of the first with the same work, which is as wrong; behind a prefix.

    first: those of other steps, to which this step's are added.
    """
    known = {} if first is None else first
    return {
        k.name: known.setdefault((residuals_of(k, p.machine), k.kind, k.cost), f"{prefix}{k.name}")
        for k in (timing.kernel for timing in p.timings)
    }


def host_weight(p: Prediction) -> float:
    """By what share of 1 % the step grows when the host's times grow by 1 %."""
    if p.machine.device.kind == "cpu" or not p.timeline.idle_s:
        return 0.0
    slower = p.again(host=scaled(p.host, _STEP))
    return min(1.0, max(0.0, (slower.total_s / p.total_s - 1) / (_STEP - 1)))


def scaled(host: Host, factor: float) -> Host:
    """A host all of whose times are so many times as long; its bandwidths stay."""
    dispatch = {name: seconds * factor for name, seconds in host.dispatch.items()}
    times = {name: getattr(host, name) * factor for name in (*CPU_TIMES, "launch_latency", "sync")}
    return host.model_copy(update={"dispatch": dispatch, **times})


def chips_of(a: Device, b: Device) -> Chips:
    """How alike the chips of two devices are: one chip has one architecture and as many multiprocessors."""
    if a == b:
        return Chips.SAME
    if architecture_of(a) == architecture_of(b) and a.sm_count == b.sm_count:
        return Chips.ONE
    # Whose libraries run on each, and whether its memory is stacked.
    one, other = ((d.kind, d.vendor, (d.dram.type or "").upper().startswith("HBM")) for d in (a, b))
    return Chips.KINDRED if one == other else Chips.FOREIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """How alike two settings are, part by part."""

    chips: Chips
    same_host: bool
    same_layout: bool = True  # whether images lie in memory alike in both

    @classmethod
    def of(cls, source: Prediction, target: Prediction) -> Kinship:
        """The kinship of two predictions. Hosts that nobody named are the same only where the device is."""
        a, b = source.machine.device, target.machine.device
        named = source.host.name != DEFAULT_HOST or a == b
        return cls(
            chips=chips_of(a, b), same_host=named and source.host == target.host,
            same_layout=source.graph.channels_last == target.graph.channels_last,
        )  # fmt: skip

    def correlation(self, source: Part, target: Part) -> float:
        """The correlation of a part on the source with one on the target; 0 where they have nothing in common."""
        if (source.level, source.family, source.name) != (target.level, target.family, target.name):
            return 0.0
        unit = 1.0 if source.unit == target.unit else OTHER_UNIT
        match source.level:
            case "host":
                return 1.0 if self.same_host else OTHER_HOST
            case "issuing":
                return 1.0 if self.same_host else ISSUING_ELSEWHERE
            case "unmodelled":
                return 1.0 if self.chips in (Chips.SAME, Chips.ONE) else UNMODELLED_KERNELS
            case "kernel":
                size = 1.0 if source.cost == target.cost else OTHER_SIZE
                layout = 1.0 if self.same_layout else OTHER_UNIT  # libraries have other kernels for the other
                return unit * size * layout * of_kernels(source.family, self.chips)
            case level:
                return unit * {"family": SHARED, "network": NETWORKS, "program": PROGRAMS}[level][self.chips]


# How certain the ratio of two predicted times is: what both are off by together does not change it.


_HOST = Part("host")
_LEVEL = 0.9  # of the bounds
_DEVIATIONS = deviations(_LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as long one step takes as another, and the bounds that hold the true ratio with a probability."""

    times: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether it is which of the two is faster: the bounds do not hold 1."""
        return not self.low <= 1 <= self.high


class Ratios:
    """The ratios of any two of several predicted steps.

    What two steps are off by is told apart as for a transfer, and what they share counts once: on one GPU the constants
    of a family of kernels and equal kernels, with one host its pace, of one network what it is off by as a whole.
    Predictions that rest on measurements are taken as independent.
    """

    def __init__(self, predictions: Sequence[Prediction], *, one_network: bool, one_host: bool = True) -> None:
        """one_network: whether all are steps of one. one_host: whether a host that nobody named is one beside each
        GPU, as in a choice of GPUs for a host; not so of measurements on other machines.
        """
        self._one_network, self._one_host = one_network, one_host
        self._predictions = predictions
        self._plain = all(type(p) is Prediction for p in predictions)
        self._known = cache(self._of)
        names = self._names() if self._plain else []
        numbers = defaultdict[Any, int](count().__next__)
        self._parts = [_by_key(p, own, numbers) for p, own in zip(predictions, names, strict=False)]
        self._squares = [[size**2 for same in parts.values() for *_, size in same] for parts in self._parts]
        self._doubled = defaultdict[Kinship, dict[tuple[int, int], float]](dict)  # correlations of parts by number
        self._moved = cache(lambda place, ln: _moved(predictions[place], math.exp(ln)))

    def of(self, b: int, a: int, scale: float = 1.0) -> Ratio:
        """The b-th step's time by the a-th's, times `scale`; bounds from 0 on where either takes no time."""
        return self._known(b, a, scale)

    def _of(self, b: int, a: int, scale: float) -> Ratio:
        first, second = self._predictions[a], self._predictions[b]
        if not (first.total_s > 0 and second.total_s > 0):
            return Ratio(times=math.inf if second.total_s > 0 else 1.0, low=0.0, high=math.inf)
        times = scale * second.total_s / first.total_s
        if self._plain:
            parts: Sequence[Any] = self._widths(a, b)
        else:  # nothing is common to the two
            below, above = away(first.total_s, first.interval(_LEVEL))
            parts = away(second.total_s, second.interval(_LEVEL)), (above, below)
        low, high = around(times, *parts)
        return Ratio(times=times, low=low, high=high)

    def _names(self) -> list[dict[str, str]]:
        """For each step's kernels, the key that equally wrong ones share: in one network the op, else the work."""
        if self._one_network:
            first = leaders(self._predictions[0])
            return [
                first if all(timing.kernel.name in first for timing in p.timings) else {**leaders(p), **first}
                for p in self._predictions
            ]
        known: _First = {}
        return [leaders(p, known, f"{place} ") for place, p in enumerate(self._predictions)]

    def _widths(self, a: int, b: int) -> tuple[Any, ...]:
        """What moves the ratio, in ln, as `around` takes it: kernels, the hosts' pace, and what issuing takes."""
        first, second = self._predictions[a], self._predictions[b]
        kin = Kinship.of(first, second)
        if self._one_host and first.host == second.host:
            kin = replace(kin, same_host=True)
        kernels = _DEVIATIONS * math.sqrt(max(0.0, self._variance(a, b, kin)))
        pace = _DEVIATIONS * max(first.host.spread, second.host.spread)
        issuing = kin.correlation(ISSUED, ISSUED) if self._one_network else 0.0
        hosts = self._by_hosts(a, b, kin.correlation(_HOST, _HOST), pace)
        return kernels, hosts, self._by_hosts(a, b, issuing, _DEVIATIONS * ISSUING)

    def _variance(self, a: int, b: int, kin: Kinship) -> float:
        """s² of the logarithm, by all but the hosts."""
        ours, theirs = self._parts[a], self._parts[b]
        found, doubled = sum(chain(self._squares[a], self._squares[b])), self._doubled[kin]
        for key, same in ours.items():
            others = theirs.get(key, ())
            if others and not self._one_network and same[0][1].level in (WHOLE.level, PROGRAM.level):
                continue
            for number, part, size in same:
                for other_number, other, other_size in others:
                    pair = number, other_number
                    if pair not in doubled:
                        doubled[pair] = 2 * kin.correlation(part, other)
                    found -= doubled[pair] * size * other_size
        return found

    def _by_hosts(self, a: int, b: int, correlation: float, ln: float) -> tuple[float, float]:
        """By what b's time falls and rises against a's, in ln, where CPUs are slower or faster by exp(ln).

        One CPU moves both, and two each its own; between the two lies what is correlated, in squares.
        """
        (a_slow, a_fast), (b_slow, b_fast) = ([self._moved(place, one) for one in (ln, -ln)] for place in (a, b))
        together = b_slow - a_slow, b_fast - a_fast
        falls, rises = max(0.0, -min(together)), max(0.0, *together)
        apart = math.hypot(b_fast, a_slow), math.hypot(b_slow, a_fast)
        below, above = (
            math.sqrt(correlation * one * one + (1 - correlation) * two * two)
            for one, two in zip((falls, rises), apart, strict=True)
        )
        return below, above


_Keyed = Mapping[int, Sequence[tuple[int, Part, float]]]


def _by_key(p: Prediction, names: Mapping[str, str], numbers: Mapping[Any, int]) -> _Keyed:
    """The parts of a step's kernels and of the network with their numbers and sizes, by the number of what only parts
    that are correlated have in common.
    """
    loaded = list(of_network(p).items())
    if p.timings and p.total_s:
        share = sum(timing.total_s for timing in p.timings) / p.total_s
        own = kernel_parts(p, names) | unmodelled_parts(p.timings)
        loaded[:0] = ((part, replace(one, weight=one.weight * share)) for part, one in own.items())
    return keyed.lists(
        (numbers[part.level, part.family, part.name], (numbers[part], part, one.size)) for part, one in loaded
    )


def _moved(p: Prediction, s: float) -> float:
    """The growth of a step on a host that is slower by a factor s, in ln."""
    gpu_s = p.gpu_s + p.terms()["input"]
    return float(by_host(p.total_s, p.cpu_s, gpu_s, s, in_series=p.machine.device.kind == "cpu"))
