"""A page for a design review: one HTML file that holds everything, needs no network, and works without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import device_rows
from rooflinekit.ir.keyed import sums
from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tables import paths_to
from rooflinekit.present.figures.curves import energy_roofline, time_energy
from rooflinekit.present.figures.inline import Block, inline
from rooflinekit.present.figures.plot import roofline
from rooflinekit.present.figures.records.build import kernel_figure, path_pattern
from rooflinekit.present.figures.records.caption import caption, three_digits
from rooflinekit.present.figures.records.figure import Figure, Point, by_time
from rooflinekit.present.figures.records.roofs import energy_figure
from rooflinekit.present.figures.timeline import HALF, LANES, memory, timeline
from rooflinekit.present.page.templating import Origin, View, capital, page_of
from rooflinekit.step.labels import MEANING
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import shown_terms, table_rows
from rooflinekit.step.timeline import CopySpan, CpuSpan, Span
from rooflinekit.step.utilization import formats
from rooflinekit.study.compare.gpus import GpuComparison, order_sentences, surprise_sentences
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.study.explain.advice import Advice
from rooflinekit.study.explain.explanation import Explanation, details, seconds, sentences, signed, verdict
from rooflinekit.units import format_quantity, said

_SURPRISES = 5
_DRIVERS = 8
MOST_ROWS = 300
_MOST_AREAS = 40
ROOT = "(root)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a report holds beside its prediction, as far as it was asked for."""

    comparison: GpuComparison | None = None
    rule: str = ""  # by which the GPUs of the comparison were chosen, in words
    advice: Advice | None = None
    explanation: Explanation | None = None
    limits: PowerLimits[Prediction] | None = None  # the step under limits of power


def page(p: Prediction, findings: Findings, origin: Origin) -> str:
    """The page as HTML; the same records give the same text.

    Everything that a model brings (its name, those of its modules) reaches the page through Jinja's escaping, into text
    and attributes alone; the script on the page is the same for every report and holds none of it.
    """
    comparison, explanation = findings.comparison, findings.explanation
    return page_of(
        "report", origin, json.dumps(p.to_dict(), default=str), p=p, summary=summary_of(p), kernels=kernels_of(p),
        step=step_of(p), energy=energy_of(p, findings.limits), gpus=None if comparison is None else gpus_of(comparison),
        rule=findings.rule, advice=findings.advice,
        explanation=None if explanation is None else explanation_of(explanation),
        datasheet=tuple((label.strip(), value, ridge) for label, value, ridge in device_rows(p.machine.device)),
    )  # fmt: skip


def gpus_of(comparison: GpuComparison) -> View:
    """The rows of a comparison, each with its bar, and the sentences about them."""
    bars = interval_bars([(row["low_s"], row["total_s"], row["high_s"]) for row in comparison.rows])
    surprises = tuple(surprise_sentences(comparison))
    return {
        "one": comparison.counted.removesuffix("s"), "rows": tuple(zip(comparison.rows, bars, strict=True)),
        "order": tuple(order_sentences(comparison)), "surprises": surprises[:_SURPRISES],
        "more_surprises": len(surprises[_SURPRISES:]), "refused": comparison.refused,
    }  # fmt: skip


def explanation_of(e: Explanation) -> View:
    """The explanation's sentences and rows."""
    terms = {name: more for name, more in e.terms().items() if more or name != "input"}
    bars = difference_bars(e.a.total_s, list(terms.values()))
    names = (e.a.graph_name, e.b.graph_name)
    labels = [names[0], *(capital(MEANING[name]) for name in terms), names[1]]
    texts = [seconds(e.a.total_s), *map(signed, terms.values()), seconds(e.b.total_s)]
    return {
        "names": names,
        "story": (*sentences(e), *details(e)),
        "way": tuple({"label": w, "text": t, "bar": b} for w, t, b in zip(labels, texts, bars, strict=True)),
        "facts": tuple((capital(label.strip()), a, b) for label, (a, b) in table_rows((e.a, e.b))),
        "drivers": tuple(d for d in e.drivers[:_DRIVERS] if d.delta_s),
    }


