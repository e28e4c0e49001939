"""The caching allocator, against states worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.step.allocator import Allocator, OutOfMemoryError, reserved_bytes

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
