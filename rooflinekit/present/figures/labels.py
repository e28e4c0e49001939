"""The placer of labels: boxes at any angle, what they would cover, the best of many places, names with leaders.

All lengths are in points (1/72 inch) from the lower left corner of the page. Places are weighed many at once, and the
first of the best is taken: the same figure always gets the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.text import Text
from numpy.typing import NDArray

from rooflinekit.errors import printable
from rooflinekit.present.figures.style import INK, Style, settle, whole_page

Numbers: TypeAlias = NDArray[np.float64]
Line: TypeAlias = tuple[float, float, float, float]  # x and y of its start and of its end

PAD = 1.0  # kept free around every text
_THROUGH_TEXT = 1000.0  # what a leader through text costs: more than any name is worth, less than an error's
_ROUNDING = 1e-9  # of a step
_APART = 3.0  # points that texts in a line are apart in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle around its centre, turned by an angle."""

    x: float
    y: float
    width: float
    height: float
    angle: float = 0.0  # radians, counter-clockwise

    @classmethod
    def around(cls, ends: Numbers) -> Box:
        """The upright one between two corners."""
        (x, y), (width, height) = ends.mean(axis=0), ends[1] - ends[0]
        return cls(x=float(x), y=float(y), width=float(width), height=float(height))

    @property
    def row(self) -> Numbers:
        """The box as one row of `Rows`."""
        return _rows(np.array([[self.x, self.y]]), (self.width, self.height), self.angle)

    def overlaps(self, other: Box) -> bool:
        """Whether the two have points in common."""
        return bool(_overlap(self.row, other.row)[0, 0])

    def holds(self, discs: Sequence[tuple[float, float, float]]) -> bool:
        """Whether the middle of one of these lies inside."""
        x, y, _ = np.reshape(discs, (-1, 3)).T
        return bool((_distances(self.row, x, y) == 0).any())


# Many boxes at once: a row is x and y of the centre, half of each side, cosine and sine of the angle.

Rows: TypeAlias = Numbers  # [boxes, 6]


def _rows(centres: Numbers, size: tuple[float, float], angle: float) -> Rows:
    shape = [size[0] / 2, size[1] / 2, math.cos(angle), math.sin(angle)]
    return np.hstack([centres, np.broadcast_to(shape, (len(centres), 4))])


