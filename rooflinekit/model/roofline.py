"""The one formula: how long a kernel takes on a machine, and which of its parts the time goes to.

compute = matrix FLOP / (peak · share) and vector FLOP and special functions at their rates: the longer of the two where
          a matrix engine works beside the vector lanes, else their sum;
memory  = bytes / (bandwidth · share);
time    = start + max(compute, memory).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Literal

from rooflinekit.ir.tensor import Math
from rooflinekit.model.kernels import Kernel
from rooflinekit.model.machine import Machine, Rate

Bound = Literal["compute", "memory", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A kernel's time on the device, in four parts that add up to it."""

    kernel: Kernel
    ideal_s: float  # its FLOP at the datasheet's peak
    compute_s: float  # its FLOP at the sustained rate
    memory_s: float  # its traffic at the sustained bandwidth
    launch_s: float  # its start
    note: str = ""  # what was assumed, such as an emulated format

    @property
    def total_s(self) -> float:
        """Time on the device."""
        return self.launch_s + max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> Bound:
        """What it waits for: arithmetic, memory, or its own start."""
        if self.launch_s > max(self.compute_s, self.memory_s):
            return "overhead"
        return "compute" if self.compute_s > self.memory_s else "memory"

    def terms(self) -> dict[str, float]:
        """Non-negative parts, in seconds: FLOP at peak, peak not reached, memory beyond arithmetic, start."""
        return {
            "ideal": self.ideal_s,
            "underuse": self.compute_s - self.ideal_s,
            "memory": max(0.0, self.memory_s - self.compute_s),
            "launch": self.launch_s,
        }


def time_kernel(kernel: Kernel, machine: Machine) -> Timing:
    """The time of a kernel. Where there are two algorithms, the faster one runs.

    Raises FormatError for arithmetic that the device does not have.
    """
    rate = machine.matrix_rate(kernel.math, engine=kernel.engine) if kernel.cost.gemms else None
    direct = _time(kernel, machine, rate)
    if kernel.alternative is None or rate is None:
        return direct
    if rate.on_engine or kernel.math not in (Math.FP32, Math.TF32):
        return direct  # libraries use Winograd on the vector lanes alone
    share = machine.constants.value("winograd_share")
    winograd = _time(kernel.alternative, machine, replace(rate, share=share))
    return winograd if winograd.total_s < direct.total_s else direct


def _time(kernel: Kernel, machine: Machine, rate: Rate | None) -> Timing:
    cost = kernel.cost
    matrix_flop = float(cost.matrix_flop)
    vector_flop = float(cost.vector_flop)
    special_s = float(cost.special_flop) / machine.special_rate
    vector = machine.vector_rate(kernel.math)
    # tf32 stands for "fp32 tensors, tf32 allowed": without the unit there is nothing to report.
    note = rate.emulated if rate is not None and kernel.math is not Math.TF32 else ""
    together = max if rate is not None and rate.on_engine else operator.add
    return Timing(
        kernel=kernel,
        ideal_s=together(matrix_flop / rate.peak if rate else 0.0, vector_flop / vector.peak + special_s),
        compute_s=together(matrix_flop / rate.sustained if rate else 0.0, vector_flop / vector.sustained + special_s),
        memory_s=float(cost.bytes) / machine.sustained_bandwidth,
        launch_s=machine.kernel_start_s,
        note=note,
    )
