"""Draws what lies between two predicted times, term by term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from rooflinekit.present.chart_scales import unit_of
from rooflinekit.present.plot_style import (
    BLUE,
    FAINT,
    INK,
    VERMILLION,
    Style,
    Venue,
    Width,
    drawing,
    new_axes,
    plain_frame,
    style_of,
)


class Compared(Protocol):
    """Two predictions and the seconds that each term of the second has more; `study.explanation.Explanation` is one."""

    @property
    def labels(self) -> tuple[str, str]:
        """What the two are called."""

    @property
    def totals(self) -> tuple[float, float]:
        """Their times, in seconds."""

    @property
    def per(self) -> str:
        """What the times are of: "step" or "sample"."""

    def terms(self) -> Mapping[str, float]:
        """Seconds by term, b less a; they add up to the difference of the totals."""


def waterfall(
    explanation: Compared, ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None
) -> Axes:
    """Draws the way from the time of a to that of b: a bar for each, and one step for each term.

    ax: where to draw; by default a new figure. width, venue: presets of sizes, as of `roofline`. Raises InputError for
    others.
    """
    style = style_of(width, venue)
    terms = {name: seconds for name, seconds in explanation.terms().items() if seconds or name != "input"}
    totals = explanation.totals
    levels = list(accumulate(terms.values(), initial=totals[0]))
    with drawing():
        axes = new_axes(style, below=0.72) if ax is None else ax
        last = len(terms) + 1
        for place, total in ((0, totals[0]), (last, totals[1])):
            axes.bar(place, total, width=_BAR, color=FAINT, zorder=2)
        for i, (start, end) in enumerate(pairwise(levels), 1):
            _step(axes, i, start, end)
        _connect(axes, [*levels, totals[1]])
        _frame(axes, explanation, list(terms), max(totals[0], totals[1], *levels), style)
        _label(axes, levels, totals[1], style)
    return axes


_BAR = 0.66  # of the distance between bars


def _step(axes: Axes, place: int, start: float, end: float) -> None:
    """Longer is red and hatched, shorter is blue: told apart in grey too."""
    axes.bar(
        place,
        abs(end - start),
        bottom=min(start, end),
        width=_BAR,
        color=VERMILLION if end > start else BLUE,
        hatch="////" if end > start else None,
        edgecolor="white" if end > start else "none",
        linewidth=0,
        zorder=2,
    )


def _connect(axes: Axes, levels: list[float]) -> None:
    for i, level in enumerate(levels[:-1]):
        axes.plot([i + _BAR / 2, i + 1 - _BAR / 2], [level, level], color=INK, linewidth=0.5, zorder=1)


def _frame(axes: Axes, explanation: Compared, terms: list[str], highest: float, style: Style) -> None:
    names = explanation.labels
    axes.set_xticks(
        range(len(terms) + 2), [names[0], *terms, names[1]], rotation=30, ha="right", rotation_mode="anchor"
    )
    axes.set_ylim(0, highest * 1.12 or 1.0)
    scale, unit = unit_of(highest)
    axes.set_ylabel(f"Time of one {explanation.per} ({unit})", fontsize=style.axis_font)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g}"))
    plain_frame(axes, style)
    axes.tick_params(axis="x", length=0)


def _label(axes: Axes, levels: list[float], total: float, style: Style) -> None:
    """The value of each bar above it: totals, and changes with their sign."""
    scale, _ = unit_of(max(*levels, total))
    digits = 2 - math.floor(math.log10(max(*levels, total, scale * 1e-3) / scale))
    tops = [levels[0], *map(max, pairwise(levels)), total]
    values = [levels[0], *(end - start for start, end in pairwise(levels)), total]
    for i, (top, value) in enumerate(zip(tops, values, strict=True)):
        number = f"{abs(value) / scale:.{max(0, digits)}f}"
        # What rounds to nothing has no sign.
        change = 0 < i < len(tops) - 1 and float(number) != 0
        axes.annotate(
            f"{('+' if value > 0 else '−') if change else ''}{number}",
            xy=(i, top),
            xytext=(0, 1.5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=style.label_font,
            color=INK,
        )
