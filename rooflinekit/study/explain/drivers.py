"""Where in two networks the time differs: groups of kernels, matched between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rooflinekit.step.prediction import Prediction

#: Kinds of what belongs to no kernel.
UNPLACED = ("inputs", "end of the step")

_Key = tuple[str, str]  # module, kind of op


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A group of kernels, by module and kind of op, and its time in both, in seconds with its waits."""

    module: str  # the path in a, or in b where a has none
    kind: str
    a_s: float
    b_s: float
    counterpart: str = ""  # the module in b that stands in its place there, where its path is another

    @property
    def delta_s(self) -> float:
        """Time that b spends more than a."""
        return self.b_s - self.a_s

    @property
    def words(self) -> str:
        """The kind with its module and that one's counterpart."""
        if self.kind in UNPLACED:
            return self.kind
        return f"{self.kind} in {self.module or 'the root'}{f' / {self.counterpart}' if self.counterpart else ''}"


def drivers_of(a: Prediction, b: Prediction, scale: tuple[float, float], *, one_network: bool) -> tuple[Driver, ...]:
    """Groups of kernels, the largest difference first; they add up to the difference of the two times.

    scale: what each side's seconds are multiplied by. Modules of equal path are matched; what is left of two networks
    is matched kind by kind, in the order of execution. What belongs to no kernel, the inputs before the first and the
    wait after the last, stands under kinds of its own.
    """
    seconds_a, seconds_b = (_seconds(p, factor) for p, factor in zip((a, b), scale, strict=True))
    pairs = {} if one_network else _by_position(seconds_a, seconds_b)
    taken = set(pairs.values())
    found = [
        Driver(
            module=key[0],
            kind=key[1],
            a_s=seconds,
            b_s=seconds_b.get(pairs.get(key, key), 0.0),
            counterpart=pairs[key][0] if key in pairs else "",
        )
        for key, seconds in seconds_a.items()
    ]
    found += [
        Driver(module=key[0], kind=key[1], a_s=0.0, b_s=seconds)
        for key, seconds in seconds_b.items()
        if key not in seconds_a and key not in taken
    ]
    return tuple(sorted(found, key=lambda driver: -abs(driver.delta_s)))


def _seconds(p: Prediction, factor: float) -> dict[_Key, float]:
    """Time by group, in the order of execution."""
    found: dict[_Key, float] = defaultdict(float)
    for span in p.spans:
        kernel = span.timing.kernel
        found[kernel.module, kernel.kind] += factor * (span.timing.total_s + span.waited_s)
    line = p.timeline
    before_s = line.input_s + sum(copy.waited_s for copy in line.copies)
    for kind, seconds in zip(UNPLACED, (before_s, line.tail_s), strict=True):
        found["", kind] = factor * seconds
    return dict(found)


def _by_position(a: dict[_Key, float], b: dict[_Key, float]) -> dict[_Key, _Key]:
    """For groups of a whose path b has not: the group of b, of the same kind, at the same place among those left."""
    left: dict[str, list[_Key]] = defaultdict(list)
    for key in b:
        if key not in a:
            left[key[1]].append(key)
    return {key: left[key[1]].pop(0) for key in a if key not in b and left[key[1]]}
