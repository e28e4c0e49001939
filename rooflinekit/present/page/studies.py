"""The comparison of GPUs, the advice and the explanation of a report, as rows of texts and bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.present.page.charts.bars import Bar, Interval, difference_bars, interval_bars
from rooflinekit.step.labels import MEANING
from rooflinekit.step.report import table_rows
from rooflinekit.study.compare.gpus import GpuComparison, order_sentences, surprise_sentences
from rooflinekit.study.explain.advice import Advice, Suggestion
from rooflinekit.study.explain.explanation import Explanation, details, seconds, sentences, signed
from rooflinekit.units import format_quantity

_SURPRISES = 5
_DRIVERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU of a comparison."""

    name: str
    subject: bool  # whether the report is about it
    time: str
    bounds: str
    interval: Interval
    throughput: str
    regime: str
    share_of_peak: str
    memory: str
    fits: bool
    per_dollar: str
    per_watt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The comparison: how its GPUs were chosen, their rows, and why they stand in this order."""

    rule: str
    one: str  # what throughput counts: "sample" or "step"
    rows: tuple[GpuRow, ...]
    order: tuple[str, ...]
    surprises: tuple[str, ...]
    more_surprises: int
    refused: tuple[tuple[str, str], ...]


def gpus_of(comparison: GpuComparison, subject: str, rule: str) -> Gpus:
    """The rows of a comparison; `subject` names the GPU of the report."""
    bars = interval_bars([(row["low_s"], row["total_s"], row["high_s"]) for row in comparison.rows])
    surprises = tuple(surprise_sentences(comparison))
    return Gpus(
        rule=rule,
        one=comparison.counted.removesuffix("s"),
        rows=tuple(_gpu(row, bar, subject) for row, bar in zip(comparison.rows, bars, strict=True)),
        order=tuple(order_sentences(comparison)),
        surprises=surprises[:_SURPRISES],
        more_surprises=len(surprises[_SURPRISES:]),
        refused=tuple(comparison.refused.items()),
    )


def _gpu(row: Mapping[str, Any], interval: Interval, subject: str) -> GpuRow:
    return GpuRow(
        name=row["gpu"],
        subject=row["gpu"] == subject,
        time=seconds(row["total_s"]),
        bounds=between(row["low_s"], row["high_s"]),
        interval=interval,
        throughput=number(row["throughput"]),
        regime=row["regime"],
        share_of_peak=f"{row['share_of_peak']:.0%}",
        memory=format_quantity(row["memory_bytes"], "byte", binary=True),
        fits=row["fits"],
        per_dollar=number(row["per_dollar"], 1000),
        per_watt=number(row["per_watt"]),
    )


def between(low: float, high: float) -> str:
    """Bounds of a time; where their unit is one it stands once.

    >>> between(0.0075, 0.0097), between(0.0005, 0.002)
    ('7.50 – 9.70 ms', '500 µs – 2.00 ms')
    """
    first, last = seconds(low), seconds(high)
    number_of_first, _, unit = first.partition(" ")
    return f"{number_of_first if last.endswith(f' {unit}') else first} – {last}"


def capital(text: str) -> str:
    """The text as the beginning of a line; names of code stay as they are.

    >>> capital("peak not reached"), capital("torch.compile")
    ('Peak not reached', 'torch.compile')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def number(value: float | None, times: float = 1) -> str:
    """Three digits, more where it takes more before the point, with thin spaces between thousands.

    >>> number(1234.5), number(0.02345), number(0.5, 1000), number(None)
    ('1\u2009234', '0.0234', '500', '–')
    """
    if value is None:
        return "–"
    scaled = value * times
    return f"{scaled:,.0f}".replace(",", "\u2009") if scaled >= 99.95 else f"{scaled:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that was predicted."""

    what: str
    after: str  # time of its step
    bounds: str
    saved: str
    speedup: str
    bar: float  # of the time before it, 0 to 1000: what it takes for as many samples
    regime: str
    mainly: str
    steps: bool  # whether times are for another number of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceView:
    """What saves time, the most first; what does not; what could not be tried."""

    saving: tuple[Change, ...]
    others: tuple[Change, ...]
    left_out: tuple[tuple[str, str], ...]


def advice_of(advice: Advice) -> AdviceView:
    """The rows of an advice."""
    saving = [s for s in advice.suggestions if s.saved_s > 0]
    others = [s for s in advice.suggestions if s.saved_s <= 0]
    return AdviceView(saving=tuple(map(_change, saving)), others=tuple(map(_change, others)), left_out=advice.left_out)


def _change(s: Suggestion) -> Change:
    terms = [f"{MEANING[name]} {signed(-saved)}" for name, saved in s.saved_terms().items() if saved]
    share = 1 / s.speedup
    return Change(
        what=capital(s.what) if s.saved_s > 0 else s.what,
        after=seconds(s.prediction.total_s),
        bounds=between(*s.prediction.interval(0.9)),
        saved=seconds(s.saved_s) if s.saved_s > 0 else f"{seconds(-s.saved_s)} longer",
        speedup=f"{s.speedup:.2f}×",
        bar=round(1000 * min(1.0, share), 1),
        regime=s.prediction.regime,
        mainly=", ".join(terms[:2]),
        steps=s.steps != 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A line of the way from one network's time to the other's."""

    label: str
    text: str
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationView:
    """Two networks: the story, the way from one time to the other, their facts, and the kernels behind it."""

    names: tuple[str, str]
    story: tuple[str, ...]
    way: tuple[Difference, ...]
    facts: tuple[tuple[str, str, str], ...]
    drivers: tuple[tuple[str, str, str, str, str], ...]  # module, kind, a, b, difference


def explanation_of(e: Explanation) -> ExplanationView:
    """The explanation's sentences and rows."""
    terms = {name: more for name, more in e.terms().items() if more or name != "input"}
    bars = difference_bars(e.a.total_s, list(terms.values()))
    names = (e.a.graph_name, e.b.graph_name)
    labels = [names[0], *(capital(MEANING[name]) for name in terms), names[1]]
    changes = [signed(more) if more else seconds(0.0) for more in terms.values()]
    texts = [seconds(e.a.total_s), *changes, seconds(e.b.total_s)]
    return ExplanationView(
        names=names,
        story=(*sentences(e), *details(e)),
        way=tuple(Difference(label=w, text=t, bar=b) for w, t, b in zip(labels, texts, bars, strict=True)),
        facts=tuple((capital(label.strip()), a, b) for label, (a, b) in table_rows((e.a, e.b))),
        drivers=tuple(
            (d.module or "(root)", d.kind, seconds(d.a_s), seconds(d.b_s), signed(d.delta_s))
            for d in e.drivers[:_DRIVERS]
            if d.delta_s
        ),
    )
