"""A prediction that rests on a measurement of the same network on another device.

Parts of errors are jointly distributed, and conditioned on what was seen. The distribution is Student's: its condition
has the mean of a normal one, and a scale that grows where what was seen is further off than its parts' spreads allow,
for then what is left is likely to be too, and shrinks where it is nearer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.ir import keyed
from rooflinekit.step.prediction import TERMS, Prediction, predict_graph
from rooflinekit.study.errors import components
from rooflinekit.study.errors.components import Kinship, Loaded, Part, leaders, parts_of
from rooflinekit.study.sweep.points import LEVEL, Grid, Setting
from rooflinekit.study.transfer.evidence import Evidence, Seen

if TYPE_CHECKING:
    from rooflinekit.study.sweep.plan import Case

#: What the levels of parts are called where a measured step's error is split into them.
LEVELS = {
    "family": "constants", "kernel": "kernels", "host": "host", "issuing": "host", "network": "network",
    "program": "network",
}  # fmt: skip
CORRECTION = "correction"
#: Values of a size at which a correction is worked out, by how many sizes vary; each is a whole prediction.
_ANCHORS = {1: 9, 2: 5}
_FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What the prediction on the target is off by, in ln: where it is expected, how wide, and how wide it was."""

    mean: float
    spread: float  # the scale of Student's distribution
    before: float
    freedom: float  # its degrees
    surprise: float  # by which factor what was seen widens what is left; 1 where it is off by as much as expected
    by_part: Mapping[str, float]  # of the mean, by family, "host" and "network"
    split: Mapping[str, float]  # of what the source's step is off by, in ln: its constants, kernels, host and network


def given(seen: Sequence[Seen], target: Mapping[Part, Loaded], kin: Kinship) -> Posterior:
    """The target's error given what was seen: the mean and the scale of a distribution under a condition."""
    before = math.sqrt(
        sum(one.size**2 for part, one in target.items() if part.level not in components.BEYOND_INTERVALS)
    )
    scales = _own_scales(seen)
    target = _scaled(target, scales)
    seen = [replace(one, parts=_scaled(one.parts, scales)) for one in seen]
    total = sum(one.size**2 for one in target.values())
    parts = list(dict.fromkeys(part for one in seen for part in one.parts))
    place = {part: i for i, part in enumerate(parts)}
    loads = np.zeros((len(seen), len(parts)))
    for row, one in enumerate(seen):
        for part, loaded in one.parts.items():
            loads[row, place[part]] = loaded.size
    covariance = loads @ loads.T + np.diag([one.noise**2 for one in seen])
    kindred = keyed.lists((_key(part), (part, loaded)) for part, loaded in target.items())
    crossed = np.array(
        [sum(kin.correlation(part, other) * one.size for other, one in kindred.get(_key(part), ())) for part in parts],
        dtype=float,
    )
    off = np.array([one.ln for one in seen])
    told = loads.T @ np.linalg.solve(covariance, off)
    moved = crossed * told
    known = loads @ crossed
    removed = float(known @ np.linalg.solve(covariance, known))
    by_part = keyed.sums((part.family or part.level, ln) for part, ln in zip(parts, moved.tolist(), strict=True))
    # the step as a whole, or all operators by their time
    whole = np.array([one.share if one.share >= 1 else 0.0 for one in seen])
    weights = whole if whole.any() else np.array([one.share for one in seen])
    off_by = zip(parts, (weights @ loads * told).tolist(), strict=True)
    split = keyed.sums((LEVELS[part.level], ln) for part, ln in off_by)
    distance = float(weights @ off) ** 2 / float(weights @ covariance @ weights)
    surprise = math.sqrt((components.FREEDOM + distance) / (components.FREEDOM + 1))
    return Posterior(
        mean=float(moved.sum()), spread=surprise * math.sqrt(max(total - removed, 0.0)), before=before,
        freedom=components.FREEDOM + 1, surprise=surprise, by_part=by_part, split=split,
    )  # fmt: skip


_Key = tuple[str, str, str]


def _key(part: Part) -> _Key:
    return part.level, part.family, part.name


def _own_scales(seen: Sequence[Seen]) -> dict[_Key, float]:
    """By how much an operator's own error is likely to be larger than its spread, of those that were seen alone.

    Each operator's error is Student's by itself: one far off is so by its own kernel, not by what all have in common.
    """
    found: dict[_Key, float] = {}
    for one in seen:
        if one.share < 1:
            variance = sum(loaded.size**2 for loaded in one.parts.values()) + one.noise**2
            scale = math.sqrt((components.FREEDOM + one.ln**2 / variance) / (components.FREEDOM + 1))
            found |= {_key(part): scale for part in one.parts if part.level == "kernel"}
    return found


