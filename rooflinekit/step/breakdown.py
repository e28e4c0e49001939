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
    spans: Sequence[Span], total_s: float, name: str, key: Callable[[Timing], str], joules: Sequence[float] = (),
    idle_w: float = 0.0,
) -> pd.DataFrame:  # fmt: skip
    """One row a group of kernels, the longest first; `total_s` includes the GPU's waits before them.

    joules: of each kernel and the wait before it, in which `idle_w` is drawn, for the columns energy_j, power_w (mean,
    waits included) and peak_w (of the kernel that draws most while it runs).

    What belongs to no kernel stands in none: copies of inputs before the first, synchronization after the last.
    """
    import pandas as pd

    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for i, span in enumerate(spans):
        timing = span.timing
        row = rows[key(timing)]
        if joules:
            row["energy_j"] += joules[i]
            own_w = (joules[i] - idle_w * span.waited_s) / timing.total_s if timing.total_s else idle_w
            row["peak_w"] = max(row["peak_w"], own_w)
        row["kernels"] += 1
        row["total_s"] += timing.total_s + span.waited_s
        row["gpu_s"] += timing.total_s
        for term, seconds in timing.terms().items():
            row[f"{term}_s"] += seconds
        row["overhead_s"] += span.waited_s
        row["flop"] += float(timing.kernel.cost.flop)
        row["bytes"] += float(timing.kernel.bytes)
    columns = ["kernels", "total_s", "gpu_s", *(f"{term}_s" for term in KERNEL_TERMS), "flop", "bytes"]
    columns += ["energy_j", "peak_w"] if joules else []
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype({"kernels": int})
    table.insert(1, "share", table["total_s"] / total_s if total_s else 0.0)
    if joules:
        table["power_w"] = (table["energy_j"] / table["total_s"]).where(table["total_s"] > 0, idle_w)
        table["peak_w"] = table.pop("peak_w")  # behind the mean
    table.index.name = name
    return table.sort_values("total_s", ascending=False, kind="stable")
