"""Draws curves and marks over two axes: sweeps, errors, energy, kernels of attention, served rates, layouts."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.present.figures.frame import si
from rooflinekit.present.figures.labels import name_marks
from rooflinekit.present.figures.records.build import op_word
from rooflinekit.present.figures.records.roofs import energy_figure
from rooflinekit.present.figures.style import (
    BLUE,
    BOUND_COLOURS,
    BOUND_MARKERS,
    DASHES,
    FAINT,
    INK,
    SERIES_COLOURS,
    VERMILLION,
    Style,
    Venue,
    Width,
    called,
    check_table,
    in_unit,
    plain_frame,
    sheet,
)
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.crossover import AttentionRates, attention_rates
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.timing.machine import Machine
from rooflinekit.units import as_percent, format_quantity

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.distributed.described import LayoutSearch
    from rooflinekit.serving.fleet import Capacity

_SHAPES = "osD^vPX*"  # of the marks of series
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_SECONDS = FuncFormatter(lambda seconds, _: format_quantity(seconds, "s", digits=1))
_BAND = 0.2  # to either side of a measured time
_MARK, _WHOLE = 10.0, 400.0  # pt² of the smallest mark, and of one that took all joules
_ROOM_RIGHT, _ROOM_ABOVE = 1.04, 1.12  # of axes that begin at 0, beyond the outermost mark
_SHOWN = 1.6  # times the knee: beyond, waiting grows with the number of requests
_GIB = 2**30
_NAMED = 6  # labels that a column has room for
_RADIUS = 2.0  # points of a mark


def _decades(axis: Axis, most: float) -> None:
    """Ticks of an axis of quantities at decades, at 1, 2 and 5 of each where it has no more than `most` in one."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low > most else (1.0, 2.0, 5.0)))


_FOUND = (
    "total_s", "low_s", "high_s", "gpu_s", "cpu_s", "regime", "energy_j", "power_w", "throughput", "fits", "peak_bytes",
)  # fmt: skip
_NEEDED = ("total_s", "low_s", "high_s", "regime")
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


