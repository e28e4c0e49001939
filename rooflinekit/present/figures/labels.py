"""Finds room for text: boxes at any angle, what they would cover, and the best of several places.

All lengths are in points (1/72 inch) from the lower left corner of the page. Places are tried in a fixed order, and the
first of the best is taken: the same figure always gets the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.text import Text
from numpy.typing import NDArray

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


Candidate: TypeAlias = tuple[float, Box, str]  # cost, place and text of a label


@dataclass(slots=True, kw_only=True)
class Room:
    """What is drawn already inside a rectangle, and what text there would cover."""

    bounds: tuple[float, float, float, float]  # left, bottom, right, top
    boxes: list[Box] = field(default_factory=list)
    discs: list[tuple[float, float, float]] = field(default_factory=list)  # x, y, radius
    lines: list[Places] = field(default_factory=list)  # one place a point of length

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
        discs = np.array(self.discs)
        return float(np.maximum(discs[:, 2] + _PAD - box.distances(discs[:, :2]), 0).sum())

    def lines_hit(self, box: Box) -> float:
        """Points of line under the box."""
        return float((box.distances(np.concatenate(self.lines)) == 0).sum()) if self.lines else 0.0

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
            x, y, radius = np.array(self.discs).T[:, :, None]
            covered = (line[:, 0] - x) ** 2 + (line[:, 1] - y) ** 2 < radius**2
            cost += 30.0 * (covered.sum() - covered[self.discs.index(own)].sum())
        return float(cost)

    def _crossings(self, line: Places) -> int:
        """How many straight lines this one crosses."""
        if not self.lines:
            return 0
        ends = np.array([(other[0], other[-1]) for other in self.lines])
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
    """Measures text in points, padding included, as the figure's own canvas draws it."""

    def __init__(self, figure: Figure | SubFigure) -> None:
        self._figure = figure
        root = figure.get_figure(root=True)
        self.points = 72.0 / (root.dpi if root is not None else 72.0)  # points a pixel

    def size(self, text: str, font: float) -> tuple[float, float]:
        """Width and height of one line of text."""
        probe = Text(0, 0, text, fontsize=font)
        probe.set_figure(self._figure)
        extent = probe.get_window_extent()
        return extent.width * self.points + 2 * _PAD, extent.height * self.points + 2 * _PAD


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
