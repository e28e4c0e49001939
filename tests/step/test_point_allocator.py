"""Many points at once get what the allocator gives each of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.step.allocator import reserved_at, reserved_bytes

MIB = 2**20
POINTS = 7

# nothing, small blocks, some that share a segment of 20 MiB, some with a segment of their own
SIZES = st.one_of(
    st.just(0), st.integers(1, 3000), st.integers(1, 30 * MIB), st.sampled_from([MIB, 5 * MIB, 10 * MIB, 12 * MIB + 1])
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Blocks in an order of their own that are given back in another, and the size of each at every point."""
    count = draw(st.integers(1, 14))
    order, held = list[int](), list[int]()
    for i in range(count):
        order.append(i)
        held.append(i)
        for _ in range(draw(st.integers(0, 2))):
            if held:
                order.append(-1 - held.pop(draw(st.integers(0, len(held) - 1))))
    everywhere = st.lists(SIZES, min_size=1, max_size=1)
    return order, [draw(st.one_of(everywhere, st.lists(SIZES, min_size=POINTS, max_size=POINTS))) for _ in range(count)]


@settings(max_examples=150, deadline=None)
@given(programs(), st.sampled_from([float("inf"), 20 * MIB, 62 * MIB, 100 * MIB]), st.sets(st.integers(0, 13)))
def test_as_point_by_point(program: tuple[list[int], list[list[int]]], limit: float, optional: set[int]) -> None:
    order, sizes = program
    columns, limits = {i: np.array(s) for i, s in enumerate(sizes)}, np.full(POINTS, limit)
    most, failed = reserved_at(order, columns, limits, optional)
    alone = [reserved_bytes(order, [s[point % len(s)] for s in sizes], limit, optional) for point in range(POINTS)]
    assert [None if out else int(one) for one, out in zip(most, failed, strict=True)] == alone


def test_limits_of_their_own() -> None:
    # Two blocks of 12 MiB: where 24 MiB are allowed both have room, where 23 are the second has none. The third point
    # takes 12 MiB once the first block's segment, which nobody uses any more, is given back.
    twelve = np.array([12 * MIB])
    _, failed = reserved_at([0, 1], {0: twelve, 1: twelve}, np.array([24.0 * MIB, 23.0 * MIB]))
    assert failed.tolist() == [False, True]
    most, failed = reserved_at(
        [0, -1, 1], {0: np.array([14 * MIB]), 1: np.array([16 * MIB])}, np.array([16.0 * MIB] * 2)
    )
    assert (most.tolist(), failed.tolist()) == ([16 * MIB] * 2, [False] * 2)
