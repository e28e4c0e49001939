"""How right comparisons are: one network on two GPUs, and two networks on one GPU, against what was measured of both.

    python -m benchmarks.networks.comparison DATA [--share 0.03] [--sources timm,kernelbench] [--page docs/choosing.md]
    python -m benchmarks.networks.comparison DATA --estimate

For each source and way of execution: the median error of the ratio of two times, how many measured ratios lie within
the 90 % interval, in how many pairs it is told for certain which is faster, and how many of these are so; beside it in
how many the two steps' own intervals are apart, which is what one would go by without knowing what both have in common.
All are of the half of the networks that no statistic was told by (`transfer_sources.of_estimate`); of two networks on
one GPU a few pairs are drawn for each network. share: of timm's networks. --estimate: the two statistics that
comparisons have beside those of transfers, on the other half: values, and the mean logarithm of the density there.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from benchmarks.sources.page_tables import frame_lines, print_frames, write_tables
from benchmarks.transfer.sources import SOURCES, Measured, Pair
from rooflinekit.study.errors import components
from rooflinekit.study.errors.components import FREEDOM, Ratios, chips_of

_DRAWN = 4  # pairs of a network with others on its GPU

_NORMAL = 1.645  # standard deviations of a 90 % interval


def pairs(sources: Sequence[str], data: Path, share: float, *, estimate: bool) -> Iterator[tuple[str, Pair]]:
    """Each two measured steps that differ in the GPU or in the network, and in which."""
    draw = random.Random(0)
    for source in sources:
        alike: dict[tuple[str, str], list[Measured]] = defaultdict(list)
        for same in SOURCES[source](data, share if source == "timm" else 1.0, estimate=estimate):
            for pair in combinations(same, 2):
                yield "two GPUs", pair
            for one in same:
                alike[one.gpu, one.how].append(one)
        for steps in alike.values():
            drawn = {tuple(sorted(draw.sample(range(len(steps)), 2))) for _ in range(_DRAWN * len(steps)) if steps[1:]}
            yield from (
                ("two networks", (steps[i], steps[j])) for i, j in sorted(drawn) if steps[i].network != steps[j].network
            )
        print(source, file=sys.stderr)


def judged(what: str, a: Measured, b: Measured) -> dict[str, object]:
    """A row of a pair."""
    first, second = a.prediction, b.prediction
    found = Ratios((first, second), one_network=what == "two GPUs", one_host=False).of(1, 0)
    (a_low, a_high), (b_low, b_high) = first.interval(), second.interval()
    waiting = [p.cpu_s > p.gpu_s for p in (first, second)]
    return {
        "what": what, "source": a.source, "how": a.how,
        "chips": str(chips_of(first.machine.device, second.machine.device)),
        "decided by": "CPU" if all(waiting) else "both" if any(waiting) else "GPU",
        "measured": b.seconds / a.seconds, "predicted": found.times, "low": found.low, "high": found.high,
        "certain": found.certain, "apart": a_high < b_low or b_high < a_low,
    }  # fmt: skip


def line(part: pd.DataFrame) -> pd.Series:
    """Of some pairs, in per cent."""
    off = np.log(part["measured"] / part["predicted"])
    right = (part["measured"] > 1) == (part["predicted"] > 1)
    inside = (part["low"] <= part["measured"]) & (part["measured"] <= part["high"])
    return pd.Series(
        {
            "pairs": len(part), "ratio off %": 100 * np.expm1(off.abs().median()), "inside %": 100 * inside.mean(),
            "certain %": 100 * part["certain"].mean(), "of these right %": 100 * right[part["certain"]].mean(),
            "intervals apart %": 100 * part["apart"].mean(),
        }
    )  # fmt: skip


def tables(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """By what differs, by source, by how alike the chips are and by what decides the times; then all."""
    yield rows.groupby(["what", "source", "how", "chips", "decided by"]).apply(line, include_groups=False)
    yield rows.groupby(["what"]).apply(line, include_groups=False)


@contextmanager
def stated(name: str, value: float) -> Iterator[None]:
    """A component of the errors with another value."""
    before = getattr(components, name)
    setattr(components, name, value)
    try:
        yield
    finally:
        setattr(components, name, before)


def likelihood(found: Sequence[tuple[str, Pair]]) -> float:
    """The mean logarithm of the density of what ratios are off by, of Student's distribution."""
    logs = []
    for what, (a, b) in found:
        told = Ratios((a.prediction, b.prediction), one_network=what == "two GPUs", one_host=False).of(1, 0)
        off = math.log(b.seconds / a.seconds / told.times)
        scale = math.log(told.high / told.times if off > 0 else told.times / told.low) / _NORMAL
        logs.append(student.logpdf(off / scale, FREEDOM) - math.log(scale))
    return float(np.mean(logs))


def estimate(data: Path) -> None:
    """Prints the likelihood of values of both statistics: compiled steps on two chips, steps that wait for one CPU."""
    found = list(pairs(["kernelbench"], data, 1.0, estimate=True))
    compiled = [
        (what, (a, b)) for what, (a, b) in found
        if what == "two GPUs" and a.how == "compiled" and not {a.prediction.regime, b.prediction.regime} & {"overhead"}
        and chips_of(a.prediction.machine.device, b.prediction.machine.device) in ("kindred", "foreign")
    ]  # fmt: skip
    waiting = [
        (what, (a, b)) for what, (a, b) in found
        if what == "two networks" and a.prediction.regime == b.prediction.regime == "overhead"
    ]  # fmt: skip
    for name, values, on in (
        ("UNMODELLED_KERNELS", (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0), compiled),
        ("ISSUING", (0.05, 0.1, 0.15, 0.2, 0.25, 0.3), waiting),
    ):
        for value in values:
            with stated(name, value):
                print(f"{name} {value}: {likelihood(on):.3f} ({len(on)} pairs)")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--sources", default="neusight,timm,kernelbench")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--estimate", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    if given.estimate:
        estimate(given.data)
        return
    found = pairs(given.sources.split(","), given.data, given.share, estimate=False)
    rows = pd.DataFrame([judged(what, *pair) for what, pair in found])
    shown = list(tables(rows))
    print_frames(shown)
    if given.page:
        write_tables(map(frame_lines, shown), given.page, "benchmarks.networks.comparison")


if __name__ == "__main__":
    main()