def _scaled(parts: Mapping[Part, Loaded], scales: Mapping[_Key, float]) -> Mapping[Part, Loaded]:
    return {part: replace(one, spread=one.spread * scales.get(_key(part), 1.0)) for part, one in parts.items()}


@dataclass(frozen=True, kw_only=True, repr=False)
class Transferred(Prediction):
    """A step on one device, corrected by what a measurement on another shows the prediction to be off by.

    Its terms are those of the plain prediction and one more, `correction`, which may be negative; kernels and tables
    are the plain prediction's.
    """

    plain: Prediction  # without the measurement
    source: Prediction  # of the step that was measured
    evidence: Evidence
    posterior: Posterior

    @cached_property
    def _terms(self) -> dict[str, float]:
        return {**self.plain.terms(), CORRECTION: self.plain.total_s * math.expm1(self.posterior.mean)}

    @property
    def gpu_s(self) -> float:
        """Time in which the GPU executes kernels, as the plain prediction has it."""
        return self.plain.gpu_s

    @property
    def correction_s(self) -> float:
        """Seconds by which the step is longer than plainly predicted."""
        return self._terms[CORRECTION]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the plain prediction, and what the correction rests on."""
        largest = sorted(self.posterior.by_part.items(), key=lambda item: -abs(item[1]))[:3]
        shown = ", ".join(f"{name} {math.expm1(ln):+.0%}" for name, ln in largest if abs(ln) >= 0.01)
        off = math.log(self.evidence.seconds / self.source.total_s) if self.evidence.seconds else None
        told = "" if off is None else f", {math.expm1(off):+.0%} of its prediction"
        kernels = " and its ops" if self.evidence.ops or self.evidence.matched else ""
        first = (
            f"rests on {self.evidence.source}{kernels} on {self.source.machine.name}{told}: corrected by "
            f"{math.expm1(self.posterior.mean):+.1%}{f' ({shown})' if shown else ''}; the spread was "
            f"{self.posterior.before:.0%} without the measurement, and is {self.posterior.spread:.0%} with it"
        )
        found = [f"its {name} {math.expm1(ln):+.1%}" for name, ln in self.posterior.split.items() if abs(ln) >= 0.001]
        own = "" if self.source.machine.device == self.machine.device else "; its constants are of that GPU alone"
        split = f"found to be off there: {', '.join(found) or 'nothing above 0.1 %'}{own}"
        return (first, split, *self.evidence.notes(self.source), *self.plain.notes)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability, given the measurement.

        A factor of the spread that is left to either side. To none it is larger than the plain prediction's, which may
        differ (a host slower than stated prolongs a step, and a faster one shortens it only until kernels decide),
        times what a network is off by itself, which plain intervals leave out. What was further off than its own
        interval allows widens both. Raises ValueError for a level outside (0, 1).
        """
        low, high = self.plain.interval(level)
        if not self.plain.total_s:
            return self.total_s, self.total_s
        left = self.posterior
        below, above = widths(
            left.spread, left.freedom, left.surprise, level, self.plain.total_s / low, high / self.plain.total_s
        )
        return float(self.total_s / below), float(self.total_s * above)

    def to_dict(self) -> dict[str, Any]:
        """The document of a prediction, with the measurement and what it changed under "transfer"."""
        measured, left = self.evidence, self.posterior
        transfer = {
            "rests_on": measured.source, "measured_s": measured.seconds, "measured_on": self.source.machine.name,
            "predicted_there_s": self.source.total_s, "plain_s": self.plain.total_s, "correction_s": self.correction_s,
            "spread_before": left.before, "spread": left.spread, "by_part": dict(left.by_part),
            "split": dict(left.split),
        }  # fmt: skip
        return {**super().to_dict(), "transfer": transfer}


def widths(spread: Any, freedom: Any, surprise: Any, level: float, below: Any, above: Any) -> tuple[Any, Any]:
    """Factors to either side of the expected time, from a posterior and the plain prediction's; numbers or arrays."""
    times = stdtrit(freedom, (1 + level) / 2)
    factor, network = np.exp(times * spread), np.exp(times * components.NETWORK)
    wider = np.maximum(1.0, surprise)
    return np.minimum(factor, (below * network) ** wider), np.minimum(factor, (above * network) ** wider)


def correcting(evidence: Evidence, source: Prediction) -> Callable[[Prediction], Transferred]:
    """Makes of a target's prediction the one with what the evidence says of the source's, worked out once for all.

    Predictions are of one network; sizes, formats, execution, host and device may differ. Raises InputError at once
    where the evidence cannot be of the source's step.
    """
    names = leaders(source)
    seen = evidence.seen(source, names)

    def corrected(target: Prediction) -> Transferred:
        posterior = given(seen, parts_of(target, {**leaders(target), **names}), Kinship.of(source, target))
        own = {field.name: getattr(target, field.name) for field in fields(Prediction)}
        return Transferred(**own, plain=target, source=source, evidence=evidence, posterior=posterior)

    return corrected


