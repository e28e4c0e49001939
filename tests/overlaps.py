"""Which texts of a drawn figure cover each other: measured by the drawing library, not by what placed them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend import Legend
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


def overlaps(ax: Axes) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other: labels, names, ticks, axis labels and keys."""
    page = ax.get_figure(root=True)
    assert page is not None
    page.draw_without_rendering()
    found: list[tuple[str, Corners]] = []
    for axes in page.axes:
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()] if axes.axison else []
        (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        shown = [t for t in ticks if left <= t.get_position()[0] <= right or bottom <= t.get_position()[1] <= top]
        labels = [axes.xaxis.label, axes.yaxis.label]
        texts = [text for text in (*axes.texts, *shown, *labels) if text.get_text() and text.get_visible()]
        found += [(text.get_text(), corners(text)) for text in texts]
        keys = [child for child in axes.get_children() if isinstance(child, Legend)]
        found += [("key", _upright(key.get_window_extent())) for key in keys]
    return [(one, two) for (one, a), (two, b) in itertools.combinations(found, 2) if cover(a, b)]


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