def _seen(boxes: Rows, x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Places in each box's own directions, from its centre: [boxes, places] along it and across."""
    right, up = x - boxes[:, 0, None], y - boxes[:, 1, None]
    cos, sin = boxes[:, 4, None], boxes[:, 5, None]
    return right * cos + up * sin, up * cos - right * sin


def _distances(boxes: Rows, x: Numbers, y: Numbers) -> Numbers:
    """How far each place lies from each box, [boxes, places]; 0 inside."""
    along, across = _seen(boxes, x, y)
    beside, beyond = np.abs(along) - boxes[:, 2, None], np.abs(across) - boxes[:, 3, None]
    return np.hypot(np.maximum(beside, 0), np.maximum(beyond, 0))


def _nearest(boxes: Rows, x: float, y: float) -> Numbers:
    """The point of each box that is nearest to a place, [boxes, 2]."""
    along, across = (seen[:, 0] for seen in _seen(boxes, np.array([x]), np.array([y])))
    along, across = np.clip(along, -boxes[:, 2], boxes[:, 2]), np.clip(across, -boxes[:, 3], boxes[:, 3])
    cos, sin = boxes[:, 4], boxes[:, 5]
    return np.column_stack([boxes[:, 0] + along * cos - across * sin, boxes[:, 1] + along * sin + across * cos])


def _overlap(ones: Rows, others: Rows) -> NDArray[np.bool_]:
    """Which boxes have points in common, [ones, others]: no line along a side of either lies between them."""
    cos = ones[:, 4, None] * others[:, 4] + ones[:, 5, None] * others[:, 5]
    sin = ones[:, 4, None] * others[:, 5] - ones[:, 5, None] * others[:, 4]
    cos, sin = np.abs(cos), np.abs(sin)
    along, across = _seen(ones, others[:, 0], others[:, 1])
    apart = np.abs(along) - (others[:, 2] * cos + others[:, 3] * sin) >= ones[:, 2, None]
    apart |= np.abs(across) - (others[:, 2] * sin + others[:, 3] * cos) >= ones[:, 3, None]
    along, across = (seen.T for seen in _seen(others, ones[:, 0], ones[:, 1]))
    apart |= np.abs(along) - (ones[:, 2, None] * cos + ones[:, 3, None] * sin) >= others[:, 2]
    apart |= np.abs(across) - (ones[:, 2, None] * sin + ones[:, 3, None] * cos) >= others[:, 3]
    return ~apart


# Lines count by the places on them, one a point of length, from the start to the end.


def _steps(lines: Numbers) -> Numbers:
    """Between how many places each line has a step."""
    return np.maximum(1, np.floor(np.hypot(lines[:, 2] - lines[:, 0], lines[:, 3] - lines[:, 1])))


def _within(first: Numbers, last: Numbers, steps: Numbers) -> Numbers:
    """How many places lie between two shares of a line."""
    begin, end = np.ceil(np.maximum(first, 0) * steps - _ROUNDING), np.floor(np.minimum(last, 1) * steps + _ROUNDING)
    found: Numbers = np.maximum(end - begin + 1, 0)
    return found


def _in_boxes(boxes: Rows, lines: Numbers) -> Numbers:
    """How many places of each line lie in each box, [boxes, lines]."""
    starts, ends = (_seen(boxes, lines[:, i], lines[:, i + 1]) for i in (0, 2))
    first, last = np.zeros((len(boxes), len(lines))), np.ones((len(boxes), len(lines)))
    with np.errstate(divide="ignore", invalid="ignore"):  # of lines along a side
        for start, end, half in zip(starts, ends, (boxes[:, 2, None], boxes[:, 3, None]), strict=True):
            one, other = (-half - start) / (end - start), (half - start) / (end - start)
            first, last = np.fmax(first, np.fmin(one, other)), np.fmin(last, np.fmax(one, other))
    return _within(first, np.maximum(last, -1), _steps(lines))


def _in_discs(discs: Numbers, lines: Numbers) -> Numbers:
    """How many places of each line lie in each disc, [discs, lines]."""
    x, y, radius = discs.T[:, :, None]
    right, up = lines[:, 2] - lines[:, 0], lines[:, 3] - lines[:, 1]
    length = np.maximum(right**2 + up**2, 1e-12)
    middle = ((x - lines[:, 0]) * right + (y - lines[:, 1]) * up) / length
    off = (lines[:, 0] + middle * right - x) ** 2 + (lines[:, 1] + middle * up - y) ** 2
    reach = np.sqrt(np.maximum(radius**2 - off, 0) / length)
    return np.where(off < radius**2, _within(middle - reach, middle + reach, _steps(lines)), 0)


def crossings(ones: Numbers, others: Numbers) -> Numbers:
    """How many of the other lines each line crosses."""

    def sides(a: Numbers, b: Numbers, c: Numbers) -> Numbers:
        first, second = b - a, c - a
        return np.sign(first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0])

    start, end = ones[:, None, :2], ones[:, None, 2:]
    first, last = others[:, :2], others[:, 2:]
    apart = sides(first, last, start) != sides(first, last, end)
    crossing = apart & (sides(start, end, first) != sides(start, end, last))
    return np.asarray(crossing.sum(axis=1), dtype=float)


@dataclass(frozen=True, slots=True)
class Offer:
    """A text, and where it may stand: what each place costs, [n], the centres, [n, 2], and the angle."""

    text: str
    size: tuple[float, float]  # width and height
    costs: Numbers
    centres: Numbers
    angle: float = 0.0


