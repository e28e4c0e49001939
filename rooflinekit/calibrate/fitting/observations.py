"""Measurements ready to be predicted: campaigns → work, with what the way of timing adds to the kernel."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.cases import candidates
from rooflinekit.calibrate.campaigns.columns import Candidates
from rooflinekit.calibrate.campaigns.convolutions import CONVOLUTIONS
from rooflinekit.calibrate.campaigns.measured_ops import OPS
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import device_names, load_device
from rooflinekit.ir.tensor import Math
from rooflinekit.model.algorithms import MIOPEN
from rooflinekit.model.families import MIOPEN_FAMILY, SERVED, UNUSUAL, by_miopen, in_format
from rooflinekit.model.libraries import rated_as
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import time_work
from rooflinekit.model.work import Floats

#: The constant that stands for the gap before a kernel, by the way of timing; a profiler sees none.
_GAPS = {"graph": "kernel_gap_graph", "backend": "kernel_gap_graph", "event": "kernel_gap"}

#: How sharply a board wakes up, as a power of the time: equal solvers on RX 6800 XT and MI60, and on Vega 56 and 64.
_WAKING = 3.0

#: Ops that are off by themselves, not with the others of their family.
_APART = {
    "mm_quantized": "product",
    "mm_nvfp4": "four-bit product",  # of an input in 16 bits, which `dtype` says
    "bmm": "batched product",
    "quantize": SERVED["serving.scale_to_eight_bits"],  # a serving library's kernels, as model.families has them
    "llm_norm": SERVED["serving.rms_norm"],
    "llm_act": SERVED["serving.gated_activation"],
    "llm_gelu": SERVED["serving.activation"],
    "llm_rope": SERVED["serving.rope_and_cache"],
    "conv_bwd_data": "convolution gradient",
    "conv_bwd_weight": "convolution weight gradient",
}

#: Faster than this share of the datasheet's roofline, a measurement is taken for a fault of the measurement.
_POSSIBLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Measurements of one op on one GPU, timed in one way on one host."""

    gpu: str
    host: str  # machine and harness behind it: the same for all measurements of one source on one GPU
    op: str
    family: str
    residuals: str  # the family that its residuals are of: as model.families
    timing: str
    candidates: Candidates
    rows: pd.DataFrame
    seconds: Floats
    calls: float = float("inf")  # that were timed in a row
    warm_calls: float = 0.0  # before those, after a rest
    tuned: bool = False  # see Campaign

    def __len__(self) -> int:
        return len(self.seconds)

    def predict(self, machine: Machine, harness: Mapping[str, float]) -> Floats:
        """Seconds as this way of timing would measure them.

        harness: `dispatch` and `after`, the CPU's seconds before the launch and from there to the closing event;
        `dispatch:OP`, how much more the op takes than an addition; `backend`, what a library does around a kernel;
        `slow` and `awake`: by how much a board that wakes up is slower, and seconds after which it no longer is.
        """
        gap = _GAPS.get(self.timing)
        values = {**machine.values, "kernel_gap": machine.values[gap] if gap else 0.0}
        values |= {"untuned_bf16": 1.0} if self.tuned else {}
        burst = machine.burst or self.timing == "rested"
        gapped = replace(machine, values=values, calls=self.calls, warm_calls=self.warm_calls, burst=burst)
        best: Floats = np.full(len(self), np.inf)
        for works, possible in self.candidates:
            total = sum((time_work(work, gapped, explained=False).total_s for work in works), start=np.zeros(len(self)))
            best = np.minimum(best, total if possible is None else np.where(possible, total, np.inf))
        if self.timing == "event":
            before = harness["dispatch"] * harness.get(f"dispatch:{self.op}", 1.0)
            best = before + np.maximum(best, harness["after"])
        elif self.timing == "backend":
            best = best + harness["backend"]
        elif self.timing == "alone":
            best = best * harness["slow"] ** _asleep(best * harness["slow"] / harness["awake"])
        return best

    def taken(self, chosen: np.ndarray) -> Observations:
        """Some of the measurements."""
        found = observe(self.gpu, self.host, self.op, self.timing, self.rows[chosen])
        return replace(found, calls=self.calls, warm_calls=self.warm_calls, tuned=self.tuned)


