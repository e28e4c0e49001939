"""How figures look: sizes, colours and marks. Each meaning has a colour and a shape, so that grey print keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Page
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox

from rooflinekit.errors import InputError, check_word, nearest
from rooflinekit.hardware.specs import device_names, load_device
from rooflinekit.ir.sizes import shown
from rooflinekit.present.figures.records.figure import PointBound
from rooflinekit.units import format_quantity, parse_quantity

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
    "text.parse_math": False,  # names of modules may hold dollars
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
    whole_area: float = 1200.0  # pt² for all of the time, where no mark has so much that it would cover the figure
    least_area: float = 4.0  # pt²: a mark of a smaller share would not be seen
    names: int  # marks that are named
    sustained: bool = True  # whether the roofs that kernels sustain have names
    on_screen: bool = False  # of a web page, which has its keys beside its pictures

    @property
    def behind(self) -> dict[str, Any] | None:
        """What lies behind text in a figure; a web page's style has letters with an edge instead."""
        pale = {"boxstyle": "square,pad=0.05", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
        return None if self.on_screen else pale

    def high(self, share: float, inches: float = 0.0) -> Style:
        """The same with a height of so much of the width, and inches; what a web page shows keeps its size."""
        return self if self.on_screen else replace(self, size=(self.size[0], inches + share * self.size[0]))


_STYLES: dict[str, Style] = {
    "column": Style(size=(3.5, 2.8), largest_area=200.0, names=8),
    "page": Style(size=(7.1, 4.8), label_font=7.0, largest_area=400.0, names=10),
}

# Widths are those of the templates, whose points are TeX's (72.27 an inch); text is 1 to 2 pt smaller than captions.
# Where the text has one column, both presets are as wide as it.
_VENUES: dict[str, dict[str, Style]] = {
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

#: A style instead of all presets.
STYLE: ContextVar[Style | None] = ContextVar("STYLE", default=None)


def style_of(width: str, venue: str | None = None) -> Style:
    """The preset of this name: "column" (3.5 in) or "page" (7.1 in), or those widths of a venue's template.

    Raises InputError for another width or venue.
    """
    if (told := STYLE.get()) is not None:
        return told
    if venue is not None:
        check_word("venue", venue, _VENUES)
    styles = _STYLES if venue is None else _VENUES[venue]
    check_word("width", width, styles)
    return styles[width]


class Sheet:
    """What a figure is drawn on: axes one over the other with a common x, those given or of a new page."""

    def __init__(self, style: Style, ax: Axes | None = None, panels: int = 1, below: float = 0.42) -> None:
        self.style = style
        self.new = ax is None
        self.panels = _panels(style, panels, below) if ax is None else [ax]
        self.ax = self.panels[0]

    def settle(self, handles: Sequence[Artist], spare: float = 0.03) -> None:
        """Draws the key; a new page's axes then make room for all that stands around them."""
        if handles:
            key_above(self.ax, handles, self.style)
        if self.new:
            fit_page(self.ax, spare)


@contextmanager
def sheet(
    ax: Axes | None, width: str, venue: str | None, *, high: float | None = None, inches: float = 0.0, panels: int = 1,
    below: float = 0.42,
) -> Iterator[Sheet]:  # fmt: skip
    """A sheet of a preset's sizes, within the settings that figures are drawn with; the user's own come back.

    high, inches: the page's height by its width, and beside that, where the preset has another; below: inches below the
    axes.
    """
    style = style_of(width, venue)
    with mpl.rc_context(_RC):
        page = Sheet(style if high is None else style.high(high, inches), ax, panels, below)
        yield page


def _panels(style: Style, count: int, below: float) -> list[Axes]:
    """Axes of a new page; `below` in inches."""
    width, height = style.size
    larger = style.tick_font / 7.0
    if style.on_screen:
        page = Page(figsize=style.size)
        FigureCanvasAgg(page)  # else each measured text would print the page
    else:
        import matplotlib.pyplot as plt  # here: it looks for a display, which other figures do not need

        page = plt.figure(figsize=style.size)
    page.subplots_adjust(
        left=0.56 * larger / width, right=1 - (0.10 + 0.4 * (larger - 1)) / width, bottom=below * larger / height,
        top=1 - 0.07 * larger / height, hspace=0.08,
    )  # fmt: skip
    return list(page.subplots(count, 1, sharex=True, squeeze=False)[:, 0])


def whole_page(ax: Axes) -> Page:
    """The page that the axes stand on, of one in parts the whole."""
    page = ax.get_figure(root=True)
    assert page is not None, "an Axes that was removed from its figure"
    return page


def settle(ax: Axes) -> None:
    """Brings limits and sides of the axes up to date, so that places can be measured."""
    page = whole_page(ax)
    if page.get_layout_engine() is not None:
        page.draw_without_rendering()
    ax.get_xlim(), ax.get_ylim()  # what was drawn has its say
    ax.apply_aspect()


def key_above(ax: Axes, handles: Sequence[Artist], style: Style, title: str | None = None, beside: float = 0.0) -> None:
    """A key over the axes, in as few rows as their width allows.

    title: a line above it. beside: pixels at the left of the axes over which it may reach where that spares rows.
    """
    if style.on_screen:
        return
    across = ax.get_window_extent().width
    for columns in range(len(handles), 0, -1):
        legend = ax.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize=style.label_font,
            frameon=False, borderaxespad=0.1, borderpad=0.2, handletextpad=0.4, columnspacing=1.0, handlelength=1.9,
            title=title, title_fontsize=style.label_font, alignment="left",
        )  # fmt: skip
        over = legend.get_window_extent().width - across
        if over <= beside:
            if over > 0:  # above the highest tick's label
                higher = 0.6 * style.tick_font * whole_page(ax).dpi / 72 / ax.get_window_extent().height
                legend.set_bbox_to_anchor((-over / across, 1.0 + higher))
            return


def fit_page(ax: Axes, spare: float = 0.03) -> None:
    """Moves the sides of a page's axes inwards until ticks, labels and keys lie on the page, `spare` inches inside.

    Long texts are some points longer in a file than they are measured here, at the resolution of a screen.
    """
    page = whole_page(ax)
    for _ in range(4):  # ticks may change with the room that they have, and turned ones move with it
        settle(ax)
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


def called(name: str) -> str:
    """What a shipped device of this name is called in figures; any other text as it is."""
    return load_device(name).short_title if name in device_names() else name


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each of these; after the last colour comes the first again."""
    return dict(zip(names, cycle(SERIES_COLOURS), strict=False))


def unit_of(most: float, base: str, *, binary: bool = False) -> tuple[float, str]:
    """The unit in which a quantity reads best, by its size in base units, and its symbol.

    >>> unit_of(0.0025, "s"), unit_of(3e9, "byte")
    ((0.001, 'ms'), (1000000000.0, 'GB'))
    """
    _, _, symbol = format_quantity(most, base, binary=binary).partition(" ")
    return parse_quantity(f"1 {symbol}", base), symbol


def in_unit(axis: Axis, most: float, base: str, *, binary: bool = False) -> str:
    """Ticks at round numbers of the unit in which quantities up to `most` read best. Returns its symbol."""
    unit, symbol = unit_of(most, base, binary=binary)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g}"))
    if binary:
        axis.set_major_locator(_Whole(unit))
    return symbol


class _Whole(MaxNLocator):
    """Ticks at round numbers of a unit that is a power of two."""

    def __init__(self, unit: float) -> None:
        super().__init__(5, steps=[1, 2, 2.5, 5, 10])
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.multiply(super().tick_values(vmin / self._unit, vmax / self._unit), self._unit)


def check_table(figure: str, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raises InputError for what is no DataFrame, or lacks a column that the figure needs."""
    if not hasattr(table, "columns"):
        raise InputError(f"{figure}: table: expected a pandas DataFrame; got {shown(table)}")
    for column in columns:
        if column not in table:
            names = [str(name) for name in table.columns]
            has = f"it has {', '.join(names)}" if names else "it is empty"
            raise InputError(f"{figure}: the table has no column {column!r}{nearest(column, names)}; {has}")


def marker_square(marker: str, area: float) -> float:
    """matplotlib's `s` of a marker with this area in pt²."""
    return _SQUARE_PER_AREA[marker] * area


def marker_radius(marker: str, area: float) -> float:
    """How far a marker reaches from its centre, in points."""
    return _REACH[marker] * math.sqrt(marker_square(marker, area)) / 2
