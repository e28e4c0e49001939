"""Names beside marks, where there is room for them. Lengths are pixels, y down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Box = tuple[float, float, float, float]  # left, top, right, bottom
Circle = tuple[float, float, float]  # x, y, radius

LETTER = 6.1  # mean width of a letter at the size of labels; browsers' fonts differ by a tenth
_ASCENT, _DESCENT = 9.0, 3.0
_GAP = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text at a place; `anchor` as in SVG."""

    x: float
    y: float
    text: str
    anchor: str


def text_width(text: str) -> float:
    """About how wide a text is."""
    return LETTER * len(text)


def shortened(text: str, letters: int) -> str:
    """At most so many letters, its middle left out: both the op and the end of a path tell marks apart.

    >>> shortened("conv weight gradient layer1.*.conv3", 20)
    'conv weig…r1.*.conv3'
    """
    if len(text) <= letters:
        return text
    head = (letters - 1) // 2
    return f"{text[:head]}…{text[len(text) - (letters - 1 - head) :]}"


def covered(box: Box, marks: Sequence[Circle]) -> int:
    """How many marks a box touches."""
    return sum(_overlap(box, (x - r, y - r, x + r, y + r)) for x, y, r in marks)


def place_labels(
    wanted: Sequence[tuple[str, Circle]], marks: Sequence[Circle], taken: Sequence[Box], within: Box
) -> tuple[tuple[int, Label], ...]:
    """Labels for texts beside their marks, with their places among those wanted, in this order.

    Each stands where it covers no other text and the fewest marks. `taken` are boxes that stay free. A text for which
    there is no place is left out.
    """
    boxes = list(taken)
    found = []
    for place, (text, circle) in enumerate(wanted):
        best: tuple[float, Label, Box] | None = None
        for order, (label, box) in enumerate(_candidates(text, circle)):
            if not _inside(box, within) or any(_overlap(box, other) for other in boxes):
                continue
            cost = covered(box, marks) + 0.1 * order
            if best is None or cost < best[0]:
                best = cost, label, box
        if best is not None and best[0] < _MOST_COVERED:
            found.append((place, best[1]))
            boxes.append(best[2])
    return tuple(found)


_MOST_COVERED = 4.0  # marks under a label


def _candidates(text: str, circle: Circle) -> Iterator[tuple[Label, Box]]:
    """Right, left, above, below; then above and below to either side."""
    x, y, radius = circle
    width, reach = text_width(text), radius + _GAP
    beside = y + 4
    above, below = y - reach, y + reach + _ASCENT
    places = (
        (x + reach, beside, "start"), (x - reach, beside, "end"), (x, above, "middle"), (x, below, "middle"),
        (x + radius / 2, above, "start"), (x + radius / 2, below, "start"),
        (x - radius / 2, above, "end"), (x - radius / 2, below, "end"),
    )  # fmt: skip
    for left, base, anchor in places:
        start = left - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        yield (
            Label(x=left, y=base, text=text, anchor=anchor),
            (start, base - _ASCENT, start + width, base + _DESCENT),
        )


def _inside(box: Box, within: Box) -> bool:
    return box[0] >= within[0] and box[1] >= within[1] and box[2] <= within[2] and box[3] <= within[3]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# Bars within the cells of a table: places on a line of 1000 units, whatever the width of the cell.


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
