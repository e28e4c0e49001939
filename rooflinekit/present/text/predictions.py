"""Predictions in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.keyed import lists
from rooflinekit.present.text.form import FORM
from rooflinekit.present.text.tables import Cell, print_first, print_table, say, table, table_of
from rooflinekit.step.bounds import unmeasured_note
from rooflinekit.step.chains import chain_sentences
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import KERNEL_TERMS, answer_rows, remedies, table_rows, title
from rooflinekit.step.summary import summary_text
from rooflinekit.units import said

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 25  # of a breakdown; the rest is one line
_REMOVED = {"kernels": "", "casts": "", "bytes": "byte", "gap_s": "s", "gpu_s": "s", "cpu_s": "s", "peak_bytes": "GiB"}
_HEADS = {"gap_s": "gaps", "gpu_s": "GPU time", "cpu_s": "CPU time", "bytes": "traffic", "peak_bytes": "memory"}


def print_predictions(
    predictions: Sequence[Prediction], largest: Sequence[int] = (), *, terms: bool = False, allocator: str | None = None
) -> None:
    """Predictions of one workload: the answer, or with `terms` all of which it is made.

    A column each; of several, without terms, a line each. Where it is one, the first line names the GPU.
    largest: the largest batch of each that fits, where it was asked for. allocator: settings with which it is told
    whether they fit.
    """
    first = predictions[0]
    on = "" if predictions[1:] else f", {first.machine.name}"
    say(title(first) + on, *(note for p in predictions if (note := p.memory.note(p.machine.name))))
    print_table(_beside(predictions, largest, terms=terms), partial(frame_of, predictions, largest, terms=terms))
    if terms or first.coverage.default_kinds or first.coverage.assumptions:
        say(f"counts: {first.coverage}")
    for p in predictions if terms or allocator is not None else ():
        say(f"memory on {p.machine.name}: {p.memory_verdict(allocator=allocator or '')}")
    for p in predictions:
        say(*chain_sentences(p), before=f"chain: {f'on {p.machine.name} ' if predictions[1:] else ''}")
    say(*(f"{sentence}; see `rooflinekit advise`" for sentence in remedies(predictions)), before="to do: ")
    judging = (card for p in predictions if p.memory.fits and (card := p.accuracy) is not None)
    # Cards with the same figures rest on the same measurements and are one.
    for cards in lists(((c.of, c.median, c.nine_of_ten, c.sources), c) for c in judging).values():
        say(replace(cards[0], on=" and ".join(dict.fromkeys(one.on for one in cards))), before="judged: ")
    say(*_notes(predictions, terms=terms), before="note: ")


def frame_of(predictions: Sequence[Prediction], largest: Sequence[int] = (), *, terms: bool) -> pd.DataFrame:
    """A line a prediction, in base units. terms: with a column for each term of the time."""
    from rooflinekit.study.compare.gpus import gpu_frame  # with much that one prediction has no use for

    frame = gpu_frame(predictions)
    for term in predictions[0].terms() if terms else ():
        frame[f"{term}_s"] = [p.terms()[term] for p in predictions]
    return frame.assign(largest_batch=largest) if largest else frame


def _beside(predictions: Sequence[Prediction], largest: Sequence[int], *, terms: bool) -> Table:
    if predictions[1:] and not terms:
        from rooflinekit.study.compare.gpus import rows_of

        heads, lines = rows_of(predictions)
        if largest:
            heads = [*heads, "largest batch"]
            lines = [[*cells, str(n)] for cells, n in zip(lines, largest, strict=True)]
        return table(heads, lines)
    rows = [(label, *values) for label, values in (table_rows if terms else answer_rows)(predictions)]
    if largest:
        rows.append(("largest batch", *map(str, largest)))
    found = table(("", *(p.machine.name for p in predictions)), rows)
    found.show_header = bool(predictions[1:]) or FORM.get() != "text"
    return found


def _notes(predictions: Sequence[Prediction], *, terms: bool) -> list[str]:
    """The notes of all, each once; what was measured of no device or of several in one."""
    fitting = [p for p in predictions if p.memory.fits]
    missing = [p for p in fitting if p.unmeasured]
    apart = {unmeasured_note(p.unmeasured, p.machine) for p in missing if missing[1:] or not terms}
    found = [note for p in fitting for note in p.notes if note not in apart]
    if apart:
        of = ", ".join(f"{p.machine.name} ({_kinds(p, named=terms)})" for p in missing)
        found.append(f"not measured, so constants of similar GPUs and a wider interval: {of}")
    return list(dict.fromkeys(found))


def _kinds(p: Prediction, *, named: bool) -> str:
    if not p.machine.constants.measured:
        return "all kernels"
    count = len(p.unmeasured)
    return ", ".join(p.unmeasured) if named or count == 1 else f"{count} kinds of kernels"


def print_breakdown(prediction: Prediction, frame: pd.DataFrame) -> None:
    """A table of `by_module`, `by_kind`, … with the longest first."""
    group = str(frame.index.name)
    columns: dict[str, Cell] = {
        group: lambda row: str(row[group]) or "(root)", "time": ("total_s", "s"), "share": ("share", ".1%"),
        "kernels": ("kernels", ".0f"), "FLOP": ("flop", "flop"), "traffic": ("bytes", "byte"),
        **{MEANING[term]: (f"{term}_s", "s") for term in KERNEL_TERMS},
    }  # fmt: skip
    say(f"{prediction.machine.name}, by {group}")
    print_first(columns, frame, _ROWS, numbers=lambda: frame.reset_index().assign(gpu=prediction.machine.name))


def print_variants(base: Prediction, frame: pd.DataFrame) -> None:
    """What `Prediction.compare` found: a line a way, then what each removes from the first."""
    options = ["execution", "autocast", "channels_last", *base.sizes]
    options += ["attention"] if "attention" in frame else []
    varied = [name for name in options if frame[name].nunique() > 1] or ["execution"]
    times: dict[str, Cell] = {
        "": ("way", ""),
        **{name.replace("_", " "): partial(_word, name) for name in varied},
        "step": ("total_s", "s"), "speed-up": lambda row: f"{row['speedup']:.2f}×", "GPU busy": ("gpu_s", "s"),
        "CPU": ("cpu_s", "s"),
        "memory": lambda row: said(row["peak_bytes"], "GiB") + ("" if row["fits"] else " does not fit"),
    }  # fmt: skip
    removed: dict[str, Cell] = {
        "": ("way", ""),
        **{_HEADS.get(name, name): (f"removed_{name}", unit) if unit else partial(_count, f"removed_{name}")
           for name, unit in _REMOVED.items()},
    }  # fmt: skip
    rows = [{"way": str(i) if i else "this", **row} for i, row in enumerate(frame.to_dict("records"))]
    samples = ", for as many samples" if "batch" in varied else ""
    say(f"{base.machine.name}, in other ways{samples}")
    print_table(table_of(times, rows), lambda: frame.drop(columns="prediction").assign(gpu=base.machine.name))
    if FORM.get() == "csv":  # has what follows
        return
    say("what each saves of this step (negative: adds)")
    print_table(table_of(removed, rows[1:]))


def _word(name: str, row: Mapping[str, Any]) -> str:
    return {"True": "yes", "False": "no"}.get(str(row[name]), str(row[name]))


def _count(name: str, row: Mapping[str, Any]) -> str:
    return f"{round(row[name], 1):g}".replace("-", "−")


def print_summary(graph: Graph, predictions: Sequence[Prediction], found: pd.DataFrame) -> None:
    """What `rooflinekit.summary` found: a line a module, indented as it stands in the network."""
    told = summary_text(graph, predictions, found)
    say(told.heading)
    rows = ((f"{'  ' * row.level}{row.name}", *row.cells) for row in told.rows)
    print_table(table(("module", *told.heads), rows), found.reset_index)
