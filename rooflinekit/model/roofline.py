"""The one formula: how long kernels take on a machine, and which of their parts the time goes to.

compute = products on tiles and in waves (utilization), not faster than the board's power allows (power); other
          arithmetic and special functions at their rates, beside the matrix engine or added to the vector lanes'
          products; rows and single accesses that the SMs work through (memory_system)
memory  = traffic through DRAM and L2 (memory_system)
time    = start + (compute^p + memory^p)^(1/p)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rooflinekit.ir.tensor import Math
from rooflinekit.model.columns import work_of
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.machine import Machine, Rate
from rooflinekit.model.memory_system import accesses_s, combined, rows_s, sustained_bandwidth, traffic_s
from rooflinekit.model.tiling import CAUSES, Rates
from rooflinekit.model.utilization import fill
from rooflinekit.model.work import Floats, Work

Bound = Literal["compute", "memory", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each kernel, as columns."""

    ideal_s: Floats  # FLOP at the datasheet's peak
    compute_s: Floats  # FLOP as the kernel gets through them
    causes_s: Floats  # [causes, kernels]: what each of utilization.CAUSES adds to that
    memory_s: Floats  # traffic at the sustained bandwidth
    launch_s: Floats  # start, and the gap before it
    busy_s: Floats  # compute and memory, as far as they hide each other

    @property
    def total_s(self) -> Floats:
        """Time on the device."""
        return self.launch_s + self.busy_s


def time_work(work: Work, machine: Machine, *, explained: bool = True) -> Times:
    """The time of every kernel. Raises FormatError for arithmetic that the device does not have.

    explained: whether ideal_s and causes_s are wanted; they are empty otherwise, which is quicker.
    """
    rows, count = work.products.kernel, len(work)
    rates = _product_rates(work, machine)
    vector_peak, vector_rate = _vector_rates(work, machine)

    def per_kernel(values: Floats) -> Floats:
        return np.bincount(rows, weights=values, minlength=count).astype(float)

    memory_s = traffic_s(work, machine)
    found = fill(work.products, rates, memory_s[rows], machine)
    overlaps = np.zeros(count, dtype=bool)
    overlaps[rows] = rates.on_engine
    special_s = work.special_flop / machine.special_rate

    def beside(products_s: Floats, others_s: Floats) -> Floats:
        """The matrix engine works beside the vector lanes; lanes that do the products do everything in turn."""
        return np.where(overlaps, combined(products_s, others_s, machine), products_s + others_s)

    others_s, in_rows_s, in_accesses_s = (
        work.vector_flop / vector_rate + special_s, rows_s(work, machine), accesses_s(work, machine)
    )  # fmt: skip

    def computed(seconds: Floats) -> Floats:
        """With so many seconds of each product; single accesses are of the threads that do the arithmetic."""
        return np.maximum(beside(per_kernel(seconds), others_s), in_rows_s) + in_accesses_s

    compute_s = computed(found.compute_s)
    ideal_s, causes_s = np.zeros(0), np.zeros((0, 0))
    if explained:
        ideal_s = beside(per_kernel(work.products.flop / rates.peak), work.vector_flop / vector_peak + special_s)
        ideal_s = np.minimum(ideal_s, compute_s)
        levels_s = [compute_s, *(np.maximum(computed(seconds), ideal_s) for seconds in found.without_s)]
        causes_s = np.maximum(-np.diff(levels_s, axis=0), 0.0)
    memory_s = memory_s + per_kernel(found.extra_bytes) / sustained_bandwidth(work, machine)
    ramp_s = machine.product_ramp_s * (np.bincount(rows, minlength=count) > 0)
    return Times(
        ideal_s=ideal_s,
        compute_s=compute_s,
        causes_s=causes_s,
        memory_s=memory_s,
        launch_s=machine.start_s + ramp_s + per_kernel(found.extra_start_s),
        busy_s=combined(compute_s, memory_s, machine),
    )


