"""One workload on many GPUs, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.step.report import title
from rooflinekit.study.compare.gpus import GpuComparison, order_sentences, surprise_sentences, table_of

_SENTENCES = 8  # of each kind; the rest is a line


def print_gpu_comparison(comparison: GpuComparison) -> None:
    """A line a GPU, then why their order is what it is, and which have more FLOP/s and are slower."""
    first, out = comparison.predictions[0], console()
    out.print(title(first), markup=False)
    heads, body = table_of(comparison)
    rows = table(*heads)
    for cells in body:
        rows.add_row(*cells)
    print_table(rows, lambda: comparison.table.reset_index())
    if comparison.sort != "time":
        out.print("By time:")
    _print_some(order_sentences(comparison))
    _print_some(surprise_sentences(comparison))
    for name, why in comparison.refused.items():
        out.print(f"left out: {name}: {why}")


def _print_some(sentences: Iterable[str]) -> None:
    out, listed = console(), list(sentences)
    for sentence in listed[:_SENTENCES]:
        out.print(sentence)
    if len(listed) > _SENTENCES:
        left = len(listed) - _SENTENCES
        out.print(f"{left} more such line{'' if left == 1 else 's'} with --json")
