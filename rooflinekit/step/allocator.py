"""PyTorch's caching allocator: how much of the device's memory blocks of given sizes take.

As c10/cuda/CUDACachingAllocator.cpp of torch 2.13 does it by default: blocks are multiples of 512 bytes; those up to
1 MiB lie in segments of 2 MiB, those below 10 MiB in segments of 20 MiB, larger ones in segments of their own, of whole
2 MiB. The smallest free block that is large enough is taken, of equals the one with the lowest address, and split where
enough of it is left; free neighbours become one. Segments without a block in use are given back only where there is no
room for another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_BLOCK = 512
SMALL = 2**20  # the largest block of the small pool
_SMALL_SEGMENT = 2 * 2**20
_MIN_LARGE = 10 * 2**20  # from here on a block has a segment of its own
_LARGE_SEGMENT = 20 * 2**20
_ROUND_LARGE = 2 * 2**20
GAP = MIN_BLOCK  # between the addresses of segments, so that blocks of two segments are no neighbours


class OutOfMemoryError(Exception):
    """There is no room for a block."""


def rounded(size: int) -> int:
    """Bytes of the block for a tensor of this size; none for an empty one.

    >>> rounded(0), rounded(1), rounded(512), rounded(513)
    (0, 512, 512, 1024)
    """
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def segment_of(block: int) -> int:
    """Bytes of the segment that is asked for where no free block holds one of this size.

    >>> [segment_of(mib * 2**20) // 2**20 for mib in (1, 2, 10, 11)]
    [2, 20, 10, 12]
    """
    if block <= SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if block < _MIN_LARGE else -(-block // _ROUND_LARGE) * _ROUND_LARGE


def segments_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of the segment that a block for each of these many bytes would have to itself; none for no bytes."""
    blocks = (sizes + MIN_BLOCK - 1) & -MIN_BLOCK  # powers of two
    large = np.where(blocks < _MIN_LARGE, _LARGE_SEGMENT, (blocks + _ROUND_LARGE - 1) & -_ROUND_LARGE)
    return np.where(blocks == 0, 0, np.where(blocks <= SMALL, _SMALL_SEGMENT, large))


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; its neighbours are those before and after it."""

    address: int  # counted from the first segment's, which lie one behind the other
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    used: bool = True

    @property
    def is_segment(self) -> bool:
        """Whether it is all of a segment."""
        return self.before is None and self.after is None


class Allocator:
    """The state of the allocator. `limit` is what it may take of the device's memory."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._top = 0  # where the next segment begins
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by size, then address

    def take(self, size: int) -> Block | None:
        """A block for so many bytes; None for none. Raises OutOfMemoryError where the limit leaves no room."""
        size = rounded(size)
        if not size:
            return None
        block = self._fitting(size, size <= SMALL) or self._segment(size)
        left = block.size - size
        if left >= (MIN_BLOCK if block.small else SMALL + 1):
            rest = Block(block.address + size, left, block.small, before=block, after=block.after, used=False)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._keep(rest)
        block.used = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give_back(self, block: Block | None) -> None:
        """Frees a block that was taken."""
        if block is None:
            return
        self.allocated -= block.size
        block.used = False
        for other, first in ((block.before, True), (block.after, False)):
            if other is not None and not other.used:
                self._forget(other)
                block.size += other.size
                if first:
                    block.address = other.address
                    block.before = other.before
                    if block.before is not None:
                        block.before.after = block
                else:
                    block.after = other.after
                    if block.after is not None:
                        block.after.before = block
        self._keep(block)

    def _fitting(self, size: int, small: bool) -> Block | None:
        free = self._free[small]
        place = bisect_left(free, (size,))
        return free.pop(place)[2] if place < len(free) else None

    def _segment(self, size: int) -> Block:
        wanted = segment_of(size)
        if self.reserved + wanted > self.limit:
            self.empty_cache()
        if self.reserved + wanted > self.limit:
            raise OutOfMemoryError
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        address, self._top = self._top, self._top + wanted + GAP
        return Block(address, wanted, size <= SMALL)

    def empty_cache(self) -> None:
        """Gives segments without a block in use back, as `torch.cuda.empty_cache()` does."""
        for small, free in self._free.items():
            self.reserved -= sum(size for size, _, block in free if block.is_segment)
            self._free[small] = [entry for entry in free if not entry[2].is_segment]

    def _keep(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.address))]
