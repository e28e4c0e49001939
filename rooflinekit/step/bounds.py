"""How far a step's time may lie from its prediction: kernels that are off, and a host that is another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.hardware.host import Host

Numbers = float | NDArray[np.float64]


def bounds(
    total_s: Numbers, cpu_s: Numbers, gpu_s: Numbers, kernels_s: Numbers, spread: float, deviations: float, *,
    in_series: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """The least and the greatest time of a step at so many standard deviations, elementwise; 0 stays 0.

    kernels_s: one standard deviation of the GPU's time. spread: that of the logarithm of the host's times. Both act on
    their own, so that their logarithms add in squares. A host slower by a factor s makes the step take
    max(gpu, s·cpu) and what is left of it beside both; `in_series` gpu + s·cpu, for the CPU is the device.
    """
    positive = np.asarray(total_s) > 0
    whole = np.where(positive, total_s, 1.0)
    kernels = deviations * np.asarray(kernels_s) / whole
    slower = np.exp(deviations * spread)
    factors = []
    for s in (1 / slower, slower):
        if in_series:
            shifted = whole + (s - 1) * np.asarray(cpu_s)
        else:
            shifted = whole + np.maximum(gpu_s, s * np.asarray(cpu_s)) - np.maximum(gpu_s, cpu_s)
        host = np.log(np.maximum(shifted, 1e-3 * whole) / whole)
        factors.append(np.exp(np.hypot(kernels, host)))
    low, high = (np.where(positive, bound, 0.0) for bound in (whole / factors[0], whole * factors[1]))
    return low, high


def host_note(host: Host, cpu_s: float, total_s: float) -> str:
    """What to tell of a step whose time the CPU decides at half its pace, where no host was named; else ""."""
    if not host.stands_for_any or 2 * cpu_s < total_s:
        return ""
    return (
        f"no host named: CPU times are the middle of measured hosts, which lie a factor of {np.exp(host.spread):.1f} "
        "above and below (one standard deviation); name yours, or `rooflinekit measure --host-only`"
    )
