"""What kernels take on a machine, and which of their parts the time goes to: one prediction's, or a million's at once.

Every kernel stands as columns for each algorithm that may run it. Columns hold a number for each point of a sweep, and
a prediction is a sweep of one point.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Math
from rooflinekit.ir.points import Column, Number, Points, values_of
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.energy import SECONDS, Load, PowerLaw, drawn_under_limit, limited_times
from rooflinekit.timing.estimate import Estimate
from rooflinekit.timing.families import estimate_of, of_the_step, residuals_of, stated_family, unmodelled
from rooflinekit.timing.kernel_batch import OF_KERNEL, Floats, KernelBatch, work_of
from rooflinekit.timing.machine import Machine, Rate
from rooflinekit.timing.memory_system import combined
from rooflinekit.timing.roofline import Times, choices_of, exposed_share, time_work
from rooflinekit.timing.tiling import CAUSES

_Key = TypeVar("_Key", bound=Hashable)

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
    causes_s: tuple[float, ...] = ()  # what each of tiling.CAUSES adds to `compute_s`
    note: str = ""  # what was assumed, such as an emulated format
    alone_s: float = 0.0  # of its traffic, what hides no arithmetic
    overlap: float = math.inf  # exponent of the norm that joins arithmetic and traffic
    unlimited: Timing | None = None  # the same at the clock that the board gives by itself, where a limit lowers it

    @property
    def total_s(self) -> float:
        """Time on the device."""
        return self.launch_s + self.busy_s

    def longer_s(self, compute_s: float) -> float:
        """Seconds by which it is longer where its arithmetic takes so many, by the norm with its traffic."""
        slower, plain = combined(np.array([compute_s, self.compute_s]), np.full(2, self.memory_s), self.overlap)
        return float(slower - plain)

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
        terms, power = self.terms(), self._exposed * sum(self.causes_s[:1])
        latency = terms["underuse"] - power + terms["launch"]
        return {"compute": terms["ideal"] + power, "memory": terms["memory"], "latency": latency}

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
        parts = dict(zip(CAUSES, (self._exposed * seconds for seconds in self.causes_s), strict=False))
        rest = self.terms()["underuse"] - sum(parts.values())
        return {**dict.fromkeys(CAUSES, 0.0), **parts, "rate": max(0.0, rest)}  # below 0 by rounding alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Kernels by each algorithm that may run, with their times: [candidates · points]."""

    kernels: tuple[Kernel, ...]  # the candidates
    owner: list[int]  # whose each is: those of one kernel lie together
    work: KernelBatch
    own: Times  # at the board's own limit
    times: Times  # under the machine's
    runs: NDArray[np.bool_]  # [candidates, points] which algorithm of each kernel runs


class Timeable:
    """Kernels made ready for any machine."""

    def __init__(self, kernels: Sequence[Kernel], points: int = 1) -> None:
        self._kernels, self._points = kernels, points
        self._known: dict[Hashable, tuple[tuple[Kernel, ...], list[int], KernelBatch]] = {}

    def on(self, machine: Machine, *, causes: int = len(CAUSES)) -> Timed:
        """Their times under the machine's limits; of several algorithms the fastest one runs.

        causes: how many of CAUSES are told apart. Raises FormatError for arithmetic that the device does not have.
        """
        choices = [choices_of(kernel, machine) for kernel in self._kernels]
        key = tuple(tuple(map(id, choice)) for choice in choices)
        if key not in self._known:
            candidates = tuple(kernel for choice in choices for kernel in choice)
            owner = [i for i, choice in enumerate(choices) for _ in choice]
            self._known[key] = candidates, owner, work_of(candidates, self._points)
        kernels, owner, work = self._known[key]
        free = time_work(work, machine, causes=causes)
        own, times = limited_times(work, free, machine)
        # libraries choose without regard to a limit of power
        runs = _fastest(free.total_s.reshape(len(owner), self._points), owner, len(self._kernels))
        return Timed(kernels=kernels, owner=owner, work=work, own=own, times=times, runs=runs)


