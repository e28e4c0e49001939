"""How far MIOpen's table repeats itself: what the time of one board says of another board of the same chip.

    python -m benchmarks.operators.twins DATA

A problem on one board is told from its measured time on the twin, times the median ratio of both boards among problems
of the same direction, format and time (within a factor of 1.8). That knows more than any model: what the twin took for
this very problem, and how the boards differ. What it is off by is the way of timing (boards that were idle before,
other releases, tuned solvers or not), and tells what a prediction of this table can be expected to reach.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.sources.operators import read_solvers
from benchmarks.sources.page_tables import frame_lines
from rooflinekit.hardware.specs import load_device

_BINS_A_DECADE = 4  # of times that boards are compared at
_NOT_SIZES = ("seconds", "solver")


def twins(data: Path) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Boards of one chip, each told by the other: ln(told / measured) of the problems that both have."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for campaign in read_solvers(data):
        tables.setdefault(campaign.gpu, []).append(campaign.rows)
    joined = {gpu: pd.concat(parts) for gpu, parts in tables.items()}
    chips = {gpu: load_device(gpu).architecture for gpu in joined}
    for told, known in permutations(joined, 2):
        if chips[told] == chips[known]:
            yield told, known, errors(joined[told], joined[known])


def errors(told: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """ln(told / measured) of each problem that is in both tables."""
    sizes = [name for name in told if name not in _NOT_SIZES]
    both = told.merge(known, on=sizes, suffixes=("", "_known"))
    ratio = pd.Series(np.log(both["seconds"] / both["seconds_known"]))
    near = (_BINS_A_DECADE * np.log10(both["seconds_known"])).round()
    usual = ratio.groupby([both["op"], both["dtype"], near]).transform("median")
    return both.assign(log=usual - ratio)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    options = parser.parse_args(arguments)
    found = []
    for told, known, rows in twins(options.data):
        for (op, dtype), part in rows.groupby(["op", "dtype"], sort=True):
            off = {"n": len(part), "median %": 100 * np.expm1(part["log"]).abs().median()}
            near = {"within two %": 100 * (part["log"].abs() <= np.log(2)).mean()}
            found.append({"told": told, "by": known, "op": op, "format": dtype} | off | near)
    table = pd.DataFrame(found).set_index(["told", "by", "op", "format"])
    print(frame_lines(table))
    print()
    print(frame_lines(table.groupby(["op", "format"]).agg({"n": "sum", "median %": "mean", "within two %": "mean"})))


if __name__ == "__main__":
    main()
