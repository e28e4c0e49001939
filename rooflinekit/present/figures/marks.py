"""Draws marks, their names, what stands beside them (the rail, paths of steps, crossings, floors), and the key.

What has names or labels is drawn by a generator in two steps: they are written when everything has its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWNBASE, CARETLEFTBASE, CARETRIGHTBASE, CARETUPBASE, MarkerStyle
from matplotlib.transforms import IdentityTransform

from rooflinekit.present.figures.frame import Frame, Place, roof_colours
from rooflinekit.present.figures.labels import Box, Name, Offer, around, shortened, write_names
from rooflinekit.present.figures.records.caption import percent, three_digits
from rooflinekit.present.figures.records.figure import Figure, Floor, Point, Stop, by_time, leading
from rooflinekit.present.figures.records.roofs import crossings
from rooflinekit.present.figures.style import (
    BOUND_COLOURS,
    BOUND_MARKERS,
    DASHES,
    FAINT,
    INK,
    RAIL_GREY,
    VERMILLION,
    Style,
    key_above,
    marker_radius,
    marker_square,
    series_colours,
    whole_page,
)
from rooflinekit.units import as_percent, format_quantity

_ROUNDING = 1e-9  # of a place through its logarithm and back
_RING = 2.5  # points between a mark above its roof and the ring around it
_AREA = 28.0  # pt² of a step's mark
_SHORTEST = 9.0  # points between marks that an arrow joins; nearer ones a line
_CROSS = 4.5  # points of a crossing's mark
_UNNAMED = " unnamed: "


def named_points(figure: Figure, count: int) -> tuple[Point, ...]:
    """The points that a figure names: the longest, until they cover 90 % of the time of their series.

    Of several series each kind of op is named once.
    """
    points = (*figure.points, *figure.rail)
    found: list[Point] = []
    for series in figure.series:
        found += leading(point for point in points if point.series == series.name)
    found = list(by_time(found))
    if len(figure.series) > 1:
        found = list({point.kind: point for point in reversed(found)}.values())[::-1]
    return tuple(by_time(found)[:count])


def colours_of(figure: Figure) -> Mapping[tuple[str, str], str]:
    """The colour of marks by series and bound: what varies in the figure, series before bound."""
    if len(figure.series) <= 1:
        return {(series.name, bound): colour for series in figure.series for bound, colour in BOUND_COLOURS.items()}
    colours = series_colours(series.name for series in figure.series)
    if len({series.device for series in figure.series}) == len(figure.series):  # those of the devices' roofs
        by_device = series_colours(device.name for device in figure.devices)
        colours = {series.name: by_device[series.device] for series in figure.series}
    return {(name, bound): colour for name, colour in colours.items() for bound in BOUND_COLOURS}


def area_of(figure: Figure, style: Style, share: float) -> float:
    """Area of a mark in pt² by its share of the time; of several series smaller, for equal kernels stand close."""
    largest = max((point.share for point in (*figure.points, *figure.rail)), default=1.0)
    crowd = max(1, len(figure.series))
    return max(share * min(style.whole_area, style.largest_area * 2 / (crowd + 1) / largest), style.least_area)


def draw_points(frame: Frame, named: Sequence[Point]) -> Iterator[None]:
    """Draws all marks, large ones behind small ones, the unnamed ones pale; those of one point joined. Then names those
    of the longest kernels first, and corrects the key by who found room.

    An SVG calls a mark "mark-" and its number, what belongs to it "of-" and that. A measured point's name has the error
    of its prediction behind it.
    """
    figure, above = frame.figure, frame.figure.above
    colours, several, names = colours_of(figure), len(figure.series) > 1, {}
    for gid, point in enumerate(by_time((*figure.points, *figure.rail))):
        marker, area = BOUND_MARKERS[point.bound], area_of(figure, frame.style, point.share)
        alpha = 0.75 if several else 0.9 if point in named else 0.55
        colour, radius, places = colours[point.series, point.bound], marker_radius(marker, area), frame.places(point)
        if len(spots := [spot for _, spot in places]) > 1:
            frame.ax.plot(*zip(*spots, strict=True), color=colour, linewidth=0.7, alpha=alpha, zorder=3.5)
            frame.room.add_line(*(frame.place(*spot) for spot in spots[:2]))
        for place, spot in places:
            draw_mark(frame.ax, spot, marker, area, colour, filled=place.filled, alpha=alpha, gid=f"mark-{gid}")
            frame.room.discs.append((*frame.place(*spot), radius))
            _edge_arrow(frame, place, spot, gid)
        if point in above:
            frame.ax.plot(
                *spots[-1], marker="o", markersize=2 * (radius + _RING), markerfacecolor="none",
                markeredgecolor=VERMILLION, markeredgewidth=0.9, linestyle="none", zorder=4.6, gid=f"of-{gid}",
            )  # fmt: skip
        # A name that stands for the marks of several series does not count the kernels of one.
        text = point.label.partition(" ×")[0] if several else point.label
        error = f" {percent(point.error + 1)}" if point.measured_s else ""
        names[id(point)] = spots[-1], radius, shortened(text), error, f"of-{gid}"
    yield
    written = [(point, Name(frame, *names[id(point)])) for point in by_time(named)]
    write_names([name for _, name in written])
    _tell_unnamed(frame.ax, figure, [point for point, name in written if name.box is not None])


def draw_mark(
    ax: Axes, spot: tuple[float, float], marker: str, area: float, colour: str, *, filled: bool,
    alpha: float | None = None, gid: str | None = None,
) -> None:  # fmt: skip
    """A mark with a white edge, or a hollow one below those: what `scatter` draws, without its search for colours."""
    face, edge = (colour, "white") if filled else ("white", colour)
    style = MarkerStyle(marker)
    ax.add_collection(
        PathCollection(
            [style.get_path().transformed(style.get_transform())], [marker_square(marker, area)], offsets=[spot],
            offset_transform=ax.transData, facecolors=face, edgecolors=edge, linewidths=0.4 if filled else 0.8,
            alpha=alpha, zorder=4 if filled else 3.8, gid=gid, transform=IdentityTransform(),
        ), autolim=False,
    )  # fmt: skip


def _edge_arrow(frame: Frame, place: Place, spot: tuple[float, float], gid: int) -> None:
    """Says of a mark that stands at the edge that its place lies further out."""
    x, y = place.at
    for beyond, marker in (
        (y < spot[1] * (1 - _ROUNDING), CARETDOWNBASE),
        (y > spot[1] * (1 + _ROUNDING), CARETUPBASE),
        (x < spot[0] * (1 - _ROUNDING), CARETLEFTBASE),
        (x > spot[0] * (1 + _ROUNDING), CARETRIGHTBASE),
    ):
        if beyond:
            frame.ax.plot([spot[0]], [spot[1]], marker=marker, markersize=3, color=INK, linestyle="none", zorder=4.5,
                          gid=f"of-{gid}")  # fmt: skip


def draw_rail_scale(frame: Frame) -> None:
    """Labels the rail's ticks in byte/s, or in shares of the bandwidth."""
    font = frame.style.label_font - 1
    for decade, spot in frame.limits.rail_ticks():
        share = f"{as_percent(10.0**decade)} of bandwidth"
        text = share if frame.figure.normalized else f"moves {format_quantity(10.0**decade, 'byte/s', digits=1)}"
        width, height = frame.ruler.size(text, font)
        x, y = frame.place(*spot)
        offer = Offer(text, (width, height), np.zeros(1), np.array([[x + 2 + width / 2, y]]))
        frame.label([offer], spot, font=font, colour="#555555")