def _fastest(total_s: Floats, owner: Sequence[int], count: int) -> NDArray[np.bool_]:
    """Which candidate of each kernel runs: [candidates, points]; the first of equals."""
    runs = np.ones(total_s.shape, dtype=bool)
    if len(owner) > count:
        starts = np.searchsorted(owner, np.arange(count)).tolist()
        for start, end in zip(starts, [*starts[1:], len(owner)], strict=True):
            if end - start > 1:
                best = np.argmin(total_s[start:end], axis=0)
                runs[start:end] = best == np.arange(end - start)[:, None]
    return runs


def time_kernels(kernels: Sequence[Kernel], machine: Machine, ready: Timeable | None = None) -> tuple[Timing, ...]:
    """The time of each kernel under the machine's limits. Where there are several algorithms, the fastest one runs.

    ready: these very kernels, from which what holds on other machines too is taken.

    Raises FormatError for arithmetic that the device does not have.
    """
    timed = (ready or Timeable(kernels)).on(machine)
    rows = np.flatnonzero(timed.runs[:, 0])
    chosen = [timed.kernels[row] for row in rows]

    @functools.cache
    def rate(math: Math, tensor_core: bool) -> Rate:
        return machine.matrix_rate(math, tensor_core=tensor_core)

    # tf32 stands for "fp32 tensors, tf32 allowed": without the unit there is nothing to report.
    notes = [
        rate(kernel.math, kernel.tensor_core).emulated if kernel.cost.gemms and kernel.math is not Math.TF32 else ""
        for kernel in chosen
    ]
    overlap = float(machine.values["overlap"])
    own = _timings(chosen, timed.own, rows, notes, overlap)
    if not machine.is_limited or timed.times is timed.own:
        return own
    limited = _timings(chosen, timed.times, rows, notes, overlap)
    return tuple(replace(under, unlimited=free) for under, free in zip(limited, own, strict=True))


def time_kernel(kernel: Kernel, machine: Machine) -> Timing:
    """The time of one kernel; many are timed more quickly together."""
    return time_kernels((kernel,), machine)[0]


_COLUMNS = ("ideal_s", "compute_s", "memory_s", "launch_s", "busy_s", "alone_s")


def _timings(
    kernels: Sequence[Kernel], times: Times, rows: NDArray[np.intp], notes: Sequence[str], overlap: float
) -> tuple[Timing, ...]:
    columns = [getattr(times, name)[rows].tolist() for name in _COLUMNS]
    causes = map(tuple, times.causes_s[:, rows].T.tolist())
    return tuple(
        Timing(
            kernel=kernel, causes_s=causes_s, note=note, overlap=overlap, **dict(zip(_COLUMNS, seconds, strict=True))
        )
        for kernel, causes_s, note, *seconds in zip(kernels, causes, notes, *columns, strict=True)
    )


def load_of(timings: Sequence[Timing], machine: Machine) -> Load:
    """The load of these kernels, at the clock that the board gives them by itself."""
    own = [timing.unlimited or timing for timing in timings]
    columns = {name: np.array([getattr(timing, name) for timing in own], dtype=float) for name in ("ideal_s", *SECONDS)}
    return Load.of(work_of([timing.kernel for timing in own]), machine, SimpleNamespace(**columns))


def estimate_of_timings(timings: Sequence[Timing], machine: Machine, of_all: float | None = None) -> Estimate:
    """The time of all kernels of a step, with its error. of_all: what all are off together; else `of_the_step`."""
    seconds: dict[tuple[str, str, str, Cost], float] = defaultdict(float)
    counts: Counter[tuple[str, str, str, Cost]] = Counter()
    for timing in timings:
        kernel = timing.kernel
        shape = residuals_of(kernel, machine), unmodelled(kernel), kernel.kind, kernel.cost
        seconds[shape] += timing.total_s
        counts[shape] += 1
    return estimate_of(
        ((*shape[:2], seconds[shape], counts[shape]) for shape in seconds), machine.constants.spreads,
        of_the_step(timing.kernel for timing in timings) if of_all is None else of_all,
        starts_s=machine.start_spread * sum(timing.launch_s for timing in timings),
    )  # fmt: skip


