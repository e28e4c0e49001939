"""How much of what is wrong about a kernel on one GPU is wrong on another: correlations of residuals.

`python benchmarks/transfer_components.py DATA` prints, by family and by how the two GPUs are related, the
correlation of ln(measured / predicted) of equal shapes about the mean of each GPU ("kernel"), which is what
`study/transfer/components.py` states. Ops alone: no whole step is looked at.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from measured import read_ops

import rooflinekit as rk
from rooflinekit.calibrate.fits import architecture_of
from rooflinekit.calibrate.measured_ops import OPS

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
            near = architecture_of(rk.load_device(a)) == architecture_of(rk.load_device(b))
            found.append(
                {"family": family, "a": a, "b": b, "near": near, "shapes": len(both)}
                | {"correlation": both.corr().iloc[0, 1], "sd_a": both[a].std(), "sd_b": both[b].std()}
            )
    return pd.DataFrame(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of published measurements, see measured.py")
    pairs = correlations(residuals(parser.parse_args().data))
    print(pairs.round(2).to_string(index=False))
    print(pairs.groupby(["family", "near"])["correlation"].agg(["median", "count"]).round(2))