def _asleep(share: Floats) -> Floats:
    """How much of its slowness, as a logarithm, a board keeps through so much of the time that it takes to wake up."""
    found: Floats = 1 / (1 + share**_WAKING)
    return found


def observe(gpu: str, host: str, op: str, timing: str, rows: pd.DataFrame) -> Observations:
    """Measurements of one op, their work counted."""
    rows = rows.reset_index(drop=True)
    return Observations(
        gpu=gpu,
        host=host,
        op=op,
        family=_family(gpu, op),
        residuals=_residuals(gpu, op, rows),
        timing=timing,
        candidates=candidates(op, rows, _device(gpu) if op in CONVOLUTIONS else None),
        rows=rows,
        seconds=rows["seconds"].to_numpy(dtype=float),
    )


def _residuals(gpu: str, op: str, rows: pd.DataFrame) -> str:
    family = _APART.get(op, OPS[op].family)
    if op in CONVOLUTIONS and _family(gpu, op) == MIOPEN_FAMILY:
        device = _device(gpu)
        return by_miopen(device, Math(rows["dtype"].iloc[0])) if device and len(rows) else MIOPEN_FAMILY
    if op in CONVOLUTIONS and len(rows) and _unusual(rows).all():
        family = UNUSUAL
    if family == "attention" and rows["s"].eq(1).all():
        family = "decoding"
    return in_format(family, Math(rows["dtype"].iloc[0])) if len(rows) else family


def _family(gpu: str, op: str) -> str:
    """Of ops that behave alike: convolutions by the library that runs them."""
    device = _device(gpu) if op in CONVOLUTIONS else None
    return MIOPEN_FAMILY if device is not None and rated_as(device) == MIOPEN else OPS[op].family


@functools.cache
def _device(gpu: str) -> Device | None:
    """Its specification; None where there is none of this name."""
    return load_device(gpu) if gpu in device_names() else None


def observations_of(campaigns: Iterable[Campaign]) -> list[Observations]:
    """Every op of every campaign on its own."""
    return [
        replace(
            observe(c.gpu, f"{c.gpu} {c.source.split(' ')[0]}", str(op), c.timing, rows),
            calls=c.calls,
            warm_calls=c.warm_calls,
            tuned=c.tuned,
        )
        for c in campaigns
        for (op, _), same in c.rows.groupby(["op", "dtype"], sort=True)
        for rows in _alike(c.gpu, str(op), same)
    ]


def _alike(gpu: str, op: str, rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows whose residuals are kept under one name."""
    if op not in CONVOLUTIONS or _family(gpu, op) == MIOPEN_FAMILY:
        return [rows]
    unusual = _unusual(rows)
    return [part for part in (rows[~unusual], rows[unusual]) if len(part)]


def _unusual(rows: pd.DataFrame) -> pd.Series:
    """Of convolutions: whether they are in three dimensions, or dilated."""
    dilated = [rows[name].fillna(1) > 1 for name in ("dilation_h", "dilation_w", "dilation_depth") if name in rows]
    deep = rows["depth"].fillna(0) > 0 if "depth" in rows else pd.Series(False, index=rows.index)
    return functools.reduce(operator.or_, dilated, deep)


def without_faults(found: Observations, machine: Machine) -> Observations:
    """Without measurements that no GPU with this datasheet can have made."""
    if found.op in CONVOLUTIONS:  # algorithms exist that take fewer FLOP than the direct one
        return found
    works, _ = found.candidates[0]
    least = sum((time_work(work, machine).ideal_s for work in works), start=np.zeros(len(found)))
    return found.taken(found.seconds > _POSSIBLE * least)
