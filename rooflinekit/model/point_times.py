"""The times of a step's kernels at many points at once, each distinct kernel once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.points import Column, Number, Points, values_of
from rooflinekit.model.energy import limited_times
from rooflinekit.model.families import of_the_step, residuals_of, shared_variance, stated_family, unmodelled
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.kernel_batch import Floats, KernelBatch, work_of
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import choices_of, exposed_share, time_work


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTimes:
    """Seconds of a step's kernels on a machine: [points], or [distinct kernels, points]."""

    kernel_s: Floats  # [distinct kernels, points] time on the device
    gpu_s: Floats  # of all kernels together
    energy_j: Floats | None  # of all kernels, beside the idling board's; None where nothing is known of it
    compute_s: Floats  # of it at the roof of arithmetic: the parts of `Timing.parts`
    memory_s: Floats  # of it waiting for traffic
    latency_s: Floats  # of it at neither roof
    shared_variance: Floats  # s², of what kernels of a family have in common
    kernel_variance: Floats  # s², of each shape by itself
    candidates: tuple[Kernel, ...]  # the distinct kernels by each algorithm that may run
    runs: Floats  # [candidates, points] how many of each run

    @property
    def bytes(self) -> Floats:
        """Compulsory traffic of the kernels that run."""
        moved = (n * np.asarray(values_of(kernel.bytes)) for kernel, n in zip(self.candidates, self.runs, strict=True))
        return sum(moved, start=np.zeros(self.gpu_s.shape))


