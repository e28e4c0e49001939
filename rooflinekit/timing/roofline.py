"""The one formula: how long kernels take on a machine, and which of their parts the time goes to.

compute = products on tiles and in waves (utilization), not faster than the board's power allows (power); other
          arithmetic and special functions at their rates, beside the tensor core or added to the CUDA cores'
          products; rows and single accesses that the SMs work through (memory_system)
memory  = traffic through DRAM and L2 (memory_system)
time    = start + (compute^p + memory^p)^(1/p); what passes in kernels of its own, as transforms do, is added to that
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflinekit.hardware.device import has_dot_products
from rooflinekit.ir.op import Math
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.libraries import exists, libraries_of
from rooflinekit.timing.kernel_batch import Floats, KernelBatch
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.memory_system import accesses_s, combined, rows_s, sustained_bandwidth, traffic_s
from rooflinekit.timing.tiling import CAUSES, Rates
from rooflinekit.timing.utilization import at_power_limit_s, exponential_s, fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each kernel, as columns."""

    ideal_s: Floats  # FLOP at the datasheet's peak
    compute_s: Floats  # FLOP as the kernel gets through them
    causes_s: Floats  # [causes, kernels]: what each of tiling.CAUSES adds to that
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
    memory_s = traffic_s(work, machine)
    alone_s = np.minimum(work.alone / sustained_bandwidth(work, machine), memory_s)
    overlaps = np.zeros(count, dtype=bool)
    overlaps[rows] = rates.on_tensor_core
    special_s = exponential_s(work.special_flop, work.products, machine)
    others_s = work.vector_flop / vector_rate + special_s + work.library * machine.library_s
    found = fill(work.products, rates, np.stack((memory_s - alone_s, others_s))[:, rows], machine)

    def beside(products_s: Floats, others_s: Floats) -> Floats:
        """The tensor core works beside the CUDA cores; CUDA cores that do the products do everything in turn."""
        found = products_s + others_s
        both = overlaps & (products_s > 0) & (others_s > 0)
        found[both] = combined(products_s[both], others_s[both], machine.values["overlap"])
        return found

    in_rows_s, in_accesses_s = rows_s(work, machine), accesses_s(work, machine)

    def computed(seconds: Floats) -> Floats:
        """Seconds of arithmetic, given those of each product; the same threads do the single accesses."""
        return np.maximum(beside(work.per_kernel(seconds), others_s), in_rows_s) + in_accesses_s

    limited_s = work.per_kernel(at_power_limit_s(work.products, rates, machine))
    compute_s = np.maximum(computed(found.compute_s), limited_s)
    ideal_s, causes_s = np.zeros(0), np.zeros((0, 0))
    if explained:
        ideal_s = beside(work.per_kernel(work.products.flop / rates.peak), work.vector_flop / vector_peak + special_s)
        ideal_s = np.minimum(ideal_s, compute_s)
        levels_s = [compute_s, *(np.maximum(computed(seconds), ideal_s) for seconds in found.without_s[:causes])]
        causes_s = np.maximum(-np.diff(levels_s, axis=0), 0.0)
    memory_s = memory_s + work.per_kernel(found.extra_bytes) / sustained_bandwidth(work, machine)
    links = work.links
    return Times(
        ideal_s=links * ideal_s if explained else ideal_s,
        compute_s=links * compute_s,
        causes_s=links * causes_s if explained else causes_s,
        memory_s=links * memory_s,
        launch_s=_starts_s(work, machine) + links * work.per_kernel(found.extra_start_s),
        busy_s=links * (combined(compute_s, memory_s - alone_s, machine.values["overlap"]) + alone_s),
        alone_s=links * alone_s,
    )