def on_several(correct: Callable[[Prediction], Transferred], p: ParallelPrediction) -> ParallelPrediction:
    """The step with each device's own part of it corrected; what it waits for others stays as predicted.

    Kernels, the host and inputs are what a step on one device tells of; links, slower devices, idle stages and kernels
    slowed by collectives are not.
    """
    shares, note = [], ""
    for share in p.shares:
        found = correct(share.prediction)
        own = sum(share.terms[name] for name in TERMS)
        terms = {**share.terms, CORRECTION: own * math.expm1(found.posterior.mean)}
        shares.append(replace(share, prediction=found, terms=terms))
        note = note or found.notes[0]
    note = f"each device's own part of the step, kernels and host, {note}; communication is as predicted"
    alone: Callable[[], Prediction] = lambda: correct(p.alone())  # noqa: E731
    return replace(p, shares=tuple(shares), alone=alone, assumptions=(note, *p.assumptions))


class Correcting:
    """Corrects the times of a sweep's tables in place.

    The correction and the spread that is left change slowly with sizes: they are linear in the logarithm of sizes
    between values spaced evenly in it, at which they are exact. So they are in a table of one row.
    """

    def __init__(self, correct: Callable[[Prediction], Transferred], grid: Grid) -> None:
        self._correct = correct
        self._groups = [names for names in grid.groups if len(set(grid.lists[names[0]])) > 1]
        self._grid = grid
        count = _ANCHORS.get(len(self._groups), _FEWEST)
        self._places = [_anchors(grid.lists[names[0]], count) for names in self._groups]
        self._known: dict[int, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {}

    def __call__(self, case: Case, sizes: Mapping[str, NDArray[np.int64]], table: dict[str, NDArray[Any]]) -> None:
        """The table's times, and the throughput, at these sizes of the case."""
        mean, spread, freedom, surprise = self._posterior(case, sizes, len(table["total_s"])).T
        plain, low, high = (table[name] for name in ("total_s", "low_s", "high_s"))
        total = plain * np.exp(mean)
        below, above = widths(spread, freedom, surprise, LEVEL, plain / low, high / plain)
        table["total_s"], table["low_s"], table["high_s"] = total, total / below, total * above
        if "throughput" in table:
            table["throughput"] = table["throughput"] / np.exp(mean)

    def _posterior(self, case: Case, sizes: Mapping[str, NDArray[np.int64]], count: int) -> NDArray[np.float64]:
        """[points, mean, spread, degrees of freedom and surprise]"""
        if count == 1:
            return np.array([self._at(case, {name: int(values[0]) for name, values in sizes.items()})])
        if id(case) not in self._known:
            self._known[id(case)] = self._at_anchors(case)
        at = [np.log(sizes[names[0]].astype(float)) for names in self._groups]
        points = np.column_stack(at) if at else np.zeros((count, 0))
        return self._known[id(case)](points)

    def _at_anchors(self, case: Case) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        from scipy.interpolate import RegularGridInterpolator

        shape = tuple(len(places) for places in self._places)
        found = np.zeros((*shape, 4))
        for index in np.ndindex(*shape):
            place = {names[0]: self._places[i][index[i]] for i, names in enumerate(self._groups)}
            found[index] = self._at(case, {
                name: self._grid.lists[name][place.get(names[0], 0)] for names in self._grid.groups for name in names
            })  # fmt: skip
        if not shape:
            return lambda points: np.tile(found, (len(points), 1))
        axes = [np.log([float(self._grid.lists[names[0]][i]) for i in places])
                for names, places in zip(self._groups, self._places, strict=True)]  # fmt: skip
        return RegularGridInterpolator(axes, found)  # type: ignore[no-any-return]

    def _at(self, case: Case, sizes: Mapping[str, int]) -> tuple[float, float, float, float]:
        setting = case.setting
        assert isinstance(setting, Setting)
        plain = predict_graph(case.graph.at(**sizes), setting.machine, setting.host, setting.execution)
        posterior = self._correct(plain).posterior
        return posterior.mean, posterior.spread, posterior.freedom, posterior.surprise


def _anchors(values: tuple[int, ...], count: int) -> list[int]:
    """Places of values that are spaced evenly in the logarithm, rising; the least and the largest among them."""
    distinct, places = np.unique(np.array(values, dtype=float), return_index=True)
    logs = np.log(distinct)
    nearest = {int(np.abs(logs - one).argmin()) for one in np.linspace(logs[0], logs[-1], count)}
    return [int(places[i]) for i in sorted(nearest)]
