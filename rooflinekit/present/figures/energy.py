"""Draws what a joule buys, and what time costs in joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures.frame import si
from rooflinekit.present.figures.records.energy import EnergyPoint, energy_figure
from rooflinekit.present.figures.style import (
    BLUE,
    INK,
    SERIES_COLOURS,
    VERMILLION,
    Style,
    Venue,
    Width,
    drawing,
    fit_page,
    key_above,
    new_axes,
    plain_frame,
    style_of,
)
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.units import format_quantity, parse_quantity

if TYPE_CHECKING:
    import pandas as pd

_MARK, _WHOLE = 10.0, 400.0  # pt² of the smallest mark, and of one that took all joules
_ROOM_RIGHT, _ROOM_ABOVE = 1.04, 1.12  # of axes that begin at 0, beyond the outermost mark: as on the report's page


@checked
def energy_roofline(
    prediction: Prediction, ax: Axes | None = None, *, names: int = 4, width: Width = "column",
    venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws FLOP per joule over FLOP per byte: kinds of kernels, as large as their share of the joules, under the best.

    names: the most marks that are named, those of most joules. ax, width, venue: as of `roofline`. Raises InputError
    where the device's power is not known, or nothing computes.
    """
    figure, style = energy_figure(prediction), style_of(width, venue)
    whole = sum(point.joules for point in figure.points)
    with drawing():
        axes = new_axes(style) if ax is None else ax
        for colour, roof in zip(SERIES_COLOURS, figure.roofs, strict=False):
            axes.plot(roof.intensity, roof.flop_per_joule, color=colour, linewidth=1.0, label=f"best in {roof.math}")
        for point in figure.points:
            axes.scatter(
                [point.intensity], [point.flop_per_joule], s=_MARK + _WHOLE * point.joules / whole, facecolor=INK,
                alpha=0.6, linewidth=0, zorder=3,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(min(p.flop_per_joule for p in figure.points) / 3, None)
        _names(axes, [(p, p.joules / whole) for p in figure.points[:names]], style)
        axes.set_xlabel("FLOP per byte of DRAM traffic", fontsize=style.axis_font)
        axes.set_ylabel(f"FLOP per joule, {figure.device}", fontsize=style.axis_font)
        axes.yaxis.set_major_formatter(lambda value, _: si(value))
        plain_frame(axes, style, grid="both")
        key_above(axes, [*axes.get_lines()], style)
        if ax is None:
            fit_page(axes)
    return axes


def _names(axes: Axes, named: Sequence[tuple[EnergyPoint, float]], style: Style) -> None:
    """Names in the corner that rooflines leave free, below and to the right, each with a line to its mark."""
    ordered = sorted(named, key=lambda one: -one[0].flop_per_joule)
    for i, (point, share) in enumerate(ordered):
        axes.annotate(
            f"{point.kind.removeprefix('aten.')} {share:.0%}", (point.intensity, point.flop_per_joule),
            xytext=(0.99, 0.42 - 0.075 * i), textcoords="axes fraction", ha="right", va="center",
            fontsize=style.label_font,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "relpos": (0.0, 0.5)},
        )  # fmt: skip


@checked
def time_energy(
    limits: PowerLimits[Any], ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None
) -> Axes:
    """Draws joules over seconds of a step at every power limit; filled marks are those that no other beats in both.

    ax, width, venue: as of `roofline`.
    """
    style = style_of(width, venue)
    style = replace(style, size=(style.size[0], 0.75 * style.size[0]))
    table = limits.table.sort_values("total_s")
    best = table["energy_j"].cummin() >= table["energy_j"]
    with drawing():
        axes = new_axes(style) if ax is None else ax
        axes.plot(table["total_s"], table["energy_j"], color=BLUE, linewidth=0.8)
        for front, colour in ((True, VERMILLION), (False, "white")):
            some = table[best == front]
            axes.scatter(some["total_s"], some["energy_j"], s=18, facecolor=colour, edgecolor=BLUE, zorder=3)
        _limits(axes, table, style)
        axes.set_xlim(0, _ROOM_RIGHT * table["total_s"].max())
        axes.set_ylim(0, _ROOM_ABOVE * table["energy_j"].max())
        for axis, column, what, base in ((axes.xaxis, "total_s", "time", "s"), (axes.yaxis, "energy_j", "energy", "J")):
            _, _, unit = format_quantity(table[column].max(), base).partition(" ")
            one = parse_quantity(f"1 {unit}", base)
            axis.set_major_formatter(partial(_in_units, one))
            axis.set_label_text(f"{what} of a step in {unit}", fontsize=style.axis_font)
        plain_frame(axes, style, grid="both")
        mark = Line2D([], [], marker="o", linestyle="", markerfacecolor=VERMILLION, markeredgecolor=BLUE)
        mark.set_label("no limit takes less of both")
        key_above(axes, [mark], style)
        if ax is None:
            fit_page(axes)
    return axes


def _in_units(one: float, value: float, _: object) -> str:
    return f"{value / one:g}"


def _limits(axes: Axes, table: pd.DataFrame, style: Style) -> None:
    """The watts beside the marks, but for those that would stand on the one before."""
    last = None
    reach = (table["total_s"].max(), table["energy_j"].max())
    for limit_w, x, y in table[["limit_w", "total_s", "energy_j"]].to_numpy(dtype=float):
        place = x / reach[0], y / reach[1]
        if last is not None and abs(place[0] - last[0]) < 0.12 and abs(place[1] - last[1]) < 0.07:
            continue
        last = place
        axes.annotate(
            format_quantity(float(limit_w), "W"), (x, y), xytext=(-4, -1),
            textcoords="offset points", ha="right", va="center", fontsize=style.label_font,
        )  # fmt: skip
