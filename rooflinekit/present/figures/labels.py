"""The placer of labels: boxes at any angle, what they would cover, the best of several places, names with leaders.

All lengths are in points (1/72 inch) from the lower left corner of the page. Places are tried in a fixed order, and the
first of the best is taken: the same figure always gets the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.text import Text
from numpy.typing import NDArray

from rooflinekit.errors import printable
from rooflinekit.present.figures.style import INK, Style, page_of, settle, whole_page

Places: TypeAlias = NDArray[np.float64]  # [number, 2]

_PAD = 1.0  # kept free around every text


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle around its centre, turned by an angle."""

    x: float
    y: float
    width: float
    height: float
    angle: float = 0.0  # radians, counter-clockwise

    @classmethod
    def around(cls, ends: Places) -> Box:
        """The upright one between two corners."""
        (x, y), (width, height) = ends.mean(axis=0), ends[1] - ends[0]
        return cls(x=float(x), y=float(y), width=float(width), height=float(height))

    @property
    def corners(self) -> Places:
        """The four corners, in order."""
        half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (self.width / 2, self.height / 2)
        return half @ _turn(-self.angle) + (self.x, self.y)

    @property
    def row(self) -> tuple[float, ...]:
        """Centre, half sides, cosine and sine."""
        return self.x, self.y, self.width / 2, self.height / 2, math.cos(self.angle), math.sin(self.angle)

    def overlaps(self, other: Box) -> bool:
        """Whether the two have points in common: no line along a side of either lies between them."""
        if (
            math.hypot(self.x - other.x, self.y - other.y)
            > sum(math.hypot(b.width, b.height) for b in (self, other)) / 2
        ):
            return False
        for one, two in ((self, other), (other, self)):
            seen = one._seen(two.corners)
            reach = (one.width / 2, one.height / 2)
            if (seen.min(axis=0) >= reach).any() or (-seen.max(axis=0) >= reach).any():
                return False
        return True

    def distances(self, places: Places) -> NDArray[np.float64]:
        """How far each place lies from the box; 0 inside."""
        outside = np.maximum(np.abs(self._seen(places)) - (self.width / 2, self.height / 2), 0)
        return np.hypot(outside[:, 0], outside[:, 1])

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the box that is nearest to a place."""
        seen = self._seen(np.array([[x, y]]))
        half = (self.width / 2, self.height / 2)
        found = np.clip(seen, [-half[0], -half[1]], half) @ _turn(-self.angle) + (self.x, self.y)
        return float(found[0, 0]), float(found[0, 1])

    def _seen(self, places: Places) -> Places:
        """Places in the box's own directions, from its centre."""
        return (places - (self.x, self.y)) @ _turn(self.angle)


def _turn(angle: float) -> Places:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


_NONE = np.empty((0, 2))

Candidate: TypeAlias = tuple[float, Box, str]  # cost, place and text of a label


