"""The sections of a report that have tables with bars: its head, the comparison of GPUs, advice, an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from rooflinekit.present.page.templating import View, capital
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import shown_terms, table_rows
from rooflinekit.step.utilization import formats
from rooflinekit.step.variants import BATCH
from rooflinekit.study.compare.gpus import GpuComparison, order_sentences, surprise_sentences
from rooflinekit.study.explain.explanation import Explanation, details, seconds, sentences, signed, verdict
from rooflinekit.units import format_quantity

_SURPRISES = 5
_DRIVERS = 8


def gpus_of(comparison: GpuComparison) -> View:
    """The rows of a comparison, each with its bar, and the sentences about them."""
    bars = interval_bars([(row["low_s"], row["total_s"], row["high_s"]) for row in comparison.rows])
    surprises = tuple(surprise_sentences(comparison))
    return {
        "one": comparison.counted.removesuffix("s"),
        "rows": tuple(zip(comparison.rows, bars, strict=True)),
        "order": tuple(order_sentences(comparison)),
        "surprises": surprises[:_SURPRISES],
        "more_surprises": len(surprises[_SURPRISES:]),
        "refused": comparison.refused,
    }


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
    need, terms = p.memory.reserved_bytes + p.memory.context_bytes, shown_terms(p)
    samples = p.sizes.get(BATCH, 1)
    return {
        "verdict": verdict(p),
        "shares": ", ".join(f"{name}\u00a0{share:.0%}" for name, share in p.shares.items()),
        "throughput": samples / p.total_s if p.total_s else None,
        "counted": "samples/s" if BATCH in p.sizes else "steps/s",
        "pace": f"{seconds(p.total_s / samples)} a sample" if BATCH in p.sizes else "no size is named batch",
        "memory_bar": round(1000 * min(1.0, need / p.memory.capacity), 1),
        "facts": tuple(_facts(p)),
        "terms": tuple((MEANING[name], _DETAIL[name], terms[name], bar) for name, bar in waterfall_bars(terms).items()),
    }


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


_SYNC = {"step": "synchronized after the step", "op": "synchronized after each op", "none": "in a loop of steps"}


# Bars within the cells of a table: places on a line of 1000 units, whatever the width of the cell.


LENGTH = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """From `x` on, so many units; `look` names its colour."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value within its bounds, on a line that all rows of a table share."""

    low: float
    value: float
    high: float


def interval_bars(rows: Sequence[tuple[float, float, float]]) -> tuple[Interval, ...]:
    """(low, value, high) of each row on a line from 0 to the largest of all.

    >>> interval_bars([(1.0, 2.0, 4.0)])[0]
    Interval(low=250.0, value=500.0, high=1000.0)
    """
    most = max((high for _, _, high in rows), default=1.0) or 1.0
    return tuple(
        Interval(low=round(LENGTH * low / most, 2), value=round(LENGTH * value / most, 2),
                 high=round(LENGTH * high / most, 2))
        for low, value, high in rows
    )  # fmt: skip
