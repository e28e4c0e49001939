"""Draws predicted against measured times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures.style import (
    FAINT,
    INK,
    SERIES_COLOURS,
    Venue,
    Width,
    check_table,
    drawing,
    fit_page,
    key_above,
    new_axes,
    plain_frame,
    style_of,
)
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_BAND = 0.2


@checked
def errors(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    group: str | None = None,
    width: Width = "column",
    venue: Venue | None = None,
) -> Axes:
    """Draws predicted over measured times: on the diagonal the prediction is right, in the band within 20 %.

    table: columns measured_s and predicted_s, positive. group: a column whose values have a colour and a shape each; by
    default the column "group", if there is one. Raises InputError for a table without these columns.
    """
    check_table("errors", table, ("measured_s", "predicted_s", *([group] if group else [])))
    rows = table[["measured_s", "predicted_s"]].to_numpy(dtype=float)
    if not len(rows) or not (np.isfinite(rows).all() and (rows > 0).all()):
        raise InputError("errors: expected rows with positive numbers in measured_s and predicted_s")
    style = style_of(width, venue)
    style = replace(style, size=(style.size[0], style.size[0] * 0.95))
    by = group or ("group" if "group" in table else None)
    names = list(dict.fromkeys(map(str, table[by]))) if by else [""]
    words = np.array(list(map(str, table[by])) if by else [""] * len(rows))
    with drawing():
        axes = new_axes(style) if ax is None else ax
        _frame(axes, rows, style.axis_font)
        for i, name in enumerate(names):
            mine = rows[words == name]
            axes.scatter(
                mine[:, 0], mine[:, 1], s=14, marker=_MARKERS[i % len(_MARKERS)], linewidths=0.3, edgecolors="white",
                color=SERIES_COLOURS[i % len(SERIES_COLOURS)], alpha=0.85, zorder=3,
            )  # fmt: skip
        plain_frame(axes, style, grid="both")
        error = np.abs(rows[:, 1] / rows[:, 0] - 1)
        told = f"{len(rows)} pairs, {np.mean(error <= _BAND):.0%} within 20 %, median error {np.median(error):.0%}"
        axes.text(0.98, 0.03, told.replace("%", " %").replace("  %", " %"), transform=axes.transAxes, ha="right",
                  va="bottom", fontsize=style.label_font, color=INK, zorder=4)  # fmt: skip
        handles = [
            Line2D([], [], linestyle="none", marker=_MARKERS[i % len(_MARKERS)], markersize=4,
                   color=SERIES_COLOURS[i % len(SERIES_COLOURS)], label=name)
            for i, name in enumerate(names) if name
        ]  # fmt: skip
        key_above(axes, [*handles, Patch(facecolor=FAINT, alpha=0.3, linewidth=0, label="within 20 %")], style)
        if ax is None:
            fit_page(axes)
    return axes


def _frame(ax: Axes, rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]], font: float) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = float(rows.min()) / 1.6, float(rows.max()) * 1.6
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ends = np.array([low, high])
    ax.plot(ends, ends, color=INK, linewidth=0.8, zorder=2)
    ax.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color=FAINT, alpha=0.3, linewidth=0, zorder=1)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda seconds, _: format_quantity(seconds, "s", digits=1)))
    ax.set_xlabel("Measured time", fontsize=font)
    ax.set_ylabel("Predicted time", fontsize=font)