def draw_paths(frame: Frame) -> Iterator[None]:
    """Draws a mark a step, joined in order by arrows. Then names the steps, as far as there is room, both ends first.

    A step that sends something has a mark for each link, and a hollow one at its DRAM traffic, joined by a line.
    """
    paths, names = frame.figure.trajectories, []
    colours = series_colours(path.name for path in paths)
    for path in paths:
        colour, last = colours[path.name], len(path.stops) - 1
        spots = [_spot(frame, stop) for stop in path.stops]
        places = [frame.place(*spot) for spot in spots]
        for (a, b), (start, end) in zip(pairwise(spots), pairwise(places), strict=True):
            style = "-|>" if math.dist(start, end) > _SHORTEST else "-"
            frame.ax.annotate(
                "", xy=b, xytext=a, zorder=3.5,
                arrowprops={"arrowstyle": style, "color": colour, "linewidth": 0.9, "mutation_scale": 7,
                            "shrinkA": 2.5, "shrinkB": 2.5},
            ).set_in_layout(False)  # fmt: skip
            frame.room.add_line(start, end)
        for stop in path.stops:
            _stop_marks(frame, stop, colour)
        for i in [*dict.fromkeys((0, last)), *range(1, last)]:
            radius = marker_radius(BOUND_MARKERS[path.stops[i].bound], _AREA)
            names.append((spots[i], radius, shortened(path.stops[i].label)))
    yield
    write_names([Name(frame, *name, shorter=True) for name in names])


