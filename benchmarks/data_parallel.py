"""DataParallel: predicted against measured steps of torchvision's models, and a GoogLeNet on CIFAR-10.

    python benchmarks/data_parallel.py DATA [--models 8]

torchvision: RTX 2080 Ti and TITAN Xp, one to four GPUs, 12 images each, copied from ordinary memory within the step,
training without an optimizer. Hosts are those of small_batches.py, fitted on rows of one GPU; nothing is fitted on rows
of several. A GPU helps where it raises throughput, images a second, over the measured row with one less.
"""

from __future__ import annotations

import argparse
import logging
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from small_batches import _BATCH, _DTYPES, _LIKE, _host

import rooflinekit as rk
from rooflinekit.hardware.cluster import Members, PcieLinks

_GPUS = {"GeForce RTX 2080 Ti": "nvidia-rtx-2080-ti", "TITAN Xp": "nvidia-titan-xp"}
#: Whether a card writes into another's memory over PCIe: GeForce cards of Turing do not, Pascal's do.
_PEERS = {"nvidia-rtx-2080-ti": False, "nvidia-titan-xp": True}
_GPU_COUNTS = (1, 2, 3, 4)


def machine(gpu: str, *, peers: bool) -> rk.Cluster:
    """Four of these on PCIe 3; slots of sixteen lanes are assumed."""
    return rk.Cluster(
        name=f"{gpu}-x4",
        devices=[Members(name=gpu, count=4)],
        pcie=PcieLinks(generation=3, lanes=16, peer_access=peers),
        host="generic-server",
    )


def measured(data: Path) -> pd.DataFrame:
    """One row a model, GPU, format and mode, with the seconds of each number of GPUs; those of collection 0."""
    table = pd.read_parquet(data / "cnn" / "torchvision_e2e.parquet")
    table = table[table["gpu"].isin(list(_GPUS)) & table["dtype"].isin(list(_DTYPES)) & (table["run"] == 0)]
    keys = ["gpu", "dtype", "mode", "model"]
    return table.pivot_table(index=keys, columns="num_gpus", values="median_ms").mul(1e-3).reset_index()


def traced(name: str, mode: str, dtype: str) -> rk.Graph:
    """The step with its batch open; targets lie on the GPU already."""
    from dataclasses import replace

    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    import torch
    import torchvision

    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    options: dict[str, Any] = {"mode": mode, "dtype": dtype, "like": _LIKE, "name": name}
    if mode == "training":
        targets = [rk.Input("batch", dtype="int64")]
        options |= {"loss": torch.nn.functional.cross_entropy, "targets": targets}
    graph = rk.trace(model, rk.Input("batch", 3, 224, 224), **options)
    return replace(graph, inputs=graph.inputs[:1])


def judge(rows: pd.DataFrame, *, peers: bool | None = None) -> Iterator[dict[str, Any]]:
    """One line a row and number of GPUs. peers: another answer for both cards."""
    graphs: dict[tuple[str, str, str], rk.Graph] = {}
    for row in rows.to_dict("records"):
        mode, dtype = "training" if row["mode"] == "train" else "inference", _DTYPES[row["dtype"]]
        key = (row["model"], mode, dtype)
        if key not in graphs:
            graphs[key] = traced(*key)
        gpu = _GPUS[row["gpu"]]
        cluster = machine(gpu, peers=_PEERS[gpu] if peers is None else peers)
        for count in _GPU_COUNTS:
            p = rk.parallel(
                graphs[key], cluster=cluster, strategy="dp", gpus=count, batch=_BATCH * count, host=_host(0),
                execution=rk.Execution(copy="pageable"),
            )  # fmt: skip
            yield {
                "gpu": gpu, "mode": mode, "dtype": dtype, "model": row["model"], "gpus": count,
                "measured_s": row[count], "predicted_s": p.total_s, **p.terms(),
            }  # fmt: skip


def with_verdicts(found: pd.DataFrame) -> pd.DataFrame:
    """Adds the error, and whether the last GPU helps, measured and predicted."""
    found = found.assign(ape=(found["predicted_s"] / found["measured_s"] - 1).abs())
    keys = ["gpu", "mode", "dtype", "model"]
    for what in ("measured", "predicted"):
        rate = found["gpus"] / found[f"{what}_s"]
        found[f"{what}_helps"] = rate > rate.groupby([found[key] for key in keys]).shift()
        alone = rate.where(found["gpus"] == 1).groupby([found[key] for key in keys]).transform("max")
        found[f"{what}_beats_one"] = rate > alone
    return found


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """One line a GPU, mode and number of GPUs."""
    several = found[found["gpus"] > 1]
    parts = [*found.groupby(["gpu", "mode", "gpus"]), (("all", "2 to 4 GPUs", ""), several)]
    return pd.DataFrame([_line(name, part) for name, part in parts])


def _line(name: Any, part: pd.DataFrame) -> dict[str, Any]:
    last = (part["measured_helps"] == part["predicted_helps"]).mean()
    one = (part["measured_beats_one"] == part["predicted_beats_one"]).mean()
    return {
        "gpu": name[0], "step": name[1], "gpus": name[2], "n": len(part),
        "median error %": 100 * part["ape"].median(),
        "bias %": 100 * (part["predicted_s"] / part["measured_s"] - 1).median(),
        "one more GPU helps, right %": 100 * last, "several beat one, right %": 100 * one,
        "several beat one, measured %": 100 * part["measured_beats_one"].mean(),
    }  # fmt: skip


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", type=int, default=100, help="at most so many, by a hash of their names")
    parser.add_argument("--peers", choices=["yes", "no"], help="another assumption for both cards")
    parser.add_argument("--rows", type=Path, help="also writes all rows as a CSV")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    rows = measured(options.data)
    chosen = sorted(rows["model"].unique(), key=lambda name: zlib.crc32(name.encode()))[: options.models]
    peers = None if options.peers is None else options.peers == "yes"
    found = with_verdicts(pd.DataFrame(judge(rows[rows["model"].isin(chosen)], peers=peers)))
    if options.rows:
        found.to_csv(options.rows, index=False)
    print(summary(found).round(1).to_string(index=False))


if __name__ == "__main__":
    main()