@checked
def sweep(
    table: pd.DataFrame, against: str = "batch", ax: Axes | None = None, *, width: Width = "column",
    venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws the time of a step over a size, with its 90 % interval, and below it the throughput, if the table has it.

    table: of `rk.sweep`; a line for each GPU and combination of the other sizes. Of one line the background shows the
    regime, of several the marks do; hollow marks do not fit the memory. ax: where to draw the time alone.
    Returns the Axes of the time. Raises InputError for a table without these columns.
    """
    lines = _lines(table, against)
    with sheet(ax, width, venue, panels=1 + ("throughput" in table)) as page:
        for panel, column in zip(page.panels, ("total_s", "throughput"), strict=False):
            _draw_sweep(panel, lines, against, column, page.style)
        names = set(table["gpu"]) if "gpu" in table else set()
        where = f" on {called(names.pop())}" if len(names) == 1 else ""
        page.panels[-1].set_xlabel(against + where, fontsize=page.style.axis_font)
        page.settle(_sweep_handles(lines))
    return page.ax


def _lines(table: pd.DataFrame, against: str) -> dict[str, pd.DataFrame]:
    """The rows of each line in order of the size, by what tells it from the others."""
    check_table("sweep", table, (against, *_NEEDED))
    if table.empty:
        raise InputError("sweep: the table has no rows")
    others = [c for c in table.columns if c not in (*_FOUND, against) and table[c].nunique() > 1]
    if not others:
        return {"": table.sort_values(against)}
    found = {}
    for values, rows in table.groupby(others, sort=False):
        words = (called(str(v)) if c == "gpu" else f"{c} {v}" for c, v in zip(others, values, strict=True))
        found[", ".join(words)] = rows.sort_values(against)
    return found


def _look(place: int) -> dict[str, Any]:
    return {"color": SERIES_COLOURS[place % len(SERIES_COLOURS)], "linestyle": _STYLES[place % len(_STYLES)]}


def _draw_sweep(ax: Axes, lines: dict[str, pd.DataFrame], against: str, column: str, style: Style) -> None:
    for i, rows in enumerate(lines.values()):
        look, xs = _look(i), [float(x) for x in rows[against]]
        if column == "total_s":
            ax.fill_between(xs, rows["low_s"], rows["high_s"], color=look["color"], alpha=0.18, linewidth=0, zorder=2)
        ax.plot(xs, rows[column], linewidth=1.2, zorder=3, **look)
        fits = list(rows["fits"]) if "fits" in rows else [True] * len(rows)
        for x, y, regime, fit in zip(xs, rows[column], rows["regime"], fits, strict=True):
            own = look["color"] if len(lines) > 1 else BOUND_COLOURS[regime]
            ax.plot([x], [y], marker=BOUND_MARKERS[regime], markersize=4, markerfacecolor=own if fit else "white",
                    markeredgecolor=own, markeredgewidth=0.8, linestyle="none", zorder=4)  # fmt: skip
    sizes = sorted({float(x) for rows in lines.values() for x in rows[against]})
    ax.set(xscale="log", yscale="log")
    if len(sizes) > 1:
        ax.set_xlim(sizes[0] / (sizes[1] / sizes[0]) ** 0.3, sizes[-1] * (sizes[-1] / sizes[-2]) ** 0.3)
    # Ticks at the sizes that were tried, as far as their labels have room.
    ax.xaxis.set_major_locator(FixedLocator(sizes[:: max(1, math.ceil(len(sizes) / 9))]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(_PLAIN)
    seconds = column == "total_s"
    ax.yaxis.set_major_formatter(_SECONDS if seconds else FuncFormatter(lambda y, _: si(y)))
    ax.set_ylabel("Time of a step" if seconds else "Samples/s", fontsize=style.axis_font)
    _decades(ax.yaxis, 40)
    ax.yaxis.set_minor_locator(NullLocator())
    plain_frame(ax, style, grid="both")
    if len(lines) == 1:
        _regimes(ax, next(iter(lines.values())), against)


def _regimes(ax: Axes, rows: pd.DataFrame, against: str) -> None:
    """Bands between the sizes, in the colour of what most of the time goes to."""
    xs, regimes = [float(x) for x in rows[against]], list(rows["regime"])
    left, right = ax.get_xlim()
    edges = [left, *(math.sqrt(a * b) for a, b in pairwise(xs)), right]
    for (start, end), regime in zip(pairwise(edges), regimes, strict=True):
        ax.axvspan(start, end, facecolor=BOUND_COLOURS[regime], alpha=0.10, linewidth=0, zorder=0.5)
    ax.set_xlim(left, right)


def _sweep_handles(lines: dict[str, pd.DataFrame]) -> list[Artist]:
    several = len(lines) > 1
    found: list[Artist] = [Line2D([], [], label=name, **_look(i)) for i, name in enumerate(lines) if several]
    seen = {regime for rows in lines.values() for regime in rows["regime"]}
    mark: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    for bound, marker in BOUND_MARKERS.items():
        if bound in seen:
            colour = FAINT if several else BOUND_COLOURS[bound]
            found.append(Line2D([], [], marker=marker, color=colour, label=f"{bound}-bound", **mark))
    if any("fits" in rows and not rows["fits"].all() for rows in lines.values()):
        hollow = Line2D([], [], marker="o", label="does not fit", markerfacecolor="white", markeredgecolor=INK, **mark)
        found.append(hollow)
    return [*found, Patch(facecolor=FAINT, alpha=0.35, linewidth=0, label="90 % interval")]


@checked
def errors(
    table: pd.DataFrame, ax: Axes | None = None, *, group: str | None = None, width: Width = "column",
    venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws predicted over measured times: on the diagonal the prediction is right, in the band within 20 %.

    table: columns measured_s and predicted_s, positive. group: a column whose values have a colour and a shape each; by
    default the column "group", if there is one. Raises InputError for a table without these columns.
    """
    check_table("errors", table, ("measured_s", "predicted_s", *([group] if group else [])))
    rows = table[["measured_s", "predicted_s"]].to_numpy(dtype=float)
    if not len(rows) or not (np.isfinite(rows).all() and (rows > 0).all()):
        raise InputError("errors: expected rows with positive numbers in measured_s and predicted_s")
    by = group or ("group" if "group" in table else None)
    words = np.array(list(map(str, table[by])) if by else [""] * len(rows))
    with sheet(ax, width, venue, high=0.95) as page:
        style, handles = page.style, []
        _diagonal(page.ax, rows, style.axis_font)
        for i, name in enumerate(dict.fromkeys(words)):
            look: dict[str, Any] = {
                "marker": _SHAPES[i % len(_SHAPES)], "color": SERIES_COLOURS[i % len(SERIES_COLOURS)],
            }  # fmt: skip
            mine = rows[words == name]
            page.ax.scatter(mine[:, 0], mine[:, 1], s=14, linewidths=0.3, edgecolors="white", alpha=0.85, zorder=3,
                            **look)  # fmt: skip
            handles += [Line2D([], [], linestyle="none", markersize=4, label=name, **look)] if name else []
        plain_frame(page.ax, style, grid="both")
        error = np.abs(rows[:, 1] / rows[:, 0] - 1)
        within, median = as_percent(float(np.mean(error <= _BAND))), as_percent(float(np.median(error)))
        told = f"{len(rows)} pairs, {within} within 20 %, median error {median}"
        page.ax.text(0.98, 0.03, told, transform=page.ax.transAxes, ha="right", va="bottom",
                     fontsize=style.label_font, color=INK, zorder=4)  # fmt: skip
        page.settle([*handles, Patch(facecolor=FAINT, alpha=0.3, linewidth=0, label="within 20 %")])
    return page.ax


def _diagonal(ax: Axes, rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]], font: float) -> None:
    ax.set(xscale="log", yscale="log")
    low, high = float(rows.min()) / 1.6, float(rows.max()) * 1.6
    ends = np.array([low, high])
    ax.plot(ends, ends, color=INK, linewidth=0.8, zorder=2)
    ax.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color=FAINT, alpha=0.3, linewidth=0, zorder=1)
    ax.set(xlim=(low, high), ylim=(low, high))
    for axis, word in ((ax.xaxis, "Measured"), (ax.yaxis, "Predicted")):
        _decades(axis, 30)
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(_SECONDS)
        axis.set_label_text(f"{word} time", fontsize=font)