class PointKernels:
    """The kernels of a step, whose sizes are columns, made ready for any machine.

    Crosses out the points at which kernels of different shapes, as they are at the pilot, come to be of one.
    """

    def __init__(self, kernels: Sequence[Kernel], points: Points) -> None:
        self._points, self._same, self._of_the_step = points, _Interned(), of_the_step(kernels)
        keys = [self._timing_key(kernel) for kernel in kernels]
        places = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        first = {key: kernel for kernel, key in zip(reversed(kernels), reversed(keys), strict=True)}
        self._distinct = [first[key] for key in places]
        self._counts = Counter(places[key] for key in keys)
        self.rows = [places[key] for key in keys]  # the distinct kernel of each
        self._works: dict[
            tuple[tuple[int, ...], ...], tuple[KernelBatch, list[int], list[int], tuple[Kernel, ...]]
        ] = {}
        self._shapes = self._grouped([c for kernel in self._distinct for c in (kernel, *kernel.alternatives)])

    def time(self, machine: Machine) -> PointTimes:
        """Their times on a machine. Raises FormatError for arithmetic that it does not have."""
        work, owner, shape, candidates = self._work(tuple(_choice(kernel, machine) for kernel in self._distinct))
        points, count = self._points.count, len(self._distinct)
        found = time_work(work, machine, causes=1)
        # Libraries choose algorithms without regard to a limit of power, as in `time_kernels`.
        runs = _fastest(found.total_s.reshape(len(owner), points), owner) if len(owner) > count else None
        _, found, drawn_w = limited_times(work, found, machine)
        exposed = exposed_share(found.compute_s, found.busy_s - found.alone_s, machine.values["overlap"])
        at_roof_s, traffic_s = exposed * (found.ideal_s + found.causes_s[0]), found.busy_s - exposed * found.compute_s
        total, at_roof, traffic, start = (
            column.reshape(len(owner), points) for column in (found.total_s, at_roof_s, traffic_s, found.launch_s)
        )
        weight = np.array([self._counts[i] for i in owner], dtype=float)
        drawn_j = np.zeros((0, points)) if drawn_w is None else drawn_w.reshape(len(owner), points) * total
        if runs is not None:
            drawn_j = np.where(runs, drawn_j, 0.0) if drawn_w is not None else drawn_j
            total, at_roof, traffic, start = (
                np.where(runs, column, 0.0) for column in (total, at_roof, traffic, start)
            )
        gpu_s, compute_s, memory_s = weight @ total, weight @ at_roof, weight @ traffic
        belongs = np.zeros((len(self._heads), len(owner)))
        belongs[shape, np.arange(len(owner))] = weight
        shapes = belongs @ total
        families = [residuals_of(kernel, machine) for kernel in self._heads]
        spreads = machine.constants.spreads
        counts = belongs @ (total > 0)
        alone = (
            spreads[f].random_variance(seconds, count)
            for f, seconds, count in zip(families, shapes, counts, strict=True)
        )
        others = map(unmodelled, self._heads)
        return PointTimes(
            kernel_s=np.add.reduceat(total, np.searchsorted(owner, np.arange(count))) if count else total,
            gpu_s=gpu_s,
            energy_j=None if drawn_w is None else weight @ drawn_j,
            compute_s=compute_s,
            memory_s=memory_s,
            latency_s=gpu_s - compute_s - memory_s,
            shared_variance=shared_variance(zip(families, others, shapes, strict=True), spreads, self._of_the_step)
            + (machine.start_spread * (weight @ start)) ** 2,
            kernel_variance=sum(alone, start=np.zeros(points)),
            candidates=candidates,
            runs=weight[:, None] * (total > 0),
        )

    def _work(
        self, choices: tuple[tuple[int, ...], ...]
    ) -> tuple[KernelBatch, list[int], list[int], tuple[Kernel, ...]]:
        """The candidates as columns, whose kernel each is, its shape, and they; `choices`: which algorithms of each."""
        if choices not in self._works:
            candidates: list[Kernel] = []
            owner: list[int] = []
            shape: list[int] = []
            shapes = iter(self._shapes)
            for i, (kernel, choice) in enumerate(zip(self._distinct, choices, strict=True)):
                for k, candidate in enumerate((kernel, *kernel.alternatives)):
                    group = next(shapes)
                    if k in choice:
                        candidates.append(candidate)
                        owner.append(i)
                        shape.append(group)
            self._works[choices] = work_of(candidates, self._points.count), owner, shape, tuple(candidates)
        return self._works[choices]

    # --- which are alike -------------------------------------------------------------------------------------------

    def _timing_key(self, kernel: Kernel) -> Hashable:
        """Equal for kernels that take the same time on any machine, and are of one shape."""
        rows, same = kernel.rows, self._same
        return (
            self._shape_key(kernel), kernel.math, kernel.family, kernel.algorithm, kernel.pointwise, kernel.direction,
            same(kernel.padded), same(kernel.alone), kernel.raises,
            *map(same, (rows.count, rows.length, rows.passes, rows.held_bytes, rows.threads, kernel.reread_bytes)),
            *map(same, (kernel.column, kernel.blocks.count, kernel.blocks.loads, kernel.blocks.bytes, kernel.accesses)),
            rows.worked, kernel.streamed,
            *((same(part.bytes), same(part.distance)) for part in kernel.recent),
            *(map(same, _chain_numbers(kernel))),
            *map(self._timing_key, kernel.alternatives),
        )  # fmt: skip

    def _shape_key(self, kernel: Kernel) -> tuple[Hashable, ...]:
        return (*_family(kernel), *_outline(kernel.cost), *map(self._same, _numbers(kernel.cost)))

    def _grouped(self, candidates: Sequence[Kernel]) -> list[int]:
        """The shape of each candidate, counted from 0."""
        keys = [self._shape_key(kernel) for kernel in candidates]
        first = {key: kernel for kernel, key in zip(reversed(candidates), reversed(keys), strict=True)}
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


def _chain_numbers(kernel: Kernel) -> tuple[Number, ...]:
    chain = kernel.chain
    return () if chain is None else (chain.links, chain.starts, chain.barriers)


def _outline(cost: Cost) -> tuple[Hashable, ...]:
    """What of a cost is no number."""
    return (cost.label, *(gemm.needed is None for gemm in cost.gemms))


def _choice(kernel: Kernel, machine: Machine) -> tuple[int, ...]:
    """Which of a kernel and its alternatives come into question."""
    open_to = choices_of(kernel, machine)
    return tuple(i for i, k in enumerate((kernel, *kernel.alternatives)) if any(k is other for other in open_to))


def _fastest(total_s: Floats, owner: Sequence[int]) -> NDArray[np.bool_]:
    """Which candidate of each kernel runs: [candidates, points]; the first of equals."""
    runs = np.zeros(total_s.shape, dtype=bool)
    starts = [i for i in range(len(owner)) if i == 0 or owner[i] != owner[i - 1]]
    for start, end in zip(starts, [*starts[1:], len(owner)], strict=True):
        best = np.argmin(total_s[start:end], axis=0)
        runs[start:end] = best == np.arange(end - start)[:, None]
    return runs
