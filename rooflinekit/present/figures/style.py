"""How figures look: sizes, colours and marks. Each meaning has a colour and a shape, so that grey print keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.sizes import shown
from rooflinekit.present.figures.records.figure import Figure, Point, PointBound

if TYPE_CHECKING:
    import pandas as pd

Width = Literal["column", "page"]
Venue = Literal["ieee", "acm", "lncs", "neurips", "slides"]

# Okabe and Ito (2008): told apart with any colour vision.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
BOUND_COLOURS: dict[PointBound, str] = {
    "compute": BLUE,
    "memory": ORANGE,
    "latency": GREEN,
    "overhead": PURPLE,
    "communication": VERMILLION,
}
BOUND_HATCHES: dict[PointBound, str] = {
    "compute": "", "memory": "....", "latency": "////", "overhead": "\\\\\\\\", "communication": "xxxx",
}  # fmt: skip
BOUND_MARKERS: dict[PointBound, str] = {
    "compute": "s", "memory": "o", "latency": "^", "overhead": "v", "communication": "D",
}  # fmt: skip
DASHES = (0, (5, 2.5))
INK, FAINT, RAIL_GREY = "#222222", "#888888", "#eeeeee"

# A marker's `s` is the square around it: what makes the areas of shapes equal, and their reach in half sides.
_SQUARE_PER_AREA = {"s": 1.0, "o": 4 / math.pi, "^": 2.0, "v": 2.0, "D": 1.0, "x": 1.0}
_REACH = {"s": 1.2, "o": 1.0, "^": 1.1, "v": 1.1, "D": 1.4}

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same figure on every machine
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "text.usetex": False,
    "axes.unicode_minus": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Sizes in points, those of the page in inches."""

    size: tuple[float, float]
    axis_font: float = 8.0
    tick_font: float = 7.0
    label_font: float = 6.5
    roof_width: float = 1.2
    largest_area: float  # pt², of the mark with the largest share
    names: int  # marks that are named


_STYLES: dict[Width, Style] = {
    "column": Style(size=(3.5, 2.8), largest_area=200.0, names=8),
    "page": Style(size=(7.1, 4.8), label_font=7.0, largest_area=400.0, names=10),
}

# Widths are those of the templates, whose points are TeX's (72.27 an inch); text is 1 to 2 pt smaller than captions.
# Where the text has one column, both presets are as wide as it.
_VENUES: dict[Venue, dict[Width, Style]] = {
    # IEEEtran.cls: \columnwidth 252 pt, \textwidth 516 pt, captions 8 pt.
    "ieee": {
        "column": Style(size=(3.487, 2.8), largest_area=200.0, names=8),
        "page": Style(size=(7.14, 4.8), label_font=7.0, largest_area=400.0, names=10),
    },
    # acmart.cls, sigconf: \columnwidth 241.15 pt, \textwidth 506.3 pt, captions 9 pt.
    "acm": {
        "column": Style(size=(3.337, 2.75), largest_area=190.0, names=7),
        "page": Style(size=(7.006, 4.7), label_font=7.0, largest_area=400.0, names=10),
    },
    # llncs.cls: \textwidth 122 mm, captions 9 pt.
    "lncs": {
        "column": Style(size=(4.803, 3.3), tick_font=7.5, label_font=7.0, largest_area=260.0, names=9),
        "page": Style(size=(4.803, 4.0), tick_font=7.5, label_font=7.0, largest_area=280.0, names=10),
    },
    # neurips style file: \textwidth 5.5 in, captions 10 pt.
    "neurips": {
        "column": Style(size=(5.5, 3.5), axis_font=9.0, tick_font=8.0, label_font=7.5, largest_area=300.0, names=9),
        "page": Style(size=(5.5, 4.2), axis_font=9.0, tick_font=8.0, label_font=7.5, largest_area=320.0, names=10),
    },
    # beamer at 16:9: 160 mm by 90 mm of slide, text 11 pt; scaled up on other slides, lines and text grow alike.
    "slides": {
        "column": Style(size=(2.75, 2.6), axis_font=8.5, tick_font=7.5, label_font=7.0, largest_area=180.0, names=4),
        "page": Style(size=(5.51, 3.1), axis_font=10.0, tick_font=9.0, label_font=8.5, largest_area=260.0, names=5),
    },
}

LEAST_AREA = 4.0  # pt²: a mark of a smaller share would not be seen
_AREA_OF_WHOLE = 1200.0  # pt² for all of the time, where no mark has so much that it would cover the figure


def style_of(width: str, venue: str | None = None) -> Style:
    """The preset of this name: "column" (3.5 in) or "page" (7.1 in), or those widths of a venue's template.

    Raises InputError for another width or venue.
    """
    if venue is not None and venue not in get_args(Venue):
        known = get_args(Venue)
        raise InputError(f"venue: expected {', '.join(known)} or None; got {venue!r}{nearest(str(venue), known)}")
    for name, style in chain(*(styles.items() for key, styles in _VENUES.items() if key == venue), _STYLES.items()):
        if name == width:
            return style
    raise InputError(f"width: expected {' or '.join(map(repr, _STYLES))}; got {width!r}{nearest(str(width), _STYLES)}")