#: What each term is made of, beside its name.
_DETAIL = {
    "ideal": "FLOP at the datasheet’s peak of their format, as far as traffic does not hide them",
    "power": "arithmetic at the clock that the board’s power sustains",
    "underuse": "tiles, waves and rates that kernels do not fill",
    "memory": "traffic, as far as arithmetic does not hide it",
    "launch": "from one kernel’s end to the next one’s work",
    "overhead": "nothing to execute: the CPU has not issued it yet, or synchronizes",
    "input": "copies of inputs, or samples not loaded yet",
    "correction": "what the measured step shows all of these to be off by; below 0 where they are too long",
}


def summary_of(p: Prediction) -> View:
    """The head of the report of a prediction."""
    terms = shown_terms(p)
    unit, count = p.counted
    return {
        "verdict": verdict(p), "shares": ", ".join(f"{name}\u00a0{share:.0%}" for name, share in p.shares.items()),
        "throughput": count / p.total_s if p.total_s else None, "counted": f"{unit}/s",
        "pace": f"{seconds(p.total_s / count)} a sample" if unit == "samples" else "no size is named batch",
        "memory_bar": round(1000 * min(1.0, p.memory.needed_share), 1), "facts": tuple(_facts(p)),
        "terms": tuple((MEANING[name], _DETAIL[name], terms[name], bar) for name, bar in waterfall_bars(terms).items()),
    }  # fmt: skip


def _facts(p: Prediction) -> Iterator[tuple[str, str]]:
    graph, execution = p.graph, p.execution
    if p.sizes:
        yield "Sizes", ", ".join(f"{name} = {value}" for name, value in p.sizes.items())
    ranked = ", ".join(formats(p.timings))  # how products are multiplied, by their FLOP
    autocast = f", autocast {graph.autocast}" if graph.autocast else ""
    yield "Formats", f"{f'products in {ranked}' if ranked else 'no products'}{autocast}"
    if graph.channels_last:
        yield "Layout", "channels last"
    if graph.like is not None:
        yield "As PyTorch", str(graph.like)
    yield "Execution", f"{execution.backend}, {_SYNC[execution.sync]}"
    if execution.copy != "none":
        yield "Inputs", f"copied from {execution.copy} memory{', without blocking' if execution.non_blocking else ''}"
    if execution.attention is not None:
        yield "Attention", execution.attention
    if execution.loader_rate is not None:
        yield "Data loader", f"{execution.loader_rate:g} samples/s"
    yield "Device", f"{p.machine.name}{', a burst on a cool board' if p.machine.burst else ''}"
    yield "Host", p.host.name
    yield "GPU busy" if p.machine.device.kind == "gpu" else "Kernels", seconds(p.gpu_s)
    yield "CPU issuing", seconds(p.cpu_s)
    yield "Kernels launched", str(p.launched)
    yield "FLOP", format_quantity(p.flop, "flop")
    yield "Traffic", format_quantity(p.bytes, "byte")


_SYNC = {
    "step": "synchronized after the step", "op": "synchronized after each op", "none": "in a loop of steps",
    "events": "between two events",
}  # fmt: skip


# Bars within the cells of a table: places on a line of 1000 units, whatever the width of the cell.


