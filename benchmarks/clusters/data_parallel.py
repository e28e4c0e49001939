"""DataParallel: predicted against measured steps of torchvision's models.

    python -m benchmarks.clusters.data_parallel DATA [--models 8]

torchvision: RTX 2080 Ti and TITAN Xp, one to four GPUs, 12 images each, copied from ordinary memory within the step,
training without an optimizer. Hosts are unknown: as in benchmarks/sources/small_batches.py those of a grid that suit
rows of one GPU best, of half of the models (`--hosts` finds them); the other half is judged. Nothing is fitted on rows
of several GPUs. GPUs help where they raise throughput, images a second. Whether they do is told by two predictions, of
several and of one, which is all that somebody has who owns none of them; and beside it by the measured row of one.
"""

from __future__ import annotations

import argparse
import logging
import warnings
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.sources.small_batches import _BATCH, _DTYPES, _LIKE, slower_host
from benchmarks.sources.tables import read_table
from rooflinekit.calibrate.fitting.files import constants_for, load_links
from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.planning import plan
from rooflinekit.hardware.cluster import Members, PcieLinks
from rooflinekit.timing.machine import Machine

_GPUS = {"GeForce RTX 2080 Ti": "nvidia-rtx-2080-ti", "TITAN Xp": "nvidia-titan-xp"}
#: Whether a card writes into another's memory over PCIe: GeForce cards of Turing do not, Pascal's do.
_PEERS = {"nvidia-rtx-2080-ti": False, "nvidia-titan-xp": True}
#: What issuing costs the hosts, times generic-server's, and their backward factor.
_HOSTS = {"nvidia-rtx-2080-ti": (2.0, 1.4), "nvidia-titan-xp": (4.0, 0.7)}
_GRID = tuple(product((1.0, 1.5, 2.0, 3.0, 4.0), (0.7, 1.4, 2.8)))
_EXECUTION = rk.Execution(copy="pageable")
#: Not shipped, for this benchmark alone.
_TITAN = rk.load_device(Path(__file__).parents[1] / "sources" / "nvidia-titan-xp.yaml")
_GPU_COUNTS = (1, 2, 3, 4)


def cluster_of(gpu: str, *, peers: bool) -> rk.Cluster:
    """Four of these on PCIe 3; slots of sixteen lanes are assumed."""
    return rk.Cluster(
        name=f"{gpu}-x4",
        devices=[Members(name=gpu, count=4)],
        pcie=PcieLinks(generation=3, lanes=16, peer_access=peers),
        host="generic-server",
    )


def device(name: str) -> rk.Device:
    """A shipped one, or the one beside this file."""
    return _TITAN if name == _TITAN.name else rk.load_device(name)


def setting(gpu: str, count: int, *, peers: bool) -> Setting:
    """So many of these, and their host."""
    machine = Machine.of(device(gpu), constants_for(device(gpu)))
    return Setting(
        cluster=cluster_of(gpu, peers=peers), machines=(machine,) * 4, numbers=tuple(range(count)),
        host=slower_host(*_HOSTS[gpu]), execution=_EXECUTION, links=load_links(),
    )  # fmt: skip


def measured(data: Path) -> pd.DataFrame:
    """One row a model, GPU, format and mode, with the seconds of each number of GPUs; those of collection 0."""
    table = read_table(data / "cnn" / "torchvision_e2e.parquet")
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
        with_peers = _PEERS[gpu] if peers is None else peers
        for count in _GPU_COUNTS:
            step = graphs[key].at(batch=_BATCH * count)
            p = plan(step, setting(gpu, count, peers=with_peers), rk.DataParallel(), savers=rk.Savers())
            yield {
                "gpu": gpu, "mode": mode, "dtype": dtype, "model": row["model"], "gpus": count,
                "measured_s": row[count], "predicted_s": p.total_s, **p.terms(),
            }  # fmt: skip


