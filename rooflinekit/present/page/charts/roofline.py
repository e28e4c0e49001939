"""A roofline figure as shapes in pixels, x to the right and y down, for a page to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rooflinekit.present.figures.records.figure import Figure, Point, PointBound, Roof
from rooflinekit.present.page.charts.labels import Box, Circle, Label, covered, place_labels, shortened, text_width
from rooflinekit.present.scales import LogScale, decades_around

_LEAST_AREA = 12.0  # px²: a mark of a smaller share would not be seen
_IN_RANGE = 0.99  # share of the time whose marks the axes hold; others are drawn on the edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parts of the chart lie, in pixels: the plot, and the rail of kernels without FLOP left of it."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    rail_left: float
    rail_right: float
    largest_area: float  # px², of the mark with the largest share
    names: int  # marks that are named
    letters: int  # of a name, at most
    stated: bool  # whether a roof's label says what share of it kernels sustain

    @property
    def rail_middle(self) -> float:
        """Where the marks of the rail stand."""
        return (self.rail_left + self.rail_right) / 2


WIDE = Layout(
    width=1040, height=500, left=158, right=1026, top=34, bottom=452, rail_left=52, rail_right=96,
    largest_area=1100, names=9, letters=34, stated=True,
)  # fmt: skip
NARROW = Layout(
    width=360, height=400, left=92, right=352, top=34, bottom=356, rail_left=34, rail_right=54,
    largest_area=500, names=4, letters=22, stated=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Kernels as a shape, square, circle or triangle, its area the share of the GPU's time."""

    place: int  # of the point among those given
    x: float
    y: float
    radius: float  # of the circle around it, roughly
    path: str
    bound: PointBound
    edge: bool  # whether its place lies beyond the axes
    plotted: bool  # whether it stands in the plot, or on the rail


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineChart:
    """The whole chart. Ticks are places with texts, "" for minor ones."""

    layout: Layout
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    rail_ticks: tuple[tuple[float, str], ...]
    roofs: tuple[RoofLine, ...]
    rail_roof: float  # y of the memory's bandwidth on the rail
    roof_labels: tuple[RoofLabel, ...]
    marks: tuple[Mark, ...]
    labels: tuple[tuple[int, Label], ...]  # with the place of their point


@dataclass(frozen=True, slots=True)
class _Scales:
    x: LogScale
    y: LogScale
    rail: LogScale


def roofline_chart(figure: Figure, points: Sequence[Point], layout: Layout) -> RooflineChart:
    """The chart of these points, longest first, of a figure of one device; the largest marks lie below.

    The axes hold the marks that make up nearly all of the time. The others, which would stretch them by decades, are
    drawn on the edge.
    """
    scales = _scales(figure, points, layout)
    marks = _marks(points, scales, layout)
    circles = [(mark.x, mark.y, mark.radius) for mark in marks]
    names = tuple(roof_labels(figure, scales.x, scales.y, circles, stated=layout.stated))
    told = _told_apart(marks)[: layout.names]
    placed = place_labels(
        [(shortened(points[mark.place].label, layout.letters), (mark.x, mark.y, mark.radius)) for mark in told],
        circles,
        [box for name in names for box in boxes_of(name)],
        (layout.left, layout.top, layout.right, layout.bottom),
    )
    return RooflineChart(
        layout=layout,
        x_ticks=_ticks(scales.x),
        y_ticks=_ticks(scales.y),
        rail_ticks=tuple((scales.rail.at(value), _prefixed(value)) for value in scales.rail.ticks()),
        roofs=tuple(roof_lines(figure, scales.x, scales.y)),
        rail_roof=scales.rail.at(memory_of(figure).value),
        roof_labels=names,
        marks=marks,
        labels=tuple((told[i].place, label) for i, label in placed),
    )


def _told_apart(marks: Sequence[Mark]) -> list[Mark]:
    """The marks of the plot, without those whose middle lies within one before them: a name would say which of them."""
    found: list[Mark] = []
    for mark in marks:
        if mark.plotted and all(math.dist((mark.x, mark.y), (m.x, m.y)) > m.radius for m in found):
            found.append(mark)
    return found


