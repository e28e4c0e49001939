"""Roofs as lines in pixels, and a place for the name of each where it covers the fewest marks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooflinekit.present.figures.records.figure import Figure, Roof
from rooflinekit.present.page.charts.labels import Box, Circle, covered, text_width
from rooflinekit.present.scales import LogScale

_NEAR = 14.0  # px between the names of two levels
_CLEAR = 6.0  # px between a line and its name
_STEP = 24.0  # px from one place for a name to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofLine:
    """One roof: a straight line; dashed where its value is not the datasheet's."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    dashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofLabel:
    """A roof's name and value over its line, turned by so many degrees; it begins or ends at its place."""

    x: float
    y: float
    text: str
    angle: float
    anchor: str


def memory_of(figure: Figure) -> Roof:
    """The memory roof of the figure's first device, by the datasheet."""
    return figure.memory_roof(figure.devices[0].name)


def stated_of(figure: Figure) -> list[Roof]:
    """Roofs of arithmetic by the datasheet, the highest first."""
    found = [roof for roof in figure.roofs if roof.kind == "compute" and roof.provenance == "datasheet"]
    return sorted(found, key=lambda roof: -roof.value)


def roof_lines(figure: Figure, x: LogScale, y: LogScale) -> Iterator[RoofLine]:
    """Slopes as far as the highest level of their provenance, levels from their ridge on."""
    for roof in figure.roofs:
        if roof.kind == "memory":
            levels = [r.value for r in figure.roofs if r.kind == "compute" and r.provenance == roof.provenance]
            top = min(max(levels, default=y.high), y.high)
            low = max(x.low, y.low / roof.value)
            ends = low, low * roof.value, top / roof.value, top
        else:
            memory = figure.memory_roof(roof.device, roof.provenance)
            ends = roof.value / memory.value, roof.value, x.high, roof.value
        yield RoofLine(
            x1=x.at(ends[0]), y1=y.at(ends[1]), x2=x.at(ends[2]), y2=y.at(ends[3]), kind=roof.kind,
            dashed=roof.provenance != "datasheet",
        )  # fmt: skip


def roof_labels(
    figure: Figure, x: LogScale, y: LogScale, marks: Sequence[Circle], *, stated: bool
) -> Iterator[RoofLabel]:
    """A name for each roof of the datasheet; `stated` adds the share of it that kernels sustain."""
    shares = {roof.name: roof.share for roof in figure.roofs if roof.provenance != "datasheet"}

    def named(roof: Roof) -> str:
        share = shares.get(roof.name, 1.0)
        text = f"{roof.name} {roof.rate}"
        return f"{text}, sustained {share:.0%}" if stated and share != 1 else text

    last = -math.inf
    memory = memory_of(figure)
    for roof in stated_of(figure):
        text = named(roof)
        level = max(y.at(roof.value) - _CLEAR, last + _NEAR)
        last = level
        first = x.at(roof.value / memory.value) + text_width(text)
        places = [x.end - 2 - _STEP * i for i in range(max(1, int((x.end - first) / _STEP)))]
        yield _freest([RoofLabel(x=place, y=level, text=text, angle=0.0, anchor="end") for place in places], marks)
    yield _freest(list(_along(memory, named(memory), x, y)), marks)


def _along(memory: Roof, text: str, x: LogScale, y: LogScale) -> Iterator[RoofLabel]:
    """Places over the slope, from its lower end on."""
    radians = math.atan2(y.decade, x.decade)
    low = max(x.low, y.low / memory.value)
    x1, y1 = x.at(low), y.at(low * memory.value)
    length = (y.end - y1) / math.sin(radians)
    reach = max(1, int((length - text_width(text)) / _STEP))
    for i in range(reach):
        along = 8 + _STEP * i
        yield RoofLabel(
            x=x1 + along * math.cos(radians) + _CLEAR * math.sin(radians),
            y=y1 + along * math.sin(radians) - _CLEAR * math.cos(radians),
            text=text,
            angle=math.degrees(radians),
            anchor="start",
        )


def _freest(places: Sequence[RoofLabel], marks: Sequence[Circle]) -> RoofLabel:
    """The first of the places that cover the fewest marks."""
    return min(places, key=lambda label: sum(covered(box, marks) for box in boxes_of(label)))


def boxes_of(label: RoofLabel) -> list[Box]:
    """Upright boxes that together hold a label: one for each few letters of a turned one."""
    width = text_width(label.text) * 1.08  # it is bold
    if not label.angle:
        return [(label.x - width, label.y - 10, label.x, label.y + 3)]
    radians = math.radians(label.angle)
    found = []
    for i in range(int(width / 10) + 1):
        cx = label.x + 10 * i * math.cos(radians) + 4 * math.sin(radians)
        cy = label.y + 10 * i * math.sin(radians) - 4 * math.cos(radians)
        found.append((cx - 7, cy - 7, cx + 7, cy + 7))
    return found
