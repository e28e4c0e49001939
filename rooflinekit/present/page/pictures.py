"""The sections of a report that have pictures: kernels under their roofs, the time line and memory, energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflinekit.errors import InputError
from rooflinekit.ir.op import Op, Phase
from rooflinekit.present.figures.curves import energy_roofline, time_energy
from rooflinekit.present.figures.inline import Block, inline
from rooflinekit.present.figures.plot import roofline
from rooflinekit.present.figures.records.build import kernel_figure, path_pattern
from rooflinekit.present.figures.records.caption import caption, three_digits
from rooflinekit.present.figures.records.energy import energy_figure
from rooflinekit.present.figures.records.figure import Figure, Point, by_time
from rooflinekit.present.figures.timeline import HALF, LANES, memory, timeline
from rooflinekit.present.page.studies import Bar, waterfall_bars
from rooflinekit.present.page.templating import View, capital
from rooflinekit.step.energy import Energy
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.timeline import CopySpan, CpuSpan, Span
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.units import said

MOST_ROWS = 300
_MOST_AREAS = 40
ROOT = "(root)"


def kernels_of(p: Prediction) -> View:
    """Rows and marks of a prediction, the longest first; MOST_ROWS of them."""
    figure = kernel_figure(p)
    every = by_time((*figure.points, *figure.rail))
    points, left = every[:MOST_ROWS], every[MOST_ROWS:]
    rows = tuple(_kernel(point, figure) for point in points)
    shown = {id(point) for point in points}
    drawn = replace(
        figure, points=tuple(point for point in figure.points if id(point) in shown),
        rail=tuple(point for point in figure.rail if id(point) in shown),
    )  # fmt: skip
    titles = [f"{r['name']}, {r['module']}: {said(r['point'].time_s, 's')} ({r['point'].share:.1%})" for r in rows]
    label = f"Roofline of {p.graph_name}: FLOP/s by FLOP per byte; the table below holds the same kernels"
    return {
        "charts": inline(lambda: roofline(drawn), "roofline", label, (500, 330), titles=titles),
        "rows": rows,
        "rest": _rest(left, figure),
        "modules": _areas(points, rows),
        "maths": _choices(points, [point.math for point in points]),
        "phases": _choices(points, [point.phase for point in points], [phase.value for phase in Phase]),
        "caption": caption(figure),
    }


def _kernel(point: Point, figure: Figure) -> View:
    memory = figure.memory_roof(point.device)
    peaks = {roof.name: roof.value for roof in figure.roofs if roof.provenance == "datasheet"}
    limits = {memory.name: memory.value}
    achieved = point.bandwidth
    if point.flop:
        limits = {memory.name: point.intensity * memory.value, point.roof: peaks[point.roof]}
        achieved = point.performance
    roof = min(limits, key=lambda name: (limits[name], name != point.roof))
    return {
        "point": point,
        "name": f"{point.word}{f' ({point.algorithm})' if point.algorithm else ''}",
        "module": ".".join("/".join(part) for part in path_pattern(point.modules)) or ROOT,
        "intensity": three_digits(point.intensity) if point.intensity >= 0.01 else f"{point.intensity:.1e}",
        "rate": said(achieved, "flop/s" if point.flop else "byte/s"),
        "of_roof": achieved / limits[roof],
        "roof": roof,
    }


def _rest(left: Sequence[Point], figure: Figure) -> str:
    parts = []
    if left:
        kernels, share = sum(point.kernels for point in left), sum(point.share for point in left)
        time = said(sum(point.time_s for point in left), "s")
        parts.append(
            f"{len(left)} more rows, {kernels} kernels that together take {time} ({share:.1%} of the GPU’s time), are "
            "neither in the chart nor in the table."
        )
    if figure.omitted:
        parts.append(f"Without a place on either axis, for they move no bytes: {figure.omitted} kernels.")
    return " ".join(parts)


def _choices(points: Sequence[Point], values: Sequence[str], order: Sequence[str] = ()) -> tuple[View, ...]:
    """Each value with its share of the time; in this order, or the largest share first."""
    shares: dict[str, float] = defaultdict(float)
    for point, value in zip(points, values, strict=True):
        shares[value] += point.share
    ranked = [value for value in order if value in shares] or sorted(shares, key=lambda value: -shares[value])
    return tuple({"value": value, "text": f"{value} ({shares[value]:.0%})"} for value in ranked if value)


def _areas(points: Sequence[Point], rows: Sequence[View]) -> tuple[View, ...]:
    """The beginnings of module paths, as deep as they stay few, each with its share of the time."""
    found: dict[str, float] = {}
    for depth in range(1, 6):
        shares: dict[str, float] = defaultdict(float)
        for point, row in zip(points, rows, strict=True):
            parts = row["module"].split(".")
            for end in range(1, min(depth, len(parts)) + 1):
                shares[".".join(parts[:end])] += point.share
        if len(shares) > _MOST_AREAS and found:
            break
        found = shares
    # In the order of paths, so that each stands under what it is part of; the longest where there are too many.
    kept = sorted(sorted(found, key=lambda path: -found[path])[:_MOST_AREAS], key=lambda path: path.split("."))
    return tuple({"value": path, "text": f"{path} ({found[path]:.0%})"} for path in kept)


def step_of(p: Prediction) -> View:
    """The step on its two queues, and the bytes in use over it."""
    m = p.memory
    texts = (
        f"Time line of {p.graph_name}: the lanes of CPU and GPU",
        f"Memory in use over the step: {said(m.peak_bytes, 'GiB')} at the most, of {said(m.capacity, 'GiB')}",
    )
    course = [moment.alive for moment in memory_course(p)]
    return {
        "timelines": inline(lambda: timeline(p), "timeline", texts[0], (200, 175), blocks=[*_blocks(p)]),
        "memories": inline(lambda: memory(p), "memory", texts[1], (250, 220)),
        "fullest": max(course, key=lambda alive: alive.total_bytes, default=None),
    }


def _blocks(p: Prediction) -> Iterator[Block]:
    """What can be pointed at: the CPU's work, copies, kernels."""

    def block(lane: str, at: CpuSpan | CopySpan | Span, text: str) -> Block:
        return Block(start=at.start_s, end=at.end_s, bottom=LANES[lane] - HALF, top=LANES[lane] + HALF, text=text)

    for work in p.timeline.cpu:
        name = work.what.name if isinstance(work.what, Op) else work.what
        doing = name if work.waits or not isinstance(work.what, Op) else f"issues {name}"
        yield block("CPU", work, f"CPU {doing}, {said(work.end_s - work.start_s, 's')}")
    for copy in p.timeline.copies:
        yield block("GPU", copy, f"copy of {copy.transfer.name}, {said(copy.transfer.seconds, 's')}")
    for span in p.spans:
        kernel, timing = span.timing.kernel, span.timing
        where = f" in {kernel.module}" if kernel.module else ""
        text = f"{kernel.name}{where}, {kernel.phase}, {said(timing.total_s, 's')}, {timing.bound}-bound"
        yield block("GPU", span, text)


