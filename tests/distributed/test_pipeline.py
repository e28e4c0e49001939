"""Schedules of pipelines, by the law of their bubble and by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.distributed.pipeline import (
    Slot,
    Task,
    balanced,
    orders,
    pieces_under_way,
    run_pipeline,
)
from rooflinekit.errors import InputError


def slots_of(
    schedule: str, devices: int, pieces: int, chunks: int = 1, onward_s: float = 0.0
) -> tuple[list[list[Slot]], list[Slot]]:
    """Of equal stages that take a device 1 s forward and 2 s backward for each piece."""
    free = [0.0] * devices

    def perform(device: int, task: Task, ready_s: float) -> Slot:
        start = max(ready_s, free[device])
        free[device] = start + (2 if task.backward else 1) / chunks
        return Slot(task=task, start_s=start, end_s=free[device])

    return run_pipeline([onward_s] * (devices * chunks - 1), orders(schedule, devices, pieces, chunks), perform)


def end_of(schedule: str, devices: int, pieces: int, chunks: int = 1, onward_s: float = 0.0) -> float:
    slots, _ = slots_of(schedule, devices, pieces, chunks, onward_s)
    return max(device[-1].end_s for device in slots)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 12))
def test_the_bubble_of_equal_stages(schedule: str, devices: int, pieces: int) -> None:
    total = end_of(schedule, devices, pieces)
    assert (total - 3 * pieces) / total == pytest.approx((devices - 1) / (pieces + devices - 1))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 3))
def test_chunks_divide_the_bubble(devices: int, groups: int, chunks: int) -> None:
    pieces = devices * groups
    total = end_of("interleaved", devices, pieces, chunks)
    assert (total - 3 * pieces) / (3 * pieces) == pytest.approx((devices - 1) / pieces / chunks)


def test_pieces_under_way() -> None:
    assert [max(pieces_under_way(s)) for s in slots_of("gpipe", 4, 8)[0]] == [8, 8, 8, 8]
    assert [max(pieces_under_way(s)) for s in slots_of("1f1b", 4, 8)[0]] == [4, 3, 2, 1]
    # forward 0 and 1; then backward and forward in turn: the piece whose backward runs still counts
    assert pieces_under_way(slots_of("1f1b", 2, 3)[0][0]) == [1, 2, 2, 2, 2, 1]


def test_links_add_to_the_way_there_and_back() -> None:
    # one piece, two stages: forward 1, link 0.5, forward 1, backward 2, link 0.5, backward 2
    assert end_of("gpipe", 2, 1, onward_s=0.5) == 7.0


def test_a_link_carries_one_piece_after_another() -> None:
    # two pieces, links of 5 s: forward ends at 1 and 2, so they are there at 6 and 11; the second stage computes until
    # 7 and 12, then back until 14 and 16, of which the second waits until the link is free
    _, hops = slots_of("gpipe", 2, 2, onward_s=5)
    assert [(hop.start_s, hop.end_s) for hop in hops] == [(1, 6), (6, 11), (14, 19), (19, 24)]


def test_slower_links_are_never_faster() -> None:
    ends = [end_of("1f1b", 4, 8, onward_s=delay) for delay in (0.0, 0.1, 0.5, 2.0)]
    assert ends == sorted(ends)


def test_balance_by_hand() -> None:
    assert balanced([[4, 1, 1, 1, 1]] * 2) == [0, 1]
    assert balanced([[1, 1, 1, 1, 4, 4]] * 3) == [0, 4, 5]
    # six equal blocks, the second device takes twice as long for each: 4 and 2·2
    assert balanced([[1] * 6, [2] * 6]) == [0, 4]
    with pytest.raises(InputError, match="a pipeline of 3 stages: the model has 2 blocks to put there"):
        balanced([[1, 1]] * 3)
    with pytest.raises(InputError, match="interleaved schedule: expected a multiple of 4 microbatches; got 6"):
        orders("interleaved", 4, 6, 2)
