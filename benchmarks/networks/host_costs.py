"""What issuing costs a host, fitted on the steps of KernelBench that the CPU decides; how far its hosts lie apart.

    python -m benchmarks.networks.host_costs DATA

No measurement of an op tells these: they are fitted on whole steps, on the problems of one half by a hash of the
problem's name, and judged on the other half. A step's time is the host's factor times the sum over what the CPU does of
a cost that all hosts share.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

import rooflinekit as rk
from benchmarks.networks.kernelbench import EXECUTIONS, measured
from benchmarks.networks.kernelbench_graphs import readable
from benchmarks.sources.halves import in_first_half
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_host
from rooflinekit.kernels.fusion import is_fused
from rooflinekit.kernels.recurrence import RECURRENT
from rooflinekit.step.entry import changed_inputs, issues_for
from rooflinekit.step.execution import Execution

_BOUND = 0.4  # of the time that is measured, at most, by the GPU's prediction: then the CPU decides
_SLOWEST = 3.5  # times generic-server's CPU, at most: what takes longer waits for a GPU that is predicted too fast
_PRIOR, _SCALE_PRIOR = 0.5, 1.5  # standard deviations of the logarithms
_LOSS = 0.15
_CALLED = "called: "  # of a library, from inductor's wrapper


def cost_of(host: Host, name: str) -> float:
    """What a host has for a cost that the fit looks for, in seconds."""
    if name.startswith(_CALLED):
        return host.compiled_call * host.dispatch_s(name.removeprefix(_CALLED))
    parts = ("module", "launch", "record", "compiled_launch", "guards", "guard", "graph_entry")
    return float(getattr(host, name)) if name in parts else host.dispatch_s(name)


def work_of(graph: rk.Graph, gpu: rk.Device, execution: Execution) -> Counter[str]:
    """How often a step pays each of the costs."""
    found: Counter[str] = Counter()
    for issue in issues_for(graph, gpu, execution):
        if execution.as_graph and not issue.op.kind.startswith("aten._foreach_copy"):
            continue
        found["launch"] += max(0, len(issue.kernels) - 1)
        if execution.fused and is_fused(issue):
            found["compiled_launch"] += 1
            continue
        found[(_CALLED if execution.entered else "") + issue.family.value] += 1
        found["module"] += 0 if execution.entered else issue.calls
    if execution.entered:
        found["guards"] += 1
        found["guard"] += len(graph.weights) + len(graph.inputs)
    if execution.as_graph:
        found["graph_entry"] += 1
    found["record"] += 1
    return found


def rows(data: Path, host: Host) -> Iterator[dict[str, object]]:
    """Each collection's time of a call that the CPU decides, with its work."""
    points = measured(data / "kernelbench" / "times.parquet", each=True)
    by_blob = dict(iter(points.groupby("blob")))
    for problem, graph in readable(data / "kernelbench" / "ops.jsonl.gz", lambda blob, why: print(blob, why)):
        if any(op.kind in RECURRENT for op in graph.ops):
            continue  # their chains of kernels wait for the CPU in a way of their own
        for (gpu, mode), some in by_blob.get(problem.blob, points[:0]).groupby(["gpu", "mode"]):
            execution = EXECUTIONS[mode]
            if mode == "cudagraphs" and changed_inputs(graph):
                continue  # runs op by op
            found = rk.predict(graph, gpu, host=host, execution=execution)
            fixed_s = host.launch + host.graph_launch if execution.as_graph else 0.0
            work = work_of(graph, rk.load_device(gpu), execution)
            for row in some.itertuples():
                if found.gpu_s < _BOUND * row.measured_s < _BOUND * _SLOWEST * found.cpu_s:
                    yield {"host": row.collection, "mode": mode, "problem": problem.name, "s": row.measured_s,
                           "fixed_s": fixed_s, "work": work}  # fmt: skip