@dataclass(slots=True, kw_only=True)
class Room:
    """What is drawn already inside a rectangle, and what text there would cover."""

    bounds: tuple[float, float, float, float]  # left, bottom, right, top
    boxes: list[Box] = field(default_factory=list)
    small: list[Box] = field(default_factory=list)  # marks that text would hide: ridges, crossings
    discs: list[tuple[float, float, float]] = field(default_factory=list)  # x, y, radius
    lines: list[Line] = field(default_factory=list)
    leaders: list[Line] = field(default_factory=list)  # from a name to its mark

    def add_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A line that text had better not cross."""
        self.lines.append((*start, *end))

    def free(self, boxes: Rows) -> NDArray[np.bool_]:
        """Where text may stand: inside, on no other text, no ridge and no line from a name to its mark."""
        left, bottom, right, top = self.bounds
        x, y, along, across = boxes[:, :4].T
        cos, sin = np.abs(boxes[:, 4:]).T
        wide, high = along * cos + across * sin, along * sin + across * cos
        inside: NDArray[np.bool_] = (x - wide >= left) & (x + wide <= right)
        inside &= (y - high >= bottom) & (y + high <= top)
        if inside.any() and (kept := [*self.boxes, *self.small]):
            taken = np.concatenate([box.row for box in kept])
            inside[inside] = ~_overlap(boxes[inside], taken).any(axis=1)
        if inside.any() and self.leaders:
            inside[inside] = ~_in_boxes(boxes[inside], np.array(self.leaders)).any(axis=1)
        return inside

    def hits(self, boxes: Rows) -> tuple[Numbers, Numbers]:
        """How deep, in points, each box cuts into marks, added up; and how many points of line lie under it."""
        marks = lines = np.zeros(len(boxes))
        if self.discs:
            x, y, radius = np.array(self.discs).T
            marks = np.maximum(radius + PAD - _distances(boxes, x, y), 0).sum(axis=1)
        if self.lines:
            lines = _in_boxes(boxes, np.array(self.lines)).sum(axis=1)
        return marks, lines

    def nearer(self, boxes: Rows, gap: Numbers, own: tuple[float, float, float]) -> NDArray[np.bool_]:
        """Whether another mark lies nearer to each box than its own, which is so far from it, or as near."""
        others = np.array([disc for disc in self.discs if disc != own])
        if not len(others):
            return np.zeros(len(boxes), dtype=bool)
        x, y, radius = others.T
        return np.asarray((_distances(boxes, x, y) - radius).min(axis=1) <= gap)

    def crossed(self, leaders: Numbers, own: tuple[float, float, float]) -> Numbers:
        """What each leader costs: its points on other text and on other marks than its own, and lines it crosses."""
        lines = [*self.lines, *self.leaders]
        cost = 12.0 * crossings(leaders, np.array(lines)) if lines else np.zeros(len(leaders))
        if kept := [*self.boxes, *self.small]:
            taken = np.concatenate([box.row for box in kept])
            cost += _THROUGH_TEXT * _in_boxes(taken, leaders).any(axis=0)
        if self.discs:
            covered = _in_discs(np.array(self.discs), leaders)
            cost += 30.0 * (covered.sum(axis=0) - covered[self.discs.index(own)])
        return cost

    def best(
        self, offers: Iterable[Offer], extra: Callable[[Rows], Numbers] | None = None, most: float = math.inf
    ) -> tuple[Box, str] | None:
        """The free place of least cost, with its text; None where none is free: its own cost, what it covers, `extra`.

        The first of equal ones is taken. most: the cost from which no text is better than this one.
        """
        best: tuple[Box, str] | None = None
        for offer in offers:
            boxes = _rows(offer.centres, offer.size, offer.angle)
            free = self.free(boxes) & (offer.costs < most)
            if not free.any():
                continue
            boxes, (marks, lines) = boxes[free], self.hits(boxes[free])
            costs = offer.costs[free] + (40.0 * marks + 3.0 * lines) + (0.0 if extra is None else extra(boxes))
            if (least := float(costs.min())) < most:
                x, y = boxes[costs.argmin(), :2].tolist()
                box = Box(x=x, y=y, width=offer.size[0], height=offer.size[1], angle=offer.angle)
                most, best = least, (box, offer.text)
        return best


class Ruler:
    """Measures text in points, padding included, as the axes' own canvas draws it."""

    def __init__(self, ax: Axes) -> None:
        self._page = whole_page(ax)
        self.points = 72.0 / self._page.dpi  # points a pixel

    def size(self, text: str, font: float) -> tuple[float, float]:
        """Width and height of one line of text."""
        probe = Text(0, 0, text, fontsize=font)
        probe.set_figure(self._page)
        extent = probe.get_window_extent()
        return extent.width * self.points + 2 * PAD, extent.height * self.points + 2 * PAD

    def across(self, ax: Axes) -> float:
        """Points from the left end of the axes to the right one."""
        return float(ax.get_window_extent().width) * self.points


