"""The arithmetic that most of a workload is done in, and what a datasheet states for it."""

from __future__ import annotations

from collections import defaultdict

from rooflinekit.ir.op import Math
from rooflinekit.model.machine import Machine
from rooflinekit.step.prediction import Prediction


def main_format(p: Prediction) -> tuple[Math, bool]:
    """The arithmetic that most of the FLOP of products are done in, and whether the tensor core may do them.

    Of a step without products, that of most of its FLOP.
    """
    flop: dict[tuple[Math, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for timing in p.timings:
        kernel = timing.kernel
        counted = flop[kernel.math, kernel.tensor_core and bool(kernel.cost.gemms)]
        counted[0] += float(kernel.cost.matrix_flop)
        counted[1] += float(kernel.cost.flop)
    return max(flop, key=lambda key: flop[key], default=(Math.FP32, False))


def computed_in(machine: Machine, math: Math, *, tensor_core: bool) -> Math:
    """The arithmetic that this machine does it in: tf32 is allowed wherever fp32 is stored, and many have no unit."""
    if math is Math.TF32 and not (tensor_core and math.value in machine.device.matrix_peak):
        return Math.FP32
    return math


def stated_peak(machine: Machine, math: Math, *, tensor_core: bool) -> float:
    """FLOP/s that the datasheet states for what PyTorch computes this arithmetic in on this machine."""
    return machine.matrix_rate(math, tensor_core=tensor_core).peak
