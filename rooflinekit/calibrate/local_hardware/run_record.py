"""What was seen of a model that ran: samples of its step, and the ops in it as a profiler saw them. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOp:
    """One call in a step, the calls that it made following it one level deeper."""

    name: str  # as the profiler says it: "aten::addmm"
    depth: int
    seconds: float  # of the device, with those of the calls that it made
    shapes: tuple[tuple[int, ...], ...] = ()  # of the tensors that it got, where they were recorded
    format: str = ""  # of the first of them, as the profiler says it: "c10::Half"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """All launches of one GPU kernel in a step."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """Samples and profile of a step on real hardware."""

    seconds: tuple[float, ...]  # of one step, by sample
    warmup: int  # steps before the first sample
    steps: int  # in each sample
    environment: Mapping[str, str]
    ops: tuple[ProfiledOp, ...] = ()  # of one step in order; none where it was not profiled
    kernels: tuple[KernelTime, ...] = ()  # on a GPU, the longest first


def median_step(steps: Sequence[tuple[ProfiledOp, ...]]) -> tuple[ProfiledOp, ...]:
    """The last step, with medians over those that made the same calls."""
    last = steps[-1]
    alike = [step for step in steps if [(op.name, op.depth) for op in step] == [(op.name, op.depth) for op in last]]
    return tuple(
        replace(ops[0], seconds=float(np.median([op.seconds for op in ops]))) for ops in zip(*alike, strict=True)
    )