def best_hosts(rows: pd.DataFrame) -> Iterator[str]:
    """For each GPU the points of the grid with the least median error on rows of one GPU; kernels are timed once."""
    from rooflinekit.step.entry import by_issue, input_pipeline_of
    from rooflinekit.step.timeline import schedule

    for name, part in rows.groupby("gpu"):
        errors: dict[tuple[float, float], list[float]] = {point: [] for point in _GRID}
        for row in part.to_dict("records"):
            mode = "training" if row["mode"] == "train" else "inference"
            graph = traced(row["model"], mode, _DTYPES[row["dtype"]]).at(batch=_BATCH)
            p = rk.predict(graph, device(_GPUS[name]), execution=_EXECUTION)
            kernels = [timings for _, timings in by_issue(p.issues, p.timings)]
            for point, found in errors.items():
                host = slower_host(*point)
                line = schedule(
                    p.issues, kernels, host, _EXECUTION, input_pipeline_of(graph, p.machine.device, host, _EXECUTION)
                )
                found.append(abs((p.gpu_s + line.idle_s + line.input_s) / row[1] - 1))
        best = sorted((median(found), point) for point, found in errors.items())[:3]
        yield f"{name}: " + ", ".join(f"{point} {100 * error:.0f} %" for error, point in best)


def with_verdicts(found: pd.DataFrame) -> pd.DataFrame:
    """Adds the error, and how many times faster than one GPU it is for as many images: measured and predicted.

    "predicted" takes the predicted time of one GPU; "with_one" the measured one, for who has that GPU already.
    """
    found = found.assign(ape=(found["predicted_s"] / found["measured_s"] - 1).abs())
    keys = [found[key] for key in ("gpu", "mode", "dtype", "model")]
    one = {
        name: found[name].where(found["gpus"] == 1).groupby(keys).transform("max")
        for name in ("measured_s", "predicted_s")
    }
    found["measured"] = found["gpus"] * one["measured_s"] / found["measured_s"]
    found["predicted"] = found["gpus"] * one["predicted_s"] / found["predicted_s"]
    found["with_one"] = found["gpus"] * one["measured_s"] / found["predicted_s"]
    found["odd"] = (found["gpu"] == "nvidia-titan-xp") & (found["gpus"] == 4) & (found["dtype"] == "float32")
    return found


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """One line a GPU, mode and number of GPUs; then all of several GPUs, and these without the odd ones.

    Odd are four TITAN Xp in fp32: every network, those that only the CPU limits too, takes two to three times as long
    as in fp16 on the same four, and as on three in fp32.
    """
    several = found[found["gpus"] > 1]
    parts = [*found.groupby(["gpu", "mode", "gpus"])]
    parts += [
        (("all", "2 to 4 GPUs", ""), several),
        (("all", "without four TITAN Xp in fp32", ""), several[~several["odd"]]),
    ]
    return pd.DataFrame([_line(name, part) for name, part in parts])


def _line(name: Any, part: pd.DataFrame) -> dict[str, Any]:
    clear = part[(part["measured"] - 1).abs() > 0.1]

    def right(rows: pd.DataFrame, verdict: str) -> float:
        return 100 * float(((rows["measured"] > 1) == (rows[verdict] > 1)).mean())

    return {
        "gpu": name[0], "step": name[1], "gpus": name[2], "n": len(part),
        "median error %": 100 * part["ape"].median(),
        "bias %": 100 * (part["predicted_s"] / part["measured_s"] - 1).median(),
        "help, right %": right(part, "predicted"), "by > 10 %, right %": right(clear, "predicted"),
        "one measured: right %": right(part, "with_one"), "one measured, by > 10 %": right(clear, "with_one"),
        "n by > 10 %": len(clear), "measured help %": 100 * (part["measured"] > 1).mean(),
    }  # fmt: skip


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", type=int, default=100, help="at most so many, by a hash of their names")
    parser.add_argument("--peers", choices=["yes", "no"], help="another assumption for both cards")
    parser.add_argument("--hosts", action="store_true", help="find the hosts anew, and stop")
    parser.add_argument("--rows", type=Path, help="also writes all rows as a CSV")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    rows = measured(options.data)
    fitted = rows["model"].map(lambda name: zlib.crc32(name.encode()) % 2 == 0)
    if options.hosts:
        print("\n".join(best_hosts(rows[fitted])))
        return
    rows = rows[~fitted]
    chosen = sorted(rows["model"].unique(), key=lambda name: zlib.crc32(name.encode()))[: options.models]
    peers = None if options.peers is None else options.peers == "yes"
    found = with_verdicts(pd.DataFrame(judge(rows[rows["model"].isin(chosen)], peers=peers)))
    if options.rows:
        found.to_csv(options.rows, index=False)
    print(summary(found).round(1).to_string(index=False))


if __name__ == "__main__":
    main()
