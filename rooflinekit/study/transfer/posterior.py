"""What measurements on one device say of a step on another: parts of errors, jointly distributed, given what was seen.

The distribution is Student's: its condition has the mean of a normal one, and a scale that grows where what was seen is
further off than its parts' spreads allow, for then what is left is likely to be too, and shrinks where it is nearer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooflinekit.study.errors.components import BEYOND_INTERVALS, FREEDOM, MEASURED, Kinship, Loaded, Part

#: What the levels of parts are called where a measured step's error is split into them.
LEVELS = {"family": "constants", "kernel": "kernels", "host": "host", "issuing": "host", "network": "network"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measurement on the source: what it was off by, and of which parts that consists."""

    ln: float  # ln(measured / predicted)
    parts: Mapping[Part, Loaded]
    noise: float = MEASURED.value
    share: float = 1.0  # of the step's time: 1 of the whole step, less of an operator


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
    before = math.sqrt(sum(one.size**2 for part, one in target.items() if part.level not in BEYOND_INTERVALS))
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
    crossed = np.zeros(len(parts))
    kindred: dict[_Key, list[tuple[Part, Loaded]]] = {}
    for part, loaded in target.items():
        kindred.setdefault(_key(part), []).append((part, loaded))
    for part, column in place.items():
        for other, loaded in kindred.get(_key(part), ()):
            crossed[column] += kin.correlation(part, other) * loaded.size
    off = np.array([one.ln for one in seen])
    told = loads.T @ np.linalg.solve(covariance, off)
    moved = crossed * told
    known = loads @ crossed
    removed = float(known @ np.linalg.solve(covariance, known))
    by_part: dict[str, float] = {}
    for part, column in place.items():
        name = part.family or part.level
        by_part[name] = by_part.get(name, 0.0) + float(moved[column])
    surprise = _surprise(seen, off, covariance)
    split: dict[str, float] = {}
    for part, ln in zip(parts, _of_step(seen) @ loads * told, strict=True):
        split[LEVELS[part.level]] = split.get(LEVELS[part.level], 0.0) + float(ln)
    return Posterior(
        mean=float(moved.sum()), spread=surprise * math.sqrt(max(total - removed, 0.0)), before=before,
        freedom=FREEDOM.value + 1, surprise=surprise, by_part=by_part, split=split,
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
            scale = math.sqrt((FREEDOM.value + one.ln**2 / variance) / (FREEDOM.value + 1))
            found |= {_key(part): scale for part in one.parts if part.level == "kernel"}
    return found


def _scaled(parts: Mapping[Part, Loaded], scales: Mapping[_Key, float]) -> Mapping[Part, Loaded]:
    return {part: replace(one, spread=one.spread * scales.get(_key(part), 1.0)) for part, one in parts.items()}


def _of_step(seen: Sequence[Seen]) -> NDArray[np.float64]:
    """Weights of what was seen in the step: of it as a whole, or of all operators by their time."""
    whole = np.array([one.share if one.share >= 1 else 0.0 for one in seen])
    return whole if whole.any() else np.array([one.share for one in seen])


def _surprise(seen: Sequence[Seen], off: NDArray[np.float64], covariance: NDArray[np.float64]) -> float:
    """Student's: the step as a whole, or all operators by their time, against what its parts' spreads allow."""
    weights = _of_step(seen)
    distance = float(weights @ off) ** 2 / float(weights @ covariance @ weights)
    return math.sqrt((FREEDOM.value + distance) / (FREEDOM.value + 1))
