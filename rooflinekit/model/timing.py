"""What one kernel takes on a machine, and which of its parts the time goes to."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rooflinekit.ir.op import Math
from rooflinekit.model.energy import SECONDS, Load, is_held, limited_times
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.kernel_batch import work_of
from rooflinekit.model.machine import Machine, Rate
from rooflinekit.model.roofline import Times, choices_of, exposed_share, time_work
from rooflinekit.model.tiling import CAUSES

#: What time goes to, and what a kernel or a step is therefore bound by; see "Regimes" in docs/model.md. A kernel is
#: never bound by overhead, which is the time in which the device has no kernel to execute.
Bound = Literal["compute", "memory", "latency", "overhead"]


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


def time_kernels(
    kernels: Sequence[Kernel], machine: Machine, memo: dict[Hashable, Any] | None = None
) -> tuple[Timing, ...]:
    """The time of each kernel under the machine's limits. Where there are several algorithms, the fastest one runs.

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
    free = own = times = time_work(work, machine)
    if is_held(machine):
        own, times, _ = limited_times(work, free, machine)
    total = free.total_s  # libraries choose without regard to a limit of power
    best: dict[int, int] = {}
    for row, i in enumerate(owner):
        if i not in best or total[row] < total[best[i]]:
            best[i] = row
    overlap = float(machine.values["overlap"])
    found = [_timing(candidates[row], own, row, rate, overlap) for row in best.values()]
    if not machine.is_limited or times is own:
        return tuple(found)
    rows = enumerate(best.values())
    return tuple(replace(_timing(candidates[row], times, row, rate, overlap), unlimited=found[i]) for i, row in rows)


def time_kernel(kernel: Kernel, machine: Machine) -> Timing:
    """The time of one kernel; many are timed more quickly together."""
    return time_kernels((kernel,), machine)[0]


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


def load_of(timings: Sequence[Timing], machine: Machine) -> Load:
    """The load of these kernels, at the clock that the board gives them by itself."""
    own = [timing.unlimited or timing for timing in timings]
    columns = {name: np.array([getattr(timing, name) for timing in own], dtype=float) for name in ("ideal_s", *SECONDS)}
    return Load.of(work_of([timing.kernel for timing in own]), machine, **columns)