#: What each part is, beside its name, and the colour of its bar.
_PARTS = {
    "idle": ("the board stands by, all the time", "used"),
    "clocks": ("SMs that issue or fetch", "underuse"),
    "cache": ("bytes through the last-level cache", "launch"),
    "dram": ("bytes of the memory", "memory"),
    "arithmetic": ("FLOP, by format", "compute"),
}
_MOST_GROUPS = 8  # of modules and kinds


def energy_of(p: Prediction, limits: PowerLimits[Prediction] | None) -> View | None:
    """The section of a prediction; None where its device states no power, or the step takes none."""
    energy = p.energy
    if energy is None or not energy.joules:
        return None
    return {
        "parts": tuple(_parts(energy)),
        "rows": tuple(_watts(p, energy)),
        "limits": () if limits is None else _limits(limits),
        "least": "" if limits is None else ". ".join(map(capital, str(limits).splitlines())),
        "roofline": _energy_roofline(p),
    }


def _limits(limits: PowerLimits[Prediction]) -> tuple[str, ...]:
    label = "Joules over seconds of a step at every power limit"
    rows = limits.table[["limit_w", "total_s", "energy_j"]].to_numpy(dtype=float)
    titles = [f"{said(watts, 'W')}: {said(seconds, 's')}, {said(joules, 'J')}" for watts, seconds, joules in rows]
    return inline(lambda: time_energy(limits), "limits", label, (300, 300), titles=titles) if titles[1:] else ()


def _energy_roofline(p: Prediction) -> tuple[str, ...]:
    try:
        points = energy_figure(p).points
    except InputError:
        return ()
    whole = sum(point.joules for point in points)
    titles = [
        f"{point.kind}: {said(point.joules, 'J')} ({point.joules / whole:.0%}), "
        f"{said(point.flop_per_joule, 'flop')} a joule"
        for point in points
    ]
    label = "FLOP a joule over FLOP per byte, by kind of kernel"
    return inline(lambda: energy_roofline(p), "joules", label, (300, 300), titles=titles)


def _parts(energy: Energy) -> Iterator[tuple[str, str, float, Bar]]:
    for name, bar in waterfall_bars(energy.parts_j).items():
        detail, look = _PARTS[name]
        yield "DRAM" if name == "dram" else capital(name), detail, energy.parts_j[name], replace(bar, look=look)


def _watts(p: Prediction, energy: Energy) -> Iterator[tuple[str, ...]]:
    groups = (("phase", p.by_phase()), ("kind", p.by_kind()), ("module", p.by_module(1))) if p.spans else ()
    for group, table in groups:
        ranked = table.sort_values("energy_j", ascending=False, kind="stable").head(_MOST_GROUPS)
        for name, row in ranked.to_dict("index").items():
            share = f"{row['energy_j'] / energy.joules:.0%}"
            watts = said(row["power_w"], "W"), said(row["peak_w"], "W")
            yield group, str(name) or "(root)", said(row["energy_j"], "J"), share, *watts
