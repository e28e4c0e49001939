"""How certain the ratio of two predicted times is: what both are off by together does not change it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.ir.cost import Cost
from rooflinekit.model.estimate import around, away, deviations
from rooflinekit.model.families import residuals_of
from rooflinekit.step.bounds import by_host
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.components import (
    ISSUED,
    ISSUING,
    WHOLE,
    Kinship,
    Loaded,
    Part,
    kernel_parts,
    leaders,
    of_network,
    untold_parts,
)

_HOST = Part("host")


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

    def __init__(
        self, predictions: Sequence[Prediction], *, one_network: bool, one_host: bool = True, level: float = 0.9
    ) -> None:
        """one_network: whether all are steps of one. one_host: whether a host that nobody named is one beside each
        GPU, as in a choice of GPUs for a host; not so of measurements on other machines. Raises ValueError for a level
        outside (0, 1).
        """
        self._level = level
        self._deviations = deviations(level)
        self._one_network, self._one_host = one_network, one_host
        self._predictions = predictions
        self._plain = all(type(p) is Prediction for p in predictions)
        self._known: dict[tuple[int, int, float], Ratio] = {}
        names = self._names() if self._plain else []
        self._parts = [_by_key(p, own) for p, own in zip(predictions, names, strict=False)]

    def of(self, b: int, a: int, scale: float = 1.0) -> Ratio:
        """The b-th step's time by the a-th's, times `scale`; bounds from 0 on where either takes no time."""
        key = b, a, scale
        if key not in self._known:
            self._known[key] = self._of(b, a, scale)
        return self._known[key]

    def _of(self, b: int, a: int, scale: float) -> Ratio:
        first, second = self._predictions[a], self._predictions[b]
        if not (first.total_s > 0 and second.total_s > 0):
            return Ratio(times=math.inf if second.total_s > 0 else 1.0, low=0.0, high=math.inf)
        times = scale * second.total_s / first.total_s
        if self._plain:
            parts: Sequence[Any] = self._widths(a, b)
        else:  # nothing is common to the two
            below, above = away(first.total_s, first.interval(self._level))
            parts = away(second.total_s, second.interval(self._level)), (above, below)
        low, high = around(times, *parts)
        return Ratio(times=times, low=low, high=high)

    def _names(self) -> list[dict[str, str]]:
        """Of each step's kernels, what tells those apart that are as wrong: in one network the op, else the work."""
        if self._one_network:
            first = leaders(self._predictions[0])
            return [{**leaders(p), **first} for p in self._predictions]
        known: dict[tuple[str, str, Cost], str] = {}
        return [
            {
                k.name: known.setdefault((residuals_of(k, p.machine), k.kind, k.cost), f"{place} {k.name}")
                for k in (timing.kernel for timing in p.timings)
            }
            for place, p in enumerate(self._predictions)
        ]

    def _widths(self, a: int, b: int) -> tuple[Any, ...]:
        """What moves the ratio, in ln, as `around` takes it: kernels, the hosts' pace, and what issuing takes."""
        first, second = self._predictions[a], self._predictions[b]
        kin = Kinship.of(first, second)
        if self._one_host and first.host == second.host:
            kin = replace(kin, same_host=True)
        kernels = self._deviations * math.sqrt(max(0.0, self._variance(a, b, kin)))
        pace = self._deviations * max(first.host.spread, second.host.spread)
        issuing = kin.correlation(ISSUED, ISSUED) if self._one_network else 0.0
        hosts = _by_hosts(first, second, kin.correlation(_HOST, _HOST), pace)
        return kernels, hosts, _by_hosts(first, second, issuing, self._deviations * ISSUING)

    def _variance(self, a: int, b: int, kin: Kinship) -> float:
        """s² of the logarithm, by all but the hosts."""
        ours, theirs = self._parts[a], self._parts[b]
        found = sum(loaded.size**2 for parts in (ours, theirs) for same in parts.values() for _, loaded in same)
        for key, same in ours.items():
            if key[0] == WHOLE.level and not self._one_network:
                continue
            for part, loaded in same:
                for other, its in theirs.get(key, ()):
                    found -= 2 * kin.correlation(part, other) * loaded.size * its.size
        return found


_Keyed = Mapping[tuple[str, str, str], Sequence[tuple[Part, Loaded]]]


def _by_key(p: Prediction, names: Mapping[str, str]) -> _Keyed:
    """The parts of a step's kernels and of the network, by what only parts that are correlated have in common."""
    found: dict[tuple[str, str, str], list[tuple[Part, Loaded]]] = defaultdict(list)
    if p.timings and p.total_s:
        share = sum(timing.total_s for timing in p.timings) / p.total_s
        for part, one in (kernel_parts(p, names) | untold_parts(p.timings)).items():
            loaded = Loaded(weight=one.weight * share, spread=one.spread)
            found[part.level, part.family, part.name].append((part, loaded))
    found[WHOLE.level, WHOLE.family, WHOLE.name].append((WHOLE, Loaded(weight=1.0, spread=of_network(p))))
    return found


def _by_hosts(a: Prediction, b: Prediction, correlation: float, ln: float) -> tuple[float, float]:
    """By what b's time falls and rises against a's, in ln, where CPUs are slower or faster by exp(ln).

    One CPU moves both, and two each its own; between the two lies what is correlated, in squares.
    """
    (a_slow, a_fast), (b_slow, b_fast) = ([_moved(p, math.exp(one)) for one in (ln, -ln)] for p in (a, b))
    together = b_slow - a_slow, b_fast - a_fast
    falls, rises = max(0.0, -min(together)), max(0.0, *together)
    apart = math.hypot(b_fast, a_slow), math.hypot(b_slow, a_fast)
    below, above = (
        math.sqrt(correlation * one * one + (1 - correlation) * two * two)
        for one, two in zip((falls, rises), apart, strict=True)
    )
    return below, above


def _moved(p: Prediction, s: float) -> float:
    """By what a step grows on a host slower by a factor s, in ln."""
    gpu_s = p.gpu_s + p.terms()["input"]
    return float(by_host(p.total_s, p.cpu_s, gpu_s, s, in_series=p.machine.device.kind == "cpu"))
