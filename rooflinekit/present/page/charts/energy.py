"""Two pictures of joules in pixels: a step under limits of power, and the roofline of energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.present.figures.records.energy import EnergyFigure
from rooflinekit.present.page.charts.labels import Label, place_labels, shortened
from rooflinekit.present.scales import LinearScale, LogScale, decades_around, unit_of
from rooflinekit.units import format_quantity, parse_quantity

Ticks = tuple[tuple[float, str], ...]

_LINE = 12.0  # px from one name to the next
_EVERY = 3  # point of a roof: a line of 67 pieces bends as smoothly


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyLayout:
    """Where things lie, in pixels."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    ticks: int  # on an axis, at most
    names: int  # kinds of kernels that are named
    letters: int  # of a name, at most


WIDE = EnergyLayout(
    width=1040, height=300, left=72, right=1026, top=30, bottom=254, ticks=7, names=6, letters=30
)  # fmt: skip
NARROW = EnergyLayout(
    width=360, height=300, left=52, right=352, top=30, bottom=254, ticks=4, names=3, letters=18
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A mark with what it says."""

    x: float
    y: float
    radius: float
    front: bool  # of limits: whether no other takes less of both
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyChart:
    """Lines and marks between two axes."""

    layout: EnergyLayout
    x_ticks: Ticks
    y_ticks: Ticks
    x_title: str
    y_title: str
    lines: tuple[str, ...]  # paths
    dots: tuple[Dot, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A step under a limit of power."""

    limit_w: float
    total_s: float
    joules: float


def limits_chart(limits: Sequence[Limit], layout: EnergyLayout) -> EnergyChart:
    """Joules over seconds of a step at every limit, the lowest first; both axes begin at 0."""
    seconds, joules = max(one.total_s for one in limits), max(one.joules for one in limits)
    x = LinearScale(low=0.0, high=1.04 * seconds, start=layout.left, end=layout.right)
    y = LinearScale(low=0.0, high=1.12 * joules, start=layout.bottom, end=layout.top)
    second, s_unit = unit_of(seconds)
    _, _, j_unit = format_quantity(joules, "J").partition(" ")
    joule = parse_quantity(f"1 {j_unit}", "J")
    dots = tuple(
        Dot(
            x=round(x.at(one.total_s), 1), y=round(y.at(one.joules), 1), radius=4.5, text=_told(one),
            front=all(other is one or other.total_s > one.total_s or other.joules > one.joules for other in limits),
        )
        for one in limits
    )  # fmt: skip
    named = [(f"{one.limit_w:g} W", (dot.x, dot.y, dot.radius)) for one, dot in zip(limits, dots, strict=True)]
    return EnergyChart(
        layout=layout,
        x_ticks=tuple((x.at(value), f"{value / second:.6g}") for value in x.ticks(layout.ticks)),
        y_ticks=tuple((y.at(value), f"{value / joule:.6g}") for value in y.ticks(5)),
        x_title=f"time of a step, {s_unit}",
        y_title=f"{j_unit} a step",
        lines=(_path([(dot.x, dot.y) for dot in dots]),),
        dots=dots,
        labels=_placed(named, layout),
    )


def _told(one: Limit) -> str:
    return (
        f"{format_quantity(one.limit_w, 'W')}: {format_quantity(one.total_s, 's')}, {format_quantity(one.joules, 'J')}"
    )


def energy_roofline_chart(figure: EnergyFigure, layout: EnergyLayout) -> EnergyChart:
    """FLOP a joule over FLOP a byte: of kinds of kernels by joules, and the most that each format could buy."""
    whole = sum(point.joules for point in figure.points)
    bought = [*(point.flop_per_joule for point in figure.points), *(roof.flop_per_joule.max() for roof in figure.roofs)]
    intensity = figure.roofs[0].intensity
    low, high = decades_around(min(bought), 1.5 * max(bought))
    x = LogScale(low=float(intensity[0]), high=float(intensity[-1]), start=layout.left, end=layout.right)
    y = LogScale(low=low, high=high, start=layout.bottom, end=layout.top)
    dots = tuple(
        Dot(
            x=round(x.at(point.intensity), 1), y=round(y.at(point.flop_per_joule), 1), front=True,
            radius=round(math.sqrt(12 + 220 * point.joules / whole), 1),
            text=f"{point.kind}: {format_quantity(point.joules, 'J')} ({point.joules / whole:.0%}), "
            f"{format_quantity(point.flop_per_joule, 'flop')} a joule",
        )
        for point in figure.points
    )  # fmt: skip
    named = [
        (shortened(point.kind, layout.letters), (dot.x, dot.y, dot.radius))
        for point, dot in zip(figure.points, dots, strict=True)
    ]
    lines = [
        [(x.at(float(a)), y.at(float(b))) for a, b in zip(roof.intensity, roof.flop_per_joule, strict=True) if b >= low]
        for roof in figure.roofs
    ]
    stated, below = [], math.inf
    for place, name in sorted(((line[-1][1], roof.math) for line, roof in zip(lines, figure.roofs, strict=True)))[::-1]:
        below = min(place - 6, below - _LINE)
        stated.append(Label(x=layout.right - 4, y=below, text=name, anchor="end"))
    return EnergyChart(
        layout=layout,
        x_ticks=tuple((x.at(value), f"{value:g}") for value in x.ticks()),
        y_ticks=tuple(
            (y.at(value), format_quantity(value, "flop", digits=None).removesuffix("FLOP")) for value in y.ticks()
        ),
        x_title="FLOP per byte of memory traffic",
        y_title="FLOP a joule",
        lines=tuple(_path(line[::_EVERY] + line[-1:]) for line in lines),
        dots=dots,
        labels=(*stated, *_placed(named[: layout.names], layout)),
    )


def _placed(named: Sequence[tuple[str, tuple[float, float, float]]], layout: EnergyLayout) -> tuple[Label, ...]:
    circles = [circle for _, circle in named]
    found = place_labels(named, circles, [], (layout.left, layout.top, layout.right, layout.bottom))
    return tuple(label for _, label in found)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
