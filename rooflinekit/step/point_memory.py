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
from rooflinekit.step.allocator import segments_of
from rooflinekit.step.memory import blocks_of, reserved_bytes, room


class PointMemory:
    """What a step, whose sizes are columns, needs of the memory of any device whose kernels are these."""

    def __init__(self, graph: Graph, issues: Sequence[Issue], device: Device, points: Points, *, fused: bool) -> None:
        self._points, blocks = points, blocks_of(graph, issues, device, fused=fused)
        self.peak_bytes = self._column(functools.reduce(larger, blocks.levels()))
        every: list[tuple[int, Number]] = list(enumerate(blocks.sizes))
        asked = [(i, size) for i, size in every if isinstance(size, Column) or size]
        self._most = sum((segments_of(np.asarray(values_of(size))) for _, size in asked), np.zeros(points.count))
        self._sizes, some = asked, {i for i, _ in asked}
        self._program = [i for i in blocks.program() if (i if i >= 0 else -1 - i) in some]
        self._reserved: dict[int, int] = {}  # point → bytes of segments where there is no limit

    def fits(self, device: Device) -> NDArray[np.bool_]:
        """Whether the allocator finds room for every block, at each point.

        Where all blocks together fit, or the fullest moment alone does not, that is known at once; at the points in
        between the allocator is followed block by block.
        """
        peak = self.peak_bytes
        within: NDArray[np.bool_] = np.asarray(peak) <= device.dram.capacity
        if device.kind != "gpu":
            return within
        limit = room(device)
        found: NDArray[np.bool_] = within & (self._most <= limit)
        for i in np.flatnonzero(within & ~found & (peak <= limit) & self._points.alike):
            found[i] = self._fits_at(int(i), limit)
        return found

    def _fits_at(self, i: int, limit: float) -> bool:
        sizes = {k: int(size.values[i]) if isinstance(size, Column) else size for k, size in self._sizes}
        if i not in self._reserved:
            self._reserved[i] = reserved_bytes(self._program, sizes, float("inf")) or 0
        return self._reserved[i] <= limit or reserved_bytes(self._program, sizes, limit) is not None

    def _column(self, number: Number) -> NDArray[np.int64]:
        return np.broadcast_to(np.asarray(values_of(number), dtype=np.int64), (self._points.count,))
