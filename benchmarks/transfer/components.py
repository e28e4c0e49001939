"""How much of what is wrong about a kernel on one GPU is wrong on another: correlations of residuals.

`python -m benchmarks.transfer.components DATA` prints, by family and by how the two GPUs are related, the
correlation of ln(measured / predicted) of equal shapes about the mean of each GPU, and the medians by how alike the
chips are, which `study/errors/components.py` states as KERNEL. Ops alone: no whole step is looked at.

With `--estimate` it prints what that file states of whole steps, of one half of the networks of timm and KernelBench;
all that benchmarks/transfer/accuracy.py judges is of the other half. What all steps of a source on a GPU are off by, in
the median, less what its GPUs are off by in the mean, is the GPU's own: how that goes together on GPUs of two chips
gives their SHARED (at least 0; both of few GPUs, so together), and where the host decides OTHER_HOST. All else are the
most likely values for pairs of steps, each source and way of execution with equal weight.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t as student

import rooflinekit as rk
from benchmarks.sources.operators import read_ops
from benchmarks.transfer.sources import SOURCES, Measured
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.study.errors import components
from rooflinekit.study.errors.components import Chips, Part, chips_of, leaders, parts_of

_LONG_S = 100e-6
_LEAST = 60  # shapes that two GPUs share


def residuals(data: Path) -> pd.DataFrame:
    """A row a measured op: its GPU, its shape as text, its family, and ln(measured / predicted)."""
    found = []
    for campaign in read_ops(data):
        rows = campaign.rows.drop(columns=["split"], errors="ignore")
        if campaign.timing == "event":  # short ones hold the CPU's work, which is no kernel's
            rows = rows[rows["seconds"] > _LONG_S]
        if rows.empty:
            continue
        predicted = rk.sweep(rows.drop(columns="seconds"), gpus=[campaign.gpu])[campaign.gpu]
        shape = rows.drop(columns="seconds").fillna(0).astype(str).agg(" ".join, axis=1)
        family = [OPS[op].family for op in rows["op"]]
        ratio = np.log(rows["seconds"].to_numpy() / predicted.to_numpy())
        found.append(pd.DataFrame({"gpu": campaign.gpu, "shape": shape, "family": family, "ln": ratio}))
    table = pd.concat(found, ignore_index=True)
    return table.groupby(["gpu", "family", "shape"], as_index=False)["ln"].median()


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """A row a family and pair of GPUs."""
    found = []
    for family, part in table.groupby("family"):
        wide = part.pivot(index="shape", columns="gpu", values="ln")
        for a, b in combinations(wide.columns, 2):
            both = wide[[a, b]].dropna()
            both = both[(both.sub(both.median()).abs() < 1.0).all(axis=1)]  # beyond e: another algorithm, not noise
            if len(both) < _LEAST:
                continue
            chips = str(chips_of(rk.load_device(a), rk.load_device(b)))
            found.append(
                {"family": family, "a": a, "b": b, "chips": chips, "shapes": len(both)}
                | {"correlation": both.corr().iloc[0, 1], "sd_a": both[a].std(), "sd_b": both[b].std()}
            )
    return pd.DataFrame(found)


_LEVELS = ("family", "kernel", "host")
_CHIPS = (Chips.ONE, Chips.KINDRED)  # foreign chips have nothing in common, see `together`
_NAMES = (
    "SHARED, one", *(f"IN_STEPS, {chips}" for chips in _CHIPS), *(f"NETWORKS, {chips}" for chips in _CHIPS),
    "NETWORK", "FREEDOM",
)  # fmt: skip
_START = (2.0, 1.0, 1.0, 2.0, 1.0, -3.0, 1.0)
_TIE = 5e-4  # how firmly what no pair tells stays where it starts
_FEW = 8  # steps that a median is taken of


def moments(a: Measured, b: Measured) -> dict[str, object]:
    """Of two measurements of a step: what both predictions are off by, and their variances and covariance by level."""
    names = {**leaders(b.prediction), **leaders(a.prediction)}
    here, there = parts_of(a.prediction, names), parts_of(b.prediction, names)
    chips = chips_of(a.prediction.machine.device, b.prediction.machine.device)
    found: dict[str, object] = {
        "set": f"{a.source} {a.how}", "from": a.gpu, "to": b.gpu, "chips": str(chips),
        "waits": "overhead" in (a.prediction.regime, b.prediction.regime),
        "here": math.log(a.seconds / a.prediction.total_s),
        "there": math.log(b.seconds / b.prediction.total_s),
    }  # fmt: skip
    kindred: dict[tuple[str, str, str], list[Part]] = {}
    for part in there:
        kindred.setdefault((part.level, part.family, part.name), []).append(part)
    for level in _LEVELS:
        own = [part for part in here if part.level == level]
        covariance = 0.0
        for part in own:
            for other in kindred.get((level, part.family, part.name), ()):
                stated = components.alone(part.family, chips) if level == "kernel" else 1.0
                if level == "kernel" and part.unit != other.unit:
                    stated *= components.OTHER_UNIT
                covariance += stated * here[part].size * there[other].size
        found[f"here {level}"] = sum(here[part].size ** 2 for part in own)
        found[f"there {level}"] = sum(one.size**2 for part, one in there.items() if part.level == level)
        found[f"both {level}"] = covariance
    return found


def shared(rows: pd.DataFrame) -> float:
    """The correlation of what all steps on one GPU and on another are off by in the median, about the GPUs' mean.

    Of n values about their own mean each two have a covariance of -1/n of the variance, if they have nothing in common.
    """
    both = squares = 0.0
    for _, part in rows.groupby("set"):
        own = part.groupby("from").filter(lambda steps: len(steps) >= _FEW).groupby("from")["here"].median()
        own -= own.mean()
        for a, b in part[["from", "to"]].drop_duplicates().itertuples(index=False):
            if a in own and b in own:
                both += own[a] * own[b] + own.var() / len(own)
                squares += own.var()
    return max(0.0, both / squares)


def together(rows: pd.DataFrame) -> pd.Series:
    """The rank correlation of what a step is off by on two GPUs, where kernels decide, by how alike their chips are."""
    computing = rows[~rows["waits"]].groupby("chips")
    return computing.apply(lambda part: part["here"].corr(part["there"], method="spearman"), include_groups=False)


def unlikelihood(rows: pd.DataFrame, values: Sequence[float], others: float) -> float:
    """Minus the mean logarithm of the density of an error on the target, given that on the source."""
    shared_one, *by_chips, network, freedom = values
    n = len(_CHIPS)
    chips = [rows["chips"] == one for one in _CHIPS]
    family = np.where(chips[0], shared_one, others)
    kernel, whole = np.select(chips, by_chips[:n]), np.select(chips, by_chips[n:])
    here, there = (sum(rows[f"{side} {level}"] for level in _LEVELS) + network**2 for side in ("here", "there"))
    here = here + components.MEASURED**2
    both = (
        family * rows["both family"] + kernel * rows["both kernel"] + whole * network**2
        + components.OTHER_HOST * rows["both host"]
    )  # fmt: skip
    left = np.maximum(there - both**2 / here, 1e-8) + components.MEASURED**2
    scale = np.sqrt(left * (freedom + rows["here"] ** 2 / here) / (freedom + 1))
    off = (rows["there"] - both / here * rows["here"]) / scale
    return float((np.log(scale) - student.logpdf(off, freedom + 1)).mean())


def estimate(rows: pd.DataFrame) -> dict[str, float]:
    """The values, by name; correlations lie between 0 and 1."""
    computing = rows[~rows["waits"]]
    others = shared(computing[computing["chips"] != Chips.ONE])
    sets = [part for _, part in rows.groupby("set")]
    start = np.array(_START)

    def values(x: NDArray[np.float64]) -> list[float]:
        share = 1 / (1 + np.exp(-x))
        return [*share[:5], float(np.exp(x[5])), 1 + float(np.exp(x[6]))]

    def cost(x: NDArray[np.float64]) -> float:
        fit = float(np.mean([unlikelihood(part, values(x), others) for part in sets]))
        return fit + _TIE * float(np.square(x - start).sum())

    found = minimize(cost, start, method="Nelder-Mead", options={"maxfev": 5000, "adaptive": True, "fatol": 1e-6})
    return {
        "SHARED, kindred and foreign": others, "OTHER_HOST": shared(rows[rows["waits"]]),
        **dict(zip(_NAMES, values(found.x), strict=True)),
    }  # fmt: skip


def estimated_half(data: Path, shares: Mapping[str, float]) -> pd.DataFrame:
    """A row a pair of the half that constants are told by."""
    rows = []
    for source, share in shares.items():
        for same in SOURCES[source](data, share, estimate=True):
            rows += [moments(a, b) for a, b in permutations(same, 2)]
    return pd.DataFrame(rows)


def main() -> None:
    """Prints correlations of ops, or what whole steps tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of published measurements, see benchmarks/sources/operators.py")
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--share", type=float, default=0.04, help="of timm's networks; of KernelBench's all are taken")
    given = parser.parse_args()
    if given.estimate:
        rows = estimated_half(given.data, {"timm": given.share, "kernelbench": 1.0})
        print(rows.groupby(["set", "chips"]).size().to_string())
        print(together(rows).round(2).to_string())
        for name, value in estimate(rows).items():
            print(f"{name} {value:.2f}")
        return
    pairs = correlations(residuals(given.data))
    print(pairs.round(2).to_string(index=False))
    print(pairs.groupby(["family", "chips"])["correlation"].agg(["median", "count"]).round(2))


if __name__ == "__main__":
    main()