_GAPS = np.array([0.5, 3, 6, 10, 14, 18, 23, 28, 34, 40, 48, 56, 66, 78, 90, 105])
_ANGLES = np.array(sorted(range(-165, 181, 15), key=lambda angle: (abs(angle), angle)))
# From each gap in every direction; a box touches the circle with the corner or side that faces the mark.
_REACH, _ANGLE = np.repeat(_GAPS, len(_ANGLES)), np.tile(_ANGLES, len(_GAPS))
_TOWARDS = np.column_stack([np.cos(np.radians(_ANGLE)), np.sin(np.radians(_ANGLE))])
_FACING = np.clip(1.6 * _TOWARDS, -1, 1)


def around(x: float, y: float, radius: float, size: tuple[float, float], text: str) -> Offer:
    """Places for a name near a mark: the nearer the better, to the right before the left."""
    centres = (x, y) + (radius + _REACH)[:, None] * _TOWARDS + np.array(size) / 2 * _FACING
    return Offer(text, size, _REACH + np.abs(_ANGLE) / 100, centres)


class Ground:
    """Axes that are drawn on, and the room that is left in them for text."""

    def __init__(self, ax: Axes, style: Style) -> None:
        self.ax = ax
        self.style = style
        self.ruler = Ruler(ax)
        self._written: list[tuple[Box, Artist]] = []

    def settle(self) -> None:
        """From here on places are measured: scales and sides of the axes no longer change."""
        settle(self.ax)
        self._transform = self.ax.transData
        left, bottom, right, top = (value * self.ruler.points for value in self.ax.get_window_extent().extents)
        self.room = Room(bounds=(left + 1, bottom + 1, right - 1, top - 1))

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data lies, in points from the page's corner."""
        right, up = self._transform.transform((x, y)) * self.ruler.points
        return float(right), float(up)

    def label(
        self, offers: Iterable[Offer], anchor: tuple[float, float], *, font: float, colour: str = INK,
        most: float = math.inf,
    ) -> Box | None:  # fmt: skip
        """Writes the text of the best place, if one is free and costs less than `most`; returns its box."""
        found = self.room.best(offers, most=most)
        if found is None:
            return None
        box, text = found
        apart = replace(box, width=box.width + _APART)
        self.room.boxes.append(apart)
        self.write(text, box, anchor, font=font, colour=colour, room=apart)
        return box

    def clear(self) -> None:
        """Takes back all text that was written: something else needs its room."""
        for box, artist in self._written:
            artist.remove()
            self.room.boxes.remove(box)
        self._written.clear()

    def write(
        self, text: str, box: Box, anchor: tuple[float, float], *, font: float, colour: str = INK,
        leader: Line | None = None, room: Box | None = None, gid: str | None = None,
    ) -> None:  # fmt: skip
        """Writes text into its box, kept at its distance in points from a place of the data when the figure is resized.

        leader: a line from the text to its mark. room: what is kept free of other text, where that is more than the
        box. gid: what the text and its line are called in an SVG.
        """
        x, y = self.place(*anchor)
        shared: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False, "gid": gid}
        written = self.ax.annotate(
            text, xy=anchor, xytext=(box.x - x, box.y - y), rotation=math.degrees(box.angle), rotation_mode="anchor",
            ha="center", va="center", fontsize=font, color=colour, bbox=self.style.behind, zorder=6, **shared,
        )  # fmt: skip
        written.set_in_layout(False)
        self._written.append((box if room is None else room, written))
        if leader is not None:
            far = math.dist(leader[2:], (x, y))
            line = {"arrowstyle": "-", "linewidth": 0.4, "color": INK, "shrinkA": 0.0, "shrinkB": far}
            self.ax.annotate(
                "", xy=anchor, xytext=(leader[0] - x, leader[1] - y), arrowprops=line, zorder=5, **shared
            ).set_in_layout(False)


_LEADER_FROM = 3.0  # points between a mark and its name
_MISTAKEN = 12.0  # what it costs a name without a leader to stand nearer to another mark
_WORTH = 100.0  # what a name may cost: one that covers marks, or whose leader runs through text, is left out
_LONGEST_NAME, _SHORT_NAME = 28, 18  # characters


