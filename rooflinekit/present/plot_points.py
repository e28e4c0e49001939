"""Draws marks and their names, the rail of kernels without FLOP, and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWNBASE, CARETLEFTBASE, CARETRIGHTBASE

from rooflinekit.present.figure_records import Figure, Point, by_time, leading
from rooflinekit.present.plot_frame import Frame
from rooflinekit.present.plot_labels import Box, Places, around, segment
from rooflinekit.present.plot_roofs import Line
from rooflinekit.present.plot_style import (
    BOUND_COLOURS,
    BOUND_MARKERS,
    DASHES,
    FAINT,
    INK,
    SERIES_COLOURS,
    area_scale,
    marker_radius,
    marker_square,
)
from rooflinekit.units import format_quantity

_ROUNDING = 1e-9  # of a place through its logarithm and back
_LEADER_FROM = 3.0  # points between a mark and its name
_LONGEST_NAME = 28  # characters


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
    """All marks, large ones behind small ones, the unnamed ones pale."""
    points = (*figure.points, *figure.rail)
    scale = area_scale(points, frame.style)
    colours = colours_of(figure)
    for point in by_time(points):
        marker, area = BOUND_MARKERS[point.bound], scale * point.share
        spot = frame.spot(point)
        frame.ax.scatter(
            [spot[0]],
            [spot[1]],
            s=marker_square(marker, area),
            marker=marker,
            color=colours[point.series, point.bound],
            alpha=0.75 if len(figure.series) > 1 else 0.9 if point in named else 0.55,
            edgecolors="white",
            linewidths=0.4,
            zorder=4,
        )
        radius = marker_radius(marker, area)
        frame.room.discs.append((*frame.place(*spot), radius))
        _edge_arrow(frame, point, spot)


def _edge_arrow(frame: Frame, point: Point, spot: tuple[float, float]) -> None:
    """Says of a mark that stands at the edge that its place lies further out."""
    x, y = (point.intensity, point.performance) if point.flop else (frame.rail, frame.rail * point.bandwidth)
    for beyond, marker in (
        (y < spot[1] * (1 - _ROUNDING), CARETDOWNBASE),
        (x < spot[0] * (1 - _ROUNDING), CARETLEFTBASE),
        (x > spot[0] * (1 + _ROUNDING), CARETRIGHTBASE),
    ):
        if beyond:
            frame.ax.plot([spot[0]], [spot[1]], marker=marker, markersize=3, color=INK, linestyle="none", zorder=4.5)


def name_points(frame: Frame, figure: Figure, named: Sequence[Point]) -> tuple[Point, ...]:
    """Writes names beside their marks, with leader lines where they stand off. Returns those that found room.

    The longest kernels choose first; then each name may move once more, now that it knows the others' places.
    """
    scale = area_scale((*figure.points, *figure.rail), frame.style)
    # A name that stands for the marks of several series does not count the kernels of one.
    texts = {point: point.label.partition(" ×")[0] if len(figure.series) > 1 else point.label for point in named}
    names = [_Name(frame, point, scale, texts[point]) for point in by_time(named)]
    for _ in range(2):
        for name in names:
            name.settle()
    for name in names:
        name.write()
    return tuple(name.point for name in names if name.box is not None)


class _Name:
    """A mark's name: looks for room, and is written when all have theirs."""

    def __init__(self, frame: Frame, point: Point, scale: float, text: str) -> None:
        self.point = point
        self.box: Box | None = None
        self._leader: Places | None = None
        self._frame = frame
        self._spot = frame.spot(point)
        self._place = frame.place(*self._spot)
        self._radius = marker_radius(BOUND_MARKERS[point.bound], scale * point.share)
        self._text = shortened(text)
        self._size = frame.ruler.size(self._text, frame.style.label_font)

    def settle(self) -> None:
        """Takes the best free place, leaving an earlier one."""
        room = self._frame.room
        if self.box is not None:
            room.boxes.remove(self.box)
        room.lines = [line for line in room.lines if line is not self._leader]
        best = room.best(around(*self._place, self._radius, self._size, self._text), self._leader_cost)
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


_Corner: TypeAlias = Literal["lower right", "upper left", "lower left", "upper right"]  # in the order of preference