def _spot(frame: Frame, stop: Stop, level: int = 0) -> tuple[float, float]:
    return frame.limits.clipped(stop.intensities[level], stop.performance)


def _stop_marks(frame: Frame, stop: Stop, colour: str) -> None:
    """A step's mark at each level. Whoever sends is hollow at its DRAM traffic."""
    marker, sends = BOUND_MARKERS[stop.bound], bool(stop.link_bytes)
    spots = [_spot(frame, stop, level) for level in range(len(stop.intensities))]
    if sends:
        frame.ax.plot(*zip(*spots, strict=True), color=colour, linewidth=0.6, linestyle=(0, (2, 2)), zorder=3.4)
        frame.room.add_line(frame.place(*min(spots)), frame.place(*max(spots)))
    for level, spot in enumerate(spots):
        hollow = sends and level == len(spots) - 1
        draw_mark(frame.ax, spot, marker, _AREA, colour, filled=not hollow)
        frame.room.discs.append((*frame.place(*spot), marker_radius(marker, _AREA)))


def draw_crossings(frame: Frame) -> Iterator[None]:
    """Draws a cross where the faster of two devices changes; the key says so. Then labels it with its intensity."""
    spots, font = [crossing.at for crossing in crossings(frame.figure)], frame.style.label_font - 0.5
    inside = [(x, y) for x, y in spots if frame.limits.left < math.log10(x) < frame.limits.right]
    for spot in inside:
        frame.ax.plot(*spot, marker="x", markersize=_CROSS, markeredgewidth=1.0, color=INK, zorder=4.2)
        across, up = frame.place(*spot)
        frame.room.small.append(Box(x=across, y=up, width=_CROSS + 1, height=_CROSS + 1))
    yield
    for spot in inside:
        text = three_digits(spot[0])
        offer = around(*frame.place(*spot), 3.0, frame.ruler.size(text, font), text)
        frame.label([offer], spot, font=font, colour=INK)


def draw_floors(frame: Frame) -> Iterator[None]:
    """Draws what a kernel that moves as much as the median one can reach, its start included: a dotted curve. Then
    labels it with the kernels that it belongs to.
    """
    figure, drawn = frame.figure, []
    for floor in figure.floors:
        curve = _curve(frame, figure, floor)
        colour = VERMILLION if len(figure.devices) == 1 else roof_colours(figure)[floor.device]
        frame.ax.plot(*zip(*curve, strict=True), linestyle=(0, (1, 1.5)), color=colour, linewidth=1.0, zorder=2)
        inside = [spot for spot in curve if spot[1] > 10**frame.limits.bottom]
        for start, end in pairwise([frame.place(*spot) for spot in inside][::10]):
            frame.room.add_line(start, end)
        drawn += [(floor, inside, colour)] if inside else []
    yield
    for floor, inside, colour in drawn:
        launch, moved = f"launch {format_quantity(floor.start_s, 's')}", format_quantity(floor.median_bytes, "byte")
        found = []
        for dislike, text in ((0.0, f"{launch}, {moved} a kernel"), (15.0, launch)):
            size = frame.ruler.size(text, frame.style.label_font)
            for i, spot in enumerate(inside[::8]):
                offer = around(*frame.place(*spot), 1.0, size, text)
                near = offer.costs < 12
                costs = offer.costs[near] + dislike + 0.05 * i
                found.append(replace(offer, costs=costs, centres=offer.centres[near]))
        frame.label(found, inside[0], font=frame.style.label_font, colour=colour)