def _product_rates(work: Work, machine: Machine) -> Rates:
    """What limits each product."""
    rows = work.products.kernel
    key = 2 * work.arithmetic[rows] + work.engine[rows]
    table = np.ones((4, 2 * len(work.math)))
    for i in np.unique(key):
        rate = machine.matrix_rate(work.math[i // 2], engine=bool(i % 2))
        table[:, i] = rate.on_engine, rate.peak, (rate.full or rate.peak) * rate.share, rate.limit
    on_engine, peak, issued, limit = table[:, key]
    gain = machine.clock_gain
    return Rates(on_engine=on_engine > 0, peak=gain * peak, issued=gain * issued, limit=limit)


def _vector_rates(work: Work, machine: Machine) -> tuple[Floats, Floats]:
    """Peak and sustained rate of arithmetic outside products, by kernel."""
    rates = [machine.vector_rate(math) for math in work.math]
    peak, sustained = (machine.clock_gain * np.array([(rate.peak, rate.sustained) for rate in rates])).T
    return peak[work.arithmetic], sustained[work.arithmetic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A kernel's time on the device, in four parts that add up to it."""

    kernel: Kernel
    ideal_s: float  # its FLOP at the datasheet's peak
    compute_s: float  # its FLOP as it gets through them
    memory_s: float  # its traffic at the sustained bandwidth
    launch_s: float  # its start
    busy_s: float  # arithmetic and traffic, as far as they hide each other
    causes_s: tuple[float, ...] = ()  # what each of utilization.CAUSES adds to `compute_s`
    note: str = ""  # what was assumed, such as an emulated format

    @property
    def total_s(self) -> float:
        """Time on the device."""
        return self.launch_s + self.busy_s

    @property
    def bound(self) -> Bound:
        """What it waits for: arithmetic, memory, or its own start."""
        if self.launch_s > self.busy_s:
            return "overhead"
        return "compute" if self.compute_s > self.memory_s else "memory"

    def terms(self) -> dict[str, float]:
        """Non-negative parts, in seconds: FLOP at peak, peak not reached, memory beyond arithmetic, start."""
        return {
            "ideal": self.ideal_s,
            "underuse": self.compute_s - self.ideal_s,
            "memory": self.busy_s - self.compute_s,
            "launch": self.launch_s,
        }

    def underuse_parts(self) -> dict[str, float]:
        """Why the peak is not reached: non-negative parts, in seconds, that add up to the term `underuse`.

        power: the clock that the board's power sustains. waves: SMs without a block in the last wave. tiles: what is
        computed beyond the edges of a product, whose sizes are no multiples of the tile's. These three are taken away
        in this order, each counting what it saves then. rate: the rest, by which busy units stay below their peak:
        operands, latency, rows, instructions that are no multiply-adds.
        """
        parts = dict(zip(CAUSES, self.causes_s, strict=False))
        rest = self.compute_s - self.ideal_s - sum(parts.values())
        return {**dict.fromkeys(CAUSES, 0.0), **parts, "rate": max(0.0, rest)}  # below 0 by rounding alone


def time_kernels(kernels: Sequence[Kernel], machine: Machine) -> tuple[Timing, ...]:
    """The time of each kernel. Where there are several algorithms, the fastest one runs.

    Raises FormatError for arithmetic that the device does not have.
    """

    @functools.cache
    def rate(math: Math, engine: bool) -> Rate:
        return machine.matrix_rate(math, engine=engine)

    candidates: list[Kernel] = []
    owner: list[int] = []
    for i, kernel in enumerate(kernels):
        choice = (kernel, *alternatives_of(kernel, rate))
        candidates += choice
        owner += [i] * len(choice)
    times = time_work(work_of(candidates), machine)
    total = times.total_s
    best: dict[int, int] = {}
    for row, i in enumerate(owner):
        if i not in best or total[row] < total[best[i]]:
            best[i] = row
    return tuple(_timing(candidates[row], times, row, rate) for row in best.values())


def time_kernel(kernel: Kernel, machine: Machine) -> Timing:
    """The time of one kernel; many are timed more quickly together."""
    return time_kernels((kernel,), machine)[0]


_Rates = Callable[[Math, bool], Rate]  # that of an arithmetic, and whether the matrix engine may do it


def alternatives_of(kernel: Kernel, rate: _Rates) -> tuple[Kernel, ...]:
    """The kernel by other algorithms that come into question: libraries use Winograd on the vector lanes alone."""
    if not kernel.alternatives or kernel.math not in (Math.FP32, Math.TF32):
        return ()
    return () if rate(kernel.math, kernel.engine).on_engine else kernel.alternatives


def _timing(kernel: Kernel, times: Times, row: int, rate: _Rates) -> Timing:
    # tf32 stands for "fp32 tensors, tf32 allowed": without the unit there is nothing to report.
    reported = kernel.cost.gemms and kernel.math is not Math.TF32
    return Timing(
        kernel=kernel,
        ideal_s=float(times.ideal_s[row]),
        compute_s=float(times.compute_s[row]),
        memory_s=float(times.memory_s[row]),
        launch_s=float(times.launch_s[row]),
        busy_s=float(times.busy_s[row]),
        causes_s=tuple(times.causes_s[:, row].tolist()),
        note=rate(kernel.math, kernel.engine).emulated if reported else "",
    )
