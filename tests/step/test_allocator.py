"""The caching allocator, against states worked out by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.errors import InputError
from rooflinekit.step.allocator import (
    Allocator,
    ExpandableAllocator,
    OutOfMemoryError,
    Settings,
    allocator_of,
    reserved_bytes,
    rounded,
)

KIB, MIB = 2**10, 2**20


def test_small_blocks_share_a_segment() -> None:
    allocator = Allocator()
    for _ in range(4):
        allocator.take(300 * KIB)
    assert (allocator.allocated, allocator.reserved) == (1200 * KIB, 2 * MIB)
    allocator.take(900 * KIB)  # 2048 - 1200 = 848 KiB are left
    assert allocator.reserved == 4 * MIB


def test_middle_blocks_share_segments_of_20_mib_and_large_ones_have_their_own() -> None:
    allocator = Allocator()
    allocator.take(9 * MIB)
    allocator.take(9 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.take(9 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.take(11 * MIB)  # 11 in the rest of the second segment: 20 - 9
    assert allocator.reserved == 40 * MIB
    allocator.take(101 * MIB)  # whole 2 MiB
    assert allocator.reserved == 142 * MIB


def test_a_rest_of_a_mebibyte_or_less_stays_with_a_large_block() -> None:
    allocator = Allocator()
    allocator.take(19 * MIB + 1)  # rounded to 19 MiB and 512 bytes: a segment of 20 MiB, too little left to split
    assert (allocator.allocated, allocator.reserved) == (20 * MIB, 20 * MIB)


def test_free_neighbours_become_one_block() -> None:
    allocator = Allocator()
    first, second, third = (allocator.take(6 * MIB) for _ in range(3))
    allocator.give_back(first)
    allocator.give_back(third)
    allocator.take(12 * MIB)  # 6 MiB here, 8 MiB there
    assert allocator.reserved == 32 * MIB
    allocator.give_back(second)
    allocator.take(20 * MIB)  # all three
    assert (allocator.allocated, allocator.reserved) == (32 * MIB, 32 * MIB)


def test_cached_segments_are_given_back_before_there_is_no_room() -> None:
    allocator = Allocator(limit=100 * MIB)
    allocator.give_back(allocator.take(60 * MIB))
    assert allocator.reserved == 60 * MIB
    held = allocator.take(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemoryError):
        allocator.take(30 * MIB)
    allocator.give_back(held)
    allocator.take(100 * MIB)
    assert allocator.peak_reserved == 100 * MIB


def test_optional_blocks_are_done_without() -> None:
    # 12 and 14 MiB at once have no room in 24; without the second, what is free later has. The empty cache stays empty.
    sizes, program = [12 * MIB, 14 * MIB, 12 * MIB], [0, 1, -2, 2]
    assert reserved_bytes(program, sizes, 24 * MIB) is None
    assert reserved_bytes(program, sizes, 24 * MIB, {1}) == 24 * MIB
    assert reserved_bytes(program, sizes, 24 * MIB, {2}) is None
    assert reserved_bytes(program, sizes, 40 * MIB, {1}) == 26 * MIB


def test_large_blocks_that_are_not_split_wait_for_large_tensors() -> None:
    allocator = Allocator(settings=Settings(most_split=128 * MIB))
    allocator.give_back(allocator.take(200 * MIB))
    allocator.take(50 * MIB)  # not of the 200 that are free
    assert allocator.reserved == 250 * MIB
    allocator.take(185 * MIB)  # whole: no rest is made
    assert (allocator.allocated, allocator.reserved) == (250 * MIB, 250 * MIB)
    allocator = Allocator(settings=Settings(most_split=128 * MIB))
    allocator.give_back(allocator.take(200 * MIB))
    allocator.take(150 * MIB)  # 50 would be lost, more than 20
    assert allocator.reserved == 350 * MIB


def test_expandable_segments_grow_by_pages() -> None:
    allocator = allocator_of(float("inf"), Settings(expandable=True))
    first = allocator.take(11 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.take(30 * MIB)  # 9 are free, 21 more are two pages
    assert allocator.reserved == 60 * MIB
    allocator.give_back(first)
    allocator.take(25 * MIB)  # 11 at the beginning do not help; 19 at the end and a page do
    assert (allocator.allocated, allocator.reserved) == (55 * MIB, 80 * MIB)
    allocator.take(KIB)  # the small pool has pages of 2 MiB
    assert allocator.reserved == 82 * MIB


def test_pages_between_blocks_are_given_back() -> None:
    allocator = allocator_of(100 * MIB, Settings(expandable=True))
    first = allocator.take(60 * MIB)
    allocator.take(20 * MIB)
    allocator.give_back(first)
    allocator.take(70 * MIB)  # behind the 20, with the memory that lay before them
    assert (allocator.allocated, allocator.reserved) == (90 * MIB, 100 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.take(11 * MIB)


@given(
    st.lists(st.tuples(st.integers(1, 60 * MIB), st.booleans()), max_size=60),
    st.sampled_from([float("inf"), 200 * MIB]),
)
def test_laws_of_expandable_segments(steps: list[tuple[int, bool]], limit: float) -> None:
    allocator, held = ExpandableAllocator(limit, Settings(expandable=True)), []
    for size, back in steps:
        try:
            held.append((allocator.take(size), size))
        except OutOfMemoryError:
            assert allocator.reserved + 22 * MIB + size > limit
        if back and held:
            allocator.give_back(held.pop(size % len(held))[0])
        assert allocator.allocated == sum(rounded(size) for _, size in held) <= allocator.reserved <= limit
        places = sorted((block.small, block.address, block.size) for block, _ in held)
        for (small, low, size), (beside, high, _) in pairwise(places):
            assert small != beside or low + size <= high
    for block, _ in held:
        allocator.give_back(block)
    allocator.empty_cache()
    assert allocator.allocated == allocator.reserved == 0


@pytest.mark.parametrize("text", ["max_split_size_mb:20", "expandable_segments:yes", "roundup", "max_split_size_mb:"])
def test_other_settings_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected expandable_segments:True or False"):
        Settings.parse(text)


def test_nothing_takes_nothing() -> None:
    allocator = Allocator(limit=0)
    allocator.give_back(allocator.take(0))
    assert allocator.peak_reserved == 0


@given(st.lists(st.tuples(st.integers(0, 40 * MIB), st.booleans()), max_size=60))
def test_laws(steps: list[tuple[int, bool]]) -> None:
    allocator = Allocator()
    held, most = [], 0
    for size, frees in steps:
        held.append((size, allocator.take(size)))
        most = max(most, sum(size for size, _ in held))
        if frees:
            allocator.give_back(held.pop(0)[1])
        assert sum(size for size, _ in held) <= allocator.allocated <= allocator.reserved
    assert most <= allocator.peak_allocated <= allocator.peak_reserved
    for _, block in held:
        allocator.give_back(block)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0  # every segment is whole again
