"""The table of docs/model.md that says what each term is worth, made anew in a quarter of an hour.

    python -m benchmarks.operators.ablation_page DATA --page docs/model.md [--rows 20]

All other constants stay as shipped (`benchmarks/operators/ablation.py --held`), so that it can follow every fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.operators.ablation import CHANGES, TERMS, Ablation, recurrent_row, worth
from benchmarks.sources.operators import read_ops
from benchmarks.sources.page_tables import markdown_lines, write_tables

HEADS = ("term", "ops", "median / MAPE with it, %", "without it, %")


def rows(run: Ablation, data: Path) -> Iterator[tuple[str, ...]]:
    """A line a term; terms that no measurement judges are left out."""
    for term in (*TERMS, *CHANGES):
        began = time.perf_counter()
        before, after, ops = worth(run, term)
        if not np.isnan(before).any():
            with_it, without = (f"{median:.1f} / {mean:.1f}" for median, mean in (before, after))
            yield term, ", ".join(ops), with_it, without
        print(f"{time.perf_counter() - began:5.0f} s  {term}", file=sys.stderr)
    yield recurrent_row(data)


def main() -> None:
    """Prints the table, or writes it into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=20, help="of an op and format on a GPU, at most")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    given = parser.parse_args()
    run = Ablation(read_ops(given.data), given.rows, held=True)
    table = markdown_lines(HEADS, rows(run, given.data))
    print(table)
    if given.page:
        write_tables([table], given.page, "benchmarks.operators.ablation_page")


if __name__ == "__main__":
    main()
