"""Published measurements → the campaigns that the shipped fits rest on: some of every op of every GPU.

    python -m calibration.make.operators DATA

Half of all shapes, by a hash of the shape, are never taken: `benchmarks/operators/accuracy.py` judges by them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from benchmarks.sources.operators import read_ops, split_hash
from rooflinekit.calibrate.campaigns.campaign import Campaign, write_campaign

FOLDER = Path(__file__).parents[2] / "calibration" / "campaigns"
KEPT = 0.5  # share of the shapes that fits may see
ROWS = 160  # of an op in a campaign
ELEMENTWISE_ROWS = 40  # eleven ops that behave alike
SOLVER_ROWS = 70  # of each format of MIOpen's table, which has every GPU's times three times over


def sample(campaign: Campaign) -> Campaign:
    """Some of the shapes that fits may see."""
    rows = campaign.rows[split_hash(campaign.rows) < KEPT]
    if "split" in rows and set(rows["op"]) & {"linear", "bmm"}:
        rows = rows[rows["split"] == "test"]  # shapes of networks; the others are random, ragged ones
    most = ELEMENTWISE_ROWS if len(rows["op"].unique()) > 6 else ROWS
    most = SOLVER_ROWS if "MIOpen" in campaign.source else most
    parts = [
        part.sort_values("seconds").sample(min(len(part), most), random_state=0)
        for _, part in rows.groupby("op", sort=True)
    ]
    taken = pd.concat(parts).drop(columns="split", errors="ignore")
    return replace(campaign, rows=taken)


def main(data: Path) -> None:
    """Writes every campaign anew."""
    for campaign in map(sample, read_ops(data)):
        table = campaign.source.rpartition(", ")[2]
        several = ("op", "dtype") if table.startswith("deepbench") else ()  # campaigns of one table
        name = "-".join((table, *(str(one) for key in several for one in sorted(set(campaign.rows[key])))))
        write_campaign(campaign, FOLDER / campaign.gpu / f"{name}.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
