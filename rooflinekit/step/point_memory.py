"""Bytes that a step needs at many points at once, and at which of them it fits."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.points import Column, Number, Points, larger, values_of
from rooflinekit.model.kernel import Issue
from rooflinekit.step.allocator import reserved_at, segments_of
from rooflinekit.step.memory import blocks_of, room

_UNKNOWN = -1


class PointMemory:
    """What a step, whose sizes are columns, needs of the memory of any device whose kernels are these."""

    def __init__(self, graph: Graph, issues: Sequence[Issue], device: Device, points: Points, *, fused: bool) -> None:
        self._points, blocks = points, blocks_of(graph, issues, device, fused=fused)
        self.peak_bytes = self._column(functools.reduce(larger, blocks.levels()))
        every: list[tuple[int, Number]] = list(enumerate(blocks.sizes))
        asked = [(i, size) for i, size in every if isinstance(size, Column) or size]
        self._most = sum((segments_of(np.asarray(values_of(size))) for _, size in asked), np.zeros(points.count))
        self._sizes = {i: np.atleast_1d(np.asarray(values_of(size), dtype=np.int64)) for i, size in asked}
        self._program = [i for i in blocks.program() if (i if i >= 0 else -1 - i) in self._sizes]
        self._reserved = np.full(points.count, _UNKNOWN)  # bytes of segments where there is no limit

    def fits(self, device: Device) -> NDArray[np.bool_]:
        """Whether the allocator finds room for every block, at each point.

        Where all blocks together fit, or the fullest moment alone does not, that is known at once; at the points in
        between the allocator is followed block by block, first as if there were no limit.
        """
        peak = self.peak_bytes
        within: NDArray[np.bool_] = np.asarray(peak) <= device.dram.capacity
        if device.kind != "gpu":
            return within
        limit = room(device)
        found: NDArray[np.bool_] = within & (self._most <= limit)
        unclear = np.flatnonzero(within & ~found & (peak <= limit) & self._points.alike)
        unknown = unclear[self._reserved[unclear] == _UNKNOWN]
        self._reserved[unknown], _ = self._followed(unknown, np.inf)
        found[unclear] = self._reserved[unclear] <= limit
        unclear = unclear[~found[unclear]]  # as cached segments are given back, there may be room all the same
        _, failed = self._followed(unclear, limit)
        found[unclear] = ~failed
        return found

    def _followed(self, index: NDArray[np.int64], limit: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        sizes = {k: size[index] if len(size) > 1 else size for k, size in self._sizes.items()}
        return reserved_at(self._program, sizes, np.full(len(index), limit))

    def _column(self, number: Number) -> NDArray[np.int64]:
        return np.broadcast_to(np.asarray(values_of(number), dtype=np.int64), (self._points.count,))