def fit(table: pd.DataFrame, host: Host, names: list[str]) -> tuple[np.ndarray, pd.Series]:
    """Costs by name, and each host's factor."""
    start = np.log([cost_of(host, name) for name in names])
    work = np.array([[w[name] for name in names] for w in table["work"]])
    hosts = sorted(table["host"].unique())
    index = table["host"].map(hosts.index).to_numpy()
    fixed_s, seconds = table["fixed_s"].to_numpy(), table["s"].to_numpy()

    def residuals(p: np.ndarray) -> np.ndarray:
        costs, factors = np.exp(p[: len(names)]), np.exp(p[len(names) :])
        log = np.log(factors[index] * (work @ costs + fixed_s) / seconds)
        return np.concatenate(
            [weights * log, _LOSS * (p[: len(names)] - start) / _PRIOR, _LOSS * p[len(names) :] / _SCALE_PRIOR]
        )

    # a problem of many versions and hosts weighs as much as three of its rows
    weights = np.sqrt(3 / np.maximum(3, table.groupby("problem")["s"].transform("size").to_numpy()))
    first = np.concatenate([start, np.zeros(len(hosts))])
    p = least_squares(residuals, first, loss="soft_l1", f_scale=_LOSS).x
    return np.exp(p[: len(names)]), pd.Series(np.exp(p[len(names) :]), index=hosts)


def errors(table: pd.DataFrame, names: list[str], costs: np.ndarray, factors: pd.Series) -> pd.Series:
    """|predicted / measured - 1| of each row."""
    work = np.array([[w[name] for name in names] for w in table["work"]])
    predicted = table["host"].map(factors).to_numpy() * (work @ costs + table["fixed_s"].to_numpy())
    return pd.Series(np.abs(predicted / table["s"].to_numpy() - 1), index=table.index)


def main(data: Path) -> None:
    """Prints the costs, the hosts, and how far they are off."""
    base = load_host("generic-server")
    table = pd.DataFrame(rows(data, base))
    half = table["problem"].map(in_first_half).to_numpy()
    names = sorted({name for work in table["work"] for name in work if work[name]})
    print(f"{len(table)} calls that the CPU decides, {half.sum()} of them fitted on")
    costs, factors = fit(table[half], base, names)
    now = np.array([cost_of(base, name) for name in names])
    judged = table[~half]
    print(pd.DataFrame({"µs": 1e6 * costs, "generic-server, µs": 1e6 * now}, index=names).round(2).to_string())
    of_base = table["s"] / (np.array([[w[n] for n in names] for w in table["work"]]) @ now + table["fixed_s"])
    of_base = of_base.groupby(table["host"]).median()
    shown = pd.DataFrame({"fitted": factors, "of generic-server as it is": of_base}).round(2)
    print(f"\nfactors of hosts, of the fitted costs and of generic-server's:\n{shown.to_string()}")
    logs = np.log(of_base)
    print(f"middle {np.exp(logs.mean()):.2f}, standard deviation of the logarithm {logs.std():.2f}")
    known = judged[judged["host"].isin(factors.index)]
    off = errors(known, names, costs, factors)
    print(f"\nother half: median {100 * off.median():.1f} %, with generic-server's costs "
          f"{100 * errors(known, names, now, factors).median():.1f} %")  # fmt: skip
    print((100 * off.groupby(known["mode"]).median()).round(1).to_string())
    print("\nwithout a cost, the others fitted anew: median % on the other half, on the rows that pay it")
    for name in names:
        rest = [other for other in names if other != name]
        without, theirs = fit(table[half], base, rest)
        pays = known[[bool(work[name]) for work in known["work"]]]
        before = errors(pays, names, costs, factors).median()
        print(
            f"  {name:22s} {100 * before:5.1f} with, {100 * errors(pays, rest, without, theirs).median():5.1f} without"
        )
    left = []
    for host in factors.index:
        others, _ = fit(table[half & (table["host"] != host)], base, names)
        mine = table[table["host"] == host]
        ratio = mine["s"] / (np.array([[w[n] for n in names] for w in mine["work"]]) @ others + mine["fixed_s"])
        left.append(float((ratio / ratio.median() - 1).abs().median()))
    print(f"each host left out, its factor alone from its rows: median {100 * np.median(left):.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    main(parser.parse_args().data)
