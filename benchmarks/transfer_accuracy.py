"""Steps on one GPU told from the same network's step on another, beside predictions that know of neither.

`python benchmarks/transfer_accuracy.py DATA [--share 0.05]` prints, for each pair of GPUs and set of timm's rows, the
median and MAPE of the direct prediction and of the transferred one, how many lie within the 90 % interval, and by how
much that is narrower. `--estimate` prints instead what `study/transfer/components.py` states of whole steps: the
correlation of the error that a family's kernels share, and the spread of a network's own. It looks at one half of the
families, by a hash of their names, and all that is judged is of the other half.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
from network_accuracy import traced
from networks import Step, timm_steps

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.hardware.specs import load_host
from rooflinekit.model.machine import Machine
from rooflinekit.step.prediction import predict_graph
from rooflinekit.study.transfer import components
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.study.transfer.transferred import transferred


def of_estimate(family: str) -> bool:
    """Whether a family of networks is of the half that constants of whole steps are told by."""
    return hashlib.sha256(f"transfer {family}".encode()).digest()[0] < 128


@cache
def machine_of(gpu: str) -> Machine:
    """The GPU as it is shipped."""
    return machines_of([gpu])[0]


def steps(data: Path, share: float, *, estimate: bool) -> list[Step]:
    """timm's steps of the half of the families that is asked for, a share of the models."""
    found = [step for step in timm_steps(data) if of_estimate(step.columns["family"]) == estimate]
    kept = [step for step in found if hashlib.sha256(step.columns["model"].encode()).digest()[1] < 256 * share]
    return [step for step in kept if step.columns["step"] == "infer" and load(step.gpu) == "gpu"]


@cache
def load(gpu: str) -> str:
    """gpu or cpu."""
    return rk.load_device(gpu).kind


def judged(chosen: list[Step]) -> Iterator[dict[str, object]]:
    """A row a step and other GPU: direct and transferred."""
    host = load_host("generic-server")
    alike: dict[tuple[object, ...], list[tuple[Step, rk.Graph]]] = {}
    for step, graph in traced(chosen):
        how = step.options["execution"].backend
        alike.setdefault((step.workload, how), []).append((step, graph))
    for (_, how), same in alike.items():
        newest = {step.gpu: (step, graph) for step, graph in sorted(same, key=lambda one: one[0].table)}
        for here, there in permutations(newest, 2):
            (a, graph), (b, other) = newest[here], newest[there]
            source = predict_graph(graph.at(**a.sizes), machine_of(here), host, a.options["execution"])
            target = predict_graph(other.at(**b.sizes), machine_of(there), host, b.options["execution"])
            found = transferred(Evidence.of(a.seconds), source, target)
            yield {
                "from": here, "to": there, "how": how, **a.columns, "measured_s": b.seconds,
                "direct_s": target.total_s, "transferred_s": found.total_s,
                "plain_ratio_s": target.total_s * a.seconds / source.total_s,
                "direct_low": target.interval()[0], "direct_high": target.interval()[1],
                "low": found.interval()[0], "high": found.interval()[1],
            }  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A line a pair of GPUs and way of execution."""

    def line(part: pd.DataFrame) -> pd.Series:
        def errors(column: str) -> np.ndarray:
            return (part[column] / part["measured_s"] - 1).abs().to_numpy() * 100

        inside = (part["measured_s"] >= part["low"]) & (part["measured_s"] <= part["high"])
        direct = (part["measured_s"] >= part["direct_low"]) & (part["measured_s"] <= part["direct_high"])
        width = np.log(part["high"] / part["low"]) / np.log(part["direct_high"] / part["direct_low"])
        return pd.Series(
            {
                "steps": len(part),
                "direct": np.median(errors("direct_s")), "direct MAPE": errors("direct_s").mean(),
                "transferred": np.median(errors("transferred_s")), "transferred MAPE": errors("transferred_s").mean(),
                "by ratio": np.median(errors("plain_ratio_s")),
                "inside, direct": 100 * direct.mean(), "inside": 100 * inside.mean(), "width": 100 * width.median(),
            }
        )  # fmt: skip

    return rows.groupby(["from", "to", "how"]).apply(line, include_groups=False).round(1)


def estimated(rows: pd.DataFrame) -> str:
    """Moments of the residuals of pairs, within networks."""
    here = np.log(rows["plain_ratio_s"] / rows["direct_s"])  # ln(measured / predicted) on the source
    there = np.log(rows["measured_s"] / rows["direct_s"])
    slope = float((here * there).sum() / (here**2).sum())
    left = float((there - slope * here).std())
    common = float(np.sqrt(max(np.cov(here, there)[0, 1], 0.0)))
    return f"{len(rows)} pairs: slope {slope:.2f}, spread left {left:.3f}, common spread about the means {common:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    table = pd.DataFrame(judged(steps(given.data, given.share, estimate=given.estimate)))
    if given.out:
        table.to_csv(given.out, index=False)
    if given.estimate:
        for key, part in table.groupby(["from", "to", "how"]):
            print(*key, estimated(part))
    print(summary(table).to_string())
    print(
        f"stated: {components.SHARED_NEAR.value}, {components.SHARED_FAR.value}, {components.NETWORK.value}",
        math.nan if table.empty else "",
    )