def _scales(figure: Figure, points: Sequence[Point], layout: Layout) -> _Scales:
    memory, stated = memory_of(figure).value, stated_of(figure)
    flop = [point for point in points if point.flop]
    moving = [point for point in points if not point.flop]
    ridges = [roof.value / memory for roof in stated] or [1.0]
    peaks = [roof.value for roof in stated] or [memory]
    x = [*_most(flop, lambda point: point.intensity), min(ridges) / 10, max(ridges) * 8]
    y = [*_most(flop, lambda point: point.performance), min(peaks) / 30, max(peaks) * 1.6]
    rail = [*_most(moving, lambda point: point.bandwidth), memory * 2, memory / 100]
    return _Scales(
        LogScale(**_bounds(x), start=layout.left, end=layout.right),
        LogScale(**_bounds(y), start=layout.bottom, end=layout.top),
        LogScale(**_bounds(rail), start=layout.bottom, end=layout.top),
    )


def _most(points: Sequence[Point], value: Callable[[Point], float]) -> list[float]:
    """The values of the longest points that make up _IN_RANGE of their time."""
    left = sum(point.time_s for point in points)
    least, found = (1 - _IN_RANGE) * left, []
    for point in points:
        if left <= least:
            break
        found.append(value(point))
        left -= point.time_s
    return found


def _bounds(values: Sequence[float]) -> dict[str, float]:
    low, high = decades_around(min(values), max(values))
    return {"low": low, "high": high}


def _ticks(scale: LogScale) -> tuple[tuple[float, str], ...]:
    major = [(scale.at(value), _prefixed(value)) for value in scale.ticks()]
    return (*((scale.at(value), "") for value in scale.minor_ticks()), *major)


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _prefixed(value: float) -> str:
    """A power of ten with its prefix.

    >>> _prefixed(1e11), _prefixed(0.01), _prefixed(1000.0)
    ('100 G', '0.01', '1 k')
    """
    scale, prefix = next(((s, p) for s, p in _PREFIXES if value >= s * 0.999), (1.0, ""))
    return f"{value / scale:g} {prefix}".strip()


def _marks(points: Sequence[Point], scales: _Scales, layout: Layout) -> tuple[Mark, ...]:
    largest = max((point.share for point in points), default=1.0)
    found = []
    for place, point in enumerate(points):
        area = max(_LEAST_AREA, layout.largest_area * point.share / largest)
        if point.flop:
            wanted = scales.x.at(point.intensity), scales.y.at(point.performance)
        else:
            wanted = layout.rail_middle, scales.rail.at(point.bandwidth)
        left, right = (layout.left, layout.right) if point.flop else (layout.rail_left, layout.rail_right)
        x, y = min(max(wanted[0], left), right), min(max(wanted[1], layout.top), layout.bottom)
        path, radius = shape(point.bound, x, y, area)
        found.append(
            Mark(place=place, x=x, y=y, radius=radius, path=path, bound=point.bound, edge=(x, y) != wanted,
                 plotted=bool(point.flop))
        )  # fmt: skip
    return tuple(found)


def shape(bound: PointBound, x: float, y: float, area: float) -> tuple[str, float]:
    """The path of a shape of this area around a place, and how far it reaches: what bounds a kernel tells the shape.

    >>> shape("compute", 10, 10, 16)
    ('M8 8h4v4h-4z', 2.0)
    """
    if bound == "compute":
        half = math.sqrt(area) / 2
        return f"M{_n(x - half)} {_n(y - half)}h{_n(2 * half)}v{_n(2 * half)}h{_n(-2 * half)}z", half
    if bound == "memory":
        r = math.sqrt(area / math.pi)
        arc = f"a{_n(r)} {_n(r)} 0 1 0 "
        return f"M{_n(x - r)} {_n(y)}{arc}{_n(2 * r)} 0{arc}{_n(-2 * r)} 0z", r
    side = math.sqrt(4 * area / math.sqrt(3))
    height = side * math.sqrt(3) / 2
    return f"M{_n(x - side / 2)} {_n(y + height / 3)}h{_n(side)}l{_n(-side / 2)} {_n(-height)}z", side / 2


def _n(value: float) -> str:
    """A length with a tenth of a pixel."""
    return f"{round(value, 1):g}"


# Roofs as lines in pixels, and a place for the name of each where it covers the fewest marks.


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
