"""PyTorch's caching allocator: how much of the device's memory blocks of given sizes take.

As c10/cuda/CUDACachingAllocator.cpp of torch 2.13 does it by default: blocks are multiples of 512 bytes; those up to
1 MiB lie in segments of 2 MiB, those below 10 MiB in segments of 20 MiB, larger ones in segments of their own, of whole
2 MiB. The smallest free block that is large enough is taken, of equals the one with the lowest address, and split where
enough of it is left; free neighbours become one. Segments without a block in use are given back only where there is no
room for another. `Settings` has what PYTORCH_CUDA_ALLOC_CONF changes of that.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError

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


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the allocator that PYTORCH_CUDA_ALLOC_CONF gives."""

    expandable: bool = False  # expandable_segments: one segment of each pool, which grows by pages of 2 or 20 MiB
    most_split: float = math.inf  # max_split_size_mb, in bytes: blocks from this size on are not split

    @classmethod
    def parse(cls, text: str) -> Settings:
        """By the variable's text. Raises InputError for what is not described here.

        >>> Settings.parse("expandable_segments:True,max_split_size_mb:128")
        Settings(expandable=True, most_split=134217728)
        """
        found = cls()
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition(":")
            if name == "expandable_segments" and value in ("True", "False"):
                found = cls(value == "True", found.most_split)
            elif name == "max_split_size_mb" and value.isdecimal() and int(value) * 2**20 > _LARGE_SEGMENT:
                found = cls(found.expandable, int(value) * 2**20)
            else:
                raise InputError(
                    f"allocator: expected expandable_segments:True or False, max_split_size_mb above 20, or both with "
                    f"a comma, as in PYTORCH_CUDA_ALLOC_CONF; got {part!r}"
                )
        return found


DEFAULT = Settings()


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

    def __init__(self, limit: float = math.inf, settings: Settings = DEFAULT) -> None:
        self.limit, self._settings = limit, settings
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._top = 0  # where the next segment begins
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by size, then address

    @property
    def split_bytes(self) -> int:
        """Bytes that are free in segments with a block in use, so not given back: PyTorch's inactive_split_bytes."""
        return sum(size for free in self._free.values() for size, _, block in free if not block.is_segment)

    def take(self, size: int, optional: bool = False) -> Block | None:
        """A block for so many bytes; None for none. Raises OutOfMemoryError where the limit leaves no room, which of
        an optional block is caught: None.
        """
        size = rounded(size)
        if not size:
            return None
        try:
            block = self._fitting(size) or self._segment(size)
        except OutOfMemoryError:
            if optional:
                return None
            raise
        if self._splits(block, size):
            rest = Block(block.address + size, block.size - size, block.small, block, block.after, used=False)
            _joined(rest)
            block.size = size
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
        for other in (block.before, block.after):
            if other is not None and not other.used:
                self._forget(other)
                block.size += other.size
                if other is block.before:
                    block.address, block.before = other.address, other.before
                else:
                    block.after = other.after
        _joined(block)
        self._keep(block)

    def _fitting(self, size: int) -> Block | None:
        free, most = self._free[size <= SMALL], self._settings.most_split
        place = bisect_left(free, (size,))
        if place == len(free):
            return None
        found = free[place][0]  # large blocks are for large tensors, of about their size
        spared = found >= size + _LARGE_SEGMENT if size >= most else found >= most
        return None if spared else free.pop(place)[2]

    def _splits(self, block: Block, size: int) -> bool:
        left = block.size - size
        if block.small or self._settings.expandable:
            return left >= MIN_BLOCK
        return left > SMALL and size < self._settings.most_split

    def _segment(self, size: int) -> Block:
        """A block of new memory for so many bytes; where that leaves no room, after what is cached is given back."""
        wanted = self._wanted(size)
        if self.reserved + wanted > self.limit:
            self.empty_cache()
            wanted = self._wanted(size)
        if self.reserved + wanted > self.limit:
            raise OutOfMemoryError
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self._new(size)

    def _wanted(self, size: int) -> int:
        return segment_of(size)

    def _new(self, size: int) -> Block:
        wanted = segment_of(size)
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


