"""A measured step beside its prediction in a terminal: total, interval, regime, kinds of ops, the worst ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rooflinekit.errors import printable
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.study.profile.matching import OpTime, Validation
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 12  # of the table by kind; the rest is one line


def print_validation(found: Validation) -> None:
    """The answer first: is the prediction right?"""
    out = console()
    sizes = ", ".join(f"{name} {value}" for name, value in found.sizes.items())
    threads = f", {found.threads} thread{'s' if found.threads > 1 else ''}" if found.threads else ""
    out.print(
        f"{found.model}, {found.mode}{f', {sizes}' if sizes else ''}, {found.execution['backend']}, "
        f"on {found.device}{threads}"
    )
    print_table(_totals(found))
    out.print(f"predicted / measured − 1: {found.error:+.1%}; the measured time is {_verdict(found)}")
    if found.summary.noisy:
        out.print("note: the samples are noisy: end what else runs here, measure again")
    if found.ops:
        print_table(kinds_table(found.by_kind()))
        out.print("furthest from predicted:")
        for op in found.worst:
            out.print(f"  {_place(op)}: measured {_seconds(op.measured_s)}, predicted {_seconds(op.predicted_s)}")
    for note in found.prediction.notes if found.prediction is not None else ():
        out.print(f"note: {note}")


def _totals(found: Validation) -> Table:
    summary, predicted = found.summary, found.predicted
    rows = table("", "measured", "predicted")
    rows.add_row("time of a step", _seconds(summary.median), _seconds(predicted.total_s))
    rows.add_row(
        "  half of the samples, 90 % interval",
        f"{_seconds(summary.low)} to {_seconds(summary.high)}",
        f"{_seconds(predicted.low_s)} to {_seconds(predicted.high_s)}",
    )
    rows.add_row("samples, outliers", f"{len(found.seconds)}, {summary.outliers}", "")
    rows.add_row("regime", "", predicted.regime)
    return rows


def _verdict(found: Validation) -> str:
    if found.inside:
        return "inside the interval"
    return f"{'above' if found.measured_s > found.predicted.high_s else 'below'} the interval"


def kinds_table(frame: pd.DataFrame) -> Table:
    """Kinds of ops, measured beside predicted: what `by_kind` gives."""
    rows = table("kind of op", "calls", "measured", "predicted", "difference")
    for kind, row in frame.head(_ROWS).iterrows():
        times = (_seconds(row[name]) for name in ("measured_s", "predicted_s", "difference_s"))
        rows.add_row(Text(printable(str(kind))), str(int(row["count"]) or ""), *times)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        sums = (_seconds(rest[name].sum()) for name in ("measured_s", "predicted_s", "difference_s"))
        rows.add_row(f"{len(rest)} more", str(int(rest["count"].sum())), *sums)
    return rows


def _place(op: OpTime) -> str:
    return f"{op.name} in {op.module}" if op.module else op.name


def _seconds(value: float) -> str:
    return format_quantity(value, "s").replace("-", "−")
