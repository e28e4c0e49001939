"""Draws layouts of a training step by time and memory, with the front that no other beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from rooflinekit.present.figures.style import (
    FAINT,
    INK,
    SERIES_COLOURS,
    Venue,
    Width,
    drawing,
    fit_page,
    new_axes,
    plain_frame,
    style_of,
)

if TYPE_CHECKING:
    from rooflinekit.training.search import LayoutSearch

_GIB = 2**30
_NAMED = 6  # labels that a column has room for


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
        middle = max(step.memory.allocated for step in found.steps) / _GIB / 2
        places = [(step.memory.allocated / _GIB, step.total_s) for step in front]
        axes.plot(
            *zip(*places, strict=True), marker="o", markersize=3, linewidth=0.8, color=SERIES_COLOURS[0], zorder=3,
            label="none is faster with as little memory",
        )  # fmt: skip
        for step, place in list(zip(front, places, strict=True))[:: max(1, -(-len(front) // _NAMED))]:
            late = (
                place[0] > middle
            )  # its text goes to the left and below, so that it stays within the axes and off the front
            axes.annotate(
                f"{step.layout}, {step.recipe.recompute}", place, xytext=(-3, -4) if late else (3, 3),
                textcoords="offset points", fontsize=style.label_font, color=INK, ha="right" if late else "left",
                va="top" if late else "bottom",
            )  # fmt: skip
        axes.set_xlabel("Peak allocated memory of a GPU, GiB", fontsize=style.axis_font)
        axes.set_ylabel("Time of a step, s", fontsize=style.axis_font)
        axes.margins(y=0.12)
        axes.set_xlim(0, 1.05 * max(step.memory.allocated for step in found.steps) / _GIB)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", fontsize=style.label_font, frameon=False)
        plain_frame(axes, style, grid="both")
        if ax is None:
            fit_page(axes)
    return axes
