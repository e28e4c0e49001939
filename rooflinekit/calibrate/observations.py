"""Measurements ready to be predicted: campaigns → work, with what the way of timing adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaign import Campaign
from rooflinekit.calibrate.case_columns import Candidates
from rooflinekit.calibrate.cases import candidates
from rooflinekit.calibrate.measured_ops import OPS
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import time_work
from rooflinekit.model.work import Floats

#: The constant that stands for the gap before a kernel, by the way of timing; a profiler sees none.
_GAPS = {"graph": "kernel_gap_graph", "backend": "kernel_gap_graph", "event": "kernel_gap"}

#: Faster than this share of the datasheet's roofline, a measurement is taken for a fault of the measurement.
_POSSIBLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Measurements of one op on one GPU, timed in one way on one host."""

    gpu: str
    host: str  # machine and harness behind it: the same for all measurements of one source on one GPU
    op: str
    family: str
    timing: str
    candidates: Candidates
    rows: pd.DataFrame
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def predict(self, machine: Machine, harness: Mapping[str, float]) -> Floats:
        """Seconds as this way of timing would measure them.

        harness: `dispatch` and `after`, the CPU's seconds before the launch and from there to the closing event;
        `dispatch:OP`, how much more the op takes than an addition; `backend`, what a library does around a kernel.
        """
        gap = _GAPS.get(self.timing)
        gapped = machine.with_values({**machine.values, "kernel_gap": machine.values[gap] if gap else 0.0})
        best: Floats = np.full(len(self), np.inf)
        for works, possible in self.candidates:
            total = sum((time_work(work, gapped, explained=False).total_s for work in works), start=np.zeros(len(self)))
            best = np.minimum(best, total if possible is None else np.where(possible, total, np.inf))
        if self.timing == "event":
            before = harness["dispatch"] * harness.get(f"dispatch:{self.op}", 1.0)
            best = before + np.maximum(best, harness["after"])
        elif self.timing == "backend":
            best = best + harness["backend"]
        return best

    def taken(self, chosen: np.ndarray) -> Observations:
        """Some of the measurements."""
        return observe(self.gpu, self.host, self.op, self.timing, self.rows[chosen])


def observe(gpu: str, host: str, op: str, timing: str, rows: pd.DataFrame) -> Observations:
    """Measurements of one op, their work counted."""
    rows = rows.reset_index(drop=True)
    return Observations(
        gpu=gpu,
        host=host,
        op=op,
        family=OPS[op].family,
        timing=timing,
        candidates=candidates(op, rows),
        rows=rows,
        seconds=rows["seconds"].to_numpy(dtype=float),
    )


def observations_of(campaigns: Iterable[Campaign]) -> list[Observations]:
    """Every op of every campaign on its own."""
    return [
        observe(c.gpu, f"{c.gpu} {c.source.split(' ')[0]}", str(op), c.timing, rows)
        for c in campaigns
        for (op, _), rows in c.rows.groupby(["op", "dtype"], sort=True)
    ]


def without_faults(found: Observations, machine: Machine) -> Observations:
    """Without measurements that no GPU with this datasheet can have made."""
    if found.family == "convolution":  # algorithms exist that take fewer FLOP than the direct one
        return found
    works, _ = found.candidates[0]
    least = sum((time_work(work, machine).ideal_s for work in works), start=np.zeros(len(found)))
    return found.taken(found.seconds > _POSSIBLE * least)
