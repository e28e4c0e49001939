"""Mean power, energy and power limits against measurements.

    python -m benchmarks.energy.accuracy DATA [--share 0.3] [--rows]

DATA, and by which constants each row is judged: calibration/make/power.py, which makes the shipped ones.

Power: mean watts of a step, as predicted whole, and as the law has it for the seconds that the step was measured to
take: a step that the host decides (its CPU issues for nine tenths of the time that kernels take, or longer) idles more
where it takes longer, one that the GPU decides draws the same: its kernels are slower than predicted, not absent. With
these watts the measured seconds make joules that are off by as much. Energy:
joules of a step, where the rows say its seconds. Limits: seconds at a limit, of those without one; whether the limit of
least energy is hit within 25 W (best cap), and what the one that is chosen takes more than the best (regret): where a
board never reaches its limit, chance decides which is best.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibration.make.power import judged, log_off, rows_of, spread_of


def summary(lines: pd.DataFrame) -> pd.Series:
    """Median errors in percent, bias, and the limit of least energy."""
    joules = lines["predicted_w"] * lines["predicted_s"], lines["watts"] * lines["seconds"]
    percent = {
        "power": log_off(lines["predicted_w"], lines["watts"]),
        "law": log_off(lines["lawful_w"], lines["watts"]),
        "energy": log_off(*joules),
        "time": log_off(lines["predicted_s"], lines["seconds"]),
        "ratio": log_off(lines["predicted_ratio"], lines["ratio"]),
    }
    table: dict[str, Any] = {"rows": len(lines)}
    table |= {name: 100 * np.expm1(off.abs().median()) for name, off in percent.items()}
    table["power bias"] = 100 * np.expm1(percent["power"].median())
    found = np.array(list(_caps(lines)), dtype=float).reshape(-1, 2)
    table["cases"], table["best cap"] = len(found), 100 * found[:, 0].mean() if len(found) else np.nan
    table["regret"] = 100 * float(np.median(found[:, 1])) if len(found) else np.nan
    return pd.Series(table)


def _caps(lines: pd.DataFrame) -> Iterator[tuple[bool, float]]:
    """Of each network and batch with several limits: whether the one of least energy is found within 25 W, and what the
    one that is chosen takes more than the least."""
    zeus = lines[(lines["source"] == "zeus") & lines["seconds"].notna()]
    for _, part in zeus.groupby(["gpu", "label"]):
        if len(part) < 4:
            continue
        joules = part["watts"] * part["seconds"]
        chosen = (part["predicted_w"] * part["predicted_s"]).idxmin()
        off = part["limit_w"][joules.idxmin()] - part["limit_w"][chosen]
        yield abs(off) <= 25, joules[chosen] / joules.min() - 1


def covered(lines: pd.DataFrame, factor: float = 1.645) -> Mapping[str, float]:
    """For each GPU how many of its rows the 90 % interval of watts holds, its spread told by the other GPUs."""
    found = {}
    for gpu, part in lines.groupby("gpu"):
        spread = spread_of(lines[lines["gpu"] != gpu])
        found[str(gpu)] = 100 * float((log_off(part["predicted_w"], part["watts"]).abs() <= factor * spread).mean())
    return found


def main(options: argparse.Namespace) -> None:
    """Prints the errors."""
    rows = rows_of(options.data, options.share)
    lines = judged(rows)
    if options.rows:
        lines.to_csv(options.rows, index=False)
    with pd.option_context("display.width", 170, "display.max_columns", 20, "display.float_format", "{:.1f}".format):
        for by in (["source", "gpu"], ["source", "gpu", "network"], ["gpu", "limit_w"], "limited"):
            chosen = lines[lines["source"] == "zeus"] if by in ("limited", ["gpu", "limit_w"]) else lines
            print(f"\n{chosen.groupby(by)[chosen.columns.tolist()].apply(summary)}")
        print(f"\nall\n{summary(lines).to_frame().T}")
    print(f"\nspread {spread_of(lines):.3f}; rows in the 90 % interval: {covered(lines)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the sources")
    parser.add_argument("--share", type=float, default=1.0, help="of the batch sizes; for a quick look")
    parser.add_argument("--rows", type=Path, metavar="FILE.csv", help="also every row")
    main(parser.parse_args())
