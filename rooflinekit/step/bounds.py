"""How far a step's time may lie from its prediction: kernels that are off, and a host that is another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.hardware.host import Host
from rooflinekit.ir import keyed
from rooflinekit.published.stated import SPREADS
from rooflinekit.timing.estimate import around, away
from rooflinekit.timing.families import residuals_of
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.memory_system import placed_shares
from rooflinekit.timing.timings import Timing

_KIN = 3  # GPUs that a note names
_TOLD = 0.1  # of a step
_NAMED = 0.05  # of the GPU's time: families that take less are not named in a note

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
    slower = math.exp(deviations * spread)
    hosts = tuple(by_host(whole, cpu_s, gpu_s, s, in_series=in_series) for s in (1 / slower, slower))
    return around(np.where(positive, total_s, 0.0), deviations * np.asarray(kernels_s) / whole, hosts)


def by_host(total_s: Numbers, cpu_s: Numbers, gpu_s: Numbers, s: Numbers, *, in_series: bool) -> Any:
    """By what a step of more than 0 s grows on a host slower by a factor s, in ln, elementwise; see `bounds`."""
    whole = np.asarray(total_s)
    if in_series:
        shifted = whole + (s - 1) * np.asarray(cpu_s)
    else:
        shifted = whole + np.maximum(gpu_s, s * np.asarray(cpu_s)) - np.maximum(gpu_s, cpu_s)
    return np.log(np.maximum(shifted, 1e-3 * whole) / whole)


def host_note(host: Host, whole: tuple[float, float], gpu: tuple[float, float]) -> str:
    """What to tell where no host is named and that widens the interval, else "". whole, gpu: bounds of step and GPU."""
    if not host.stands_for_any or not gpu[0] or whole[1] / whole[0] < 1.05 * gpu[1] / gpu[0]:
        return ""
    return (
        "no host is named, so the interval is wide: narrow it by --host, `rooflinekit measure --host-only` or a CUDA "
        "graph"
    )


def unmeasured(timings: Iterable[Timing], gpu_s: float, machine: Machine) -> list[str]:
    """Families of kernels that take a twentieth of the GPU's time and that nobody measured on it."""
    seconds = keyed.sums((residuals_of(timing.kernel, machine), timing.total_s) for timing in timings)
    return sorted(name for name, s in seconds.items() if name not in machine.constants.measured and s >= _NAMED * gpu_s)


def placed_share(timings: Sequence[Timing], machine: Machine) -> float:
    """The share of all memory traffic's seconds in which threads work out where elements lie; see `placed_shares`."""
    memory_s = np.array([timing.memory_s for timing in timings])
    placed_s = memory_s @ placed_shares([timing.kernel for timing in timings], machine)
    return float(placed_s / memory_s.sum()) if memory_s.any() else 0.0


def placed_note(share: float, total: float) -> str:
    """What to tell where that is a tenth of a step; "" for less. total: the share of the step that is traffic."""
    if share * total < _TOLD:
        return ""
    return (
        f"{share:.0%} of the memory traffic's time is kernels whose operands do not lie alike, such as broadcast ones: "
        "working out where each element lies takes it, and no bandwidth shortens it; torch.compile does without it"
    )


def unmeasured_note(missing: Sequence[str], machine: Machine) -> str:
    """What to tell of these families, whose constants are others'; "" for none."""
    if not missing:
        return ""
    what = f"{', '.join(missing)} kernels are not measured" if machine.constants.measured else "not measured"
    return f"{machine.name}: {what}; constants of {_owners(machine)}, wider interval"


def _owners(machine: Machine) -> str:
    """Whose constants stand in for a device's own: its architecture's other GPUs, by name, or everybody's."""
    if machine.device.kind == "cpu":
        return "other CPUs"
    kin = sorted({gpu for c in machine.constants.constants.values() for gpu in c.gpus} - {machine.device.name})
    more = f" and {len(kin) - _KIN} more" if len(kin) > _KIN else ""
    return f"its architecture ({', '.join(kin[:_KIN])}{more}) or of all GPUs" if kin else "all GPUs"


# How far whole answers are off together that are assembled from parts: programs, releases and harnesses of others.
#
# What a program does beside its kernels is known from its source at best, of one release. One number stands for it, by
# what is asked: the root of the mean square of ln(measured / predicted), the median of each source and GPU once, of
# sources of which no constant was fitted (`python -m benchmarks.ledger DATA --sources`).


#: Standard deviations of the logarithm.
SOURCES = {name: SPREADS[name].value for name in ("decoder training", "per token", "first token", "several GPUs")}


def widened(bounds: tuple[float, float], middle: float, what: str, deviations: float) -> tuple[float, float]:
    """Bounds in seconds about a prediction, with the source's part added in squares of logarithms; 0 stays 0.

    what: of SOURCES. deviations: how many standard deviations the bounds are wide.

    >>> [round(s, 4) for s in widened((1.0, 1.0), 1.0, "decoder training", 1.645)]  # exp(∓1.645·0.08)
    [0.8767, 1.1407]
    """
    return around(middle, away(middle, bounds), deviations * SOURCES[what]) if middle > 0 else bounds