@dataclass(slots=True, kw_only=True)
class Room:
    """What is drawn already inside a rectangle, and what text there would cover."""

    bounds: tuple[float, float, float, float]  # left, bottom, right, top
    boxes: list[Box] = field(default_factory=list)
    discs: list[tuple[float, float, float]] = field(default_factory=list)  # x, y, radius
    lines: list[Places] = field(default_factory=list)  # one place a point of length
    _discs: Places = field(default_factory=lambda: np.empty((0, 3)))  # as one array: names ask thousands of times
    _lines: tuple[list[Places], Places, Places] = field(default_factory=lambda: ([], _NONE, _NONE))

    def add_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A line that text had better not cross."""
        self.lines.append(segment(start, end))

    def free(self, box: Box) -> bool:
        """Whether text may stand here: inside, and on no other text."""
        left, bottom, right, top = self.bounds
        corners = box.corners
        inside = corners.min(axis=0) >= (left, bottom), corners.max(axis=0) <= (right, top)
        return bool(np.all(inside)) and not any(box.overlaps(other) for other in self.boxes)

    def discs_hit(self, box: Box) -> float:
        """How deep, in points, the box cuts into marks, added up."""
        if not self.discs:
            return 0.0
        discs = self._all_discs()
        return float(np.maximum(discs[:, 2] + _PAD - box.distances(discs[:, :2]), 0).sum())

    def lines_hit(self, box: Box) -> float:
        """Points of line under the box."""
        return float((box.distances(self._all_lines()[1]) == 0).sum()) if self.lines else 0.0

    def _all_discs(self) -> Places:
        if len(self._discs) != len(self.discs):
            self._discs = np.array(self.discs)
        return self._discs

    def _all_lines(self) -> tuple[list[Places], Places, Places]:
        """The lines, all places on them, and both ends of each."""
        known = self._lines[0]
        if len(known) != len(self.lines) or any(one is not other for one, other in zip(known, self.lines, strict=True)):
            ends = np.array([(line[0], line[-1]) for line in self.lines])
            self._lines = [*self.lines], np.concatenate(self.lines), ends
        return self._lines

    def crossed(self, line: Places, own: tuple[float, float, float]) -> float:
        """What a leader line costs: its points on other text and on other marks than its own, and lines it crosses."""
        cost = 12.0 * self._crossings(line)
        if self.boxes:
            # All boxes at once: this is asked for thousands of leaders.
            x, y, half_width, half_height, cos, sin = np.array([box.row for box in self.boxes]).T[:, :, None]
            right, up = line[:, 0] - x, line[:, 1] - y
            inside = (np.abs(right * cos + up * sin) <= half_width) & (np.abs(up * cos - right * sin) <= half_height)
            cost += 3.0 * inside.sum()
        if self.discs:
            x, y, radius = self._all_discs().T[:, :, None]
            covered = (line[:, 0] - x) ** 2 + (line[:, 1] - y) ** 2 < radius**2
            cost += 30.0 * (covered.sum() - covered[self.discs.index(own)].sum())
        return float(cost)

    def _crossings(self, line: Places) -> int:
        """How many straight lines this one crosses."""
        if not self.lines:
            return 0
        ends = self._all_lines()[2]
        start, end = line[0], line[-1]

        def sides(a: Places, b: Places, c: Places) -> NDArray[np.float64]:
            first, second = b - a, c - a
            return np.sign(first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0])

        apart = sides(ends[:, 0], ends[:, 1], start) != sides(ends[:, 0], ends[:, 1], end)
        return int((apart & (sides(start, end, ends[:, 0]) != sides(start, end, ends[:, 1]))).sum())

    def best(
        self, candidates: Iterable[Candidate], extra: Callable[[Box], float] | None = None, most: float = math.inf
    ) -> Candidate | None:
        """The free candidate of least cost, None where none is free: its own cost, what it covers, and `extra`.

        most: the cost from which no text is better than this one.
        """
        found: tuple[float, Candidate] | None = None
        for candidate in candidates:
            cost, box, _ = candidate
            if found is not None and cost >= found[0]:
                continue
            cost += 40.0 * self.discs_hit(box) + 3.0 * self.lines_hit(box)
            if found is not None and cost >= found[0]:
                continue
            cost += extra(box) if extra else 0.0
            if cost < (most if found is None else found[0]) and self.free(box):
                found = cost, candidate
        return found[1] if found else None


def segment(start: tuple[float, float], end: tuple[float, float]) -> Places:
    """Places along a line, one a point of length."""
    count = max(2, int(math.dist(start, end)) + 1)
    return np.linspace(start, end, count)


class Ruler:
    """Measures text in points, padding included, as the axes' own canvas draws it."""

    def __init__(self, ax: Axes) -> None:
        self._page = page_of(ax)
        self.points = 72.0 / whole_page(ax).dpi  # points a pixel

    def size(self, text: str, font: float) -> tuple[float, float]:
        """Width and height of one line of text."""
        probe = Text(0, 0, text, fontsize=font)
        probe.set_figure(self._page)
        extent = probe.get_window_extent()
        return extent.width * self.points + 2 * _PAD, extent.height * self.points + 2 * _PAD

    def across(self, ax: Axes) -> float:
        """Points from the left end of the axes to the right one."""
        return float(ax.get_window_extent().width) * self.points


_ANGLES = sorted(range(-165, 181, 15), key=lambda angle: (abs(angle), angle))


