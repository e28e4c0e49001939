"""The two queues of a step, and the memory in use over it, as shapes in pixels on one axis of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooflinekit.present.scales import LinearScale, binary_unit_of, unit_of

_OWN = 2.0  # px from which a segment is drawn by itself, so that it can be pointed at
_JOINED = 0.35  # px between segments that are drawn as one


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLayout:
    """Where things lie, in pixels."""

    width: float
    left: float
    right: float
    lane: float  # height of a lane
    gap: float
    memory: float  # height of the chart of memory
    ticks: int  # on the axis of time, at most


WIDE = TimeLayout(width=1040, left=72, right=1026, lane=34, gap=12, memory=190, ticks=9)
NARROW = TimeLayout(width=360, left=48, right=352, lane=28, gap=10, memory=150, ticks=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Something on a lane, in seconds; `look` names its colour, `text` says what it is."""

    start_s: float
    end_s: float
    look: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A segment wide enough to be pointed at."""

    x: float
    width: float
    look: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the time line. `strips` are paths of everything too short to stand alone, by look."""

    name: str
    y: float
    height: float
    blocks: tuple[Block, ...]
    strips: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """Lanes one under the other, with an axis below."""

    layout: TimeLayout
    height: float
    axis: float  # y of the axis
    ticks: tuple[tuple[float, str], ...]
    unit: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChart:
    """Bytes in use as areas one upon the other."""

    layout: TimeLayout
    height: float
    top: float
    bottom: float
    ticks: tuple[tuple[float, str], ...]  # of time
    unit: str
    y_ticks: tuple[tuple[float, str], ...]
    y_unit: str
    areas: tuple[tuple[str, str], ...]  # account and path, the lowest first
    peak: tuple[float, float]
    capacity: float | None  # y of the device's capacity, where it is on the chart


def timeline_chart(lanes: Mapping[str, Sequence[Segment]], end_s: float, layout: TimeLayout) -> TimelineChart:
    """A lane for each name, from 0 to `end_s` seconds."""
    scale = _time_scale(end_s, layout)
    made = []
    y = 4.0
    for name, segments in lanes.items():
        height = layout.lane if name != "phase" else 16.0
        made.append(_lane(name, segments, scale, y, height))
        y += height + layout.gap
    ticks, unit = _time_ticks(scale, layout)
    return TimelineChart(
        layout=layout, height=y + 30, axis=y - layout.gap / 2, ticks=ticks, unit=unit, lanes=tuple(made)
    )


def _time_scale(end_s: float, layout: TimeLayout) -> LinearScale:
    return LinearScale(low=0.0, high=end_s or 1e-9, start=layout.left, end=layout.right)


def _time_ticks(scale: LinearScale, layout: TimeLayout) -> tuple[tuple[tuple[float, str], ...], str]:
    length, unit = unit_of(scale.high)
    return tuple((scale.at(value), f"{value / length:.6g}") for value in scale.ticks(layout.ticks)), unit


def _lane(name: str, segments: Iterable[Segment], scale: LinearScale, y: float, height: float) -> Lane:
    blocks: list[Block] = []
    short: dict[str, list[tuple[float, float]]] = {}
    for segment in segments:
        x1, x2 = scale.at(segment.start_s), scale.at(segment.end_s)
        if x2 - x1 >= _OWN:
            blocks.append(Block(x=round(x1, 2), width=round(x2 - x1, 2), look=segment.look, text=segment.text))
        else:
            short.setdefault(segment.look, []).append((x1, x2))
    strips = tuple((look, _strip(places, y, height)) for look, places in short.items())
    return Lane(name=name, y=y, height=height, blocks=tuple(blocks), strips=strips)


def _strip(places: Sequence[tuple[float, float]], y: float, height: float) -> str:
    """One path of rectangles; those that touch are one."""
    joined: list[list[float]] = []
    for x1, x2 in places:
        if joined and x1 - joined[-1][1] <= _JOINED:
            joined[-1][1] = max(x2, joined[-1][1])
        else:
            joined.append([x1, x2])
    return "".join(f"M{x1:.2f} {y:g}h{max(x2 - x1, 0.1):.2f}v{height:g}H{x1:.2f}z" for x1, x2 in joined)


