"""What was seen of a model that ran: samples of its step, and the ops in it as a profiler saw them. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOp:
    """One call in a step, the calls that it made following it one level deeper."""

    name: str  # as the profiler says it: "aten::addmm"
    depth: int
    seconds: float  # of the device, with those of the calls that it made


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
