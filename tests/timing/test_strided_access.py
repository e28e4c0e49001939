"""What kernels of inductor's reach that do not stream: by the definition, with numbers counted by hand."""

from __future__ import annotations

import pytest

from rooflinekit.kernels.layout import streamed_share
from rooflinekit.kernels.loops import Loop


def share(loop: Loop, read: tuple[int, int], written: tuple[int, int], *, concatenates: bool = False) -> float:
    moved = sum(read) + sum(written)
    return streamed_share(loop, moved, read, written, 4, concatenates=concatenates)


@pytest.mark.parametrize("loop", [Loop.POINTWISE, Loop.REDUCTION])
@pytest.mark.parametrize("read", [(64, 0), (0, 64)])
def test_one_layout_streams(loop: Loop, read: tuple[int, int]) -> None:
    assert share(loop, read, read) == 1.0


def test_a_byte_that_lies_across_a_tile_counts_twice() -> None:
    # 128 read and 64 written with channels last, 64 written with channels first: (256 + 64) / 256
    assert share(Loop.POINTWISE, (0, 128), (64, 64)) == pytest.approx(256 / 320)


def test_a_sum_down_columns_fetches_a_sector_for_each_number_across() -> None:
    # 96 of 4 bytes lie along, 32 across: each of these 8 numbers brings 32 bytes; 96 + 256 in place of 128
    assert share(Loop.REDUCTION, (32, 96), (0, 0)) == pytest.approx(128 / 352)


def test_masks_come_on_top() -> None:
    assert share(Loop.POINTWISE, (0, 64), (0, 64), concatenates=True) == pytest.approx(1 / 1.75)


def test_nothing_moved_and_no_images() -> None:
    assert share(Loop.POINTWISE, (0, 0), (0, 0)) == 1.0
    assert streamed_share(Loop.REDUCTION, 100, (0, 0), (0, 100), 4, concatenates=False) == 1.0