# A step's kernels at many points at once, each distinct kernel once.


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTimes:
    """Seconds of a step's kernels on a machine: [points], or [distinct kernels, points]."""

    kernel_s: Floats  # [distinct kernels, points] time on the device
    gpu: Estimate  # of all kernels together, with joules beside the idling board's
    compute_s: Floats  # of it at the roof of arithmetic, as in `Timing.parts`: what is neither this nor
    memory_s: Floats  # waiting for traffic is latency
    candidates: tuple[Kernel, ...]  # the distinct kernels by each algorithm that may run
    runs: Floats  # [candidates, points] how many of each run

    @property
    def bytes(self) -> Floats:
        """Compulsory traffic of the kernels that run."""
        moved = (n * np.asarray(values_of(kernel.bytes)) for kernel, n in zip(self.candidates, self.runs, strict=True))
        return sum(moved, start=np.zeros(self.compute_s.shape))


class PointKernels:
    """The kernels of a step, whose sizes are columns, made ready for any machine.

    Crosses out the points at which kernels of different shapes, as they are at the pilot, come to be of one.
    """

    def __init__(self, kernels: Sequence[Kernel], points: Points) -> None:
        self._points, self._same, self._of_the_step = points, _Interned(), of_the_step(kernels)
        keys = [self._timing_key(kernel) for kernel in kernels]
        first = _first(keys, kernels)
        places, distinct = {key: i for i, key in enumerate(first)}, list(first.values())
        self.rows = [places[key] for key in keys]  # the distinct kernel of each
        self._counts = np.bincount(np.array(self.rows, dtype=np.int64), minlength=len(distinct)).astype(float)
        self._ready = Timeable(distinct, points.count)
        candidates = [c for kernel in distinct for c in (kernel, *kernel.alternatives)]
        self._shape_of = dict(zip(map(id, candidates), self._grouped(candidates), strict=True))

    def time(self, machine: Machine) -> PointTimes:
        """Their times on a machine. Raises FormatError for arithmetic that it does not have."""
        timed = self._ready.on(machine, causes=1)
        times, owner, candidates = timed.times, timed.owner, timed.kernels
        exposed = exposed_share(times.compute_s, times.busy_s - times.alone_s, machine.values["overlap"])

        def run(column: Floats) -> Floats:
            """Of the algorithms that run: [candidates, points]."""
            shaped = column.reshape(timed.runs.shape)
            return shaped if timed.runs.all() else np.where(timed.runs, shaped, 0.0)

        total_s, weight = run(times.total_s), self._counts[owner]
        joules, law = None, PowerLaw.of(machine)
        if law is not None:
            drawn = drawn_under_limit(law, Load.of(timed.work, machine, timed.own), machine)
            joules = weight @ run(sum(drawn.values(), np.zeros(len(timed.work))))
        belongs = np.zeros((len(self._heads), len(owner)))
        belongs[[self._shape_of[id(kernel)] for kernel in candidates], np.arange(len(owner))] = weight
        shapes = zip(
            (residuals_of(kernel, machine) for kernel in self._heads), map(unmodelled, self._heads), belongs @ total_s,
            belongs @ (total_s > 0), strict=True,
        )  # fmt: skip
        return PointTimes(
            kernel_s=np.add.reduceat(total_s, np.searchsorted(owner, np.arange(self._counts.size))),
            gpu=estimate_of(
                shapes, machine.constants.spreads, self._of_the_step,
                starts_s=machine.start_spread * (weight @ run(times.launch_s)),
                joules=joules,
            ),
            compute_s=weight @ run(exposed * (times.ideal_s + times.causes_s[0])),
            memory_s=weight @ run(times.busy_s - exposed * times.compute_s),
            candidates=candidates,
            runs=weight[:, None] * (total_s > 0),
        )  # fmt: skip

    def _timing_key(self, kernel: Kernel) -> Hashable:
        """Equal for kernels that take the same time on any machine, and are of one shape."""
        if self._points.count == 1:  # told apart is quicker than compared
            return id(kernel)
        same = self._same
        return (
            self._shape_key(kernel), kernel.math, kernel.family, kernel.algorithm, kernel.pointwise, kernel.direction,
            same(kernel.padded), *(same(read(kernel)) for read in OF_KERNEL.values()),
            *((same(part.bytes), same(part.distance)) for part in kernel.recent),
            *map(self._timing_key, kernel.alternatives),
        )  # fmt: skip

    def _shape_key(self, kernel: Kernel) -> tuple[Hashable, ...]:
        if self._points.count == 1:
            return (*_family(kernel), kernel.cost)
        return (*_family(kernel), *_outline(kernel.cost), *map(self._same, _numbers(kernel.cost)))

    def _grouped(self, candidates: Sequence[Kernel]) -> list[int]:
        """The shape of each candidate, counted from 0."""
        keys = [self._shape_key(kernel) for kernel in candidates]
        first = _first(keys, candidates)
        alike: dict[Hashable, list[tuple[Hashable, ...]]] = defaultdict(list)
        for key, kernel in first.items():
            alike[(*_family(kernel), *_outline(kernel.cost))].append(key)
        head: dict[tuple[Hashable, ...], tuple[Hashable, ...]] = {}
        for group in alike.values():
            for key, same in zip(group, self._coinciding([first[key].cost for key in group]), strict=True):
                head[key] = group[same]
        numbered = {key: i for i, key in enumerate(dict.fromkeys(head[key] for key in keys))}
        self._heads = [first[key] for key in numbered]
        return [numbered[head[key]] for key in keys]

    def _coinciding(self, costs: Sequence[Cost]) -> list[int]:
        """For each cost the first that equals it at the pilot; where others do, points are crossed out."""
        if self._points.count == 1:  # where equal numbers make equal keys
            return list(range(len(costs)))
        digests = np.stack([self._digest(cost) for cost in costs])
        ordered = np.sort(digests, axis=0)
        if not (ordered[1:] == ordered[:-1]).any():
            return list(range(len(costs)))
        pattern = np.array([np.argmax(digests == digest, axis=0) for digest in digests])
        at_pilot: NDArray[np.int64] = pattern[:, self._points.pilot]
        self._points.alike &= (pattern == at_pilot[:, None]).all(axis=0)
        return [int(i) for i in at_pilot]

    def _digest(self, cost: Cost) -> NDArray[np.uint64]:
        """64 bits of all its numbers, at each point."""
        found = np.zeros(self._points.count, dtype=np.uint64)
        for number in _numbers(cost):
            found = (found ^ np.asarray(values_of(number)).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(29)
        return found


def _first(keys: Sequence[_Key], kernels: Sequence[Kernel]) -> dict[_Key, Kernel]:
    """The first kernel of each key, in their order."""
    found: dict[_Key, Kernel] = {}
    for key, kernel in zip(keys, kernels, strict=True):
        found.setdefault(key, kernel)
    return found


class _Interned:
    """Numbers for columns, equal for columns of the same values."""

    def __init__(self) -> None:
        self._by_values: dict[bytes, int] = {}
        self._by_column: dict[int, tuple[Column, int]] = {}  # with the column, so that its id stays its own

    def __call__(self, number: Number) -> Hashable:
        if not isinstance(number, Column):
            return number  # type: ignore[no-any-return]
        if id(number) not in self._by_column:
            code = self._by_values.setdefault(number.values.tobytes(), len(self._by_values))
            self._by_column[id(number)] = (number, code)
        return "column", self._by_column[id(number)][1]


def _numbers(cost: Cost) -> Iterator[Number]:
    for gemm in cost.gemms:
        yield from (gemm.batch, gemm.m, gemm.n, gemm.k, *(() if gemm.needed is None else (gemm.needed,)))
    yield from (cost.vector_flop, cost.special_flop, cost.read_bytes, cost.write_bytes)


def _family(kernel: Kernel) -> tuple[Hashable, ...]:
    """What decides the family of its residuals on any machine, what is unmodelled of it, and its kind."""
    return (stated_family(kernel), unmodelled(kernel), kernel.kind)


def _outline(cost: Cost) -> tuple[Hashable, ...]:
    """The parts of a cost that are not numbers."""
    return (cost.label, *(gemm.needed is None for gemm in cost.gemms))