class ExpandableAllocator(Allocator):
    """With expandable segments: each pool has one, that grows page by page. A hole is a range of addresses that no
    memory lies behind; where a block finds no free one, memory is put behind the first holes that are large enough
    together with what is free beside them.
    """

    def __init__(self, limit: float, settings: Settings) -> None:
        super().__init__(limit, settings)
        self._holes = {small: [Block(0, _ENDLESS, small)] for small in (True, False)}  # by address

    def empty_cache(self) -> None:
        """Gives whole pages without a block in use back."""
        for small, free in self._free.items():
            page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
            for _, _, block in list(free):
                low, end = -(-block.address // page) * page, block.address + block.size
                high = end // page * page
                if low < high:
                    self._forget(block)
                    hole = Block(low, high - low, small, block.before, block.after)
                    for address, size in ((block.address, low - block.address), (high, end - high)):
                        if size:
                            self._keep(_linked(Block(address, size, small, used=False), hole, first=address < low))
                    _joined(hole)
                    insort(self._holes[small], hole, key=attrgetter("address"))
                    self.reserved -= high - low

    def _wanted(self, size: int) -> int:
        holes = self._holes[size <= SMALL]
        return sum(bytes_ for block, bytes_ in self._run(self._first(size), size) if block in holes)

    def _new(self, size: int) -> Block:
        first, small = self._first(size), size <= SMALL
        block = Block(first.address, 0, small, first.before, first)
        for part, bytes_ in list(self._run(first, size)):
            if part not in self._holes[small]:
                self._forget(part)
            block.size += bytes_
            part.address, part.size = part.address + bytes_, part.size - bytes_
            if not part.size:
                block.after = part.after
                if part in self._holes[small]:
                    self._holes[small].remove(part)
        _joined(block)
        return block

    def _first(self, size: int) -> Block:
        for hole in self._holes[size <= SMALL]:
            before = hole.before
            first = before if before is not None and not before.used else hole
            if sum(bytes_ for _, bytes_ in self._run(first, size)) >= size:
                return first
        raise OutOfMemoryError

    def _run(self, first: Block, size: int) -> Iterator[tuple[Block, int]]:
        """Free blocks and holes one behind the other until they hold so much, with the bytes that are taken of each."""
        page = _SMALL_SEGMENT if first.small else _LARGE_SEGMENT
        block: Block | None = first
        while size > 0 and block is not None:
            if block in self._holes[block.small]:
                bytes_ = min(block.size, -(-size // page) * page)
            elif not block.used:
                bytes_ = block.size
            else:
                return
            yield block, bytes_
            size, block = size - bytes_, block.after


_ENDLESS = 2**50


def _joined(block: Block) -> None:
    if block.before is not None:
        block.before.after = block
    if block.after is not None:
        block.after.before = block


def _linked(block: Block, beside: Block, *, first: bool) -> Block:
    """A new block before or behind another one."""
    if first:
        block.before, block.after, beside.before = beside.before, beside, block
    else:
        block.before, block.after, beside.after = beside, beside.after, block
    _joined(block)
    return block


def allocator_of(limit: float, settings: Settings = DEFAULT) -> Allocator:
    """An allocator with these settings."""
    return (ExpandableAllocator if settings.expandable else Allocator)(limit, settings)


def reserved_bytes(
    program: Iterable[int], sizes: Sequence[int] | Mapping[int, int], limit: float, optional: Set[int] = frozenset(),
    settings: Settings = DEFAULT,
) -> int | None:  # fmt: skip
    """The most bytes in segments at once, see `Blocks.program`; None where the limit leaves no room for them.

    optional: blocks that are done without where there is no room for them.
    """
    allocator = allocator_of(limit, settings)
    blocks: dict[int, Block | None] = {}
    try:
        for i in program:
            if i >= 0:
                blocks[i] = allocator.take(sizes[i], i in optional)
            else:
                allocator.give_back(blocks.pop(-1 - i))
    except OutOfMemoryError:
        return None
    return allocator.peak_reserved


# The caching allocator at many points at once: the same calls in the same order, each point with sizes of its own.
#
# What `allocator.Allocator` keeps in sorted lists lies here in columns [places, points]: every point has its free
# blocks in some of the places, and what is asked for is looked for in all of them. Where points go different ways, each
# gets what the allocator for one point would give it.


Ints: TypeAlias = NDArray[np.int64]

_NONE = -1  # the address in places without a block
_MOST = np.iinfo(np.int64).max
_TOGETHER = 2048  # points whose columns stay in a core's cache


def reserved_at(
    program: Iterable[int], sizes: Mapping[int, Ints], limits: NDArray[np.float64], optional: Set[int] = frozenset()
) -> tuple[Ints, NDArray[np.bool_]]:
    """The most bytes in segments at once at each point, and where the limit left no room for them.

    program: see `Blocks.program`. sizes: of its blocks, a number for each point or one for all. limits: one a point.
    optional: blocks that are done without where there is no room for them.
    """
    order, count = list(program), len(limits)
    if count == 1:
        found = reserved_bytes(order, {i: int(size[0]) for i, size in sizes.items()}, limits[0], optional)
        return np.array([found or 0]), np.array([found is None])
    same = next((n for n, i in enumerate(order) if i < 0 or len(sizes[i]) > 1), len(order))
    most, failed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for start in range(0, count, _TOGETHER):
        some = slice(start, start + _TOGETHER)
        # what all points have in common, a network's weights, is gone through once, unless limits make a difference
        alike = same if np.isinf(limits[some]).all() else 0
        state, blocks = _Allocators(limits[some][:1] if alike else limits[some]), dict[int, Ints]()
        for n, i in enumerate(order):
            if n == alike:
                state = state.spread(len(limits[some])) if alike else state
            if i >= 0:
                blocks[i] = state.take(sizes[i][some] if len(sizes[i]) > 1 else sizes[i], i in optional)
            else:
                state.give_back(blocks.pop(-1 - i))
        most[some], failed[some] = state.peak_reserved, state.failed
    return most, failed


class _Allocators:
    """The state at each point. A block is columns of address, bytes and segment's bytes; of none, 0 bytes."""

    def __init__(self, limits: NDArray[np.float64], places: int = 4) -> None:
        count = len(limits)
        self.limits = limits
        self.reserved, self.peak_reserved, self._top = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self.failed = np.zeros(count, dtype=bool)
        self._every = np.arange(count)
        self._free = np.zeros((3, places, count), dtype=np.int64)
        self._free[0] = _NONE

    def spread(self, count: int) -> _Allocators:
        """The state of one point at so many."""
        found = _Allocators(np.broadcast_to(self.limits, (count,)))
        for name in ("reserved", "peak_reserved", "_top", "_free"):
            setattr(found, name, np.repeat(getattr(self, name), count, axis=-1))
        return found

    def take(self, sizes: Ints, optional: bool) -> Ints:
        """A block of so many bytes at each point."""
        asked = np.broadcast_to((sizes + MIN_BLOCK - 1) & -MIN_BLOCK, self._every.shape)
        asked = np.where(self.failed, 0, asked)
        small = asked <= SMALL
        addresses, every_size, segments = self._free
        fitting = (every_size >= asked) & ((segments == _SMALL_SEGMENT) == small)
        fitting[:, asked == 0] = False
        size = np.where(fitting, every_size, _MOST)
        least = size.min(axis=0)
        place = np.where(size == least, np.where(fitting, addresses, _MOST), _MOST).argmin(axis=0)
        had, new = least < _MOST, (least == _MOST) & (asked > 0)
        address, _, segment = self._free[:, place, self._every]
        if new.any():
            wanted = segments_of(asked)
            new = self._reserve(wanted, new, optional)
            address, segment = np.where(new, self._top, address), np.where(new, wanted, segment)
            least = np.where(new, wanted, least)
            self._top += np.where(new, wanted + GAP, 0)
        taken = had | new
        left = np.where(taken, least - asked, 0)
        split = left >= np.where(small, MIN_BLOCK, SMALL + 1)
        self._forget(place[had], self._every[had])
        self._keep(np.flatnonzero(split), np.stack((address + asked, left, segment)))
        return np.stack((address, np.where(taken, np.where(split, asked, least), 0), segment))

    def give_back(self, block: Ints) -> None:
        """Frees a block at each point; free neighbours become one with it."""
        address, size, segment = np.broadcast_to(block, (3, self._every.size)).copy()
        used = (size > 0) & ~self.failed
        end, addresses, every_size = address + size, self._free[0], self._free[1]
        before, after = addresses + every_size == address, addresses == end
        for beside in (before, after):
            place = beside.argmax(axis=0)
            some = np.flatnonzero(beside[place, self._every] & used)
            size[some] += every_size[place[some], some]
            if beside is before:
                address[some] = addresses[place[some], some]
            self._forget(place[some], some)
        self._keep(np.flatnonzero(used), np.stack((address, size, segment)))

    def _reserve(self, wanted: Ints, new: NDArray[np.bool_], optional: bool) -> NDArray[np.bool_]:
        """Where there is room for a segment, with what is free given back where there is none otherwise."""
        short = np.flatnonzero(new & (self.reserved + wanted > self.limits))
        if short.size:
            _, size, segment = self._free[:, :, short]
            whole = size == np.maximum(segment, 1)
            self.reserved[short] -= np.where(whole, size, 0).sum(axis=0)
            place, point = np.nonzero(whole)
            self._forget(place, short[point])
            lacking = new & (self.reserved + wanted > self.limits)
            self.failed |= lacking & (not optional)
            new = new & ~lacking
        self.reserved += np.where(new, wanted, 0)
        np.maximum(self.peak_reserved, self.reserved, out=self.peak_reserved)
        return new

    def _keep(self, points: Ints, block: Ints) -> None:
        """Into the first empty place of each of these points."""
        if not points.size:
            return
        empty = self._free[0][:, points] == _NONE
        place = empty.argmax(axis=0)
        if not empty[place, np.arange(points.size)].all():
            self._free = np.concatenate((self._free, _Allocators(self.limits, self._free.shape[1])._free), axis=1)
            self._keep(points, block)
        else:
            self._free[:, place, points] = block[:, points]

    def _forget(self, place: Ints, points: Ints) -> None:
        self._free[0, place, points] = _NONE
        self._free[1, place, points] = 0