class Name:
    """A mark's name, and what always stands behind it: looks for room, and is written when all have theirs.

    shorter: whether a long name may be shortened further where it has no room.
    """

    def __init__(
        self, ground: Ground, spot: tuple[float, float], radius: float, text: str, behind: str = "",
        gid: str | None = None, shorter: bool = False,
    ) -> None:  # fmt: skip
        self.box: Box | None = None
        self._leader: Line | None = None
        self._ground = ground
        self._gid = gid
        self._spot = spot
        self._place = ground.place(*spot)
        self._radius = radius
        self._text = printable(text) + behind
        self._worth = math.inf if behind else _WORTH  # an error that was measured is always told
        self._offers = [
            around(*self._place, radius, ground.ruler.size(words, ground.style.label_font), words)
            for words in dict.fromkeys([self._text, shortened(self._text, _SHORT_NAME) if shorter else self._text])
        ]

    def settle(self) -> None:
        """Takes the best free place, leaving an earlier one."""
        room = self._ground.room
        if self.box is not None:
            room.boxes.remove(self.box)
        if self._leader is not None:
            room.leaders.remove(self._leader)
        self.box = self._leader = None
        tried = (room.best([offer], lambda boxes: self._led(boxes)[0], self._worth) for offer in self._offers)
        if (best := next(filter(None, tried), None)) is not None:
            self.box, self._text = best
            _, leaders = self._led(self.box.row)
            if leaders.any():
                self._leader = tuple(leaders[0].tolist())
                room.leaders.append(self._leader)
            room.boxes.append(self.box)

    def write(self) -> None:
        """Writes the name, if it has a place, and draws its leader."""
        if self.box is None:
            return
        font = self._ground.style.label_font
        self._ground.write(self._text, self.box, self._spot, font=font, leader=self._leader, gid=self._gid)

    def _led(self, boxes: Rows) -> tuple[Numbers, Numbers]:
        """What the better of two lines from each box to the mark costs, and that line; 0 where it needs none.

        One begins at the point that is nearest to the mark, the other in the middle of that side.
        """
        near = _nearest(boxes, *self._place)
        away = near - self._place
        gap = np.hypot(away[:, 0], away[:, 1]) - self._radius
        far = gap > _LEADER_FROM
        above = np.abs(near[:, 1] - boxes[:, 1]) > boxes[:, 3] - 0.1
        middle = np.where(above[:, None], boxes[:, :1] * [1, 0] + near * [0, 1], near * [1, 0] + boxes[:, 1:2] * [0, 1])
        costs = np.where(far, math.inf, _MISTAKEN * self._ground.room.nearer(boxes, gap, (*self._place, self._radius)))
        leaders = np.zeros((len(boxes), 4))
        for dislike, starts in ((2.0, near), (3.0, middle)) if far.any() else ():
            away = starts - self._place
            away *= (self._radius + 0.5) / np.maximum(np.hypot(away[:, :1], away[:, 1:]), 0.1)
            lines = np.hstack([starts, self._place + away])
            found = dislike + self._ground.room.crossed(lines, (*self._place, self._radius))
            better = far & (found < costs)
            costs[better], leaders[better] = found[better], lines[better]
        return costs, leaders


def shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    """Text cut in its middle to at most `longest` characters; both ends of a path say something.

    >>> shortened("encoder.layers.*.attention.projection", 20)
    'encoder.la…rojection'
    """
    if len(text) <= longest:
        return text
    front = longest // 2
    return f"{text[:front]}…{text[len(text) - (longest - 1 - front) :]}"


def write_names(names: Sequence[Name]) -> None:
    """Writes names; the first choose first, then each may move twice, now that it knows the others' places."""
    for _ in range(3):
        for name in names:
            name.settle()
    for name in names:
        name.write()


def name_marks(
    ax: Axes, style: Style, marks: Sequence[tuple[tuple[float, float], float, str]], curves: Iterable[Any] = ()
) -> None:
    """Names marks of plain axes, where there is room: place in the data, radius in points, and text, "" for no name.

    curves: x and y of lines that text had better not cross. Names keep off the key.
    """
    ground = Ground(ax, style)
    ground.settle()
    ground.room.discs = [(*ground.place(*spot), radius) for spot, radius, _ in marks]
    for curve in curves:
        for start, end in pairwise(zip(*curve, strict=True)):
            ground.room.add_line(ground.place(*start), ground.place(*end))
    if (key := ax.get_legend()) is not None:
        ground.room.boxes.append(Box.around(key.get_window_extent().get_points() * ground.ruler.points))
    write_names([Name(ground, spot, radius, text) for spot, radius, text in marks if text])