def memory_chart(
    course: Sequence[tuple[float, Mapping[str, int]]], end_s: float, capacity: float, layout: TimeLayout
) -> MemoryChart:
    """The bytes of each account from each time on, in seconds; accounts in the order in which they are stacked."""
    time = _time_scale(end_s, layout)
    totals = [sum(held.values()) for _, held in course]
    most = max(totals, default=1) or 1
    shown = capacity <= 2.5 * most
    scale, unit = binary_unit_of(most)
    top, bottom = 22.0, 22.0 + layout.memory
    highest = (max(capacity, most) if shown else most) * 1.06 / scale
    bytes_scale = LinearScale(low=0.0, high=highest, start=bottom, end=top)
    columns = list(_columns(course, time))
    at_peak = totals.index(max(totals)) if totals else 0
    ticks, time_unit = _time_ticks(time, layout)
    return MemoryChart(
        layout=layout,
        height=bottom + 34,
        top=top,
        bottom=bottom,
        ticks=ticks,
        unit=time_unit,
        y_ticks=tuple((bytes_scale.at(value), f"{value:g}") for value in bytes_scale.ticks(5)),
        y_unit=unit,
        areas=tuple(_areas(columns, bytes_scale, scale, time.end)),
        peak=(time.at(min(course[at_peak][0], end_s)) if course else time.start, bytes_scale.at(most / scale)),
        capacity=bytes_scale.at(capacity / scale) if shown else None,
    )


def _columns(
    course: Sequence[tuple[float, Mapping[str, int]]], time: LinearScale
) -> Iterator[tuple[float, Mapping[str, int]]]:
    """The fullest moment of each pixel, by place."""
    best: dict[int, Mapping[str, int]] = {}
    for start_s, held in course:
        x = int(time.at(min(start_s, time.high)))
        if x not in best or sum(held.values()) > sum(best[x].values()):
            best[x] = held
    yield from sorted(best.items())


def _areas(
    columns: Sequence[tuple[float, Mapping[str, int]]], y: LinearScale, scale: float, right: float
) -> Iterator[tuple[str, str]]:
    """A closed path for each account that holds anything: along its top as steps, then back along its bottom."""
    if not columns:
        return
    below = [0.0] * len(columns)
    for account in columns[0][1]:
        above = [low + held[account] for low, (_, held) in zip(below, columns, strict=True)]
        if above != below:
            xs = [x for x, _ in columns] + [right]
            up = _steps(xs, [y.at(value / scale) for value in above])
            down = _steps_back(xs, [y.at(value / scale) for value in below])
            yield account, f"M{up}L{down}z"
        below = above


def _steps(xs: Sequence[float], ys: Sequence[float]) -> str:
    parts = [f"{xs[0]:g} {ys[0]:.1f}"]
    for i in range(1, len(ys)):
        if f"{ys[i]:.1f}" != f"{ys[i - 1]:.1f}":
            parts.append(f"H{xs[i]:g}V{ys[i]:.1f}")
    return "".join((*parts, f"H{xs[-1]:g}"))


def _steps_back(xs: Sequence[float], ys: Sequence[float]) -> str:
    parts = [f"{xs[-1]:g} {ys[-1]:.1f}"]
    for i in range(len(ys) - 1, 0, -1):
        if f"{ys[i]:.1f}" != f"{ys[i - 1]:.1f}":
            parts.append(f"H{xs[i]:g}V{ys[i - 1]:.1f}")
    return "".join((*parts, f"H{xs[0]:g}"))


def phase_segments(spans: Sequence[tuple[float, float, str]]) -> Iterator[Segment]:
    """Stretches of one phase, from (start_s, end_s, phase) of kernels in order."""
    starts = [i for i, span in enumerate(spans) if i == 0 or span[2] != spans[i - 1][2]]
    for i in starts:
        following = bisect_right(starts, i)
        last = (starts[following] if following < len(starts) else len(spans)) - 1
        begin, end, phase = spans[i][0], spans[last][1], spans[i][2]
        yield Segment(start_s=begin, end_s=end, look=phase, text=phase)