def draw_key(frame: Frame, figure: Figure, lines: Sequence[Line], named: Sequence[Point]) -> None:
    """What colours, shapes and areas mean, where it covers least."""
    handles = [*_handles(frame, figure, named), *_line_handles(lines)]
    best: tuple[float, _Corner, Box] | None = None
    for place in get_args(_Corner):
        legend = _legend(frame, handles, place)
        extent = legend.get_window_extent()
        points = frame.ruler.points
        box = Box(
            x=(extent.x0 + extent.x1) / 2 * points,
            y=(extent.y0 + extent.y1) / 2 * points,
            width=extent.width * points,
            height=extent.height * points,
        )
        texts = sum(box.overlaps(other) for other in frame.room.boxes)
        cost = 100.0 * texts + 10 * frame.room.discs_hit(box) + frame.room.lines_hit(box)
        if best is None or cost < best[0]:
            best = cost, place, box
        legend.remove()
    assert best is not None, "a key has four places to choose from"
    _legend(frame, handles, best[1])
    frame.room.boxes.append(best[2])


def _legend(frame: Frame, handles: Sequence[Line2D], place: _Corner) -> Legend:
    legend = Legend(
        frame.ax,
        handles,
        [str(handle.get_label()) for handle in handles],
        loc=place,
        fontsize=frame.style.label_font,
        handletextpad=0.3,
        labelspacing=0.3,
        borderpad=0.3,
        borderaxespad=0.4,
        handlelength=1.4,
        framealpha=0.9,
        edgecolor="none",
        fancybox=False,
    )
    frame.ax.add_artist(legend)
    legend.set_in_layout(False)
    legend.set_zorder(5.5)
    return legend


def _handles(frame: Frame, figure: Figure, named: Sequence[Point]) -> list[Line2D]:
    points = (*figure.points, *figure.rail)
    bounds = [bound for bound in BOUND_MARKERS if any(point.bound == bound for point in points)]
    several = len(figure.series) > 1
    colours = colours_of(figure)
    found = []
    if several:
        found += [
            _handle(series.name.removeprefix("NVIDIA "), "s", colours[series.name, "compute"], 20.0)
            for series in figure.series
        ]
    for bound in bounds:
        colour = FAINT if several else BOUND_COLOURS[bound]
        found.append(_handle(f"{bound}-bound", BOUND_MARKERS[bound], colour, 20.0))
    if points:
        scale = area_scale(points, frame.style)
        share = max((s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if s * scale <= 45), default=0.01)
        handle = _handle(f"{share:.0%} of GPU time".replace("%", " %"), "o", "none", share * scale)
        handle.set_markeredgecolor(INK)
        found.append(handle)
    if not several and len(points) > len(named):
        rest = sum(point.share for point in points) - sum(point.share for point in named)
        found.append(_handle(f"{len(points) - len(named)} more: {rest:.1%}".replace("%", " %"), "o", "none", 0.0))
    return found


def _line_handles(lines: Sequence[Line]) -> list[Line2D]:
    origins = dict.fromkeys((line.first.provenance, line.dashed) for line in lines)
    return [
        Line2D([], [], label=origin, color=INK, linewidth=0.6 if dashed else 1.0, linestyle=DASHES if dashed else "-")
        for origin, dashed in origins
    ]


def _handle(label: str, marker: str, colour: str, area: float) -> Line2D:
    return Line2D(
        [],
        [],
        label=label,
        linestyle="none",
        marker=marker if area else "none",
        markersize=math.sqrt(marker_square(marker, area)),
        color=colour,
        markeredgewidth=0.5,
    )


def draw_rail_scale(frame: Frame) -> None:
    """Labels the rail's ticks in byte/s."""
    if frame.limits.rail is None:
        return
    font = frame.style.label_font - 1
    for decade, spot in frame.limits.rail_ticks():
        text = format_quantity(10.0**decade, "byte/s", digits=1)
        width, height = frame.ruler.size(text, font)
        x, y = frame.place(*spot)
        box = Box(x=x + 2 + width / 2, y=y, width=width, height=height)
        frame.label([(0.0, box, text)], spot, font=font, colour="#555555")