def _curve(frame: Frame, figure: Figure, floor: Floor) -> list[tuple[float, float]]:
    """FLOP/byte and FLOP/s of a kernel of the median traffic: start, then the slower of arithmetic and memory."""
    mine = [roof for roof in figure.roofs if roof.device == floor.device and roof.provenance == "datasheet"]
    levels = [roof.value for roof in mine if roof.kind == "compute"]
    xs = np.logspace(frame.limits.left, frame.limits.right, 200)
    work_s = np.full_like(xs, floor.median_bytes / figure.memory_roof(floor.device).value)
    if levels:
        work_s = np.maximum(work_s, xs * floor.median_bytes / max(levels))
    ys = xs * floor.median_bytes / (floor.start_s + work_s)
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


_CORNERS = 4
_Place: TypeAlias = Literal[
    "lower right", "upper left", "lower left", "upper right", "center right", "lower center", "upper center",
    "center left",
]  # fmt: skip
#: In the order of preference; those of the edges only where the corners hold text.
_PLACES = get_args(_Place)


def draw_key(frame: Frame, named: Sequence[Point], *, hiding: bool) -> bool | None:
    """What colours, shapes and areas mean, where it covers least. Returns whether it covers text that was there.

    hiding: whether it may hide marks. Where it may not, and has no place without, it is not drawn, and None returned.
    """
    if frame.style.on_screen:
        return False
    handles, title = _handles(frame.style, frame.figure, named), _title(frame.figure) or None
    best: tuple[float, _Place, Box, bool, bool] | None = None
    for i, place in enumerate(_PLACES):
        if i >= _CORNERS and best is not None and not best[3]:
            break
        legend = _legend(frame, handles, place, title)
        extent = legend.get_window_extent()
        box = Box.around(extent.get_points() * frame.ruler.points)
        texts = sum(box.overlaps(other) for other in frame.room.boxes)
        # Labels can move, marks cannot.
        marks, under = (float(hits[0]) for hits in frame.room.hits(box.row))
        ridges = sum(box.overlaps(mark) for mark in frame.room.small)
        cost = 100.0 * (texts + ridges) + 10 * marks + under
        if best is None or cost < best[0]:
            best = cost, place, box, texts > 0, ridges > 0 or box.holds(frame.room.discs)
        legend.remove()
    assert best is not None, "a key has places to choose from"
    _, place, box, on_text, on_marks = best
    if on_marks and not hiding:
        return None
    _legend(frame, handles, place, title)
    if on_text:
        frame.clear()
    frame.room.boxes.append(box)
    return on_text


def _legend(frame: Frame, handles: Sequence[Line2D], place: _Place, title: str | None) -> Legend:
    font, names = frame.style.label_font, [str(handle.get_label()) for handle in handles]
    legend = Legend(
        frame.ax, handles, names, loc=place, title=title, title_fontsize=font, alignment="left", fontsize=font,
        handletextpad=0.3, labelspacing=0.3, borderpad=0.3, borderaxespad=0.4, handlelength=1.4, framealpha=0.9,
        edgecolor="none", fancybox=False,
    )  # fmt: skip
    frame.ax.add_artist(legend)
    legend.set_in_layout(False)
    legend.set_zorder(5.5)
    return legend


def key_outside(ax: Axes, figure: Figure, style: Style, named: Sequence[Point]) -> None:
    """The key over the axes of a figure where it would hide marks; the page gets higher by it."""
    beside = ax.get_window_extent().x0
    key_above(ax, _handles(style, figure, named), style, _title(figure) or None, beside)
    page, legend = whole_page(ax), ax.get_legend()
    assert legend is not None, "a key that was just drawn"
    height, sides = page.get_figheight(), page.subplotpars
    higher = height + max(0.0, (legend.get_window_extent().y1 - page.bbox.y1) / page.dpi + 0.03)
    page.set_figheight(higher)
    page.subplots_adjust(bottom=sides.bottom * height / higher, top=sides.top * height / higher)


