"""Where predictions are off: the median of measured / predicted - 1 by two sizes, of shapes that no fit has seen.

    python -m benchmarks.operators.residuals DATA OP:GPU:ROWS:COLUMNS ... [--least 100]

For instance mm:nvidia-a30:m:n. Constants are those fitted on the GPU; times below `--least` microseconds, in which the
host counts, are left out. Sizes are joined by factors of four; cells of fewer than five measurements are empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.operators.accuracy import held_back
from benchmarks.sources.operators import read_ops
from calibration.make.operators import sample
from rooflinekit.calibrate.fitting.observations import observations_of, without_faults
from rooflinekit.calibrate.fitting.refit import Refit, machines_of, refit

_FEWEST = 5


def residuals(data: Path, fits: Refit, op: str, gpu: str) -> pd.DataFrame:
    """The shapes of an op on a GPU, with measured / predicted - 1 in per cent."""
    machine = machines_of([gpu])[gpu]
    values = fits.solution.values(gpu, fits.relatives[gpu])
    parts = []
    for o in observations_of([c for c in held_back(read_ops(data)) if c.gpu == gpu and op in set(c.rows["op"])]):
        if o.op == op and len(o := without_faults(o, machine)):
            predicted = o.predict(machine.with_values(values), fits.solution.harness(o.host))
            parts.append(o.rows.assign(off=100 * (o.seconds / predicted - 1)))
    return pd.concat(parts)


def table(rows: pd.DataFrame, down: str, across: str) -> str:
    """Medians by two sizes, as markdown."""
    binned = {name: 4.0 ** np.floor(np.log(rows[name]) / np.log(4)) for name in (down, across)}
    grouped = rows.assign(**binned).groupby([down, across])["off"].agg(["median", "size"])
    cells = grouped["median"].where(grouped["size"] >= _FEWEST).unstack(across).dropna(how="all")
    head = " | ".join(f"{across} {column:.0f}…" for column in cells.columns)
    lines = [f"| | {head} |", "| --- |" + " --- |" * len(cells.columns)]
    for size, row in cells.iterrows():
        shown = " | ".join("" if np.isnan(value) else f"{value:+.0f}" for value in row)
        lines.append(f"| {down} {size:.0f}… | {shown} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits, and prints a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("wanted", nargs="+", metavar="OP:GPU:ROWS:COLUMNS")
    parser.add_argument("--least", type=float, default=100.0, help="microseconds")
    options = parser.parse_args(arguments)
    fits = refit([sample(campaign) for campaign in read_ops(options.data)])
    for word in options.wanted:
        op, gpu, down, across = word.split(":")
        rows = residuals(options.data, fits, op, gpu)
        print(f"\n{op} on {gpu}\n\n{table(rows[rows['seconds'] > 1e-6 * options.least], down, across)}", flush=True)


if __name__ == "__main__":
    main()
