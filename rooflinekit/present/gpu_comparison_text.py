"""One workload on many GPUs, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rooflinekit.present.tables import console, table
from rooflinekit.study.gpu_comparison import GpuComparison
from rooflinekit.study.gpu_story import order_sentences, surprise_sentences
from rooflinekit.units import format_quantity

_SENTENCES = 8  # of each kind; the rest is a line


def print_gpu_comparison(comparison: GpuComparison) -> None:
    """A line a GPU, then why their order is what it is, and which have more FLOP/s and are slower."""
    first, out = comparison.predictions[0], console()
    sizes = ", ".join(f"{name} {value}" for name, value in first.sizes.items())
    out.print(f"{first.graph_name}, {first.mode}{f', {sizes}' if sizes else ''}, {first.execution.backend}")
    one = comparison.counted.removesuffix("s")
    rows = table(
        "", "step", "90 % interval", f"{one}s/s", "regime", "of peak", "memory", f"{one}s/s/$1000", f"{one}s/s/W"
    )
    for row in comparison.rows:
        rows.add_row(*_cells(row))
    console(wide=True).print(rows)
    if comparison.sort != "time":
        out.print("By time:")
    _print_some(order_sentences(comparison))
    _print_some(surprise_sentences(comparison))
    for name, why in comparison.refused.items():
        out.print(f"left out: {name}: {why}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    bounds = (format_quantity(row[name], "s") for name in ("low_s", "high_s"))
    memory = format_quantity(row["peak_bytes"], "byte", binary=True)
    return [
        row["gpu"],
        format_quantity(row["total_s"], "s"),
        " to ".join(bounds),
        _number(row["throughput"]),
        row["regime"],
        f"{row['share_of_peak']:.0%}",
        f"{memory} {'fits' if row['fits'] else 'does not fit'}",
        _number(row["per_dollar"], 1000),
        _number(row["per_watt"]),
    ]


def _number(value: float | None, times: float = 1) -> str:
    """Three digits, more where it takes more before the point.

    >>> _number(1234.5), _number(0.02345), _number(0.5, 1000), _number(None)
    ('1234', '0.0234', '500', '–')
    """
    if value is None:
        return "–"
    scaled = value * times
    return f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.3g}"


def _print_some(sentences: Iterable[str]) -> None:
    out, listed = console(), list(sentences)
    for sentence in listed[:_SENTENCES]:
        out.print(sentence)
    if len(listed) > _SENTENCES:
        left = len(listed) - _SENTENCES
        out.print(f"{left} more such line{'' if left == 1 else 's'} with --json")
