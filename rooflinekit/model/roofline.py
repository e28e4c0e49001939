"""The one formula: how long kernels take on a machine, and which of their parts the time goes to.

compute = products on tiles and in waves (utilization), not faster than the board's power allows (power); other
          arithmetic and special functions at their rates, beside the tensor core or added to the CUDA cores'
          products; rows and single accesses that the SMs work through (memory_system)
memory  = traffic through DRAM and L2 (memory_system)
time    = start + (compute^p + memory^p)^(1/p); what passes in kernels of its own, as transforms do, is added to that
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rooflinekit.ir.op import Math
from rooflinekit.model.convolution import exists
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.kernel_batch import Floats, KernelBatch, work_of
from rooflinekit.model.machine import Machine, Rate, has_dot_products
from rooflinekit.model.memory_system import accesses_s, combined, rows_s, sustained_bandwidth, traffic_s
from rooflinekit.model.tiling import CAUSES, Rates
from rooflinekit.model.utilization import at_power_limit_s, exponential_s, fill

#: What time goes to, and what a kernel or a step is therefore bound by; see "Regimes" in docs/model.md. A kernel is
#: never bound by overhead, which is the time in which the device has no kernel to execute.
Bound = Literal["compute", "memory", "latency", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each kernel, as columns."""

    ideal_s: Floats  # FLOP at the datasheet's peak
    compute_s: Floats  # FLOP as the kernel gets through them
    causes_s: Floats  # [causes, kernels]: what each of utilization.CAUSES adds to that
    memory_s: Floats  # traffic at the sustained bandwidth
    launch_s: Floats  # start, and the gap before it
    busy_s: Floats  # compute and memory, as far as they hide each other
    alone_s: Floats  # of the traffic, what hides no arithmetic

    @property
    def total_s(self) -> Floats:
        """Time on the device."""
        return self.launch_s + self.busy_s


def time_work(work: KernelBatch, machine: Machine, *, explained: bool = True, causes: int = len(CAUSES)) -> Times:
    """The time of every kernel. Raises FormatError for arithmetic that the device does not have.

    explained: whether ideal_s and causes_s are wanted; they are empty otherwise, which is quicker. causes: how many of
    the causes, from the first.
    """
    rows, count = work.products.kernel, len(work)
    rates = _product_rates(work, machine)
    vector_peak, vector_rate = _vector_rates(work, machine)

    def per_kernel(values: Floats) -> Floats:
        return np.bincount(rows, weights=values, minlength=count).astype(float)

    memory_s = traffic_s(work, machine)
    alone_s = np.minimum(work.alone / sustained_bandwidth(work, machine), memory_s)
    found = fill(work.products, rates, (memory_s - alone_s)[rows], machine)
    overlaps = np.zeros(count, dtype=bool)
    overlaps[rows] = rates.on_tensor_core
    special_s = exponential_s(work.special_flop, work.products, machine)

    def beside(products_s: Floats, others_s: Floats) -> Floats:
        """The tensor core works beside the CUDA cores; CUDA cores that do the products do everything in turn."""
        found = products_s + others_s
        both = overlaps & (products_s > 0) & (others_s > 0)
        found[both] = combined(products_s[both], others_s[both], machine)
        return found

    others_s = work.vector_flop / vector_rate + special_s + work.powers * machine.power_s
    in_rows_s, in_accesses_s = rows_s(work, machine), accesses_s(work, machine)

    def computed(seconds: Floats) -> Floats:
        """With so many seconds of each product; single accesses are of the threads that do the arithmetic."""
        return np.maximum(beside(per_kernel(seconds), others_s), in_rows_s) + in_accesses_s

    limited_s = per_kernel(at_power_limit_s(work.products, rates, machine))
    compute_s = np.maximum(computed(found.compute_s), limited_s)
    ideal_s, causes_s = np.zeros(0), np.zeros((0, 0))
    if explained:
        ideal_s = beside(per_kernel(work.products.flop / rates.peak), work.vector_flop / vector_peak + special_s)
        ideal_s = np.minimum(ideal_s, compute_s)
        levels_s = [compute_s, *(np.maximum(computed(seconds), ideal_s) for seconds in found.without_s[:causes])]
        causes_s = np.maximum(-np.diff(levels_s, axis=0), 0.0)
    memory_s = memory_s + per_kernel(found.extra_bytes) / sustained_bandwidth(work, machine)
    links = work.links
    return Times(
        ideal_s=links * ideal_s if explained else ideal_s,
        compute_s=links * compute_s,
        causes_s=links * causes_s if explained else causes_s,
        memory_s=links * memory_s,
        launch_s=_starts_s(work, machine) + links * per_kernel(found.extra_start_s),
        busy_s=links * (combined(compute_s, memory_s - alone_s, machine) + alone_s),
        alone_s=links * alone_s,
    )


