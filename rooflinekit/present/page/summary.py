"""The head of a report: what was predicted, its four main numbers, and its terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflinekit.present.page.charts.bars import Bar, waterfall_bars
from rooflinekit.present.page.studies import between, capital, number
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import shown_terms
from rooflinekit.step.utilization import formats
from rooflinekit.step.variants import BATCH
from rooflinekit.study.explain.explanation import seconds, verdict
from rooflinekit.units import format_quantity

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRow:
    """A term of the step's time."""

    name: str
    meaning: str
    detail: str
    time: str
    share: str
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The head of a report."""

    model: str
    mode: str
    device: str
    verdict: str
    time: str
    bounds: str
    regime: str
    shares: str
    throughput: str
    counted: str
    pace: str
    memory: str
    memory_of: str
    memory_bar: float  # of the capacity, 0 to 1000
    fits: bool
    facts: tuple[tuple[str, str], ...]
    terms: tuple[TermRow, ...]


def summary_of(p: Prediction) -> Summary:
    """The head of the report of a prediction."""
    m = p.memory
    need = m.reserved_bytes + m.context_bytes
    samples = p.sizes.get(BATCH, 1)
    return Summary(
        model=p.graph_name,
        mode=p.mode,
        device=p.machine.device.display_name or p.machine.name,
        verdict=verdict(p),
        time=seconds(p.total_s),
        bounds=between(*p.interval(0.9)),
        regime=p.regime,
        shares=", ".join(f"{name}\u00a0{share:.0%}" for name, share in p.shares.items()),
        throughput=number(samples / p.total_s) if p.total_s else "–",
        counted="samples/s" if BATCH in p.sizes else "steps/s",
        pace=f"{seconds(p.total_s / samples)} a sample" if BATCH in p.sizes else "no size is named batch",
        memory=format_quantity(m.peak_bytes, "byte", binary=True),
        memory_of=format_quantity(m.capacity, "byte", binary=True),
        memory_bar=round(1000 * min(1.0, need / m.capacity), 1),
        fits=m.fits,
        facts=tuple(_facts(p)),
        terms=_terms(p),
    )


def _terms(p: Prediction) -> tuple[TermRow, ...]:
    terms = shown_terms(p)
    return tuple(
        TermRow(
            name=name,
            meaning=capital(MEANING[name]),
            detail=_DETAIL[name],
            time=seconds(terms[name]),
            share=f"{terms[name] / p.total_s:.0%}" if p.total_s else "–",
            bar=bar,
        )
        for name, bar in waterfall_bars(terms).items()
    )


def _facts(p: Prediction) -> Iterator[tuple[str, str]]:
    graph, execution = p.graph, p.execution
    if p.sizes:
        yield "Sizes", ", ".join(f"{name} = {value}" for name, value in p.sizes.items())
    yield "Formats", _formats(p)
    if graph.channels_last:
        yield "Layout", "channels last"
    if graph.like is not None:
        yield "As PyTorch", str(graph.like)
    yield "Execution", f"{execution.backend}, {_SYNC[execution.sync]}"
    if execution.copy != "none":
        yield "Inputs", f"copied from {execution.copy} memory{', without blocking' if execution.non_blocking else ''}"
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


def _formats(p: Prediction) -> str:
    """How products are multiplied, by their FLOP."""
    ranked = ", ".join(formats(p.timings))
    autocast = f", autocast {p.graph.autocast}" if p.graph.autocast else ""
    return f"products in {ranked}{autocast}" if ranked else f"no products{autocast}"
