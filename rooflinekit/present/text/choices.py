"""What is chosen by, in a terminal: GPUs, two steps, limits of power, costs, sweeps and searches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooflinekit.present.text.form import FORM
from rooflinekit.present.text.predictions import frame_of
from rooflinekit.present.text.tables import Cell, flat, print_table, say, table, table_of, whole
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import table_rows, title
from rooflinekit.study.compare.gpus import GpuComparison, order_sentences, price_sentences, surprise_sentences
from rooflinekit.study.compare.gpus import table_of as gpu_table
from rooflinekit.study.explain.advice import Advice
from rooflinekit.study.explain.explanation import Explanation, sentences, signed
from rooflinekit.units import said

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.study.compare.cost import Costs
    from rooflinekit.study.compare.limits import PowerLimits
    from rooflinekit.study.sweep.search import Found


_GPUS = 15  # of a comparison; the rest is one line
_SENTENCES = 8  # of each kind; the rest is a line
_SHOWN = 100  # rows
_FOUND = 5  # configurations that a search found
_DRIVERS = 25  # of groups of kernels; the rest is one line


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


def _print_some(told: Iterable[str]) -> None:
    listed = list(told)
    say(*listed[:_SENTENCES])
    if (left := len(listed) - _SENTENCES) > 0:
        say(f"{left} more such line{'' if left == 1 else 's'} with --json")


def print_limits(found: PowerLimits[Any], rack: pd.DataFrame | None = None) -> None:
    """A line a limit, and which take least; `rack`: what a rack does in a day under each."""
    model, mode, device = found.heading
    first, sizes = found.predictions[0], ", ".join(f"{name}={value}" for name, value in found.sizes.items())
    of = title(first) if isinstance(first, Prediction) else f"{model} {mode}{f' ({sizes})' if sizes else ''}"
    columns: dict[str, Cell] = {
        "power limit": ("limit_w", "W"), "time of a step": ("total_s", "s"), "slower": ("slower", ".1%"),
        "mean power": lambda row: said(row["power_w"], "W") + (" above it" if row["above"] else ""),
        "energy": ("energy_j", "J"), "saved": ("saved", ".1%"),
        "energy × time": lambda row: f"{row['energy_delay']:.3g} J·s",
    }  # fmt: skip
    rows = found.table.assign(device=device)
    if whole():
        columns |= {"GPU": ("device", "")}
    if rack is not None:
        rows = rows.assign(gpus=rack["gpus"], samples_a_day=rack["samples_a_day"])
        columns |= {"GPUs of a rack": ("gpus", ","), "in a day": ("samples_a_day", ",.4g")}
    on = f"{found.gpus} GPUs of {device}" if found.gpus > 1 else device
    say(f"{of} on {on}")
    print_table(table_of(columns, rows.to_dict("records")), lambda: rows)
    say(*str(found).splitlines())


def print_costs(found: Costs, heading: str | None = None) -> None:
    """A line a GPU, the cheapest first."""
    say(*([] if heading is None else [heading]))
    money, rows = found.currency, found.table.to_dict("records")
    columns: dict[str, Cell] = {
        "GPU": ("gpu", ""), "time of a step": ("total_s", "s"), "mean power": ("power_w", "W"),
        f"{money} a million {found.unit}": ("per_million", ".4g"),
    }  # fmt: skip
    known = {name for row in rows for name, value in row.items() if value == value}
    if "break_even_h" in known:
        columns["break-even"] = lambda row: _hours(row["break_even_h"])
    if "run_s" in known:
        columns["run"] = lambda row: f"{row['run_s'] / 3600:,.3g} h"
        columns |= {f"{money} a run": ("run_cost", ",.4g"), "kWh a run": ("run_kwh", ",.4g")}
    if "kg" in known:
        columns["kg CO2"] = ("kg", ",.3g")
    print_table(table_of(columns, rows), lambda: found.table)


def _hours(value: float) -> str:
    return "never" if math.isinf(value) else said(value) if math.isnan(value) else f"{value:,.0f} h of work"


def print_rows(frame: pd.DataFrame, heading: str) -> None:
    """The first rows of a sweep."""
    say(heading)
    _print(frame if whole() else frame.head(_SHOWN))
    if len(frame) > _SHOWN:
        say(f"… {len(frame)} rows in all; --out writes them")


def print_found(found: Found, heading: str) -> None:
    """What a search found: the best configuration of each GPU and way, or those that come closest."""
    say(heading, *found.head)
    frame = found.table if found.best is not None else found.closest
    told = " ".join((found.goal, *found.requirements))
    drawn = [] if whole() or any(word in told for word in ("energy", "power", "joules")) else ["power_w", "joules"]
    _print((frame if whole() else frame.head(_FOUND)).drop(columns=drawn, errors="ignore"), found.currency)
    if len(frame) > _FOUND:
        say(f"{len(frame) - _FOUND} more with --csv or --json")
    say(*found.doubts, before="note: ")


def _print(frame: pd.DataFrame, currency: str | None = None) -> None:
    from rooflinekit.study.sweep.search import cells_of  # with pandas, which takes as long as a prediction

    heads, rows, alike = cells_of(frame, currency, apart=FORM.get() == "text")  # else no line says it
    say(*alike)
    print_table(table(heads, rows), lambda: frame)


def print_advice(found: Advice) -> None:
    """What would make a step faster in words; a line a change, where tables alone are asked for."""
    if FORM.get() == "text":
        say(*str(found).splitlines())
        return
    columns: dict[str, Cell] = {
        "change": ("what", ""), "step": ("prediction.total_s", "s"), "saved": ("saved_s", "s"),
        "speed-up": lambda one: f"{one.speedup:.2f}×",
        "90 % interval": lambda one: "{0.low:.2f} to {0.high:.2f}".format(one.ratio()),
        "bound": ("prediction.regime", ""), "memory": ("prediction.memory.peak_bytes", "GiB"),
    }  # fmt: skip
    print_table(table_of(columns, found.suggestions), lambda: flat(one.to_dict() for one in found.suggestions))


def print_explanation(explanation: Explanation, *, details: bool = False) -> None:
    """The sentences, then both steps side by side; with `details` what is behind them, too."""
    say(*(f"{title(p)}, {p.machine.name}" for p in (explanation.a, explanation.b)))
    say(*sentences(explanation))
    rows = ((label, *values) for label, values in table_rows((explanation.a, explanation.b)))

    def numbers() -> pd.DataFrame:
        frame = frame_of((explanation.a, explanation.b), terms=True)
        frame.insert(0, "step", explanation.labels)
        return frame

    print_table(table(("", *explanation.labels), rows), numbers)
    if details:
        say(*explanation.details)
        a, b = explanation.labels
        columns: dict[str, Cell] = {
            "module, kind of op": ("words", ""), a: ("a_s", "s"), b: ("b_s", "s"),
            "difference": lambda driver: signed(driver.delta_s),
        }  # fmt: skip
        shown = [driver for driver in explanation.drivers if driver.delta_s]
        kept = len(shown) if whole() else _DRIVERS
        print_table(table_of(columns, shown[:kept]), lambda: flat(map(asdict, shown)))
        if len(shown) > kept:
            say(f"{len(shown) - kept} more differ by less")
