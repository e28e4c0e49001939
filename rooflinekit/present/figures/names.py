"""Names beside marks, with leader lines where they stand off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.markers import CARETDOWNBASE, CARETLEFTBASE, CARETRIGHTBASE, CARETUPBASE

from rooflinekit.present.figures.frame import Frame
from rooflinekit.present.figures.labels import Box, Places, around, segment
from rooflinekit.present.figures.records.figure import Figure, Point, by_time, leading
from rooflinekit.present.figures.style import (
    BOUND_COLOURS,
    BOUND_MARKERS,
    INK,
    SERIES_COLOURS,
    VERMILLION,
    Place,
    area_scale,
    marker_radius,
    marker_square,
)
from rooflinekit.units import format_quantity

_LEADER_FROM = 3.0  # points between a mark and its name
_WORTH = 100.0  # what a name may cost: one that covers marks, or whose leader runs through text, is left out
_LONGEST_NAME = 28  # characters


class Name:
    """A mark's name, and what always stands behind it: looks for room, and is written when all have theirs."""

    def __init__(self, frame: Frame, spot: tuple[float, float], radius: float, text: str, behind: str = "") -> None:
        self.box: Box | None = None
        self._leader: Places | None = None
        self._frame = frame
        self._spot = spot
        self._place = frame.place(*spot)
        self._radius = radius
        self._text = shortened(text) + behind
        self._worth = math.inf if behind else _WORTH  # an error that was measured is always told
        self._size = frame.ruler.size(self._text, frame.style.label_font)

    def settle(self) -> None:
        """Takes the best free place, leaving an earlier one."""
        room = self._frame.room
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
        self._frame.write(self._text, self.box, self._spot, font=self._frame.style.label_font, leader=end)

    def _gap(self, near: tuple[float, float]) -> float:
        return math.dist(near, self._place) - self._radius

    def _leader_cost(self, box: Box) -> float:
        near = box.nearest(*self._place)
        if self._gap(near) <= _LEADER_FROM:
            return 0.0
        leader = segment(near, _toward(self._place, near, self._radius + 0.5))
        return 2.0 + self._frame.room.crossed(leader, (*self._place, self._radius))


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


# Draws marks and the rail of kernels without FLOP.


_ROUNDING = 1e-9  # of a place through its logarithm and back
_RING = 2.5  # points between a mark above its roof and the ring around it


def named_points(figure: Figure, count: int) -> tuple[Point, ...]:
    """The points that a figure names: the longest, until they cover 90 % of the time of their series.

    Of several series each kind of op is named once.
    """
    points = (*figure.points, *figure.rail)
    found: list[Point] = []
    for series in figure.series:
        found += leading((point for point in points if point.series == series.name), limit=len(points))
    found = list(by_time(found))
    if len(figure.series) > 1:
        found = list({point.kind: point for point in reversed(found)}.values())[::-1]
    return tuple(by_time(found)[:count])


def colours_of(figure: Figure) -> Mapping[tuple[str, str], str]:
    """The colour of marks by series and bound: what varies in the figure, series before bound."""
    if len(figure.series) <= 1:
        return {(series.name, bound): colour for series in figure.series for bound, colour in BOUND_COLOURS.items()}
    devices = [device.name for device in figure.devices]
    # A series on a device of its own has the colour of the device's roofs.
    own = len({series.device for series in figure.series}) == len(figure.series)
    found: dict[tuple[str, str], str] = {}
    for i, series in enumerate(figure.series):
        colour = SERIES_COLOURS[(devices.index(series.device) if own else i) % len(SERIES_COLOURS)]
        found.update({(series.name, bound): colour for bound in BOUND_COLOURS})
    return found


