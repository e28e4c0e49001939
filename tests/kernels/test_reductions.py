"""How PyTorch shares out a sum among blocks, by hand from setReduceConfig of Reduce.cuh."""

import pytest

import rooflinekit as rk
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.rows import NO_BLOCKS


@pytest.mark.parametrize(
    ("shape", "dim", "blocks", "loads"),
    [
        # along memory: a warp for each of 512 sums, 16 in a block; 1536 / 32 = 48 numbers a thread, 4 at once
        ((512, 1536), 1, 32, 12),
        # 8192 / 32 = 256 numbers a thread are enough for 16 warps each: 16 numbers a thread, a block for each result
        ((512, 8192), 1, 512, 4),
        # across memory: 128 threads, 32 by 4, with 4 sums each: 1024 / 128 = 8 blocks, as long as 2 of 512 threads;
        # 384 / 4 = 96 numbers a thread
        ((384, 1024), 0, 2, 24),
        # of 513 sums, no multiple of 2, a thread takes one: 32 by 16 threads, 17 blocks; 384 / 16 = 24 numbers
        ((384, 513), 0, 17, 6),
        # everything: 2²⁰ / 4 vectors by 512 threads are 512 each, so 32 blocks share them; then three loads to join
        ((2**20,), None, 32, 16 + 3),
        ((96,), None, 1, 1),  # 64 threads; too few numbers for vectors
    ],
)
def test_blocks(shape: tuple[int, ...], dim: int | None, blocks: int, loads: int) -> None:
    graph = rk.trace(lambda x: x.sum() if dim is None else x.sum(dim), rk.Input(*shape))
    (kernel,) = issues_of(graph)[0].kernels
    assert (kernel.blocks.count, kernel.blocks.loads, kernel.ramps) == (blocks, loads, 2)


def test_a_sum_of_single_numbers_is_a_copy() -> None:
    (kernel,) = issues_of(rk.trace(lambda x: x.sum(1), rk.Input(64, 1)))[0].kernels
    assert (kernel.blocks, kernel.ramps) == (NO_BLOCKS, 1)


def test_a_transposed_tensor_is_summed_along_memory() -> None:
    plain, turned = (
        issues_of(rk.trace(one, rk.Input(512, 1536)))[-1].kernels[0].blocks
        for one in (lambda x: x.sum(1), lambda x: x.t().sum(0))
    )
    assert plain == turned