def around(x: float, y: float, radius: float, size: tuple[float, float], text: str) -> Iterator[Candidate]:
    """Places for a name near a mark: the nearer the better, to the right before the left."""
    width, height = size
    for gap in (0.5, 3, 6, 10, 14, 18, 23, 28, 34, 40, 48, 56, 66, 78, 90, 105):
        for angle in _ANGLES:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            reach = radius + gap
            # The box touches the circle of this reach with the corner or side that faces the mark.
            box = Box(
                x=x + reach * across + width / 2 * max(-1, min(1, 1.6 * across)),
                y=y + reach * up + height / 2 * max(-1, min(1, 1.6 * up)),
                width=width,
                height=height,
            )
            yield gap + abs(angle) / 100, box, text


_APART = 3.0  # points that texts in a line are apart in all


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
        self, candidates: Iterable[Candidate], anchor: tuple[float, float], *, font: float, colour: str = INK
    ) -> Box | None:
        """Writes the best candidate's text, if one is free; returns its box."""
        found = self.room.best(candidates)
        if found is None:
            return None
        _, box, text = found
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
        leader: tuple[float, float] | None = None, room: Box | None = None, gid: str | None = None,
    ) -> None:  # fmt: skip
        """Writes text into its box, kept at its distance in points from a place of the data when the figure is resized.

        leader: the point of the page at which a line from the text ends. room: what is kept free of other text, where
        that is more than the box. gid: what the text and its line are called in an SVG.
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
            start = box.nearest(*leader)
            line = {
                "arrowstyle": "-",
                "linewidth": 0.4,
                "color": INK,
                "shrinkA": 0.0,
                "shrinkB": math.dist(leader, (x, y)),
            }
            self.ax.annotate(
                "", xy=anchor, xytext=(start[0] - x, start[1] - y), arrowprops=line, zorder=5, **shared
            ).set_in_layout(False)


_LEADER_FROM = 3.0  # points between a mark and its name
_WORTH = 100.0  # what a name may cost: one that covers marks, or whose leader runs through text, is left out
_LONGEST_NAME = 28  # characters


class Name:
    """A mark's name, and what always stands behind it: looks for room, and is written when all have theirs."""

    def __init__(
        self, ground: Ground, spot: tuple[float, float], radius: float, text: str, behind: str = "",
        gid: str | None = None,
    ) -> None:  # fmt: skip
        self.box: Box | None = None
        self._leader: Places | None = None
        self._ground = ground
        self._gid = gid
        self._spot = spot
        self._place = ground.place(*spot)
        self._radius = radius
        self._text = printable(text) + behind
        self._worth = math.inf if behind else _WORTH  # an error that was measured is always told
        self._size = ground.ruler.size(self._text, ground.style.label_font)

    def settle(self) -> None:
        """Takes the best free place, leaving an earlier one."""
        room = self._ground.room
        if self.box is not None:
            room.boxes.remove(self.box)
        room.lines = [line for line in room.lines if line is not self._leader]
        best = room.best(around(*self._place, self._radius, self._size, self._text), self._leader_cost, self._worth)
        self.box = best[1] if best else None
        self._leader = None
        if self.box is not None:
            room.boxes.append(self.box)
            near = self.box.nearest(*self._place)
            if self._gap(near) > _LEADER_FROM:
                self._leader = segment(near, _toward(self._place, near, self._radius))
                room.lines.append(self._leader)

    def write(self) -> None:
        """Writes the name, if it has a place, and draws its leader."""
        if self.box is None:
            return
        end = None if self._leader is None else (float(self._leader[-1, 0]), float(self._leader[-1, 1]))
        font = self._ground.style.label_font
        self._ground.write(self._text, self.box, self._spot, font=font, leader=end, gid=self._gid)

    def _gap(self, near: tuple[float, float]) -> float:
        return math.dist(near, self._place) - self._radius

    def _leader_cost(self, box: Box) -> float:
        near = box.nearest(*self._place)
        if self._gap(near) <= _LEADER_FROM:
            return 0.0
        leader = segment(near, _toward(self._place, near, self._radius + 0.5))
        return 2.0 + self._ground.room.crossed(leader, (*self._place, self._radius))


def _toward(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    """The point at this distance from `start` on the way to `end`."""
    share = distance / math.dist(start, end)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


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
    """Writes names; the first choose first, then each may move once more, now that it knows the others' places."""
    for _ in range(2):
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