def draw_points(frame: Frame, figure: Figure, named: Sequence[Point]) -> None:
    """All marks, large ones behind small ones, the unnamed ones pale; those of one point joined."""
    points = (*figure.points, *figure.rail)
    scale = area_scale(figure, frame.style)
    colours = colours_of(figure)
    above = figure.above
    for point in by_time(points):
        marker, area = BOUND_MARKERS[point.bound], scale * point.share
        alpha = 0.75 if len(figure.series) > 1 else 0.9 if point in named else 0.55
        colour, radius = colours[point.series, point.bound], marker_radius(marker, area)
        places = frame.places(point)
        spots = [frame.limits.clipped(*place.at) if point.flop else _on_rail(frame, place) for place in places]
        if len(spots) > 1:
            frame.ax.plot(*zip(*spots, strict=True), color=colour, linewidth=0.7, alpha=alpha, zorder=3.5)
            frame.room.add_line(*(frame.place(*spot) for spot in spots[:2]))
        for place, spot in zip(places, spots, strict=True):
            frame.ax.scatter(
                [spot[0]],
                [spot[1]],
                s=marker_square(marker, area),
                marker=marker,
                facecolors=colour if place.filled else "white",
                alpha=alpha,
                edgecolors="white" if place.filled else colour,
                linewidths=0.4 if place.filled else 0.8,
                zorder=4 if place.filled else 3.8,
            )
            frame.room.discs.append((*frame.place(*spot), radius))
            _edge_arrow(frame, place, spot)
        if point in above:
            frame.ax.plot(
                *frame.spot(point), marker="o", markersize=2 * (radius + _RING), markerfacecolor="none",
                markeredgecolor=VERMILLION, markeredgewidth=0.9, linestyle="none", zorder=4.6,
            )  # fmt: skip


def _on_rail(frame: Frame, place: Place) -> tuple[float, float]:
    return frame.rail, frame.limits.clipped(1.0, place.at[1])[1]


def _edge_arrow(frame: Frame, place: Place, spot: tuple[float, float]) -> None:
    """Says of a mark that stands at the edge that its place lies further out."""
    x, y = place.at
    for beyond, marker in (
        (y < spot[1] * (1 - _ROUNDING), CARETDOWNBASE),
        (y > spot[1] * (1 + _ROUNDING), CARETUPBASE),
        (x < spot[0] * (1 - _ROUNDING), CARETLEFTBASE),
        (x > spot[0] * (1 + _ROUNDING), CARETRIGHTBASE),
    ):
        if beyond:
            frame.ax.plot([spot[0]], [spot[1]], marker=marker, markersize=3, color=INK, linestyle="none", zorder=4.5)


def name_points(frame: Frame, figure: Figure, named: Sequence[Point]) -> tuple[Point, ...]:
    """Writes names beside their marks, those of the longest kernels first. Returns the points that found room.

    A measured point's name has the error of its prediction behind it.
    """
    scale = area_scale(figure, frame.style)
    names = []
    for point in by_time(named):
        # A name that stands for the marks of several series does not count the kernels of one.
        text = point.label.partition(" ×")[0] if len(figure.series) > 1 else point.label
        radius = marker_radius(BOUND_MARKERS[point.bound], scale * point.share)
        error = f" {point.error:+.0%}".replace("%", " %").replace("-", "−") if point.measured_s else ""
        names.append(Name(frame, frame.spot(point), radius, text, error))
    write_names(names)
    return tuple(point for point, name in zip(by_time(named), names, strict=True) if name.box is not None)


def draw_rail_scale(frame: Frame, *, normalized: bool = False) -> None:
    """Labels the rail's ticks in byte/s, or in shares of the bandwidth."""
    if frame.limits.rail is None:
        return
    font = frame.style.label_font - 1
    for decade, spot in frame.limits.rail_ticks():
        share = f"{10.0**decade:.0%}".replace("%", " %")
        text = share if normalized else format_quantity(10.0**decade, "byte/s", digits=1)
        width, height = frame.ruler.size(text, font)
        x, y = frame.place(*spot)
        box = Box(x=x + 2 + width / 2, y=y, width=width, height=height)
        frame.label([(0.0, box, text)], spot, font=font, colour="#555555")
