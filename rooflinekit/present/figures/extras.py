"""Draws what stands beside marks and roofs: paths of whole steps, crossings of roofs, the floor of starting kernels."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from rooflinekit.present.figures.frame import Frame
from rooflinekit.present.figures.labels import around
from rooflinekit.present.figures.names import Name, write_names
from rooflinekit.present.figures.records.caption import three_digits
from rooflinekit.present.figures.records.figure import Figure, Floor, Stop, Trajectory
from rooflinekit.present.figures.records.normalized import crossings
from rooflinekit.present.figures.roofs import roof_colours
from rooflinekit.present.figures.style import (
    BOUND_MARKERS,
    INK,
    SERIES_COLOURS,
    VERMILLION,
    marker_radius,
    marker_square,
)
from rooflinekit.units import format_quantity

_AREA = 28.0  # pt² of a step's mark
_SHORTEST = 9.0  # points between marks that an arrow joins; nearer ones a line


def path_colours(figure: Figure) -> dict[str, str]:
    """The colour of each path."""
    return {path.name: SERIES_COLOURS[i % len(SERIES_COLOURS)] for i, path in enumerate(figure.trajectories)}


def draw_paths(frame: Frame, figure: Figure) -> None:
    """A mark a step, joined in order by arrows; both ends of a path are named first.

    A step that sends something has a mark for each link, and a hollow one at its DRAM traffic, joined by a line.
    """
    colours = path_colours(figure)
    for path in figure.trajectories:
        colour = colours[path.name]
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
            _marks(frame, stop, colour)


def _spot(frame: Frame, stop: Stop, level: int = 0) -> tuple[float, float]:
    """Where the mark of one of a step's levels stands."""
    return frame.limits.clipped(stop.intensities[level], stop.performance)


def _marks(frame: Frame, stop: Stop, colour: str) -> None:
    """A step's mark at each level. Whoever sends is hollow at its DRAM traffic."""
    marker, sends = BOUND_MARKERS[stop.bound], bool(stop.link_bytes)
    spots = [_spot(frame, stop, level) for level in range(len(stop.intensities))]
    if sends:
        frame.ax.plot(*zip(*spots, strict=True), color=colour, linewidth=0.6, linestyle=(0, (2, 2)), zorder=3.4)
        frame.room.add_line(frame.place(*min(spots)), frame.place(*max(spots)))
    for level, spot in enumerate(spots):
        hollow = sends and level == len(spots) - 1
        frame.ax.scatter(
            [spot[0]], [spot[1]], s=marker_square(marker, _AREA), marker=marker,
            facecolors="white" if hollow else colour, edgecolors=colour if hollow else "white",
            linewidths=0.8 if hollow else 0.4, zorder=3.9 if hollow else 4,
        )  # fmt: skip
        frame.room.discs.append((*frame.place(*spot), marker_radius(marker, _AREA)))


def name_paths(frame: Frame, figure: Figure) -> None:
    """What each step of a path is called, as far as there is room."""
    names = []
    for path in figure.trajectories:
        for i in _by_weight(path):
            stop = path.stops[i]
            radius = marker_radius(BOUND_MARKERS[stop.bound], _AREA)
            names.append(Name(frame, _spot(frame, stop), radius, stop.label))
    write_names(names)


def _by_weight(path: Trajectory) -> list[int]:
    """The ends of a path before what lies between."""
    last = len(path.stops) - 1
    return [*dict.fromkeys((0, last)), *range(1, last)]


def draw_crossings(frame: Frame, figure: Figure) -> None:
    """A cross where the faster of two devices changes, with its intensity; the key says so."""
    for crossing in crossings(figure):
        x, y = crossing.at
        if not frame.limits.left < math.log10(x) < frame.limits.right:
            continue
        frame.ax.plot([x], [y], marker="x", markersize=4.5, markeredgewidth=1.0, color=INK, zorder=4.2)
        text, font = three_digits(x), frame.style.label_font - 0.5
        place = frame.place(x, y)
        frame.label(around(*place, 3.0, frame.ruler.size(text, font), text), crossing.at, font=font, colour=INK)


def draw_floors(frame: Frame, figure: Figure) -> None:
    """What a kernel that moves as much as the median one can reach, its start included: a dotted curve."""
    for floor in figure.floors:
        curve = _curve(frame, figure, floor)
        xs, ys = zip(*curve, strict=True)
        colour = _floor_colour(figure, floor)
        frame.ax.plot(xs, ys, linestyle=(0, (1, 1.5)), color=colour, linewidth=1.0, zorder=2)
        places = [frame.place(*spot) for spot in curve if spot[1] > 10**frame.limits.bottom]
        for start, end in pairwise(places[::10]):
            frame.room.add_line(start, end)


def label_floors(frame: Frame, figure: Figure) -> None:
    """What starting costs, and of which kernels, beside the curve."""
    for floor in figure.floors:
        inside = [spot for spot in _curve(frame, figure, floor) if spot[1] > 10**frame.limits.bottom]
        if not inside:
            continue
        start, moved = format_quantity(floor.start_s, "s"), format_quantity(floor.median_bytes, "byte")
        found = []
        for dislike, text in ((0.0, f"start {start}, {moved} a kernel"), (15.0, f"start {start}")):
            size = frame.ruler.size(text, frame.style.label_font)
            for i, spot in enumerate(inside[::8]):
                near = around(*frame.place(*spot), 1.0, size, text)
                found += [(cost + dislike + 0.05 * i, box, words) for cost, box, words in near if cost < 12]
        frame.label(found, inside[0], font=frame.style.label_font, colour=_floor_colour(figure, floor))


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


def _floor_colour(figure: Figure, floor: Floor) -> str:
    return VERMILLION if len(figure.devices) == 1 else roof_colours(figure)[floor.device]
