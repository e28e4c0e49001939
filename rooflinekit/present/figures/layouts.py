"""Draws layouts of a training step by time and memory, with the front that no other beats in both."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures.labels import Box, Room, Ruler, around
from rooflinekit.present.figures.style import (
    FAINT,
    INK,
    SERIES_COLOURS,
    VERMILLION,
    Style,
    Venue,
    Width,
    drawing,
    fit_page,
    new_axes,
    plain_frame,
    style_of,
)

if TYPE_CHECKING:
    from rooflinekit.distributed.described import LayoutSearch
    from rooflinekit.distributed.prediction import TrainingStep

_GIB = 2**30
_NAMED = 6  # labels that a column has room for
_RADIUS = 2.0  # points of a mark


@checked
def layouts(found: LayoutSearch, ax: Axes | None = None, *, width: Width = "page", venue: Venue | None = None) -> Axes:
    """Draws time over memory of the layouts that were worked out; those on the front are joined, some of them named.

    found: what `search_layouts` gives. ax: where to draw; by default a new figure.
    """
    style = style_of(width, venue)
    front = found.front
    with drawing():
        axes = new_axes(style) if ax is None else ax
        axes.scatter(
            [step.memory.allocated / _GIB for step in found.steps], [step.total_s for step in found.steps], s=8,
            color=FAINT, linewidths=0, zorder=2, label="a layout",
        )  # fmt: skip
        places = [(step.memory.allocated / _GIB, step.total_s) for step in front]
        axes.plot(
            *zip(*places, strict=True), marker="o", markersize=3, linewidth=0.8, color=SERIES_COLOURS[0], zorder=3,
            label="none is faster with as little memory",
        )  # fmt: skip
        axes.set_xlabel("Peak allocated memory of a GPU, GiB", fontsize=style.axis_font)
        axes.set_ylabel("Time of a step, s", fontsize=style.axis_font)
        axes.margins(y=0.12)
        capacity = found.best.memory.capacity / _GIB
        axes.axvline(capacity, color=VERMILLION, linewidth=0.8, linestyle="--", zorder=1, label="the GPU's memory")
        axes.set_xlim(0, 1.05 * capacity)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", fontsize=style.label_font, frameon=False)
        plain_frame(axes, style, grid="both")
        if ax is None:
            fit_page(axes)
        _name(axes, found, style)
    return axes


def _name(axes: Axes, found: LayoutSearch, style: Style) -> None:
    """Writes what some layouts of the front are, where no mark and no other text stands."""
    page = axes.get_figure(root=True)
    assert page is not None
    page.draw_without_rendering()
    ruler = Ruler(page)
    left, bottom, right, top = (value * ruler.points for value in axes.get_window_extent().extents)
    room = Room(bounds=(left, bottom, right, top))
    key = axes.get_legend()
    assert key is not None
    low, high = key.get_window_extent().get_points() * ruler.points
    middle, size = (low + high) / 2, high - low
    room.boxes.append(Box(x=middle[0], y=middle[1], width=size[0], height=size[1]))

    def place(step: TrainingStep) -> tuple[float, float]:
        x, y = axes.transData.transform((step.memory.allocated / _GIB, step.total_s)) * ruler.points
        return float(x), float(y)

    room.discs = [(*place(step), _RADIUS) for step in found.steps]
    for one, next_one in pairwise(found.front):
        room.add_line(place(one), place(next_one))
    for step in found.front[:: max(1, -(-len(found.front) // _NAMED))]:
        text, (x, y) = f"{step.layout}, {step.recipe.recompute}", place(step)
        best = room.best(around(x, y, _RADIUS, ruler.size(text, style.label_font), text))
        if best is None:
            continue
        box = best[1]
        room.boxes.append(box)
        axes.annotate(
            text, (step.memory.allocated / _GIB, step.total_s), xytext=(box.x - x, box.y - y),
            textcoords="offset points", fontsize=style.label_font, color=INK, ha="center", va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": INK, "shrinkA": 0.0, "shrinkB": _RADIUS},
        )  # fmt: skip
