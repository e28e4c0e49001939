"""KernelBench's modules, as other people timed them on eight GPUs in eager mode and five ways of compiling.

    python -m benchmarks.networks.kernelbench DATA [--share 0.2] [--level level3] [--gpu nvidia-l40s] [--mode eager]
                                          [--host unnamed] [--worst 20] [--out rows.parquet] [--each-collection]

DATA/kernelbench holds `times.parquet` and `ops.jsonl.gz`. No fit has seen a row. Times and operators are joined by the
problem's version (`problem_blob`), never by its name. A point is a problem on a GPU in a mode; where several
collections timed it, the least of their means is taken, for rented hosts differ (`--each-collection` judges each).

A call was timed between two CUDA events, and synchronized after: neither the launch latency nor the synchronization is
in it, and it takes as long as the CPU issues or the GPU computes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.networks.kernelbench_graphs import Problem, readable
from benchmarks.networks.kernelbench_page import known_hosts_tables, steady_tables, tables, worst, write_page
from benchmarks.sources.halves import in_first_half
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.tables import read_table
from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_host
from rooflinekit.ir.op import Op
from rooflinekit.step.execution import Execution

#: The collection's word for a mode, less what it appends → the mode, and how it is predicted.
_CONFIGS = {
    "torch": "eager",
    "torch_compile_inductor_default": "default",
    "torch_compile_inductor_reduce-overhead": "reduce-overhead",
    "torch_compile_inductor_max-autotune": "max-autotune",
    "torch_compile_inductor_max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
    "torch_compile_cudagraphs": "cudagraphs",
    # a collection of December 2024, which names its machines there
    **dict.fromkeys(("cleaned", "matx2", "matx3"), "eager"),
    **dict.fromkeys(("torch_compile_cleaned", "torch_compile_matx2", "torch_compile_matx3"), "default"),
}
EXECUTIONS = {
    mode: Execution(backend=backend, sync="events")
    for mode, backend in (
        ("eager", "eager"),
        ("default", "compiled"),
        ("reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune"),
        ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs"),
        ("cudagraphs", "cudagraphs"),
    )
}
_UNNAMED = {"A6000_babel_new": "NVIDIA RTX A6000"}  # collections that leave the GPU to their name
_WAITS = 1.5  # times what the GPU takes, from which on a step waits for its host for certain
_OF_KNOWN_HOSTS = 0.3  # spread of a host of which one number is known, as of the classes of hosts
_KEY = ["blob", "gpu", "mode"]


def measured(file: Path, *, each: bool) -> pd.DataFrame:
    """A line a point (`each`: and collection): blob, gpu, mode, measured_s, how far its collections differ.

    And `scatter`, the standard deviation of the trials of the one that is taken, of their mean.
    """
    table = read_table(file)
    spelt = table["hardware"].fillna(table["collection"].map(_UNNAMED))
    names = {name: gpu_name(name) for name in spelt.dropna().unique()}
    table = table.assign(
        blob=table["problem_blob"],
        gpu=spelt.map(names),
        mode=table["config"].map(_CONFIGS),
        measured_s=table["mean_ms"] * 1e-3,
        scatter=table["std_ms"] / table["mean_ms"],
    )
    for column, what in (("gpu", "specification"), ("mode", "mode"), ("blob", "version of the problem")):
        if (lacking := table[column].isna()).any():
            print(f"left out: {lacking.sum()} rows without a {what}", file=sys.stderr)
            table = table[~lacking]
    if each:
        return table[[*_KEY, "level", "collection", "date", "measured_s", "scatter"]].assign(collections=1, apart=1.0)
    grouped = table.sort_values("measured_s").groupby(_KEY, as_index=False)
    return grouped.agg(
        level=("level", "first"),
        collections=("measured_s", "size"),
        apart=("measured_s", lambda seconds: seconds.max() / seconds.min()),
        measured_s=("measured_s", "min"),
        date=("date", "min"),
        scatter=("scatter", "first"),
    )


def operator_of(op: Op) -> str:
    """What an op is, in words: its kind; of a convolution also its dimensions and how it shares."""
    kind = op.kind.removeprefix("aten.")
    if kind != "convolution":
        return kind
    weight, groups = op.inputs[1].shape, op.attrs["groups"]
    transposed = "transposed " if op.attrs["transposed"] else ""
    channels = int(weight[0]) if op.attrs["transposed"] else int(weight[1]) * groups
    shared = "" if groups == 1 else "depthwise " if groups == channels else "grouped "
    pixel = ", one pixel" if all(int(size) == 1 for size in weight[2:]) else ""
    return f"{transposed}{shared}convolution {len(weight) - 2}d{pixel}"


def predicted_row(graph: rk.Graph, gpu: str, mode: str, host: Host | str = DEFAULT_HOST) -> dict[str, Any]:
    """What is predicted of a problem on a GPU in a mode; why not, where it cannot be."""
    try:
        found = rk.predict(graph, gpu, host=host, execution=EXECUTIONS[mode])
    except RooflinekitError as error:
        return {"unpredicted": str(error).splitlines()[0]}
    low, high = found.interval(0.9)
    seconds: Counter[str] = Counter()
    operators = {op.name: op for op in graph.ops}
    for timing in found.timings:
        op = operators.get(timing.kernel.name.partition(":")[0].partition(" ")[0])
        seconds[operator_of(op) if op else "fused"] += timing.total_s
    return {
        "predicted_s": found.total_s,
        "low_s": low,
        "high_s": high,
        "cpu_s": found.cpu_s,
        "gpu_s": found.gpu_s,
        "regime": found.regime,
        "term": max(found.terms().items(), key=lambda item: item[1])[0],
        "operator": seconds.most_common(1)[0][0] if seconds else "nothing",
    }


_SHARED: dict[str, Any] = {}  # what the copies of this process start with


def _judged(part: int) -> list[dict[str, Any]]:
    wanted, parts = _SHARED["wanted"], _SHARED["parts"]
    rows = []
    for i, (problem, graph) in enumerate(_SHARED["graphs"]):
        if i % parts == part:
            for gpu, mode in wanted[problem.blob]:
                found = predicted_row(graph, gpu, mode, _SHARED["hosts"].get(gpu, _SHARED["host"]))
                rows.append({"blob": problem.blob, "problem": problem.name, "gpu": gpu, "mode": mode, **found})
    return rows


def judge(
    points: pd.DataFrame, graphs: Iterable[tuple[Problem, rk.Graph]], host: str, hosts: Mapping[str, Host] | None = None
) -> pd.DataFrame:
    """The points with their predictions, in copies of this process: one a core. `hosts` are those of GPUs."""
    parts = os.cpu_count() or 1
    wanted = {blob: list(dict.fromkeys(zip(p["gpu"], p["mode"], strict=True))) for blob, p in points.groupby("blob")}
    ordered = [(problem, graph) for problem, graph in graphs if problem.blob in wanted]
    ordered.sort(key=lambda item: -len(item[1].priced))
    _SHARED.update(wanted=wanted, parts=parts, graphs=ordered, host=host, hosts=hosts or {})
    with ProcessPoolExecutor(parts, mp_context=get_context("fork")) as pool:
        rows = [row for rows in pool.map(_judged, range(parts)) for row in rows]
    return points.merge(pd.DataFrame(rows), on=_KEY, how="left")


def hosts_of(rows: pd.DataFrame, host: str) -> dict[str, Host]:
    """Of each GPU the host, as slow as those eager steps of half of the problems say that wait for it: one number."""
    waiting = rows[
        (rows["mode"] == "eager") & (rows["cpu_s"] > _WAITS * rows["gpu_s"]) & rows["problem"].map(in_first_half)
    ]
    base = load_host(host)
    found = {}
    for gpu, some in waiting.groupby("gpu"):
        pace = float((some["measured_s"] / some["predicted_s"]).median())
        found[str(gpu)] = base.scaled(pace, f"host-of-{gpu}").model_copy(
            update={"spread": _OF_KNOWN_HOSTS, "stands_for_any": False}
        )
    return found


def main(options: argparse.Namespace) -> None:
    """Prints the tables."""
    start = time.perf_counter()
    folder = options.data / "kernelbench"
    points = measured(folder / "times.parquet", each=options.each_collection)
    for name in ("level", "gpu", "mode"):
        if chosen := getattr(options, name):
            points = points[points[name].isin(chosen.split(","))]
    hashed = points["blob"].map(lambda blob: zlib.crc32(blob.encode()) % 1000)
    points = points[hashed < 1000 * options.share]
    unread: dict[str, str] = {}
    graphs = list(readable(folder / "ops.jsonl.gz", unread.__setitem__))
    rows = judge(points, graphs, options.host)
    described = {problem.blob for problem, _ in graphs}
    absent = rows[~rows["blob"].isin(described) & ~rows["blob"].isin(unread)]
    failed = rows[rows["blob"].isin(described) & rows["predicted_s"].isna()]
    print(f"{len(rows)} points, {rows['predicted_s'].notna().sum()} of them predicted")
    print(f"  {len(absent)} of {absent['blob'].nunique()} problems that have no list of operators")
    print(f"  {rows['blob'].isin(unread).sum()} of {len(unread)} problems whose list cannot be read")
    for reason, count in Counter([*unread.values(), *failed.get("unpredicted", pd.Series(dtype=str))]).items():
        print(f"    {count}: {reason}")
    rows = rows.dropna(subset=["predicted_s"])
    found = [*tables(rows), *steady_tables(rows)]
    if not options.each_collection and (hosts := hosts_of(rows, options.host)):
        others = [(problem, graph) for problem, graph in graphs if not in_first_half(problem.name)]
        known = judge(points, others, options.host, hosts).dropna(subset=["predicted_s"])
        found.extend(known_hosts_tables(known[known["gpu"].isin(hosts)]))
    found = [(title, table) for title, table in found if len(table)]  # no eager row, no table of them
    if options.page:
        write_page(found, options.page)
    if options.out:
        rows.to_parquet(options.out)
    with pd.option_context("display.width", 200, "display.max_rows", 200, "display.float_format", "{:.1f}".format):
        for title, table in found:
            print(f"\nby {title}\n{table.sort_values('n', ascending=False).to_string()}")
        if options.worst:
            print(f"\nworst\n{worst(rows, options.worst).to_string(float_format='{:.2f}'.format)}")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the problems, chosen by a hash of their version")
    parser.add_argument("--level", help="level1 …, with commas between")
    parser.add_argument("--gpu", help="of the specifications, with commas between")
    parser.add_argument("--mode", help=f"of {', '.join(EXECUTIONS)}, with commas between")
    parser.add_argument("--host", default=DEFAULT_HOST, help="of the specifications; by default as for who names none")
    parser.add_argument("--worst", type=int, default=0, help="how many problems to name")
    parser.add_argument("--page", type=Path, help="write the tables into this page, between its marks")
    parser.add_argument("--each-collection", action="store_true", help="every collection's time, instead of the least")
    parser.add_argument("--out", type=Path, help="rows, as parquet")
    main(parser.parse_args())
