"""Many predictions at once: a workload over sizes and GPUs, or a table of ops over GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.calibrate.measured_ops import check_ops
from rooflinekit.calibrate.observations import observe
from rooflinekit.errors import InputError, SizeError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.model.machine import Machine
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import Prediction, predict_graph

_BATCH = "batch"  # the size of which there is a throughput


def sweep_graph(
    graph: Graph, machines: Sequence[Machine], host: Host, execution: Execution, sizes: Mapping[str, Any]
) -> pd.DataFrame:
    """One row a machine and combination of sizes, the last size changing fastest.

    sizes: for each open size a positive integer, or a list, range or array of them. Times are seconds, `throughput` is
    the size named batch by seconds. Raises SizeError as `Graph.at` does.
    """
    lists = {name: _listed(name, given) for name, given in sizes.items()}
    rows: list[list[dict[str, Any]]] = [[] for _ in machines]
    for values in product(*lists.values()):
        at = graph.at(**dict(zip(lists, values, strict=True)))
        for found, machine in zip(rows, machines, strict=True):
            found.append(_row(predict_graph(at, machine, host, execution)))
    return pd.DataFrame([row for found in rows for row in found])


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        return [given]
    found = list(given)
    if not found:
        raise SizeError(f"size {name!r}: expected a positive integer or a list of them; got {given!r:.60}")
    return found


def _row(prediction: Prediction) -> dict[str, Any]:
    low, high = prediction.interval(0.9)
    sizes, total = prediction.sizes, prediction.total_s
    return {
        "gpu": prediction.machine.name,
        **sizes,
        "total_s": total,
        "low_s": low,
        "high_s": high,
        "gpu_s": prediction.gpu_s,
        "cpu_s": prediction.cpu_s,
        "regime": prediction.regime,
        **({"throughput": sizes[_BATCH] / total if total else np.inf} if _BATCH in sizes else {}),
        "fits": prediction.memory.fits,
        "peak_bytes": prediction.memory.peak_bytes,
    }


def sweep_table(table: pd.DataFrame, machines: Sequence[Machine]) -> pd.DataFrame:
    """The table with one more column a machine: seconds of each row's kernels, as a profiler sees them.

    table: ops as in a campaign, with columns op, dtype and the sizes. Raises InputError for what cannot be timed, and
    for a machine whose name is a column already; FormatError for arithmetic that a machine does not have.
    """
    check_ops(table)
    taken = [machine.name for machine in machines if machine.name in table]
    if taken:
        raise InputError(f"the table has a column {taken[0]!r} already; drop or rename it")
    seconds = {machine.name: np.zeros(len(table)) for machine in machines}
    numbered = table.reset_index(drop=True)
    for (op, _), rows in numbered.groupby(["op", "dtype"], sort=False):
        # `seconds` is what was measured; here nothing was.
        kernels = observe("", "", str(op), "profiler", rows.assign(seconds=np.nan))
        for machine in machines:
            seconds[machine.name][rows.index] = kernels.predict(machine, {})
    return table.assign(**seconds)