def _starts_s(work: KernelBatch, machine: Machine) -> Floats:
    """Starts and barriers of each kernel; of a chain's two kernels in a link the product has the longer ramp."""
    multiplies = np.bincount(work.products.kernel, minlength=len(work)) > 0
    ramps = np.where(multiplies, np.minimum(work.starts, work.links), 0.0)
    found: Floats = work.starts * machine.start_s + ramps * machine.product_ramp_s + work.barriers * machine.barrier_s
    return found + work.waits * machine.values["repeat_gap"] + work.calls * machine.values["library_call"]


def _product_rates(work: KernelBatch, machine: Machine) -> Rates:
    """What limits each product."""
    rows = work.products.kernel
    key = 2 * work.arithmetic[rows] + work.tensor_core[rows]
    table = np.ones((5, 2 * len(work.math)))
    for i in dict.fromkeys(key.tolist()):
        math = work.math[i // 2]
        rate = machine.matrix_rate(math, tensor_core=bool(i % 2))
        single = machine.values["single_tensor_core_share"] if rate.on_tensor_core and math is Math.FP32 else 1.0
        table[:, i] = rate.on_tensor_core, rate.peak, (rate.full or rate.peak) * rate.share, rate.limit, single
    on_tensor_core, peak, issued, limit, single = table[:, key]
    issued = np.where(on_tensor_core > 0, 1.0, _conversion(work, machine)) * issued
    # of convolutions, whose algorithms have rates of their own, these know it
    issued = np.where(work.products.told(lambda one: not one.rate.tensor_cores), single, 1.0) * issued
    gain = machine.clock_gain
    return Rates(on_tensor_core=on_tensor_core > 0, peak=gain * peak, issued=gain * issued, limit=limit)


def _conversion(work: KernelBatch, machine: Machine) -> Floats:
    """The share of their rate that lanes keep which have no unit for a product's format.

    They unpack what they read and round what they write. MIOpen's kernels of one pixel do not: they are assembly, whose
    instruction takes fp16 and sums in fp32 (Vega's V_MAD_MIX_F32), and the gradient of a weight writes little. Where
    Winograd goes in passes its transforms convert.
    """
    value, converts = machine.values, machine.device.vendor == "AMD" and not has_dot_products(machine.device)
    emulated = value["emulated_half"]
    shares = {Math.BF16: emulated, Math.FP16: emulated if converts else 1.0}
    found = np.array([shares.get(math, 1.0) for math in work.math])[work.arithmetic[work.products.kernel]]
    found = found * np.where(work.products.told(lambda one: one.tuned), 1.0, value["untuned_bf16"])
    return np.where(work.products.told(lambda one: one.converts), found, 1.0)


def _vector_rates(work: KernelBatch, machine: Machine) -> tuple[Floats, Floats]:
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
    alone_s: float = 0.0  # of its traffic, what hides no arithmetic
    overlap: float = math.inf  # exponent of the norm that joins arithmetic and traffic
    unlimited: Timing | None = None  # the same at the clock that the board gives by itself, where a limit lowers it

    @property
    def total_s(self) -> float:
        """Time on the device."""
        return self.launch_s + self.busy_s

    @property
    def bound(self) -> Bound:
        """What most of its time goes to: arithmetic, traffic, or neither (latency)."""
        parts = self.parts()
        return max(parts, key=parts.__getitem__)

    def parts(self) -> dict[Bound, float]:
        """Seconds by what it waits for; they add up to `total_s`, and are its terms, put together.

        compute: FLOP at the peak, or at the clock that the board's power sustains. memory: traffic. latency: all in
        which it reaches neither of the two roofs: peak not reached, and its start.
        """
        exposed = self._exposed
        at_roof = exposed * (self.ideal_s + sum(self.causes_s[:1]))
        return {
            "compute": at_roof,
            "memory": self.busy_s - exposed * self.compute_s,
            "latency": exposed * self.compute_s - at_roof + self.launch_s,
        }

    @property
    def _exposed(self) -> float:
        """The share of its arithmetic that traffic does not hide."""
        return float(exposed_share(self.compute_s, self.busy_s - self.alone_s, self.overlap))

    def terms(self) -> dict[str, float]:
        """Non-negative parts, in seconds: FLOP at peak, peak not reached, traffic, start.

        Arithmetic and traffic hide each other in part. Each has the time that it would save, in proportion, were it a
        little shorter: as the norm is of degree one, these add up to the whole.
        """
        exposed = self._exposed
        return {
            "ideal": exposed * self.ideal_s,
            "underuse": exposed * (self.compute_s - self.ideal_s),
            "memory": self.busy_s - exposed * self.compute_s,
            "launch": self.launch_s,
        }

    def underuse_parts(self) -> dict[str, float]:
        """Why the peak is not reached: non-negative parts, in seconds, that add up to the term `underuse`.

        power: the clock that the board's power sustains. waves: SMs without a block in the last wave. tiles: what is
        computed beyond the edges of a product, whose sizes are no multiples of the tile's. These three are taken away
        in this order, each counting what it saves then. rate: the rest, by which busy units stay below their peak:
        operands, latency, rows, instructions that are no multiply-adds.
        """
        exposed = self._exposed
        parts = dict(zip(CAUSES, (exposed * seconds for seconds in self.causes_s), strict=False))
        rest = exposed * (self.compute_s - self.ideal_s) - sum(parts.values())
        return {**dict.fromkeys(CAUSES, 0.0), **parts, "rate": max(0.0, rest)}  # below 0 by rounding alone


def exposed_share(compute_s: Any, busy_s: Any, overlap: float) -> Any:
    """The share of arithmetic that traffic does not hide, of a kernel or of columns of them.

    The derivative of the norm busy = (compute^p + memory^p)^(1/p) by compute. By Euler's theorem the two derivatives,
    each times its own time, add up to busy.

    >>> float(exposed_share(3.0, 5.0, 2.0)), float(exposed_share(4.0, 5.0, 2.0))  # 3² + 4² = 5²
    (0.6, 0.8)
    """
    ratio = np.divide(compute_s, busy_s, out=np.zeros(np.shape(busy_s)), where=np.asarray(busy_s) > 0)
    return np.minimum(ratio, 1.0) ** (overlap - 1)


def time_kernels(
    kernels: Sequence[Kernel], machine: Machine, memo: dict[Hashable, Any] | None = None
) -> tuple[Timing, ...]:
    """The time of each kernel. Where there are several algorithms, the fastest one runs.

    memo: of these very kernels, what holds on other machines too.

    Raises FormatError for arithmetic that the device does not have.
    """

    @functools.cache
    def rate(math: Math, tensor_core: bool) -> Rate:
        return machine.matrix_rate(math, tensor_core=tensor_core)

    memo = {} if memo is None else memo
    chosen = tuple(choices_of(kernel, machine) for kernel in kernels)
    key = tuple(tuple(map(id, choice)) for choice in chosen)
    if key not in memo:
        candidates = [kernel for choice in chosen for kernel in choice]
        owner = [i for i, choice in enumerate(chosen) for _ in choice]
        memo[key] = candidates, owner, work_of(candidates)
    candidates, owner, work = memo[key]
    times = time_work(work, machine)
    total = times.total_s
    best: dict[int, int] = {}
    for row, i in enumerate(owner):
        if i not in best or total[row] < total[best[i]]:
            best[i] = row
    overlap = float(machine.values["overlap"])
    return tuple(_timing(candidates[row], times, row, rate, overlap) for row in best.values())


def time_kernel(kernel: Kernel, machine: Machine) -> Timing:
    """The time of one kernel; many are timed more quickly together."""
    return time_kernels((kernel,), machine)[0]


def choices_of(kernel: Kernel, machine: Machine) -> tuple[Kernel, ...]:
    """The algorithms of a kernel that come into question on a machine, at least one."""
    if not kernel.alternatives:
        return (kernel,)
    return tuple(k for k in (kernel, *kernel.alternatives) if exists(k.algorithm, k.math, machine.device)) or (kernel,)


_Rates = Callable[[Math, bool], Rate]  # that of an arithmetic, and whether the tensor core may do it


def _timing(kernel: Kernel, times: Times, row: int, rate: _Rates, overlap: float) -> Timing:
    # tf32 stands for "fp32 tensors, tf32 allowed": without the unit there is nothing to report.
    reported = kernel.cost.gemms and kernel.math is not Math.TF32
    return Timing(
        kernel=kernel,
        ideal_s=float(times.ideal_s[row]),
        compute_s=float(times.compute_s[row]),
        memory_s=float(times.memory_s[row]),
        launch_s=float(times.launch_s[row]),
        busy_s=float(times.busy_s[row]),
        alone_s=float(times.alone_s[row]),
        causes_s=tuple(times.causes_s[:, row].tolist()),
        note=rate(kernel.math, kernel.tensor_core).emulated if reported else "",
        overlap=overlap,
    )
