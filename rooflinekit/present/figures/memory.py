"""Draws what a step holds of the device's memory over its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures.labels import Ruler
from rooflinekit.present.figures.style import (
    BLUE,
    FAINT,
    INK,
    SKY,
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
from rooflinekit.present.scales import unit_of
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity, parse_quantity

_STANDING = ("weights", "optimizer state", "inputs")  # what stays throughout the step
_NEAR = 3.0  # times the peak: a capacity further up is stated, not drawn


@checked
def memory(
    prediction: Prediction, ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None
) -> Axes:
    """Draws the bytes alive over one step, the peak with its op, and the device's capacity.

    Bytes are those of PyTorch's blocks, as `prediction.memory.peak_bytes` counts them. ax, width, venue: as of
    `roofline`. Raises InputError for others.
    """
    style = style_of(width, venue)
    style = replace(style, size=(style.size[0], 0.62 * style.size[0]))
    with drawing():
        axes = new_axes(style) if ax is None else ax
        course = memory_course(prediction)
        times, alive = [moment.start_s for moment in course], [moment.alive.total_bytes for moment in course]
        standing = sum(course[0].alive.bytes_of[name] for name in _STANDING) if course else 0
        xs, ys = [*times, prediction.total_s], [*alive, alive[-1] if alive else standing]
        axes.fill_between(xs, 0, ys, step="post", facecolor=SKY, linewidth=0, zorder=2)
        axes.step(xs, ys, where="post", color=BLUE, linewidth=0.8, zorder=2.5)
        axes.axhspan(0, standing, facecolor="#bbbbbb", edgecolor="white", hatch="////", linewidth=0, zorder=2.2)
        _frame(axes, prediction, style)
        key_above(axes, _handles(prediction), style)
        if ax is None:
            fit_page(axes)
        _marks(axes, prediction, times, alive, style)
    return axes


def _frame(ax: Axes, p: Prediction, style: Style) -> None:
    time, unit = unit_of(p.total_s)
    use = p.memory
    room, near = _room(p)
    highest = max(use.peak_bytes, room if near else 0.0) or 1.0
    _, _, symbol = format_quantity(highest, "byte").partition(" ")
    power = parse_quantity(f"1 {symbol}", "byte")
    ax.set_xlim(0, p.total_s or 1.0)
    ax.set_ylim(0, highest * 1.22)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / time:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size / power:g}"))
    ax.set_xlabel(f"Time in the step ({unit})", fontsize=style.axis_font)
    ax.set_ylabel(f"Memory in use ({symbol})", fontsize=style.axis_font)
    plain_frame(ax, style)
    if near:
        ax.axhline(room, color=VERMILLION, linewidth=1.0, linestyle="--", zorder=3)


def _room(p: Prediction) -> tuple[float, bool]:
    """Bytes beside those of CUDA, and whether that is near enough to the peak to be drawn."""
    room = p.memory.capacity - p.memory.context_bytes
    return room, room < _NEAR * p.memory.peak_bytes


def _handles(p: Prediction) -> list[Artist]:
    use = p.memory
    capacity = (
        f"capacity {format_quantity(use.capacity, 'byte')}, CUDA takes {format_quantity(use.context_bytes, 'byte')}"
    )
    drawn = _room(p)[1]
    return [
        Patch(facecolor="#bbbbbb", edgecolor="white", hatch="////", linewidth=0, label=", ".join(_STANDING)),
        Patch(facecolor=SKY, edgecolor=BLUE, linewidth=0.8, label="activations, gradients, workspace"),
        Line2D([], [], color=VERMILLION if drawn else "none", linewidth=1.0, linestyle="--",
               label=capacity if use.fits else f"{capacity}: does not fit"),
    ]  # fmt: skip


def _marks(ax: Axes, p: Prediction, times: list[float], alive: Sequence[int], style: Style) -> None:
    """The peak with its op, above the highest line at its height."""
    if not alive:
        return
    peak = max(alive)
    at = times[alive.index(peak)]
    text = f"peak {format_quantity(peak, 'byte')} at {p.memory.peak_op}"
    page = ax.get_figure(root=False)
    assert page is not None, "an Axes that was removed from its figure"
    ruler = Ruler(page)
    across = ax.get_window_extent().width * ruler.points
    half = ruler.size(text, style.label_font)[0] / 2
    middle = min(max(at / p.total_s * across, half), across - half)
    ax.plot([at], [peak], marker="v", markersize=4, color=INK, zorder=4)
    ax.annotate(text, (middle / across, peak), xycoords=("axes fraction", "data"), xytext=(0, 3.5),
                textcoords="offset points", ha="center", va="bottom", fontsize=style.label_font, color=INK, zorder=4,
                bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "alpha": 0.75, "linewidth": 0})  # fmt: skip
    ax.axhline(peak, color=FAINT, linewidth=0.4, linestyle=":", zorder=1)
