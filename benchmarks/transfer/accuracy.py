"""Steps on one GPU told from the same network's step on another, beside predictions that know of neither.

    python -m benchmarks.transfer.accuracy DATA [--share 0.05] [--sources timm,kernelbench] [--page docs/transfer.md]
                                                [--out rows.csv] [--rows rows.csv …]

For each source and way of execution, by how alike the chips are, and for kindred GPUs of timm and NeuSight by pair: the
median error of the direct prediction, of the transferred one and of scaling by the ratio of predictions, how many
measurements lie within the 90 % intervals, and how wide the transferred one is beside the direct one. All steps are of
the half of the networks that no statistic was told by (`transfer_sources.of_estimate`); of NeuSight's nodes, traces
and trainings none was told by any. share: of the networks of timm. rows: judged before (`--out`), in the place of
judging.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.sources.page_tables import frame_lines, print_frames, write_tables
from benchmarks.sources.tables import read_table
from benchmarks.transfer.operators import SOURCES as OPERATORS
from benchmarks.transfer.sources import SOURCES as STEPS
from benchmarks.transfer.sources import Measured, pairs
from benchmarks.transfer.trainings import SOURCES as TRAININGS
from rooflinekit.errors import InputError
from rooflinekit.study.errors.components import chips_of
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.study.transfer.transferred import correcting

SOURCES = {**STEPS, **OPERATORS, **TRAININGS}
_LEAST = 5  # pairs of a line
_BY_PAIR = ("timm", "neusight", "neusight nodes", "traces")  # pairs of others' GPUs would be pages


def judged(a: Measured, b: Measured) -> dict[str, object] | None:
    """A row: the second step directly, and by the first; None where the first cannot be of this network."""
    try:
        found = correcting(Evidence.of(a.evidence), a.prediction)(b.prediction)
    except InputError:
        return None
    (low, high), (least, most) = found.interval(), b.prediction.interval()
    return {
        "source": a.source, "how": a.how, "network": a.network, "from": a.gpu, "to": b.gpu,
        "chips": str(chips_of(a.prediction.machine.device, b.prediction.machine.device)),
        "waits": "overhead" in (a.prediction.regime, b.prediction.regime),
        "measured_s": b.seconds, "direct_s": b.prediction.total_s, "transferred_s": found.total_s,
        "ratio_s": b.prediction.total_s * a.seconds / a.prediction.total_s,
        "low_s": low, "high_s": high, "direct_low_s": least, "direct_high_s": most,
    }  # fmt: skip


def all_judged(data: Path, sources: list[str], share: float) -> pd.DataFrame:
    """All pairs of the sources."""

    def rows() -> Iterator[dict[str, object] | None]:
        for source in sources:
            start = time.perf_counter()
            for a, b in pairs(SOURCES[source](data, share if source == "timm" else 1.0, estimate=False)):
                yield judged(a, b)
            print(f"{source}: {time.perf_counter() - start:.0f} s", file=sys.stderr)

    return pd.DataFrame([row for row in rows() if row is not None])


def line(part: pd.DataFrame) -> pd.Series:
    """Errors in per cent: medians; shares inside intervals; and the median of their widths' ratio."""

    def error(column: str) -> float:
        return float(100 * (part[column] / part["measured_s"] - 1).abs().median())

    def inside(low: str, high: str) -> float:
        return float(100 * ((part["measured_s"] >= part[low]) & (part["measured_s"] <= part[high])).mean())

    width = np.log(part["high_s"] / part["low_s"]) / np.log(part["direct_high_s"] / part["direct_low_s"])
    return pd.Series(
        {
            "pairs": len(part),
            "direct %": error("direct_s"), "transferred %": error("transferred_s"), "by ratio %": error("ratio_s"),
            "inside, direct %": inside("direct_low_s", "direct_high_s"), "inside %": inside("low_s", "high_s"),
            "width of direct %": float(100 * width.median()),
        }
    )  # fmt: skip


def tables(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """By source, way, chips and whether the GPU waits for the CPU; and by pair of GPUs where they are few."""
    waits = np.where(rows["waits"], "CPU", "GPU")
    yield (
        rows.groupby(["source", "how", "chips", waits])
        .apply(line, include_groups=False)
        .rename_axis(["source", "how", "chips", "decided by"])
    )
    few = rows[rows["source"].isin(_BY_PAIR) & rows["chips"].ne("foreign")]  # those hardly tell of each other
    if not few.empty:
        yield few.groupby(["source", "how", "from", "to"]).apply(line, include_groups=False)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, nargs="+")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    if given.rows:
        rows = pd.concat([read_table(file) for file in given.rows], ignore_index=True)
    else:
        rows = all_judged(given.data, given.sources.split(","), given.share)
    if given.out:
        rows.to_csv(given.out, index=False)
    found = list(tables(rows))
    print_frames(found)
    if given.page:
        first = found[0]  # pairs of GPUs are for the terminal
        write_tables([frame_lines(first[first["pairs"] >= _LEAST])], given.page, "benchmarks.transfer.accuracy")


if __name__ == "__main__":
    main()
