"""The axes of a roofline figure: ticks, grid, what is written in them, and the rail for kernels without FLOP."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rooflinekit.present.figures.labels import Box, Candidate, Room, Ruler
from rooflinekit.present.figures.records.figure import Figure, Point
from rooflinekit.present.figures.style import (
    FAINT,
    INK,
    RAIL_GREY,
    RAIL_HALF,
    Limits,
    Place,
    Style,
    limits_of,
    places_of,
)

_WIDE = 300.0  # points: more than a column
_APART = 3.0  # points that texts in a line are apart in all
_PREFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


class Frame:
    """An Axes prepared for a roofline figure, and the room that is left in it."""

    def __init__(self, ax: Axes, figure: Figure, style: Style) -> None:
        self.ax = ax
        self.figure = figure
        self.style = style
        page = ax.get_figure(root=False)
        assert page is not None, "an Axes that was removed from its figure"
        self.ruler = Ruler(page)
        root = page.get_figure(root=True)
        extent = ax.get_window_extent()
        wide = extent.width * self.ruler.points > _WIDE
        self.limits = limits_of(figure, extent.width / extent.height, wide=wide)
        _prepare(ax, self.limits, style, figure)
        self._label_across()  # before the layout settles, which makes room for it
        if root is not None:
            root.draw_without_rendering()  # lets a layout engine settle before anything is measured
        self._transform = ax.transData
        self._written: list[tuple[Box, Artist]] = []
        extent = ax.get_window_extent()
        points = self.ruler.points
        left, bottom, right, top = (value * points for value in extent.extents)
        self.room = Room(bounds=(left + 1, bottom + 1, right - 1, top - 1))

    def _label_across(self) -> None:
        """What x is, in as many words as there is room for."""
        figure, font = self.figure, self.style.axis_font
        level = "traffic of each level" if figure.by_level else "DRAM"
        words = [f"Arithmetic intensity (FLOP/byte, {level})", "Arithmetic intensity (FLOP/byte)", "FLOP/byte"]
        if figure.links:
            words[:2] = ["FLOP per byte: sent (filled), of DRAM (hollow)"]
        if figure.normalized:
            words = ["Intensity / ridge of its own roof", "Intensity / ridge"]
        width = self.ax.get_window_extent().width * self.ruler.points
        fitting = [text for text in words if self.ruler.size(text, font)[0] <= width]
        self.ax.set_xlabel([*fitting, words[-1]][0], fontsize=font)

    def place(self, intensity: float, performance: float) -> tuple[float, float]:
        """Where a point of the data lies, in points from the page's corner."""
        x, y = self._transform.transform((intensity, performance)) * self.ruler.points
        return float(x), float(y)

    @property
    def rail(self) -> float:
        """The intensity at which the rail stands; there a bandwidth b lies at the performance rail · b."""
        assert self.limits.rail is not None, "a figure without rail"
        return 10.0**self.limits.rail

    def label(
        self, candidates: Iterable[Candidate], anchor: tuple[float, float], *, font: float, colour: str = INK
    ) -> Box | None:
        """Writes the best candidate's text, if one is free; returns its box."""
        found = self.room.best(candidates)
        if found is None:
            return None
        _, box, text = found
        apart = replace(box, width=box.width + _APART)
        self.room.boxes.append(apart)
        self.write(text, box, anchor, font=font, colour=colour, room=apart)
        return box

    def clear(self) -> None:
        """Takes back all text that was written: something else needs its room."""
        for box, artist in self._written:
            artist.remove()
            self.room.boxes.remove(box)
        self._written.clear()

    def write(
        self,
        text: str,
        box: Box,
        anchor: tuple[float, float],
        *,
        font: float,
        colour: str = INK,
        leader: tuple[float, float] | None = None,
        room: Box | None = None,
    ) -> None:
        """Writes text into its box, kept at its distance in points from a place of the data when the figure is resized.

        leader: the point of the page at which a line from the text ends. room: what is kept free of other text, where
        that is more than the box.
        """
        x, y = self.place(*anchor)
        written = self.ax.annotate(
            text,
            xy=anchor,
            xytext=(box.x - x, box.y - y),
            textcoords="offset points",
            rotation=math.degrees(box.angle),
            rotation_mode="anchor",
            ha="center",
            va="center",
            fontsize=font,
            color=colour,
            bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "alpha": 0.75, "linewidth": 0},
            zorder=6,
            annotation_clip=False,
        )
        written.set_in_layout(False)
        self._written.append((box if room is None else room, written))
        if leader is not None:
            start, end = box.nearest(*leader), leader
            self.ax.annotate(
                "",
                xy=anchor,
                xycoords="data",
                xytext=(start[0] - x, start[1] - y),
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": INK, "shrinkA": 0.0,
                            "shrinkB": math.dist(end, (x, y))},
                zorder=5,
                annotation_clip=False,
            ).set_in_layout(False)  # fmt: skip

    def places(self, point: Point) -> list[Place]:
        """Where the marks of a point belong, the one that its name stands at last."""
        return places_of(self.figure, point, self.rail if not point.flop else 0.0)

    def spot(self, point: Point) -> tuple[float, float]:
        """Where a point's name finds its mark, in FLOP/byte and FLOP/s."""
        x, y = self.limits.clipped(*self.places(point)[-1].at)
        return (x, y) if point.flop else (self.rail, y)


