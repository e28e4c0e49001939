"""Predictions and explanations in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rooflinekit.present.text.tables import Cell, console, print_first, print_table, say, table, table_of, whole
from rooflinekit.step.accuracy import Accuracy
from rooflinekit.step.bounds import unmeasured_note
from rooflinekit.step.chains import chain_sentences
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import KERNEL_TERMS, answer_rows, remedies, table_rows, title
from rooflinekit.step.summary import SummaryText
from rooflinekit.study.compare.gpus import (
    GpuComparison,
    gpu_frame,
    order_sentences,
    price_sentences,
    rows_of,
    surprise_sentences,
)
from rooflinekit.study.compare.gpus import table_of as gpu_table
from rooflinekit.study.explain.explanation import Explanation, sentences, signed
from rooflinekit.units import said

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.study.compare.cost import Costs
    from rooflinekit.study.compare.limits import PowerLimits
    from rooflinekit.study.sweep.search import Found


_ROWS, _GPUS = 25, 15  # of a breakdown, of a comparison; the rest is one line


def print_predictions(
    predictions: Sequence[Prediction], largest: Sequence[int] = (), *, terms: bool = False, allocator: str | None = None
) -> None:
    """Predictions of one workload: the answer, or with `terms` all of which it is made.

    A column each; of several, without terms, a line each.
    largest: the largest batch of each that fits, where it was asked for. allocator: settings with which it is told
    whether they fit.
    """
    first = predictions[0]
    say(title(first), *(note for p in predictions if (note := p.memory.note(p.machine.name))))
    print_table(_beside(predictions, largest, terms=terms), partial(gpu_frame, predictions))
    if terms or first.coverage.default_kinds or first.coverage.assumptions:
        say(f"counts: {first.coverage}")
    for p in predictions if terms or allocator is not None else ():
        say(f"memory on {p.machine.name}: {p.memory_verdict(allocator=allocator or '')}")
    for p in predictions:
        say(*chain_sentences(p), before=f"chain: {f'on {p.machine.name} ' if predictions[1:] else ''}")
    say(*(f"{sentence}; see `rooflinekit advise`" for sentence in remedies(predictions)), before="to do: ")
    say(*_judged(predictions), before="judged: ")
    say(*_notes(predictions, terms=terms), before="note: ")


def _judged(predictions: Sequence[Prediction]) -> Iterable[Accuracy]:
    """What judges those that fit; cards with the same figures rest on the same measurements and are one."""
    found: dict[object, list[Accuracy]] = {}
    for card in (p.accuracy for p in predictions if p.memory.fits):
        if card is not None:
            found.setdefault((card.of, card.median, card.nine_of_ten, card.sources), []).append(card)
    return [replace(cards[0], on=" and ".join(dict.fromkeys(one.on for one in cards))) for cards in found.values()]


def _beside(predictions: Sequence[Prediction], largest: Sequence[int], *, terms: bool) -> Table:
    if predictions[1:] and not terms:
        heads, lines = rows_of(predictions)
        if largest:
            heads = [*heads, "largest batch"]
            lines = [[*cells, str(n)] for cells, n in zip(lines, largest, strict=True)]
        return table(heads, lines)
    rows = [(label, *values) for label, values in (table_rows if terms else answer_rows)(predictions)]
    if largest:
        rows.append(("largest batch", *map(str, largest)))
    return table(("", *(p.machine.name for p in predictions)), rows)


def _notes(predictions: Sequence[Prediction], *, terms: bool) -> list[str]:
    """The notes of all, each once; what was measured of no device or of several in one."""
    fitting = [p for p in predictions if p.memory.fits]
    missing = [p for p in fitting if p.unmeasured]
    apart = {unmeasured_note(p.unmeasured, p.machine) for p in missing} if missing[1:] else set()
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
    print_first(columns, frame, _ROWS, numbers=frame.reset_index)


def print_explanation(explanation: Explanation, *, details: bool = False) -> None:
    """The sentences, then both steps side by side; with `details` what is behind them, too."""
    say(*sentences(explanation))
    rows = ((label, *values) for label, values in table_rows((explanation.a, explanation.b)))
    print_table(table(("", *explanation.labels), rows))
    if details:
        say(*explanation.details)
        _print_drivers(explanation)


def _print_drivers(explanation: Explanation) -> None:
    """The groups of kernels with the largest differences."""
    a, b = explanation.labels
    columns: dict[str, Cell] = {
        "module, kind of op": ("words", ""), a: ("a_s", "s"), b: ("b_s", "s"),
        "difference": lambda driver: signed(driver.delta_s),
    }  # fmt: skip
    shown = [driver for driver in explanation.drivers if driver.delta_s]
    print_table(table_of(columns, shown[:_ROWS]))
    if len(shown) > _ROWS:
        say(f"{len(shown) - _ROWS} more differ by less")


_REMOVED = {"kernels": "", "casts": "", "bytes": "byte", "gap_s": "s", "gpu_s": "s", "cpu_s": "s"}
_HEADS = {"gap_s": "gaps", "gpu_s": "GPU time", "cpu_s": "CPU time", "bytes": "traffic"}


def print_variants(base: Prediction, frame: pd.DataFrame) -> None:
    """What `Prediction.compare` found: a line a way, then what each removes from the first."""
    ways = ["execution", "autocast", "channels_last", *base.sizes]
    ways += ["attention"] if "attention" in frame else []
    varied = [name for name in ways if frame[name].nunique() > 1] or ["execution"]
    times: dict[str, Cell] = {
        "": ("way", ""),
        **{name.replace("_", " "): partial(_word, name) for name in varied},
        "step": ("total_s", "s"), "speed-up": lambda row: f"{row['speedup']:.2f}×", "GPU busy": ("gpu_s", "s"),
        "CPU": ("cpu_s", "s"),
        "memory": lambda row: said(row["peak_bytes"], "GiB") + ("" if row["fits"] else " does not fit"),
    }  # fmt: skip
    removed: dict[str, Cell] = {
        "": ("way", ""),
        **{
            _HEADS.get(name, name): (f"removed_{name}", unit) if unit else partial(_count, f"removed_{name}")
            for name, unit in _REMOVED.items()
        },
        "memory": ("removed_peak_bytes", "GiB"),
    }
    rows = [{"way": str(i) if i else "this", **row} for i, row in enumerate(frame.to_dict("records"))]
    samples = ", for as many samples" if "batch" in varied else ""
    say(f"{base.machine.name}, in other ways{samples}")
    print_table(table_of(times, rows), lambda: frame.drop(columns="prediction"))
    say("what each saves of this step (negative: adds)")
    print_table(table_of(removed, rows[1:]))


def _word(name: str, row: Mapping[str, Any]) -> str:
    return {"True": "yes", "False": "no"}.get(str(row[name]), str(row[name]))


def _count(name: str, row: Mapping[str, Any]) -> str:
    """A number of things of a mean step."""
    return f"{round(row[name], 1):g}".replace("-", "−")


def print_summary(told: SummaryText, found: pd.DataFrame) -> None:
    """What `rooflinekit.summary` found: a line a module, indented as it stands in the network."""
    say(told.heading)
    rows = ((f"{'  ' * row.level}{row.name}", *row.cells) for row in told.rows)
    print_table(table(("module", *told.heads), rows), found.reset_index)
    say(*told.notes, before="note: ")


_SENTENCES = 8  # of each kind; the rest is a line


def print_gpu_comparison(comparison: GpuComparison) -> None:
    """A line a GPU, of many the first; why their order is what it is, and which have more FLOP/s and are slower."""
    say(title(comparison.predictions[0]))
    heads, lines = gpu_table(comparison)
    shown = lines if whole() else lines[:_GPUS]
    print_table(table(heads, shown), lambda: comparison.table.reset_index())
    if len(shown) < len(lines):
        say(f"{len(lines) - len(shown)} more GPUs with --csv or --json")
    _print_some(price_sentences(comparison))
    if comparison.sort != "time":
        say("By time:")
    _print_some(order_sentences(comparison))
    _print_some(surprise_sentences(comparison))
    say(*(f"{name}: {why}" for name, why in comparison.refused.items()), before="left out: ")


def _print_some(sentences: Iterable[str]) -> None:
    listed = list(sentences)
    say(*listed[:_SENTENCES])
    if (left := len(listed) - _SENTENCES) > 0:
        say(f"{left} more such line{'' if left == 1 else 's'} with --json")


def print_limits(found: PowerLimits[Any], rack: pd.DataFrame | None = None) -> None:
    """A line a limit, and which take least; `rack`: what a rack does in a day under each."""
    model, mode, device = found.heading
    sizes = ", ".join(f"{name}={value}" for name, value in found.sizes.items())
    columns: dict[str, Cell] = {
        "power limit": ("limit_w", "W"), "time of a step": ("total_s", "s"), "slower": ("slower", ".1%"),
        "mean power": lambda row: said(row["power_w"], "W") + (" above it" if row["above"] else ""),
        "energy": ("energy_j", "J"), "saved": ("saved", ".1%"),
        "energy × time": lambda row: f"{row['energy_delay']:.3g} J·s",
    }  # fmt: skip
    rows = found.table
    if rack is not None:
        rows = rows.assign(gpus=rack["gpus"], samples_a_day=rack["samples_a_day"])
        columns |= {"GPUs of a rack": ("gpus", ","), "in a day": ("samples_a_day", ",.4g")}
    on = f"{found.gpus} GPUs of {device}" if found.gpus > 1 else device
    say(f"{model} {mode}{f' ({sizes})' if sizes else ''} on {on}")
    console().print(table_of(columns, rows.to_dict("records")))
    say(*str(found).splitlines())


def print_costs(found: Costs) -> None:
    """A line a GPU, the cheapest first."""
    money, rows = found.currency, found.table.to_dict("records")
    columns: dict[str, Cell] = {
        "GPU": ("gpu", ""), "time of a step": ("total_s", "s"), "mean power": ("power_w", "W"),
        f"{money} a million {found.unit}": ("per_million", ".4g"),
        "break-even": lambda row: _hours(row["break_even_h"]),
        "run": lambda row: f"{row['run_s'] / 3600:,.3g} h", f"{money} a run": ("run_cost", ",.4g"),
        "kWh a run": ("run_kwh", ",.4g"), "kg CO2": ("kg", ",.3g"),
    }  # fmt: skip
    needs = {"break-even": "break_even_h", "run": "run_s", f"{money} a run": "run_s", "kWh a run": "run_s"}
    needs["kg CO2"] = "kg"
    shown = {
        head: cell
        for head, cell in columns.items()
        if head not in needs or any(not math.isnan(row.get(needs[head], math.nan)) for row in rows)
    }
    console().print(table_of(shown, rows))


def _hours(value: float) -> str:
    return "never" if math.isinf(value) else said(value) if math.isnan(value) else f"{value:,.0f} h of work"


_SHOWN = 100  # rows
_FOUND = 5  # configurations that a search found


def print_rows(frame: pd.DataFrame) -> None:
    """The first rows of a sweep."""
    _print(frame if whole() else frame.head(_SHOWN))
    if len(frame) > _SHOWN:
        say(f"… {len(frame)} rows in all; --out writes them")


def print_found(found: Found) -> None:
    """What a search found: the best configuration of each GPU and way, or those that come closest."""
    say(*found.head)
    frame = found.table if found.best is not None else found.closest
    told = " ".join((found.goal, *found.requirements))
    drawn = [] if whole() or any(word in told for word in ("energy", "power", "joules")) else ["power_w", "joules"]
    _print((frame if whole() else frame.head(_FOUND)).drop(columns=drawn, errors="ignore"), found.currency)
    if len(frame) > _FOUND:
        say(f"{len(frame) - _FOUND} more with --csv or --json")
    say(*found.doubts, before="note: ")


def _print(frame: pd.DataFrame, currency: str | None = None) -> None:
    from rooflinekit.study.sweep.search import cells_of  # with pandas, which takes as long as a prediction

    heads, rows, alike = cells_of(frame, currency)
    say(*alike)
    print_table(table(heads, rows), lambda: frame)
