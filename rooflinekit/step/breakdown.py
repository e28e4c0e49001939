"""The time of a step by module, kind, phase or kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rooflinekit.model.roofline import Timing
from rooflinekit.step.timeline import Span

if TYPE_CHECKING:
    import pandas as pd

#: Of kernels and of the waits before them.
KERNEL_TERMS = ("ideal", "underuse", "memory", "launch", "overhead")


def grouped(
    spans: Sequence[Span], total_s: float, name: str, key: Callable[[Timing], str], joules: Sequence[float] = ()
) -> pd.DataFrame:
    """One row a group of kernels, the longest first; `total_s` includes the GPU's waits before them.

    joules: of each kernel and the wait before it, for a column `energy_j`.

    What belongs to no kernel stands in none: copies of inputs before the first, synchronization after the last.
    """
    import pandas as pd

    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for i, span in enumerate(spans):
        timing = span.timing
        row = rows[key(timing)]
        row["energy_j"] += joules[i] if joules else 0.0
        row["kernels"] += 1
        row["total_s"] += timing.total_s + span.waited_s
        row["gpu_s"] += timing.total_s
        for term, seconds in timing.terms().items():
            row[f"{term}_s"] += seconds
        row["overhead_s"] += span.waited_s
        row["flop"] += float(timing.kernel.cost.flop)
        row["bytes"] += float(timing.kernel.cost.bytes)
    columns = ["kernels", "total_s", "gpu_s", *(f"{term}_s" for term in KERNEL_TERMS), "flop", "bytes"]
    columns += ["energy_j"] if joules else []
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype({"kernels": int})
    table.insert(1, "share", table["total_s"] / total_s if total_s else 0.0)
    table.index.name = name
    return table.sort_values("total_s", ascending=False, kind="stable")
