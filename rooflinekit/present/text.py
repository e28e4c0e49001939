"""Predictions and explanations in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooflinekit.present.tables import console, table
from rooflinekit.step.breakdown import KERNEL_TERMS
from rooflinekit.step.prediction import TERMS, Prediction
from rooflinekit.study.explanation import Explanation
from rooflinekit.study.story import sentences
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 25  # of a breakdown; the rest is one line


def print_predictions(predictions: Sequence[Prediction], largest: Sequence[int] = ()) -> None:
    """Predictions of one workload, a column each, and where it is given the largest batch that fits."""
    first = predictions[0]
    sizes = ", ".join(f"{name} {value}" for name, value in first.sizes.items())
    out = console()
    out.print(f"{first.graph_name}, {first.mode}{f', {sizes}' if sizes else ''}, {first.execution.backend}")
    rows = table("", *(p.machine.name for p in predictions))
    for label, values in _rows(predictions):
        rows.add_row(label, *values)
    if largest:
        rows.add_row("largest batch", *map(str, largest))
    console(wide=True).print(rows)
    out.print(f"counts: {first.coverage}")
    for prediction in predictions:
        for note in prediction.notes:
            out.print(f"note: {note}")


def _rows(predictions: Sequence[Prediction]) -> list[tuple[str, list[str]]]:
    def seconds(value: float) -> str:
        return format_quantity(value, "s")

    rows = [
        ("time of a step", [seconds(p.total_s) for p in predictions]),
        ("  90 % interval", [" to ".join(map(seconds, p.interval(0.9))) for p in predictions]),
        ("regime", [f"{p.regime} ({p.shares[p.regime]:.0%})" for p in predictions]),
    ]
    names = {"ideal": "FLOP at peak", "underuse": "peak not reached", "memory": "memory traffic"}
    names |= {"launch": "kernel starts", "overhead": "GPU waits for CPU", "input": "GPU waits for inputs"}
    for term in TERMS:
        if term == "input" and not any(p.terms()[term] for p in predictions):
            continue
        shares = [(p.terms()[term], p.terms()[term] / p.total_s) for p in predictions]
        rows.append((f"  {names[term]}", [f"{seconds(s)} {share:4.0%}" for s, share in shares]))
    rows += [
        ("GPU busy", [seconds(p.gpu_s) for p in predictions]),
        ("CPU issuing", [seconds(p.cpu_s) for p in predictions]),
        ("kernels", [str(len(p.timings)) for p in predictions]),
        ("FLOP", [format_quantity(p.flop, "flop") for p in predictions]),
        ("traffic", [format_quantity(p.bytes, "byte") for p in predictions]),
        ("peak memory", [_memory(p) for p in predictions]),
    ]
    return rows


def _memory(prediction: Prediction) -> str:
    need = format_quantity(prediction.memory.peak_bytes, "byte", binary=True)
    return f"{need} {'fits' if prediction.memory.fits else 'does not fit'}"


def print_breakdown(prediction: Prediction, frame: pd.DataFrame) -> None:
    """A table of `by_module`, `by_kind`, … with the longest first."""
    out = console()
    rows = table(str(frame.index.name), "time", "share", "kernels", "FLOP", "traffic", *KERNEL_TERMS)
    for name, row in frame.head(_ROWS).iterrows():
        rows.add_row(
            str(name) or "(root)",
            format_quantity(row["total_s"], "s"),
            f"{row['share']:.1%}",
            str(int(row["kernels"])),
            format_quantity(row["flop"], "flop"),
            format_quantity(row["bytes"], "byte"),
            *(format_quantity(row[f"{term}_s"], "s") for term in KERNEL_TERMS),
        )
    out.print(f"{prediction.machine.name}, by {frame.index.name}")
    console(wide=True).print(rows)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        out.print(f"{len(rest)} more take {format_quantity(rest['total_s'].sum(), 's')} ({rest['share'].sum():.1%})")


def print_explanation(explanation: Explanation) -> None:
    """The sentences, then both networks side by side."""
    out = console()
    for sentence in sentences(explanation):
        out.print(sentence)
    rows = table("", explanation.a.graph_name, explanation.b.graph_name)
    for label, values in _rows((explanation.a, explanation.b)):
        rows.add_row(label, *values)
    console(wide=True).print(rows)
