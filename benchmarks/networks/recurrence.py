"""Recurrent layers: KernelBench's LSTM and GRU on eight GPUs, and the constant of their launches.

    python -m benchmarks.networks.recurrence DATA [--mode eager]

DATA/kernelbench is read as benchmarks/networks/kernelbench.py reads it. `HANDOVER`, what a step of chains side by side
costs the CPU beyond its launches, is told by no op: it is fitted on half of the families (by a hash of their names) and
judged on the other half, and fitted without each GPU and judged on it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import rooflinekit as rk
from benchmarks.networks.kernelbench import measured, predicted_row
from benchmarks.networks.kernelbench_graphs import readable
from benchmarks.networks.kernelbench_page import summary
from benchmarks.sources.halves import in_first_half
from rooflinekit.kernels import recurrence
from rooflinekit.kernels.recurrence import RECURRENT
from rooflinekit.step.chains import without_recurrence

_TRIED = np.arange(0.0, 3.01, 0.1)


def _family(graph: rk.Graph) -> str:
    (op,) = (op for op in graph.ops if op.kind in RECURRENT)
    cell = {0: "RNN relu", 1: "RNN tanh", 2: "LSTM", 3: "GRU"}[op.attrs["mode"]]
    return f"{cell}, {op.attrs['num_layers']} layers{', two directions' * op.attrs['bidirectional']}"


def judged(folder: Path, mode: str) -> tuple[pd.DataFrame, list[rk.Graph]]:
    """A line a problem and GPU, as the constants stand; and the graph of each."""
    points = measured(folder / "times.parquet", each=False)
    points = points[points["mode"] == mode]
    rows, graphs = [], []
    for problem, graph in readable(folder / "ops.jsonl.gz", lambda *_: None):
        if not any(op.kind in RECURRENT for op in graph.ops):
            continue
        for _, point in points[points["blob"] == problem.blob].iterrows():
            rows.append({**point.to_dict(), "family": _family(graph), **predicted_row(graph, point["gpu"], mode)})
            graphs.append(graph)
    return pd.DataFrame(rows), graphs


def tried(rows: pd.DataFrame, graphs: list[rk.Graph], mode: str) -> pd.DataFrame:
    """ln(predicted / measured) of each row, a column for each value of the constant."""
    stands, found = recurrence.HANDOVER, {}
    for value in _TRIED:
        recurrence.HANDOVER = float(value)
        for graph in graphs:
            graph.memo.clear()  # the chains were made with another value
        seconds = [predicted_row(g, gpu, mode)["predicted_s"] for g, gpu in zip(graphs, rows["gpu"], strict=True)]
        found[round(float(value), 1)] = np.log(np.array(seconds) / rows["measured_s"].to_numpy())
    recurrence.HANDOVER = stands
    for graph in graphs:
        graph.memo.clear()
    return pd.DataFrame(found, index=rows.index)


def _fitted(logs: pd.DataFrame) -> float:
    return float(logs.abs().mean().idxmin())


def _told(name: str, logs: pd.DataFrame, train: pd.Series) -> None:
    value = _fitted(logs[train])
    error = np.expm1(logs.loc[~train, value]).abs().median()
    print(f"{name:40} HANDOVER {value:.1f}; median error of the other {(~train).sum()} rows {100 * error:.1f} %")


def main(options: argparse.Namespace) -> None:
    """Prints errors and fits."""
    rows, graphs = judged(options.data / "kernelbench", options.mode)
    with pd.option_context("display.width", 160, "display.float_format", "{:.1f}".format):
        for by in (lambda _: "all", "family", "gpu"):
            grouped = rows.groupby(by)[rows.columns.tolist()]
            print(f"\n{grouped.apply(summary)}")
    at_once = [
        predicted_row(without_recurrence(graph), gpu, options.mode)["predicted_s"]
        for graph, gpu in zip(graphs, rows["gpu"], strict=True)
    ]
    times = rows["measured_s"] / at_once
    print(f"\nall steps at once: {times.median():.0f} times too fast (median)")
    logs = tried(rows, graphs, options.mode)
    print(f"\nHANDOVER stands at {recurrence.HANDOVER}")
    half = rows["family"].map(in_first_half)
    print("first half:", ", ".join(sorted(set(rows["family"][half]))))
    _told("fitted on the first half", logs, half)
    _told("fitted on the second half", logs, ~half)
    for gpu in sorted(set(rows["gpu"])):
        _told(f"fitted without {gpu}", logs, rows["gpu"] != gpu)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--mode", default="eager")
    main(parser.parse_args())
