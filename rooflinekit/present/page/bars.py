"""Bars within the cells of a table: places on a line of 1000 units, whatever the width of the cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

LENGTH = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """From `x` on, so many units; `look` names its colour."""

    x: float
    width: float
    look: str


def waterfall_bars(terms: Mapping[str, float]) -> dict[str, Bar]:
    """One bar for each term, each beginning where the one before ends; together they are the whole length.

    A term below 0 goes back from there.

    >>> [(bar.x, bar.width) for bar in waterfall_bars({"a": 1.0, "b": 3.0}).values()]
    [(0.0, 250.0), (250.0, 750.0)]
    >>> [(bar.x, bar.width) for bar in waterfall_bars({"a": 4.0, "b": -1.0}).values()]
    [(0.0, 1000.0), (750.0, 250.0)]
    """
    levels = list(accumulate(terms.values(), initial=0.0))
    scale = LENGTH / (max(levels) or 1.0)
    return {
        name: Bar(x=round(min(a, b) * scale, 2), width=round(abs(b - a) * scale, 2), look=name)
        for name, (a, b) in zip(terms, pairwise(levels), strict=True)
    }


def difference_bars(start: float, changes: Sequence[float]) -> tuple[Bar, ...]:
    """The way from one total to another: the first total, a bar for each change, the last total.

    A bar of a change lies between the levels before and after it; its look is "more" or "less".

    >>> [(bar.x, bar.width, bar.look) for bar in difference_bars(8.0, [2.0, -5.0])]
    [(0.0, 800.0, 'total'), (800.0, 200.0, 'more'), (500.0, 500.0, 'less'), (0.0, 500.0, 'total')]
    """
    levels = [start]
    for change in changes:
        levels.append(levels[-1] + change)
    scale = LENGTH / (max(levels) or 1.0)
    steps = [
        Bar(
            x=round(min(a, b) * scale, 2),
            width=round(abs(b - a) * scale, 2),
            look="more" if b > a else "less",
        )
        for a, b in pairwise(levels)
    ]
    first, last = (Bar(x=0.0, width=round(level * scale, 2), look="total") for level in (levels[0], levels[-1]))
    return (first, *steps, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value within its bounds, on a line that all rows of a table share."""

    low: float
    value: float
    high: float


def interval_bars(rows: Sequence[tuple[float, float, float]]) -> tuple[Interval, ...]:
    """(low, value, high) of each row on a line from 0 to the largest of all.

    >>> interval_bars([(1.0, 2.0, 4.0)])[0]
    Interval(low=250.0, value=500.0, high=1000.0)
    """
    most = max((high for _, _, high in rows), default=1.0) or 1.0
    return tuple(
        Interval(low=round(LENGTH * low / most, 2), value=round(LENGTH * value / most, 2),
                 high=round(LENGTH * high / most, 2))
        for low, value, high in rows
    )  # fmt: skip
