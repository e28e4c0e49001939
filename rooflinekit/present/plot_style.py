"""How figures look: sizes, colours and marks. Each meaning has a colour and a shape, so that grey print keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes

from rooflinekit.errors import InputError, nearest
from rooflinekit.present.figure_records import Point, PointBound

Width = Literal["column", "page"]

# Okabe and Ito (2008): told apart with any colour vision.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
BOUND_COLOURS: dict[PointBound, str] = {"compute": BLUE, "memory": ORANGE, "overhead": GREEN}
BOUND_MARKERS: dict[PointBound, str] = {"compute": "s", "memory": "o", "overhead": "^"}
DASHES = (0, (5, 2.5))
INK, FAINT = "#222222", "#888888"

# A marker's `s` is the square around it: what makes the areas of shapes equal, and their reach in half sides.
_SQUARE_PER_AREA = {"s": 1.0, "o": 4 / math.pi, "^": 2.0}
_REACH = {"s": 1.2, "o": 1.0, "^": 1.1}

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

LEAST_AREA = 4.0  # pt²: a mark of a smaller share would not be seen
_AREA_OF_WHOLE = 1200.0  # pt² for all of the time, where no mark has so much that it would cover the figure


def style_of(width: str) -> Style:
    """The preset of this name: "column" (3.5 in) or "page" (7.1 in). Raises InputError for another."""
    for name, style in _STYLES.items():
        if name == width:
            return style
    raise InputError(f"width: expected {' or '.join(map(repr, _STYLES))}; got {width!r}{nearest(str(width), _STYLES)}")


def new_axes(style: Style, *, below: float = 0.42) -> Axes:
    """An Axes that fills a new figure of the preset's size, but for the labels of its axes; `below` in inches."""
    import matplotlib.pyplot as plt  # here: it looks for a display, which figures drawn on a given Axes do not need

    width, height = style.size
    figure, ax = plt.subplots(figsize=style.size)
    figure.subplots_adjust(left=0.56 / width, right=1 - 0.08 / width, bottom=below / height, top=1 - 0.07 / height)
    return ax


@contextmanager
def drawing() -> Iterator[None]:
    """The settings that figures are drawn with; the user's own come back afterwards."""
    with mpl.rc_context(_RC):
        yield


def area_scale(points: tuple[Point, ...], style: Style) -> float:
    """Area of a mark in pt² per share of the time."""
    largest = max((point.share for point in points), default=1.0)
    return min(_AREA_OF_WHOLE, style.largest_area / largest)


def marker_square(marker: str, area: float) -> float:
    """matplotlib's `s` of a marker with this area in pt²."""
    return _SQUARE_PER_AREA[marker] * max(area, LEAST_AREA)


def marker_radius(marker: str, area: float) -> float:
    """How far a marker reaches from its centre, in points."""
    return _REACH[marker] * math.sqrt(marker_square(marker, area)) / 2