def _prepare(ax: Axes, limits: Limits, style: Style, figure: Figure) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(10**limits.left, 10**limits.right)
    ax.set_ylim(10**limits.bottom, 10**limits.top)
    # Memory roofs keep their angle, and what is written along them, after a resize too. Two shared axes leave the box
    # alone to adjust.
    shared = len(ax.get_shared_x_axes().get_siblings(ax)) > 1 and len(ax.get_shared_y_axes().get_siblings(ax)) > 1
    ax.set_aspect(1 / limits.stretch, adjustable="box" if shared else "datalim")
    up = "Share of its own roof" if figure.normalized else "Performance (FLOP/s)"
    ax.set_ylabel(up, fontsize=style.axis_font)
    said = power if figure.normalized else si
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10, numticks=20))
        axis.set_minor_locator(LogLocator(10, subs=range(2, 10), numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize=style.tick_font, which="both")
    ax.grid(which="major", color="#dddddd", linewidth=0.4, zorder=0)
    ax.set_axisbelow(True)
    if limits.rail is not None:
        rail = 10.0**limits.rail
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < 1.5 * rail else said(x)))
        _draw_rail(ax, limits)


def _draw_rail(ax: Axes, limits: Limits) -> None:
    """A strip at the left where a bandwidth b stands at rail · b: as far below the memory roof as any other point."""
    assert limits.rail is not None, "a figure without rail"
    ax.axvspan(10**limits.left, 10 ** (limits.rail + RAIL_HALF), facecolor=RAIL_GREY, linewidth=0, zorder=0.5)
    for _, (edge, height) in limits.rail_ticks():
        ax.plot([edge, edge * 0.8], [height] * 2, color=FAINT, linewidth=0.5, zorder=1)


def si(value: float) -> str:
    """A tick's value with an SI prefix: 1e13 is "10 T".

    >>> si(1e13), si(0.01), si(1000.0)
    ('10 T', '0.01', '1 k')
    """
    exponent = max(0, min(18, 3 * math.floor(math.log10(value) / 3 + 1e-9))) if value > 0 else 0
    number = f"{value / 10**exponent:g}"
    return f"{number} {_PREFIXES[exponent]}".strip()


def power(value: float) -> str:
    """A tick of an axis of shares: 0.001 is "10⁻³".

    >>> power(0.001), power(1.0), power(10.0)
    ('10⁻³', '1', '10')
    """
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent in (0, 1):
        return f"{10**exponent}"
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] if digit != "-" else "⁻" for digit in str(exponent))
