"""Draws the key: what colours, shapes, areas and lines mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from rooflinekit.present.figures.frame import Frame
from rooflinekit.present.figures.labels import Box
from rooflinekit.present.figures.marks import area_of, colours_of, path_colours
from rooflinekit.present.figures.records.figure import Figure, Point
from rooflinekit.present.figures.records.roofs import crossings
from rooflinekit.present.figures.roofs import roof_colours
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
    marker_square,
    whole_page,
)
from rooflinekit.units import as_percent

_CORNERS = 4
_Place: TypeAlias = Literal[
    "lower right", "upper left", "lower left", "upper right", "center right", "lower center", "upper center",
    "center left",
]  # fmt: skip
#: In the order of preference; those of the edges only where the corners hold text.
_PLACES = get_args(_Place)


def draw_key(frame: Frame, figure: Figure, named: Sequence[Point], *, hiding: bool) -> bool | None:
    """What colours, shapes and areas mean, where it covers least. Returns whether it covers text that was there.

    hiding: whether it may hide marks. Where it may not, and has no place without, it is not drawn, and None returned.
    """
    if frame.style.on_screen:
        return False
    handles, title = _handles(frame.style, figure, named), _title(figure) or None
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


def tell_unnamed(ax: Axes, figure: Figure, named: Sequence[Point]) -> None:
    """Corrects how many marks the key calls unnamed, now that the names have their places and some found none."""
    points = (*figure.points, *figure.rail)
    rest = sum(point.share for point in points) - sum(point.share for point in named)
    for legend in (artist for artist in ax.get_children() if isinstance(artist, Legend)):
        for text in legend.get_texts():
            if _UNNAMED in text.get_text():
                text.set_text(f"{len(points) - len(named)}{_UNNAMED}{as_percent(rest, 1)}")


_UNNAMED = " unnamed: "


def _title(figure: Figure) -> str:
    return figure.devices[0].display_name if len(figure.devices) == 1 else ""


def _handles(style: Style, figure: Figure, named: Sequence[Point]) -> list[Line2D]:
    points = (*figure.points, *figure.rail)
    seen = {point.bound for point in points} | {stop.bound for path in figure.trajectories for stop in path.stops}
    bounds = [bound for bound in BOUND_MARKERS if bound in seen]
    several = len(figure.series) > 1 or bool(figure.trajectories)
    colours = colours_of(figure)
    found = []
    if len(figure.trajectories) > 1 and any(len(path.stops) > 1 for path in figure.trajectories):
        found += [_handle(name, "s", colour, 20.0) for name, colour in path_colours(figure).items()]
    if not figure.series and not figure.trajectories and len(figure.devices) > 1:
        colours_by_device = roof_colours(figure)
        found += [_handle(device.short_name, "s", colours_by_device[device.name], 20.0) for device in figure.devices]
    if len(figure.series) > 1:
        found += [
            _handle(series.name.removeprefix("NVIDIA "), "s", colours[series.name, "compute"], 20.0)
            for series in figure.series
        ]
    for bound in bounds:
        colour = FAINT if several else BOUND_COLOURS[bound]
        found.append(_handle(f"{bound}-bound", BOUND_MARKERS[bound], colour, 20.0))
    if figure.measured:
        found += [_handle("predicted", "o", "white", 20.0, INK), _handle("measured", "o", FAINT, 20.0)]
    if figure.by_level and points:
        found += [
            _handle("level that takes longer", "o", FAINT, 20.0),
            _handle("the other level", "o", "white", 20.0, INK),
        ]
    if figure.above:
        found.append(_handle("above its roof", "o", "none", 40.0, VERMILLION))
    if points:
        areas = {part: area_of(figure, style, part) for part in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
        part = max((part for part, area in areas.items() if area <= 45), default=0.01)
        found.append(_handle(f"{as_percent(part)} of GPU time", "o", "none", areas[part], INK))
    if not several and len(points) > len(named):
        # as wide as it may get once names have found their places or not: see `tell_unnamed`
        found.append(_handle(f"{len(points)}{_UNNAMED}{as_percent(0.888, 1)}", "o", "none", 0.0))
    if figure.rail:
        found.append(_handle("no FLOP: bandwidth", "s", RAIL_GREY, 45.0))
    if crossings(figure):
        found.append(_handle("equally fast (FLOP/byte)", "x", INK, 20.0))
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


def _handle(label: str, marker: str, colour: str, area: float, edge: str | None = None) -> Line2D:
    return Line2D(
        [], [], label=label, linestyle="none", marker=marker if area else "none", color=colour,
        markersize=math.sqrt(marker_square(marker, area)), markeredgewidth=0.5, markeredgecolor=edge,
    )  # fmt: skip
