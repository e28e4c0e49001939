"""KernelBench's modules, as other people timed them on eight GPUs in eager mode and five ways of compiling.

    python benchmarks/kernelbench.py DATA [--share 0.2] [--level level3] [--gpu nvidia-l40s] [--mode eager]
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kernelbench_graphs import Problem, readable
from measured import gpu_name

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware.specs import DEFAULT_HOST
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
_LEAST = 10  # points of a line of the page
_KEY = ["blob", "gpu", "mode"]


def measured(file: Path, *, each: bool) -> pd.DataFrame:
    """A line a point (`each`: and collection): blob, gpu, mode, measured_s, and how far its collections differ."""
    table = pd.read_parquet(file)
    spelt = table["hardware"].fillna(table["collection"].map(_UNNAMED))
    names = {name: gpu_name(name) for name in spelt.dropna().unique()}
    table = table.assign(
        blob=table["problem_blob"],
        gpu=spelt.map(names),
        mode=table["config"].map(_CONFIGS),
        measured_s=table["mean_ms"] * 1e-3,
    )
    for column, what in (("gpu", "specification"), ("mode", "mode"), ("blob", "version of the problem")):
        if (lacking := table[column].isna()).any():
            print(f"left out: {lacking.sum()} rows without a {what}", file=sys.stderr)
            table = table[~lacking]
    if each:
        return table[[*_KEY, "level", "collection", "date", "measured_s"]].assign(collections=1, apart=1.0)
    grouped = table.groupby(_KEY, as_index=False)
    return grouped.agg(
        level=("level", "first"),
        collections=("measured_s", "size"),
        apart=("measured_s", lambda seconds: seconds.max() / seconds.min()),
        measured_s=("measured_s", "min"),
        date=("date", "min"),
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


def predicted_row(graph: rk.Graph, gpu: str, mode: str) -> dict[str, Any]:
    """What is predicted of a problem on a GPU in a mode; why not, where it cannot be."""
    try:
        found = rk.predict(graph, gpu, host=_SHARED.get("host", DEFAULT_HOST), execution=EXECUTIONS[mode])
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
                found = predicted_row(graph, gpu, mode)
                rows.append({"blob": problem.blob, "problem": problem.name, "gpu": gpu, "mode": mode, **found})
    return rows


def judge(points: pd.DataFrame, graphs: Iterable[tuple[Problem, rk.Graph]], host: str) -> pd.DataFrame:
    """The points with their predictions, in copies of this process: one a core."""
    parts = os.cpu_count() or 1
    wanted = {blob: list(dict.fromkeys(zip(p["gpu"], p["mode"], strict=True))) for blob, p in points.groupby("blob")}
    ordered = [(problem, graph) for problem, graph in graphs if problem.blob in wanted]
    ordered.sort(key=lambda item: -len(item[1].priced))
    _SHARED.update(wanted=wanted, parts=parts, graphs=ordered, host=host)
    with ProcessPoolExecutor(parts, mp_context=get_context("fork")) as pool:
        rows = [row for rows in pool.map(_judged, range(parts)) for row in rows]
    return points.merge(pd.DataFrame(rows), on=_KEY, how="left")


def summary(rows: pd.DataFrame) -> pd.Series:
    """Errors in per cent; bias is the median of predicted / measured; `held` the share inside 90 % intervals."""
    error = (rows["predicted_s"] / rows["measured_s"] - 1).abs()
    bias = (rows["predicted_s"] / rows["measured_s"]).median() - 1
    held = (rows["measured_s"] >= rows["low_s"]) & (rows["measured_s"] <= rows["high_s"])
    return pd.Series(
        {
            "n": len(rows),
            "median %": 100 * error.median(),
            "MAPE %": 100 * error.mean(),
            "p90 %": 100 * error.quantile(0.9),
            "bias %": 100 * bias,
            "held %": 100 * held.mean(),
            "width": np.sqrt(rows["high_s"] / rows["low_s"]).median(),
        }
    )


def tables(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The summary of all, by level and mode, by GPU, by what decides, and by the operator that takes most."""
    bound = np.where(rows["cpu_s"] > rows["gpu_s"], "CPU", "GPU")
    level = rows["level"].str.removeprefix("level")
    for title, by in (
        ("all", np.zeros(len(rows), int)),
        ("mode", rows["mode"]),
        ("level and mode", [level, rows["mode"]]),
        ("GPU, eager", rows["gpu"].where(rows["mode"] == "eager")),
        ("GPU, compiled", rows["gpu"].where(rows["mode"] != "eager")),
        ("mode and which side takes longer", [rows["mode"], bound]),
        ("operator that takes most, eager", rows["operator"].where(rows["mode"] == "eager")),
        ("operator that takes most, default", rows["operator"].where(rows["mode"] == "default")),
    ):
        yield title, rows.groupby(by)[rows.columns.tolist()].apply(summary)


def worst(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Problems and modes by the median over GPUs of |ln(predicted / measured)|."""
    log = np.log(rows["predicted_s"] / rows["measured_s"])
    named = rows.assign(log=log, us=1e6 * rows["measured_s"])
    found = named.groupby(["level", "problem", "mode"]).agg(
        n=("log", "size"), ratio=("log", lambda log: np.exp(log.median())), us=("us", "median"),
        operator=("operator", "first"), term=("term", "first"),
    )  # fmt: skip
    return found.reindex(np.log(found["ratio"]).abs().sort_values(ascending=False).index).head(count)


_BEGIN, _END = "<!-- numbers: made by `python benchmarks/kernelbench.py DATA --page", "<!-- end of numbers -->"


def write_page(rows: pd.DataFrame, page: Path) -> None:
    """The tables of a page, between its marks."""
    shown = []
    for title, table in tables(rows):
        lines = ["| " + " | ".join([title, *table.columns]) + " |", "| --- " * (1 + len(table.columns)) + "|"]
        for name, row in table[table["n"] >= _LEAST].sort_values("n", ascending=False).iterrows():
            words = "all" if title == "all" else ", ".join(name) if isinstance(name, tuple) else str(name)
            cells = [f"{row['n']:.0f}", *(f"{row[column]:.1f}" for column in table.columns[1:])]
            lines.append("| " + " | ".join([words, *cells]) + " |")
        shown.append("\n".join(lines))
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    mark, _, rest = rest.partition("\n")
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}{mark}\n\n" + "\n\n".join(shown) + f"\n\n{_END}{after}", encoding="utf-8")


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
    if options.page:
        write_page(rows, options.page)
    if options.out:
        rows.to_parquet(options.out)
    with pd.option_context("display.width", 200, "display.max_rows", 200, "display.float_format", "{:.1f}".format):
        for title, table in tables(rows):
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