def new_axes(style: Style, *, below: float = 0.42, above: float = 0.07) -> Axes:
    """An Axes that fills a new figure of the preset's size, but for `below` and `above` it, in inches."""
    return new_panels(style, 1, below=below, above=above)[0]


def new_panels(style: Style, count: int, *, below: float = 0.42, above: float = 0.07, gap: float = 0.08) -> list[Axes]:
    """Axes one over the other with a common x; `below` and `above` in inches, `gap` in heights of one."""
    import matplotlib.pyplot as plt  # here: it looks for a display, which figures drawn on a given Axes do not need

    width, height = style.size
    larger = style.tick_font / 7.0
    figure, axes = plt.subplots(count, 1, figsize=style.size, sharex=True, squeeze=False)
    figure.subplots_adjust(
        left=0.56 * larger / width, right=1 - (0.10 + 0.4 * (larger - 1)) / width, bottom=below * larger / height,
        top=1 - above * larger / height, hspace=gap,
    )  # fmt: skip
    return list(axes[:, 0])


def key_above(ax: Axes, handles: Sequence[Artist], style: Style) -> None:
    """A key over the axes, in as few rows as their width allows."""
    for columns in range(len(handles), 0, -1):
        legend = ax.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize=style.label_font,
            frameon=False, borderaxespad=0.1, borderpad=0.2, handletextpad=0.4, columnspacing=1.0, handlelength=1.9,
        )  # fmt: skip
        if legend.get_window_extent().width <= ax.get_window_extent().width:
            return


def fit_page(ax: Axes, spare: float = 0.03) -> None:
    """Moves the sides of a page's axes inwards until ticks, labels and keys lie on the page, `spare` inches inside.

    Long texts are some points longer in a file than they are measured here, at the resolution of a screen.
    """
    page = ax.get_figure(root=True)
    assert page is not None, "an Axes that was removed from its figure"
    for _ in range(4):  # ticks may change with the room that they have, and turned ones move with it
        page.draw_without_rendering()
        seen = Bbox.union([box for axes in page.axes if (box := axes.get_tightbbox()) is not None])
        sides, paper = page.subplotpars, page.bbox
        over = [paper.x0 - seen.x0, seen.x1 - paper.x1, paper.y0 - seen.y0, seen.y1 - paper.y1]
        left, right, bottom, top = (max(0.0, each + spare * page.dpi) for each in over)
        if not any((left, right, bottom, top)):
            return
        page.subplots_adjust(
            left=sides.left + left / page.bbox.width, right=sides.right - right / page.bbox.width,
            bottom=sides.bottom + bottom / page.bbox.height, top=sides.top - top / page.bbox.height,
        )  # fmt: skip


def plain_frame(ax: Axes, style: Style, *, grid: Literal["x", "y", "both"] = "y") -> None:
    """Ticks, grid and spines as all figures but the roofline have them."""
    ax.tick_params(labelsize=style.tick_font, which="both")
    ax.grid(axis=grid, color="#dddddd", linewidth=0.4, zorder=0)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def check_table(figure: str, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raises InputError for what is no DataFrame, or lacks a column that the figure needs."""
    if not hasattr(table, "columns"):
        raise InputError(f"{figure}: expected a table, a pandas DataFrame; got {shown(table)}")
    for column in columns:
        if column not in table:
            names = [str(name) for name in table.columns]
            has = f"it has {', '.join(names)}" if names else "it is empty"
            raise InputError(f"{figure}: the table has no column {column!r}{nearest(column, names)}; {has}")


@contextmanager
def drawing() -> Iterator[None]:
    """The settings that figures are drawn with; the user's own come back afterwards."""
    with mpl.rc_context(_RC):
        yield


def area_scale(figure: Figure, style: Style) -> float:
    """Area of a mark in pt² per share of the time; of several series smaller, for equal kernels stand close."""
    largest = max((point.share for point in (*figure.points, *figure.rail)), default=1.0)
    crowd = max(1, len(figure.series))
    return min(_AREA_OF_WHOLE, style.largest_area * 2 / (crowd + 1) / largest)


def marker_square(marker: str, area: float) -> float:
    """matplotlib's `s` of a marker with this area in pt²."""
    return _SQUARE_PER_AREA[marker] * max(area, LEAST_AREA)


def marker_radius(marker: str, area: float) -> float:
    """How far a marker reaches from its centre, in points."""
    return _REACH[marker] * math.sqrt(marker_square(marker, area)) / 2


# How far the axes of a roofline figure reach, and where its marks belong: without a drawing library.


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
