"""Draws time and throughput over a size, from a table of `sweep`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures.frame import si
from rooflinekit.present.figures.style import (
    BOUND_COLOURS,
    BOUND_MARKERS,
    FAINT,
    INK,
    SERIES_COLOURS,
    Style,
    Venue,
    Width,
    check_table,
    drawing,
    fit_page,
    key_above,
    new_axes,
    new_panels,
    plain_frame,
    style_of,
)
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_FOUND = (
    "total_s", "low_s", "high_s", "gpu_s", "cpu_s", "regime", "energy_j", "power_w", "throughput", "fits", "peak_bytes",
)  # fmt: skip
_NEEDED = ("total_s", "low_s", "high_s", "regime")
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


@checked
def sweep(
    table: pd.DataFrame,
    against: str = "batch",
    ax: Axes | None = None,
    *,
    width: Width = "column",
    venue: Venue | None = None,
) -> Axes:
    """Draws the time of a step over a size, with its 90 % interval, and below it the throughput, if the table has it.

    table: of `rk.sweep`; a line for each GPU and combination of the other sizes. Of one line the background shows the
    regime, of several the marks do; hollow marks do not fit the memory. ax: where to draw the time alone.
    Returns the Axes of the time. Raises InputError for a table without these columns.
    """
    style = style_of(width, venue)
    lines = _lines(table, against)
    with drawing():
        panels = [ax] if ax is not None else (
            new_panels(style, 2) if "throughput" in table else [new_axes(style)]
        )  # fmt: skip
        for panel, column in zip(panels, ("total_s", "throughput"), strict=False):
            _draw(panel, lines, against, column, style)
        panels[-1].set_xlabel(against, fontsize=style.axis_font)
        key_above(panels[0], _handles(lines), style)
        if ax is None:
            fit_page(panels[0])
    return panels[0]


def _lines(table: pd.DataFrame, against: str) -> dict[str, pd.DataFrame]:
    """The rows of each line in order of the size, by what tells it from the others."""
    check_table("sweep", table, (against, *_NEEDED))
    if table.empty:
        raise InputError("sweep: the table has no rows")
    others = [c for c in table.columns if c not in (*_FOUND, against) and table[c].nunique() > 1]
    if not others:
        return {"": table.sort_values(against)}
    groups: Iterator[tuple[Hashable, pd.DataFrame]] = iter(table.groupby(others, sort=False))
    return {_name(others, key): rows.sort_values(against) for key, rows in groups}


def _name(columns: list[str], key: Any) -> str:
    values = key if isinstance(key, tuple) else (key,)
    said = [str(v) if c == "gpu" else f"{c} {v}" for c, v in zip(columns, values, strict=True)]
    return ", ".join(said).removeprefix("nvidia-")


def _draw(ax: Axes, lines: dict[str, pd.DataFrame], against: str, column: str, style: Style) -> None:
    for i, rows in enumerate(lines.values()):
        colour = SERIES_COLOURS[i % len(SERIES_COLOURS)]
        xs = [float(x) for x in rows[against]]
        if column == "total_s":
            ax.fill_between(xs, rows["low_s"], rows["high_s"], color=colour, alpha=0.18, linewidth=0, zorder=2)
        ax.plot(xs, rows[column], color=colour, linewidth=1.2, linestyle=_STYLES[i % len(_STYLES)], zorder=3)
        fits = list(rows["fits"]) if "fits" in rows else [True] * len(rows)
        for x, y, regime, fit in zip(xs, rows[column], rows["regime"], fits, strict=True):
            own = colour if len(lines) > 1 else BOUND_COLOURS[regime]
            ax.plot([x], [y], marker=BOUND_MARKERS[regime], markersize=4, markerfacecolor=own if fit else "white",
                    markeredgecolor=own, markeredgewidth=0.8, linestyle="none", zorder=4)  # fmt: skip
    sizes = sorted({float(x) for rows in lines.values() for x in rows[against]})
    _scales(ax, sizes, column, style)
    if len(lines) == 1:
        _regimes(ax, next(iter(lines.values())), against)


def _scales(ax: Axes, sizes: list[float], column: str, style: Style) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    if len(sizes) > 1:
        ax.set_xlim(sizes[0] / (sizes[1] / sizes[0]) ** 0.3, sizes[-1] * (sizes[-1] / sizes[-2]) ** 0.3)
    # Ticks at the sizes that were tried, as far as their labels have room.
    step = max(1, math.ceil(len(sizes) / 9))
    ax.xaxis.set_major_locator(FixedLocator(sizes[::step]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    if column == "total_s":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_quantity(y, "s", digits=1)))
        ax.set_ylabel("Time of a step", fontsize=style.axis_font)
    else:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: si(y)))
        ax.set_ylabel("Samples/s", fontsize=style.axis_font)
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low > 40 else (1.0, 2.0, 5.0)))
    ax.yaxis.set_minor_locator(NullLocator())
    plain_frame(ax, style, grid="both")


def _regimes(ax: Axes, rows: pd.DataFrame, against: str) -> None:
    """Bands between the sizes, in the colour of what most of the time goes to."""
    xs, regimes = [float(x) for x in rows[against]], list(rows["regime"])
    left, right = ax.get_xlim()
    edges = [left, *(math.sqrt(a * b) for a, b in pairwise(xs)), right]
    for (start, end), regime in zip(pairwise(edges), regimes, strict=True):
        ax.axvspan(start, end, facecolor=BOUND_COLOURS[regime], alpha=0.10, linewidth=0, zorder=0.5)
    ax.set_xlim(left, right)


def _handles(lines: dict[str, pd.DataFrame]) -> list[Any]:
    found: list[Any] = []
    if len(lines) > 1:
        found += [
            Line2D([], [], color=SERIES_COLOURS[i % len(SERIES_COLOURS)], linestyle=_STYLES[i % len(_STYLES)],
                   label=name)
            for i, name in enumerate(lines)
        ]  # fmt: skip
    seen = {regime for rows in lines.values() for regime in rows["regime"]}
    for bound, marker in BOUND_MARKERS.items():
        if bound in seen:
            colour = FAINT if len(lines) > 1 else BOUND_COLOURS[bound]
            found.append(
                Line2D([], [], linestyle="none", marker=marker, markersize=4, color=colour, label=f"{bound}-bound")
            )
    if any("fits" in rows and not rows["fits"].all() for rows in lines.values()):
        found.append(Line2D([], [], linestyle="none", marker="o", markersize=4, markerfacecolor="white",
                            markeredgecolor=INK, label="does not fit"))  # fmt: skip
    found.append(Patch(facecolor=FAINT, alpha=0.35, linewidth=0, label="90 % interval"))
    return found