def _tell_unnamed(ax: Axes, figure: Figure, named: Sequence[Point]) -> None:
    """Corrects how many marks the key calls unnamed, now that the names have their places and some found none."""
    points = (*figure.points, *figure.rail)
    rest = sum(point.share for point in points) - sum(point.share for point in named)
    for legend in (artist for artist in ax.get_children() if isinstance(artist, Legend)):
        for text in legend.get_texts():
            if _UNNAMED in text.get_text():
                text.set_text(f"{len(points) - len(named)}{_UNNAMED}{as_percent(rest, 1)}")


def _title(figure: Figure) -> str:
    return figure.devices[0].display_name if len(figure.devices) == 1 else ""


def _handles(style: Style, figure: Figure, named: Sequence[Point]) -> list[Line2D]:
    points = (*figure.points, *figure.rail)
    seen = {point.bound for point in points} | {stop.bound for path in figure.trajectories for stop in path.stops}
    several = len(figure.series) > 1 or bool(figure.trajectories)
    colours = colours_of(figure)
    found = []
    if len(figure.trajectories) > 1 and any(len(path.stops) > 1 for path in figure.trajectories):
        paths = series_colours(path.name for path in figure.trajectories)
        found += [_handle(name, "s", colour) for name, colour in paths.items()]
    if not figure.series and not figure.trajectories and len(figure.devices) > 1:
        colours_by_device = roof_colours(figure)
        found += [_handle(device.short_name, "s", colours_by_device[device.name]) for device in figure.devices]
    if len(figure.series) > 1:
        names = {series.name: series.name.removeprefix("NVIDIA ") for series in figure.series}
        found += [_handle(words, "s", colours[name, "compute"]) for name, words in names.items()]
    for bound in (bound for bound in BOUND_MARKERS if bound in seen):
        colour = FAINT if several else BOUND_COLOURS[bound]
        found.append(_handle(f"{bound}-bound", BOUND_MARKERS[bound], colour))
    if figure.measured:
        found += [_handle("predicted", "o", "white", edge=INK), _handle("measured", "o", FAINT)]
    if figure.by_level and points:
        found += [_handle("level that takes longer", "o", FAINT), _handle("the other level", "o", "white", edge=INK)]
    if figure.above:
        found.append(_handle("above its roof", "o", "none", 40.0, VERMILLION))
    if points:
        areas = {part: area_of(figure, style, part) for part in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
        part = max((part for part, area in areas.items() if area <= 45), default=0.01)
        found.append(_handle(f"{as_percent(part)} of GPU time", "o", "none", areas[part], INK))
    if not several and len(points) > len(named):
        # as wide as it may get once names have found their places or not: see `_tell_unnamed`
        found.append(_handle(f"{len(points)}{_UNNAMED}{as_percent(0.888, 1)}", "o", "none", 0.0))
    if figure.rail:
        found.append(_handle("no FLOP: bandwidth", "s", RAIL_GREY, 45.0))
    if crossings(figure):
        found.append(_handle("equally fast (FLOP/byte)", "x", INK))
        found[-1].set_markeredgewidth(1.0)
    return [*found, *_line_handles(figure)]


def _line_handles(figure: Figure) -> list[Line2D]:
    """Where roofs come from; of several devices only those of datasheets are drawn."""
    origins = dict.fromkeys(
        (roof.provenance.removesuffix(" share"), roof.provenance != "datasheet")
        for roof in figure.roofs
        if len(figure.devices) == 1 or roof.provenance == "datasheet"
    )
    return [
        Line2D([], [], label=origin, color=INK, linewidth=0.6 if dashed else 1.0, linestyle=DASHES if dashed else "-")
        for origin, dashed in origins
    ]


def _handle(label: str, marker: str, colour: str, area: float = 20.0, edge: str | None = None) -> Line2D:
    return Line2D(
        [], [], label=label, linestyle="none", marker=marker if area else "none", color=colour,
        markersize=math.sqrt(marker_square(marker, area)), markeredgewidth=0.5, markeredgecolor=edge,
    )  # fmt: skip