LENGTH = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of `width` units from `x` on; `look` names its colour."""

    x: float
    width: float
    look: str


def waterfall_bars(terms: Mapping[str, float]) -> dict[str, Bar]:
    """One bar for each term, each beginning where the one before ends; together they are the whole length.

    A term below 0 goes back from there.

    >>> [(bar.x, bar.width) for bar in waterfall_bars({"a": 1.0, "b": 3.0}).values()]
    [(0.0, 250.0), (250.0, 750.0)]
    >>> [(bar.x, bar.width) for bar in waterfall_bars({"a": 4.0, "b": -1.0}).values()]
    [(0.0, 1000.0), (750.0, 250.0)]
    """
    return dict(zip(terms, _bars(terms.values(), list(terms), 2), strict=True))


def _bars(changes: Iterable[float], looks: Sequence[str], digits: int) -> list[Bar]:
    """A bar for each change, between the levels before and after it, the first of which is 0."""
    levels = list(accumulate(changes, initial=0.0))
    scale = LENGTH / (max(levels) or 1.0)
    return [
        Bar(x=round(min(a, b) * scale, digits), width=round(abs(b - a) * scale, digits), look=look)
        for look, (a, b) in zip(looks, pairwise(levels), strict=True)
    ]


def difference_bars(start: float, changes: Sequence[float]) -> tuple[Bar, ...]:
    """The way from one total to another: the first total, a bar for each change, the last total.

    A bar of a change lies between the levels before and after it; its look is "more" or "less".

    >>> [(bar.x, bar.width, bar.look) for bar in difference_bars(8.0, [2.0, -5.0])]
    [(0.0, 800.0, 'total'), (800.0, 200.0, 'more'), (500.0, 500.0, 'less'), (0.0, 500.0, 'total')]
    """
    *_, end = accumulate(changes, initial=start)
    looks = ["total", *("more" if change > 0 else "less" for change in changes), "total"]
    return tuple(_bars((start, *changes, -end), looks, 3))


def interval_bars(rows: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, ...], ...]:
    """(low, value, high) of each row on a line from 0 to the largest of all.

    >>> interval_bars([(1.0, 2.0, 4.0)])[0]
    (250.0, 500.0, 1000.0)
    """
    most = max((high for _, _, high in rows), default=1.0) or 1.0
    return tuple(tuple(round(LENGTH * each / most, 2) for each in row) for row in rows)


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
        "point": point, "name": f"{point.word}{f' ({point.algorithm})' if point.algorithm else ''}",
        "module": ".".join("/".join(part) for part in path_pattern(point.modules)) or ROOT,
        "intensity": three_digits(point.intensity) if point.intensity >= 0.01 else f"{point.intensity:.1e}",
        "rate": said(achieved, "flop/s" if point.flop else "byte/s"), "of_roof": achieved / limits[roof], "roof": roof,
    }  # fmt: skip


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
    shares = sums(zip(values, (point.share for point in points), strict=True))
    ranked = [value for value in order if value in shares] or sorted(shares, key=lambda value: -shares[value])
    return tuple({"value": value, "text": f"{value} ({shares[value]:.0%})"} for value in ranked if value)


def _areas(points: Sequence[Point], rows: Sequence[View]) -> tuple[View, ...]:
    """The beginnings of module paths, as deep as they stay few, each with its share of the time."""
    found: dict[str, float] = {}
    for depth in range(1, 6):
        shares = sums(
            (path, point.share)
            for point, row in zip(points, rows, strict=True) for path in paths_to(row["module"], depth)[1:]
        )  # fmt: skip
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
    return {
        "timelines": inline(lambda: timeline(p), "timeline", texts[0], (200, 175), blocks=[*_blocks(p)]),
        "memories": inline(lambda: memory(p), "memory", texts[1], (250, 220)),
        "fullest": max(memory_course(p), key=lambda moment: moment.total_bytes, default=None),
    }


def _blocks(p: Prediction) -> Iterator[Block]:
    """The parts that can be pointed at: the CPU's work, copies, kernels."""

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
    parts, rows = [], []
    for part, bar in waterfall_bars(energy.parts_j).items():
        detail, look = _PARTS[part]
        name = "DRAM" if part == "dram" else capital(part)
        parts.append((name, detail, energy.parts_j[part], replace(bar, look=look)))
    groups = (("phase", p.by_phase()), ("kind", p.by_kind()), ("module", p.by_module(1))) if p.spans else ()
    for group, table in groups:
        ranked = table.sort_values("energy_j", ascending=False, kind="stable").head(_MOST_GROUPS)
        for of, row in ranked.to_dict("index").items():
            share = f"{row['energy_j'] / energy.joules:.0%}"
            watts = said(row["power_w"], "W"), said(row["peak_w"], "W")
            rows.append((group, str(of) or "(root)", said(row["energy_j"], "J"), share, *watts))
    charts: tuple[str, ...] = ()
    if limits is not None and len(limits.limits_w) > 1:
        label = "Joules over seconds of a step at every power limit"
        numbers = limits.table[["limit_w", "total_s", "energy_j"]].to_numpy(dtype=float)
        titles = [f"{said(watts, 'W')}: {said(time_s, 's')}, {said(joules, 'J')}" for watts, time_s, joules in numbers]
        charts = inline(lambda: time_energy(limits), "limits", label, (300, 300), titles=titles)
    least = "" if limits is None else ". ".join(map(capital, str(limits).splitlines()))
    return {"parts": parts, "rows": rows, "limits": charts, "least": least, "roofline": _energy_roofline(p)}


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