def _starts_s(work: KernelBatch, machine: Machine) -> Floats:
    """Starts and barriers of each kernel; of a chain's two kernels in a link the product has the longer ramp.

    At a barrier inside a kernel all SMs wait for each other, which takes as long as a kernel that does nothing else. So
    does PyTorch's long code (`Kernel.ramps`).
    """
    value = machine.values
    ramps = np.where(work.multiplies, np.minimum(work.starts, work.links), 0.0)
    cycles = ramps * (value["product_ramp_cycles"] - value["kernel_ramp_cycles"])
    if machine.device.kind != "cpu":  # whose code comes from its caches
        cycles = cycles + work.barriers * value["kernel_ramp_cycles"]
    found: Floats = work.starts * machine.start_s + cycles / machine.clock
    return found + work.waits * value["repeat_gap"]


def _product_rates(work: KernelBatch, machine: Machine) -> Rates:
    """The rates that limit each product."""
    key, units = work.on_units()
    table = np.ones((5, 2 * len(work.math)))
    for i, (math, tensor_core) in units.items():
        rate = machine.matrix_rate(math, tensor_core=tensor_core)
        single = machine.values["single_tensor_core_share"] if rate.on_tensor_core and math is Math.FP32 else 1.0
        table[:, i] = rate.on_tensor_core, rate.peak, (rate.full or rate.peak) * rate.share, rate.limit, single
    on_tensor_core, peak, issued, limit, single = table[:, key]
    issued = np.where(on_tensor_core > 0, 1.0, _conversion(work, machine)) * issued
    # of convolutions, whose algorithms have rates of their own, these know it
    issued = np.where(work.products.of_algorithm(lambda one: not one.rate.tensor_cores), single, 1.0) * issued
    gain = machine.clock_gain
    return Rates(on_tensor_core=on_tensor_core > 0, peak=gain * peak, issued=gain * issued, limit=limit)


def _conversion(work: KernelBatch, machine: Machine) -> Floats:
    """The share of their rate that lanes keep which have no unit for a product's format: they unpack and round.

    Not so MIOpen's assembly of one pixel, whose instruction takes fp16 and sums in fp32, the gradient of a weight,
    which writes little, and Winograd in passes, whose transforms convert.
    """
    value, device = machine.values, machine.device
    converts = libraries_of(device).unpacks_half and not has_dot_products(device)
    emulated = value["emulated_half"]
    shares = {Math.BF16: emulated, Math.FP16: emulated if converts else 1.0}
    found = np.array([shares.get(math, 1.0) for math in work.math])[work.arithmetic[work.products.kernel]]
    found = found * np.where(work.products.of_algorithm(lambda one: one.tuned), 1.0, value["untuned_bf16"])
    return np.where(work.products.of_algorithm(lambda one: one.converts), found, 1.0)


def _vector_rates(work: KernelBatch, machine: Machine) -> tuple[Floats, Floats]:
    """Peak and sustained rate of arithmetic outside products, by kernel."""
    rates = [machine.vector_rate(math) for math in work.math]
    peak, sustained = (machine.clock_gain * np.array([(rate.peak, rate.sustained) for rate in rates])).T
    return peak[work.arithmetic], sustained[work.arithmetic]


def exposed_share(compute_s: Any, busy_s: Any, overlap: float) -> Any:
    """The share of arithmetic that traffic does not hide, of a kernel or of columns of them.

    The derivative of the norm busy = (compute^p + memory^p)^(1/p) by compute. By Euler's theorem the two derivatives,
    each times its own time, add up to busy.

    >>> float(exposed_share(3.0, 5.0, 2.0)), float(exposed_share(4.0, 5.0, 2.0))  # 3² + 4² = 5²
    (0.6, 0.8)
    """
    if isinstance(busy_s, float):  # a prediction asks for each of its kernels
        return min(compute_s / busy_s, 1.0) ** (overlap - 1) if busy_s > 0 else 0.0
    ratio = np.divide(compute_s, busy_s, out=np.zeros(np.shape(busy_s)), where=np.asarray(busy_s) > 0)
    return np.minimum(ratio, 1.0) ** (overlap - 1)


def choices_of(kernel: Kernel, machine: Machine) -> tuple[Kernel, ...]:
    """The algorithms of a kernel that come into question on a machine, at least one."""
    if not kernel.alternatives:
        return (kernel,)
    return tuple(k for k in (kernel, *kernel.alternatives) if exists(k.algorithm, k.math, machine.device)) or (kernel,)
