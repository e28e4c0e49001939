"""The axes of a roofline figure: ticks, grid, what is written in them, and the rail for kernels without FLOP."""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rooflinekit.present.figures.labels import Ground
from rooflinekit.present.figures.records.figure import Figure, Point
from rooflinekit.present.figures.style import FAINT, RAIL_GREY, Style

_WIDE = 300.0  # points: more than a column
_PREFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


class Frame(Ground):
    """An Axes prepared for a roofline figure, and the room that is left in it."""

    def __init__(self, ax: Axes, figure: Figure, style: Style) -> None:
        super().__init__(ax, style)
        self.figure = figure
        extent = ax.get_window_extent()
        wide = self.ruler.across(ax) > _WIDE
        self.limits = limits_of(figure, extent.width / extent.height, wide=wide)
        _prepare(ax, self.limits, style, figure)
        self._label_across()  # before the layout settles, which makes room for it
        self.settle()

    def _label_across(self) -> None:
        """What x is, in as many words as there is room for."""
        figure, font = self.figure, self.style.axis_font
        level = "traffic of each level" if figure.by_level else "DRAM"
        words = [f"Arithmetic intensity (FLOP/byte, {level})", "Arithmetic intensity (FLOP/byte)", "FLOP/byte"]
        if figure.links:
            words[:2] = ["FLOP per byte: sent (filled), of DRAM (hollow)"]
        if figure.normalized:
            words = ["Intensity / ridge of its own roof", "Intensity / ridge"]
        width = self.ruler.across(self.ax)
        fitting = [text for text in words if self.ruler.size(text, font)[0] <= width]
        self.ax.set_xlabel([*fitting, words[-1]][0], fontsize=font)

    @property
    def rail(self) -> float:
        """The intensity at which the rail stands; there a bandwidth b lies at the performance rail · b."""
        assert self.limits.rail is not None, "a figure without rail"
        return 10.0**self.limits.rail

    def places(self, point: Point) -> list[tuple[Place, tuple[float, float]]]:
        """Where the marks of a point belong, the one that its name stands at last, and where the axes hold each."""
        found = places_of(self.figure, point, self.rail if not point.flop else 0.0)
        spots = (self.limits.clipped(*place.at) for place in found)
        return [(place, spot if point.flop else (self.rail, spot[1])) for place, spot in zip(found, spots, strict=True)]


def _prepare(ax: Axes, limits: Limits, style: Style, figure: Figure) -> None:
    ax.set(xscale="log", yscale="log")
    ax.set(xlim=(10**limits.left, 10**limits.right), ylim=(10**limits.bottom, 10**limits.top))
    # Memory roofs keep their angle, and what is written along them, after a resize too. Two shared axes leave the box
    # alone to adjust.
    shared = len(ax.get_shared_x_axes().get_siblings(ax)) > 1 and len(ax.get_shared_y_axes().get_siblings(ax)) > 1
    ax.set_aspect(1 / limits.stretch, adjustable="box" if shared else "datalim")
    up = "Share of its own roof" if figure.normalized else "Performance (FLOP/s)"
    ax.set_ylabel(up, fontsize=style.axis_font)
    said = power if figure.normalized else si
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10, numticks=20))
        axis.set_minor_locator(LogLocator(10, subs=range(2, 10), numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize=style.tick_font, which="both")
    ax.grid(which="major", color="#dddddd", linewidth=0.4, zorder=0)
    ax.set_axisbelow(True)
    if limits.rail is not None:
        rail = 10.0**limits.rail
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < 1.5 * rail else said(x)))
        # A strip at the left where a bandwidth b stands at rail · b: as far below the memory roof as any other point.
        ax.axvspan(10**limits.left, 10 ** (limits.rail + RAIL_HALF), facecolor=RAIL_GREY, linewidth=0, zorder=0.5)
        for _, (edge, height) in limits.rail_ticks():
            ax.plot([edge, edge * 0.8], [height] * 2, color=FAINT, linewidth=0.5, zorder=1)


def si(value: float) -> str:
    """A tick's value with an SI prefix: 1e13 is "10 T".

    >>> si(1e13), si(0.01), si(1000.0)
    ('10 T', '0.01', '1 k')
    """
    exponent = max(0, min(18, 3 * math.floor(math.log10(value) / 3 + 1e-9))) if value > 0 else 0
    number = f"{value / 10**exponent:g}"
    return f"{number} {_PREFIXES[exponent]}".strip()


def power(value: float) -> str:
    """A tick of an axis of shares: 0.001 is "10⁻³".

    >>> power(0.001), power(1.0), power(10.0)
    ('10⁻³', '1', '10')
    """
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent in (0, 1):
        return f"{10**exponent}"
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] if digit != "-" else "⁻" for digit in str(exponent))


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
        rates = [(point.bytes / point.time_s, not figure.measured)]
        rates += [(point.bytes / point.measured_s, True)] if point.measured_s else []
        return [Place(at=(rail, rail * rate), filled=filled) for rate, filled in rates]
    if figure.by_level and point.l2_bytes:
        slowest, *others = (moved for moved in figure.level_bytes(point).values() if moved)
        near = [other for other in others if abs(math.log10(other / slowest)) > _SAME_LEVEL]
        places = [Place(at=(point.flop / moved, point.performance), filled=False) for moved in near]
        return [*places, Place(at=(point.flop / slowest, point.performance), filled=True)]
    places = [Place(at=(point.intensity, point.performance), filled=not figure.measured)]
    if point.measured_s:
        places.append(Place(at=(point.intensity, point.flop / point.measured_s), filled=True))
    return places


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
