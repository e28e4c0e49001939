"""Measured collectives as campaigns, in calibration/campaigns/links.

    python -m calibration.make.links DATA

DATA: folder with the tables of aiconfigurator and vidur. Of vidur's thousand sizes of each kind a sample is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from benchmarks.sources.tables import read_table
from rooflinekit.calibrate.campaigns.campaign import write_campaign
from rooflinekit.calibrate.links.fitting import COLUMNS, LinkCampaign

FOLDER = Path(__file__).parents[2] / "calibration" / "campaigns" / "links"
SIZES = 60  # of each kind in vidur's tables, evenly by logarithm
NAMES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
         "alltoall": "all-to-all", "send_recv": "send-recv"}  # fmt: skip
TESTS = {"a100_sxm80": "dgx-a100", "h100_sxm": "dgx-h100"}
# Of a node without peer access beyond a switch (the data's README): it sets no constants, but judges those of others.
UNSEEN = {"l40s": "l40s-x8"}
# Of vidur's tables all-reduce alone: its send_recv is the sender's kernel, which between two A100 ends after less time
# than the bytes take at the bridge's full rate. What takes less than this waits for other ranks more than it moves.
LEAST_S = {"a100_dgx": 150e-6, "a100_pairwise_nvlink": 150e-6, "a40_pairwise_nvlink": 0.0, "v100_unknown": 150e-6}
# V100 pairs are left out: which two of the mesh they were, and so how many links they had, is not recorded.
NODES = {
    "a100_dgx": ("dgx-a100", ()),
    "a100_pairwise_nvlink": ("a100-pcie-pairs-x4", ()),
    "a40_pairwise_nvlink": ("a40-x8", ()),
    "v100_unknown": ("dgx-1-v100", (2,)),
}
APACHE = (
    "Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; changed: columns renamed, units converted, "
    "collectives of nccl-tests alone"
)


def nccl_tests(data: Path, tests: Mapping[str, str] = MappingProxyType(TESTS)) -> list[LinkCampaign]:
    """aiconfigurator's tables of nccl-tests, every version of NCCL. tests: the cluster of each table."""
    found = []
    for name, cluster in tests.items():
        table = read_table(data / "aiconfigurator" / f"collectives_{name}.parquet")
        table = table[table["impl"] == "nccl-tests"]
        rows = pd.DataFrame(
            {
                "collective": table["collective"].map(NAMES),
                "ranks": table["num_gpus"],
                "format": table["dtype"].map({"half": "fp16", "int8": "int8"}),
                "bytes": table["message_bytes"],
                "seconds": table["latency_us"].astype(float) * 1e-6,
            }
        )
        versions = ", ".join(sorted(table["impl_version"].unique()))
        found.append(
            LinkCampaign(
                cluster=cluster,
                source=f"github.com/ai-dynamo/aiconfigurator 095f58a, collectives_{name}",
                licence=APACHE,
                timing="stream",
                rows=rows.sort_values(list(COLUMNS)),
                notes={"nccl": versions},
            )
        )
    return found


def profiled(data: Path, sizes: int = SIZES) -> list[LinkCampaign]:
    """vidur's tables, of one node each; sizes: how many of each kind, 0 for all."""
    table = read_table(data / "vidur" / "collectives.parquet")
    found = []
    for node, (cluster, without) in NODES.items():
        table = table[table["collective"] == "all_reduce"]
        one = table["devices_per_node"].isna() | (table["devices_per_node"] == table["num_gpus"])
        part = table[(table["node"] == node) & one & ~table["num_gpus"].isin(without)]
        rows = pd.DataFrame(
            {
                "collective": part["collective"].map(NAMES),
                "ranks": part["num_gpus"],
                "format": "fp16",
                "bytes": part["size_bytes"],
                "seconds": part["median_us"].astype(float) * 1e-6,
            }
        )
        if sizes:
            rows = rows[rows["seconds"] >= LEAST_S[node]]
            kinds = [rows for _, rows in rows.groupby(["collective", "ranks"], sort=True)]
            rows = pd.concat([_sample(kind, sizes) for kind in kinds])
        found.append(
            LinkCampaign(
                cluster=cluster,
                source=f"github.com/microsoft/vidur 7d47513, collectives, {node}",
                licence="MIT, (c) Microsoft Corporation",
                timing="profiler",
                rows=rows.sort_values(list(COLUMNS)),
            )
        )
    return found


def _sample(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """So many rows, evenly by the logarithm of their size."""
    ordered = rows.sort_values("bytes").reset_index(drop=True)
    wanted = np.geomspace(ordered["bytes"].iloc[0], ordered["bytes"].iloc[-1], count)
    places = sorted({int(np.argmin(np.abs(np.log(ordered["bytes"] / size)))) for size in wanted})
    return ordered.iloc[places]


def main(data: Path) -> None:
    """Writes every campaign anew."""
    for campaign in (*nccl_tests(data), *profiled(data)):
        name = campaign.source.rpartition(", ")[2]
        write_campaign(campaign, FOLDER / f"{name}.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
