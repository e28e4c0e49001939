"""How far the axes of a roofline figure reach, and where its marks belong: without a drawing library."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflinekit.present.figures.records.figure import Figure, Point

RAIL_HALF = 0.22  # decades on either side of the rail's middle
_MOST_SPARE = 0.08  # of the width of wide axes: beyond, decades of intensity are drawn wider than those of FLOP/s
_MOST_DECADES = 7.0  # of either axis; what lies further out is drawn at the edge
_SAME_LEVEL = 0.02  # decades between marks of two levels that would be one


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The range of both axes in decades, and the intensity at which the rail stands."""

    left: float
    right: float
    bottom: float
    top: float
    rail: int | None
    fastest: int  # decade of byte/s of the highest memory roof
    stretch: float = 1.0  # the width of a decade of intensity over the height of one of FLOP/s

    def clipped(self, x: float, y: float) -> tuple[float, float]:
        """The nearest place inside, a little off the edge. Intensity and FLOP/s in and out."""
        inset = 0.02 * (self.top - self.bottom)
        left = self.left if self.rail is None else self.rail + RAIL_HALF
        across = min(max(math.log10(x), left + inset), self.right - inset)
        up = min(max(math.log10(y), self.bottom + inset), self.top - inset)
        return 10**across, 10**up

    def rail_ticks(self) -> list[tuple[int, tuple[float, float]]]:
        """The decades of byte/s on the rail's scale that the axes hold, with the places of their ticks."""
        if self.rail is None:
            return []
        edge = 10 ** (self.rail + RAIL_HALF)
        decades = range(math.ceil(self.bottom - self.rail), min(math.floor(self.top - self.rail), self.fastest) + 1)
        return [(decade, (edge, 10.0 ** (self.rail + decade))) for decade in decades]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a mark belongs, in FLOP/byte and FLOP/s, on the axes or not."""

    at: tuple[float, float]
    filled: bool


def places_of(figure: Figure, point: Point, rail: float) -> list[Place]:
    """One place; two of a point that was measured (hollow as predicted), or that is shown by level of memory.

    rail: the intensity at which points without FLOP stand.
    """
    if not point.flop:
        rates = [(point.bytes / point.time_s, not _measured(figure))]
        rates += [(point.bytes / point.measured_s, True)] if point.measured_s else []
        return [Place(at=(rail, rail * rate), filled=filled) for rate, filled in rates]
    if figure.by_level and point.l2_bytes:
        slowest, *others = (moved for moved in figure.level_bytes(point).values() if moved)
        near = [other for other in others if abs(math.log10(other / slowest)) > _SAME_LEVEL]
        places = [Place(at=(point.flop / moved, point.performance), filled=False) for moved in near]
        return [*places, Place(at=(point.flop / slowest, point.performance), filled=True)]
    places = [Place(at=(point.intensity, point.performance), filled=not _measured(figure))]
    if point.measured_s:
        places.append(Place(at=(point.intensity, point.flop / point.measured_s), filled=True))
    return places


def _measured(figure: Figure) -> bool:
    return any(series.measured_s for series in figure.series)


def limits_of(figure: Figure, aspect: float, *, wide: bool = False) -> Limits:
    """Limits that hold all roofs and ridges, and points that count; `aspect`: width over height of the axes.

    Decades are equal, and memory roofs at 45°, but on wide axes, where much would hold nothing.
    """
    compute = [roof.value for roof in figure.roofs if roof.kind == "compute"]
    memory = [roof.value for roof in figure.roofs if roof.kind == "memory"]
    ridges = [figure.ridge(r) for r in figure.roofs if r.kind == "compute" and r.provenance == "datasheet"] or [1.0]
    points = [place.at for point in _weighty(figure) if point.flop for place in places_of(figure, point, 0.0)]
    points += [(x, stop.performance) for path in figure.trajectories for stop in path.stops for x in stop.intensities]
    intensities = [x for x, _ in points]
    fastest = math.floor(math.log10(max(memory)))
    highest = math.log10(max(compute, default=10 * max(memory))) + 0.35
    top = max(highest, *(min(highest + 1, math.log10(y) + 0.2) for _, y in points), -300.0)
    reach = [12 * max(ridges), *(8 * x for x in intensities), *(6 * figure.link_ridge(link) for link in figure.links)]
    right = math.log10(max(reach)) + (0.0 if points else 0.2)  # levels have room for labels after the last mark
    least = (0.05 if figure.links else 0.1) * min(ridges)  # beside links the slopes are short
    left = max(math.log10(min([least, *(x / 1.7 for x in intensities)])), right - _MOST_DECADES)
    rail = math.floor(left - 0.3) if figure.rail else None
    if rail is not None:
        left = rail - RAIL_HALF
    bottoms = [math.log10(min(memory)) + left + 0.2, *(math.log10(y) - 0.25 for _, y in points)]
    if rail is not None:
        bottoms.append(fastest + rail - 0.2)  # one tick of its scale at least
        bottoms += [math.log10(point.bandwidth) + rail - 0.25 for point in _weighty(figure) if not point.flop]
    bottom = max(min(bottoms), top - _MOST_DECADES)
    stretch = max(1.0, (top - bottom) * aspect * (1 - _MOST_SPARE) / (right - left)) if wide else 1.0
    spare = (top - bottom) * aspect / stretch - (right - left)
    if spare < 0:
        bottom += spare / aspect
    elif rail is None:
        left, right = left - 0.3 * spare, right + 0.7 * spare
    else:
        right += spare
    return Limits(left=left, right=right, bottom=bottom, top=top, rail=rail, fastest=fastest, stretch=stretch)


def _weighty(figure: Figure) -> list[Point]:
    """The points that decide how far the axes reach: those of 1 % of the time, or all where none has so much."""
    points = [*figure.points, *figure.rail]
    return [point for point in points if point.share >= 0.01] or points
