"""Lanes of a time line: bars of one kind, neighbours as one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from rooflinekit.model.timing import Timing
from rooflinekit.present.figures.style import BOUND_COLOURS, BOUND_HATCHES, FAINT, INK, Style, plain_frame
from rooflinekit.present.scales import unit_of

Run = tuple[float, float, Hashable]  # start and end in seconds, and what it is

HALF = 0.36  # of the height of a lane
SEEN = 1 / 700  # of the step: shorter gaps between spans of one kind are not seen, and closed
IDLE = "#f0f0f0"


class Executed(Protocol):
    """A kernel at its time."""

    @property
    def timing(self) -> Timing:
        """What ran."""

    @property
    def start_s(self) -> float:
        """From."""

    @property
    def end_s(self) -> float:
        """To."""


def merged(runs: Iterable[Run], least_gap_s: float) -> list[Run]:
    """Neighbours of one kind in one, where no gap of this length lies between them.

    >>> merged([(0, 1, "a"), (1, 2, "a"), (2.5, 3, "a"), (3, 4, "b")], 0.1)
    [(0, 2, 'a'), (2.5, 3, 'a'), (3, 4, 'b')]
    """
    found: list[Run] = []
    for start, end, what in runs:
        if found and found[-1][2] == what and start - found[-1][1] < least_gap_s:
            found[-1] = (found[-1][0], max(end, found[-1][1]), what)
        else:
            found.append((start, end, what))
    return found


def time_axis(ax: Axes, total_s: float, style: Style) -> None:
    """The step's time from left to right, its end marked; lanes have names in the place of ticks."""
    scale, unit = unit_of(total_s)
    ax.set_xlim(0, (total_s or 1.0) * 1.005)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g}"))
    ax.set_xlabel(f"Time in the step ({unit})", fontsize=style.axis_font)
    plain_frame(ax, style, grid="x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.axvline(total_s, color=INK, linewidth=0.6, linestyle=":")


def draw_bars(ax: Axes, lane: float, runs: Sequence[Run], colour: str, hatch: str, edge: str = "") -> None:
    """Bars of one kind in the lane at this height; hatches have the colour of the edge, which is not drawn else."""
    if runs:
        ax.broken_barh(
            [(start, end - start) for start, end, _ in runs], (lane - HALF, 2 * HALF), facecolor=colour,
            edgecolor=edge or (FAINT if colour == "white" else "white"), hatch=hatch or None,
            linewidth=0.5 if edge else 0.0, zorder=2,
        )  # fmt: skip


def draw_kernels(ax: Axes, lane: float, spans: Iterable[Executed], least_gap_s: float) -> None:
    """Kernels by what bounds them."""
    kernels = merged(((span.start_s, span.end_s, span.timing.bound) for span in spans), least_gap_s)
    for bound, colour in BOUND_COLOURS.items():
        draw_bars(ax, lane, [run for run in kernels if run[2] == bound], colour, BOUND_HATCHES[bound])


def kernel_handles(bounds: Collection[str]) -> list[Patch]:
    """The key to kernels that are bound by these."""
    return [
        Patch(facecolor=colour, edgecolor="white", hatch=BOUND_HATCHES[bound], linewidth=0,
              label=f"{bound}-bound kernels")
        for bound, colour in BOUND_COLOURS.items() if bound in bounds
    ]  # fmt: skip
