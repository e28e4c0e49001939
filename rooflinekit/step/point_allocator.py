"""The caching allocator at many points at once: the same calls in the same order, each point with sizes of its own.

What `allocator.Allocator` keeps in sorted lists lies here in columns [places, points]: every point has its free blocks
in some of the places, and what is asked for is looked for in all of them. Where points go different ways, each gets
what the allocator for one point would give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rooflinekit.step.allocator import GAP, MIN_BLOCK, SMALL, segments_of

Ints: TypeAlias = NDArray[np.int64]

_NONE = -1  # the address in places without a block
_MOST = np.iinfo(np.int64).max
_TOGETHER = 2048  # points whose columns stay in a core's cache


def reserved_at(
    program: Iterable[int], sizes: Mapping[int, Ints], limits: NDArray[np.float64]
) -> tuple[Ints, NDArray[np.bool_]]:
    """The most bytes in segments at once at each point, and where the limit left no room for them.

    program: see `Blocks.program`. sizes: of its blocks, a number for each point or one for all. limits: one a point.
    """
    order, count = list(program), len(limits)
    same = next((n for n, i in enumerate(order) if i < 0 or len(sizes[i]) > 1), len(order))
    most, failed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for start in range(0, count, _TOGETHER):
        some = slice(start, start + _TOGETHER)
        # what all points have in common, a network's weights, is gone through once, unless limits make a difference
        alike = same if np.isinf(limits[some]).all() else 0
        state, blocks = _Allocators(limits[some][:1] if alike else limits[some]), dict[int, _Blocks]()
        for n, i in enumerate(order):
            if n == alike:
                state = state.spread(len(limits[some])) if alike else state
            if i >= 0:
                blocks[i] = state.take(sizes[i][some] if len(sizes[i]) > 1 else sizes[i])
            else:
                state.give_back(blocks.pop(-1 - i))
        most[some], failed[some] = state.peak_reserved, state.failed
    return most, failed


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A block at each point; of no bytes where nothing was asked for, or could not be had."""

    address: Ints
    size: Ints
    segment: Ints  # bytes of the segment in which it lies
    small: NDArray[np.bool_]


class _Allocators:
    """The state at each point."""

    def __init__(self, limits: NDArray[np.float64]) -> None:
        count = len(limits)
        self.limits = limits
        self.reserved, self.peak_reserved, self._top = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self.failed = np.zeros(count, dtype=bool)
        self._every = np.arange(count)
        self._address = np.full((4, count), _NONE, dtype=np.int64)  # of what is free
        self._size = np.zeros((4, count), dtype=np.int64)
        self._segment = np.zeros((4, count), dtype=np.int64)
        self._small = np.zeros((4, count), dtype=bool)

    def spread(self, count: int) -> _Allocators:
        """The state of one point at so many."""
        found = _Allocators(np.broadcast_to(self.limits, (count,)))
        for name in ("reserved", "peak_reserved", "_top", "_address", "_size", "_segment", "_small"):
            setattr(found, name, np.repeat(getattr(self, name), count, axis=-1))
        return found

    def take(self, sizes: Ints) -> _Blocks:
        """A block of so many bytes at each point."""
        count = len(self._every)
        asked = np.broadcast_to((sizes + MIN_BLOCK - 1) & -MIN_BLOCK, (count,))
        asked = np.where(self.failed, 0, asked)
        small = asked <= SMALL
        fitting = (self._size >= asked) & (self._small == small)
        fitting[:, asked == 0] = False
        size = np.where(fitting, self._size, _MOST)
        least = size.min(axis=0)
        place = np.where(size == least, np.where(fitting, self._address, _MOST), _MOST).argmin(axis=0)
        had, new = least < _MOST, (least == _MOST) & (asked > 0)
        address, segment = self._address[place, self._every], self._segment[place, self._every]
        if new.any():
            wanted = segments_of(asked)
            new = self._reserve(wanted, new)
            address, segment = np.where(new, self._top, address), np.where(new, wanted, segment)
            least = np.where(new, wanted, least)
            self._top += np.where(new, wanted + GAP, 0)
        taken = had | new
        left = np.where(taken, least - asked, 0)
        split = left >= np.where(small, MIN_BLOCK, SMALL + 1)
        self._forget(np.flatnonzero(had), place)
        self._keep(np.flatnonzero(split), _Blocks(address + asked, left, segment, small))
        kept = np.where(split, asked, least)
        return _Blocks(address, np.where(taken, kept, 0), segment, small)

    def give_back(self, block: _Blocks) -> None:
        """Frees a block at each point; free neighbours become one with it."""
        address, size = (np.broadcast_to(column, self.failed.shape) for column in (block.address, block.size))
        used = (size > 0) & ~self.failed
        end = address + size
        before, after = self._address + self._size == address, self._address == end
        for beside in (before, after):
            place = beside.argmax(axis=0)
            some = np.flatnonzero(beside[place, self._every] & used)
            address, size = address.copy(), size.copy()
            size[some] += self._size[place[some], some]
            if beside is before:
                address[some] = self._address[place[some], some]
            self._forget(some, place)
        segment, small = np.broadcast_to(block.segment, used.shape), np.broadcast_to(block.small, used.shape)
        self._keep(np.flatnonzero(used), _Blocks(address, size, segment, small))

    def _reserve(self, wanted: Ints, new: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where there is room for a segment, with what is free given back where there is none otherwise."""
        short = np.flatnonzero(new & (self.reserved + wanted > self.limits))
        if short.size:
            whole = self._size[:, short] == np.maximum(self._segment[:, short], 1)
            self.reserved[short] -= np.where(whole, self._size[:, short], 0).sum(axis=0)
            place, point = np.nonzero(whole)
            self._forget_at(place, short[point])
            self.failed |= new & (self.reserved + wanted > self.limits)
        new = new & ~self.failed
        self.reserved += np.where(new, wanted, 0)
        np.maximum(self.peak_reserved, self.reserved, out=self.peak_reserved)
        return new

    def _keep(self, points: Ints, block: _Blocks) -> None:
        """Into the first empty place of each of these points."""
        if not points.size:
            return
        empty = self._address[:, points] == _NONE
        place = empty.argmax(axis=0)
        if not empty[place, np.arange(points.size)].all():
            self._grow()
            self._keep(points, block)
            return
        self._address[place, points] = block.address[points]
        self._size[place, points] = block.size[points]
        self._segment[place, points] = block.segment[points]
        self._small[place, points] = block.small[points]

    def _forget(self, points: Ints, place: Ints) -> None:
        self._forget_at(place[points], points)

    def _forget_at(self, place: Ints, points: Ints) -> None:
        self._address[place, points] = _NONE
        self._size[place, points] = 0

    def _grow(self) -> None:
        places = len(self._address)
        self._address = np.concatenate((self._address, np.full_like(self._address, _NONE)))
        for name in ("_size", "_segment", "_small"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        assert len(self._address) == 2 * places
