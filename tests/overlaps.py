"""What texts of a drawn figure cover, and what runs through them: measured by the drawing library, not by what placed
them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import ArrowStyle
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

Corners = np.ndarray[Any, np.dtype[np.float64]]


def corners(text: Text) -> Corners:
    """The text's rectangle on the page in pixels, its rotation included: measured upright, then turned."""
    angle = text.get_rotation()
    text.set_rotation(0)
    extent = Bbox(Text.get_window_extent(text).get_points())
    text.set_rotation(angle)
    if text.get_rotation_mode() != "anchor":
        return _upright(extent if angle == 0 else Text.get_window_extent(text))
    middle = np.array([(extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2])
    # Annotations are centred on what they turn about; labels of ticks turn about their ends.
    pivot = middle if isinstance(text, Annotation) else text.get_transform().transform(text.get_position())
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return (_upright(extent) - pivot) @ np.array([[cos, sin], [-sin, cos]]) + pivot  # type: ignore[no-any-return]


def key_of(ax: Axes) -> list[str]:
    """What the key says."""
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def overlaps(ax: Axes) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other: labels, names, ticks, axis labels and keys."""
    found = [text for axes in _drawn(ax) for text in _texts(axes)]
    return [(one, two) for (one, a), (two, b) in itertools.combinations(found, 2) if cover(a, b)]


def on_ridges(ax: Axes) -> list[str]:
    """Texts and keys that cover a mark of a ridge or of a crossing."""
    return [
        words
        for axes in _drawn(ax)
        for words, box in _texts(axes)
        if any(cover(box, mark) for mark in map(_mark, axes.lines) if mark is not None)
    ]


def struck(ax: Axes) -> list[str]:
    """Texts through which the line from a name to its mark runs."""
    return [
        words
        for axes in _drawn(ax)
        for words, box in _texts(axes)
        if any(cover(box, leader) for leader in map(_leader, axes.texts) if leader is not None)
    ]


def _drawn(ax: Axes) -> list[Axes]:
    page = ax.get_figure(root=True)
    assert page is not None
    page.draw_without_rendering()
    return page.axes


def _mark(line: Line2D) -> Corners | None:
    """The diamond of a ridge, its edge included, or the square around a crossing's cross."""
    if line.get_marker() not in ("D", "x") or len(line.get_xdata()) != 1:  # type: ignore[arg-type]
        return None
    page = line.get_figure(root=True)
    assert page is not None
    half = (line.get_markersize() + line.get_markeredgewidth()) / 2 * page.dpi / 72
    reach = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half
    if line.get_marker() == "D":
        reach = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]]) * half * math.sqrt(2)
    return reach + line.get_transform().transform(line.get_xydata())[0]  # type: ignore[no-any-return]


def _leader(text: Text) -> Corners | None:
    """A line from a name, as a rectangle without height; of an arrow nothing, which joins marks."""
    arrow = text.arrow_patch if isinstance(text, Annotation) else None
    if arrow is None or not isinstance(arrow.get_arrowstyle(), ArrowStyle.Curve) or text.get_text():
        return None
    points = arrow.get_transform().transform(arrow.get_path().vertices)
    (x0, y0), (x1, y1) = points[0], points[-1]
    return np.array([[x0, y0], [x1, y1], [x1 + 0.01, y1 + 0.01], [x0 + 0.01, y0 + 0.01]])


def _texts(axes: Axes) -> list[tuple[str, Corners]]:
    """What is written in and around axes, each with its rectangle, and the keys."""
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()] if axes.axison else []
    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    shown = [t for t in ticks if left <= t.get_position()[0] <= right or bottom <= t.get_position()[1] <= top]
    labels = [axes.xaxis.label, axes.yaxis.label]
    texts = [text for text in (*axes.texts, *shown, *labels) if text.get_text() and text.get_visible()]
    found = [(text.get_text(), corners(text)) for text in texts]
    keys = [child for child in axes.get_children() if isinstance(child, Legend)]
    return [*found, *(("key", _upright(key.get_window_extent())) for key in keys)]


def _upright(box: Any) -> Corners:
    return np.array([[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]])


def cover(one: Corners, two: Corners) -> bool:
    """Whether two convex polygons overlap: no side of either has all of the other behind it."""
    for polygon, other in ((one, two), (two, one)):
        for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
            outward = np.array([b[1] - a[1], a[0] - b[0]])
            if ((other - a) @ outward >= -1e-9).all():
                return False
    return True


def through(ax: Axes) -> list[str]:
    """Labels through which a level runs: a solid horizontal line."""
    found = _texts(ax) if _drawn(ax) else []
    levels = [line for line in ax.lines if line.get_linestyle() == "-" and np.ptp(np.asarray(line.get_ydata())) == 0]
    places = [line.get_transform().transform(line.get_xydata()) for line in levels if len(line.get_xydata()) == 2]
    thin = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.01], [0.0, 0.01]])
    return [
        words
        for words, box in found
        for (start, end) in places
        if cover(box, np.array([start, end, end, start]) + thin)
    ]
