"""Predictions and explanations in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.step.bounds import unmeasured_note
from rooflinekit.step.chains import chain_sentences
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import KERNEL_TERMS, answer_rows, remedies, table_rows, title
from rooflinekit.study.compare.gpus import gpu_frame
from rooflinekit.study.explain.explanation import Explanation, sentences, signed
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 25  # of a breakdown; the rest is one line


def print_predictions(predictions: Sequence[Prediction], largest: Sequence[int] = (), *, terms: bool = False) -> None:
    """Predictions of one workload, a column each: the answer, or with `terms` all of which it is made.

    largest: the largest batch of each that fits, where it was asked for.
    """
    first = predictions[0]
    out = console()
    out.print(title(first), markup=False)
    for p in predictions:
        if note := p.memory.note(p.machine.name):
            out.print(note)
    rows = table("", *(p.machine.name for p in predictions))
    for label, values in (table_rows if terms else answer_rows)(predictions):
        rows.add_row(label, *values)
    if largest:
        rows.add_row("largest batch", *map(str, largest))
    print_table(rows, partial(gpu_frame, predictions))
    if terms or first.coverage.default_kinds or first.coverage.assumptions:
        out.print(f"counts: {first.coverage}")
    for prediction in predictions if terms else ():
        out.print(f"memory on {prediction.machine.name}: {prediction.memory_verdict()}")
    for prediction in predictions:
        for sentence in chain_sentences(prediction):
            out.print(f"chain: {f'on {prediction.machine.name} ' if predictions[1:] else ''}{sentence}")
    for sentence in remedies(predictions):
        out.print(f"to do: {sentence}; `rooflinekit advise` ranks them")
    for judged in dict.fromkeys(p.accuracy for p in predictions if p.memory.fits and p.accuracy):
        out.print(f"judged: {judged}")
    for note in _notes(predictions):
        out.print(f"note: {note}")


def _notes(predictions: Sequence[Prediction]) -> list[str]:
    """The notes of all, each once; what was measured of no device or of several in one."""
    fitting = [p for p in predictions if p.memory.fits]
    missing = [p for p in fitting if p.unmeasured]
    apart = {unmeasured_note(p.unmeasured, p.machine) for p in missing} if missing[1:] else set()
    found = [note for p in fitting for note in p.notes if note not in apart]
    if apart:
        of = "; ".join(
            f"{p.machine.name} ({', '.join(p.unmeasured) if p.machine.constants.measured else 'all kernels'})"
            for p in missing
        )
        found.append(f"not measured, so with constants of GPUs like it and a wider interval: {of}")
    return list(dict.fromkeys(found))


def print_breakdown(prediction: Prediction, frame: pd.DataFrame) -> None:
    """A table of `by_module`, `by_kind`, … with the longest first."""
    out = console()
    terms = [MEANING[term] for term in KERNEL_TERMS]
    rows = table(str(frame.index.name), "time", "share", "kernels", "FLOP", "traffic", *terms)
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
    print_table(rows, frame.reset_index)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        out.print(f"{len(rest)} more take {format_quantity(rest['total_s'].sum(), 's')} ({rest['share'].sum():.1%})")


def print_explanation(explanation: Explanation, *, details: bool = False) -> None:
    """The sentences, then both steps side by side; with `details` what is behind them, too."""
    out = console()
    for sentence in sentences(explanation):
        out.print(sentence)
    rows = table("", *explanation.labels)
    for label, values in table_rows((explanation.a, explanation.b)):
        rows.add_row(label, *values)
    print_table(rows)
    if details:
        for sentence in explanation.details:
            out.print(sentence)
        _print_drivers(explanation)


def _print_drivers(explanation: Explanation) -> None:
    """The groups of kernels with the largest differences."""
    rows = table("module, kind of op", *explanation.labels, "difference")
    shown = [driver for driver in explanation.drivers if driver.delta_s]
    for driver in shown[:_ROWS]:
        times = (format_quantity(driver.a_s, "s"), format_quantity(driver.b_s, "s"), signed(driver.delta_s))
        rows.add_row(driver.words, *times)
    print_table(rows)
    if len(shown) > _ROWS:
        console().print(f"{len(shown) - _ROWS} more differ by less")