@checked
def energy_roofline(
    prediction: Prediction, ax: Axes | None = None, *, names: int = 4, width: Width = "column",
    venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws FLOP per joule over FLOP per byte: kinds of kernels, as large as their share of the joules, under the best.

    names: the most marks that are named, those of most joules. ax, width, venue: as of `roofline`. Raises InputError
    where the device's power is not known, or nothing computes.
    """
    figure = energy_figure(prediction)
    whole = sum(point.joules for point in figure.points)
    with sheet(ax, width, venue) as page:
        axes, style, marks = page.ax, page.style, []
        for colour, (math_name, roof) in zip(SERIES_COLOURS, figure.roofs.items(), strict=False):
            axes.plot(figure.intensity, roof, color=colour, linewidth=1.0, label=f"best in {math_name}")
        for i, point in enumerate(figure.points):
            spot = point.intensity, point.flop_per_joule
            area = (_MARK + _WHOLE * point.joules / whole) * style.whole_area / 1200
            axes.scatter(*spot, s=area, facecolor=INK, alpha=0.6, linewidth=0, zorder=3, gid=f"mark-{i}")
            text = f"{op_word(point.kind)} {as_percent(point.joules / whole)}" if i < names else ""
            marks.append((spot, math.sqrt(area) / 2, text))
        axes.set(xscale="log", yscale="log")
        axes.set_ylim(min(p.flop_per_joule for p in figure.points) / 3, None)
        axes.set_xlabel("FLOP per byte of DRAM traffic", fontsize=style.axis_font)
        axes.set_ylabel(f"FLOP per joule, {figure.device}", fontsize=style.axis_font)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: si(value))
        plain_frame(axes, style, grid="both")
        page.settle([*axes.get_lines()])
        name_marks(axes, style, marks, [(figure.intensity[::10], roof[::10]) for roof in figure.roofs.values()])
    return axes


@checked
def time_energy(
    limits: PowerLimits[Any], ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None
) -> Axes:
    """Draws joules over seconds of a step at every power limit; filled marks are those that no other beats in both.

    ax, width, venue: as of `roofline`.
    """
    table = limits.table.sort_values("total_s")
    best = table["energy_j"].cummin() >= table["energy_j"]
    with sheet(ax, width, venue, high=0.75) as page:
        axes, style = page.ax, page.style
        axes.plot(table["total_s"], table["energy_j"], color=BLUE, linewidth=0.8)
        places = list(zip(table["total_s"], table["energy_j"], strict=True))
        area = max(18.0, 3 * style.least_area)
        for i, (x, y), front in zip(table.index, places, best, strict=True):
            axes.scatter([x], [y], s=area, facecolor=VERMILLION if front else "white", edgecolor=BLUE, zorder=3,
                         gid=f"mark-{i}")  # fmt: skip
        axes.set_xlim(0, _ROOM_RIGHT * table["total_s"].max())
        axes.set_ylim(0, _ROOM_ABOVE * table["energy_j"].max())
        for axis, column, what, base in ((axes.xaxis, "total_s", "Time", "s"), (axes.yaxis, "energy_j", "Energy", "J")):
            unit = in_unit(axis, table[column].max(), base)
            axis.set_label_text(f"{what} of a step ({unit})", fontsize=style.axis_font)
        plain_frame(axes, style, grid="both")
        mark = Line2D([], [], marker="o", linestyle="", markerfacecolor=VERMILLION, markeredgecolor=BLUE)
        mark.set_label("no limit takes less of both")
        page.settle([mark])
        limits_w = (format_quantity(float(limit_w), "W") for limit_w in table["limit_w"])
        marks = [(place, math.sqrt(area) / 2, text) for place, text in zip(places, limits_w, strict=True)]
        name_marks(axes, style, marks, [tuple(zip(*places, strict=True))])
    return axes


@checked
def attention(
    subject: AttentionRates | Machine | Device, *, head_dim: int = 128, causal: bool = False, width: Width = "column",
    venue: Venue | None = None,
) -> list[Axes]:  # fmt: skip
    """Draws TFLOP/s in fp16 over the length of sequences, forward above and backward below, a line for each kernel.

    subject: a device or a machine, or what `attention_rates` made of one. The thick line is what PyTorch runs by
    itself. head_dim, causal: of the heads, where no rates are given. Returns the two Axes.
    Raises InputError as `attention_rates` does, and for another width or venue.
    """
    rates = subject
    if not isinstance(rates, AttentionRates):
        rates = attention_rates(rates, head_dim=head_dim, causal=causal)
    with sheet(None, width, venue, panels=2) as page:
        font = page.style.axis_font
        told = (("Forward", rates.forward), ("Backward", rates.backward))
        for axes, (name, found) in zip(page.panels, told, strict=True):
            for (kernel, line), colour, marker in zip(found.items(), SERIES_COLOURS, _SHAPES, strict=False):
                chosen = kernel == rates.chosen
                axes.plot(
                    rates.lengths, [rate / 1e12 for rate in line], color=colour, marker=marker, markersize=3,
                    linewidth=2.0 if chosen else 0.9, label=kernel + ", PyTorch's choice" * chosen,
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xlim(rates.lengths[0] / 1.2, rates.lengths[-1] * 1.2)
            axes.set_ylim(0, 1.1 * max(max(line) for line in found.values()) / 1e12)
            axes.set_ylabel(f"{name}\n(TFLOP/s)", fontsize=font)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            plain_frame(axes, page.style, grid="both")
        last = page.panels[1]
        last.xaxis.set_major_locator(FixedLocator(rates.lengths))
        last.xaxis.set_minor_locator(NullLocator())
        last.xaxis.set_major_formatter(_PLAIN)
        heads = f"heads of {rates.head_dim}{', causal' * rates.causal}"
        last.set_xlabel(f"Length of sequences, {heads}\non {rates.device}", fontsize=font)
        page.settle([*last.get_lines()])
    return page.panels


def rates(capacity: Capacity) -> list[Axes]:
    """Draws time to first token over time between tokens, both over requests a second: medians, 90 and 99 %.

    The promised times are dashed lines, the highest rate that keeps them (the knee) a vertical one.
    """
    edge = capacity.rate * _SHOWN if capacity.rate else math.inf
    points = [point for point in capacity.points if point.rate <= edge] or list(capacity.points[:2])
    level = capacity.level
    told = (("ttft_s", "First token", level.ttft_s), ("tpot_s", "Per token", level.tpot_s))
    with sheet(None, "column", None, panels=2) as page:
        style = page.style
        for axes, (name, what, promised) in zip(page.panels, told, strict=True):
            values = [getattr(point, name) for point in points]
            top = max((v for three in values for v in three if not math.isnan(v)), default=1.0)
            for i, (share, colour) in enumerate(((50, BLUE), (90, VERMILLION), (99, FAINT))):
                axes.plot([p.rate for p in points], [v[i] for v in values], color=colour, lw=1.0, marker="o",
                          ms=2.5, label=f"{share} %")  # fmt: skip
            if promised is not None:
                axes.axhline(promised, color=INK, lw=0.7, ls=DASHES)
            if capacity.rate:
                axes.axvline(capacity.rate, color=INK, lw=0.7)
            axes.set_ylim(0, None if promised is None or top < 2 * promised else 2 * promised)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            unit = in_unit(axes.yaxis, top if promised is None else promised, "s")
            axes.set_ylabel(f"{what} ({unit})", fontsize=style.axis_font)
            plain_frame(axes, style)
        page.ax.legend(fontsize=style.label_font, frameon=False, loc="upper left")
        page.panels[1].set_xlabel("Requests/s", fontsize=style.axis_font)
        page.panels[1].xaxis.set_major_formatter(_PLAIN)
        if capacity.rate:
            page.ax.annotate(f"{capacity.rate:.3g}/s", (capacity.rate, 1), xycoords=("data", "axes fraction"),
                             xytext=(2, -7), textcoords="offset points", fontsize=style.label_font)  # fmt: skip
    return page.panels


@checked
def layouts(found: LayoutSearch, ax: Axes | None = None, *, width: Width = "page", venue: Venue | None = None) -> Axes:
    """Draws time over memory of the layouts that were worked out; those on the front are joined, some of them named.

    found: what `search_layouts` gives. ax: where to draw; by default a new figure.
    """
    expect(hasattr(found, "front"), "found", "what search_layouts gives", found)
    front = found.front
    named = front[:: max(1, -(-len(front) // _NAMED))]
    with sheet(ax, width, venue) as page:
        axes, style = page.ax, page.style
        every, best = (
            [(step.memory.allocated / _GIB, step.total_s) for step in steps] for steps in (found.steps, front)
        )
        xs, ys = zip(*every, strict=True)
        axes.scatter(xs, ys, s=8, color=FAINT, linewidths=0, zorder=2, label="a layout")
        axes.plot(
            *zip(*best, strict=True), marker="o", markersize=3, linewidth=0.8, color=SERIES_COLOURS[0], zorder=3,
            label="the fastest for its memory",
        )  # fmt: skip
        axes.set_xlabel("Peak allocated memory of a GPU (GiB)", fontsize=style.axis_font)
        axes.set_ylabel("Time of a step (s)", fontsize=style.axis_font)
        axes.margins(y=0.12)
        capacity = found.best.memory.capacity / _GIB
        axes.axvline(capacity, color=VERMILLION, linewidth=0.8, linestyle="--", zorder=1, label="the GPU's memory")
        axes.set_xlim(0, 1.05 * capacity)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", fontsize=style.label_font, frameon=False)
        plain_frame(axes, style, grid="both")
        page.settle([])
        again = {id(step): step.recipe.recompute for step in named if step.recipe.recompute != "none"}
        texts = {id(s): f"{s.layout}{f', recompute {again[id(s)]}' if id(s) in again else ''}" for s in named}
        marks = [(place, _RADIUS, texts.get(id(step), "")) for step, place in zip(found.steps, every, strict=True)]
        name_marks(axes, style, marks, [tuple(zip(*best, strict=True)), ((capacity, capacity), axes.get_ylim())])
    return axes
