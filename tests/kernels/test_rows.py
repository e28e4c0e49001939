"""Kernels that give each row to a block: who reads a row how often, with how many threads."""

from dataclasses import replace

import pytest
import torch
from learned import Learned, kernels
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.rows import NO_BLOCKS, NO_ROWS, Blocks, Rows, blocks_of, norm_rows, softmax_rows

# --- by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "itemsize", "expected"),
    [
        # up to 1024 a warp keeps the row
        (1024, 4, Rows(count=10, length=1024, held_bytes=4096)),
        (1, 4, Rows(count=10, length=1, held_bytes=4)),
        # no whole number of 16 bytes: the row is read three times
        (1025, 4, Rows(count=10, length=1025, passes=3, held_bytes=4100, threads=1024)),
        # else it lies in shared memory, of which a block gets 48 KiB: 12288 numbers are too many
        (2048, 4, Rows(count=10, length=2048, held_bytes=8192, threads=1024)),
        (12288, 4, Rows(count=10, length=12288, passes=3, held_bytes=49152, threads=1024)),
        (12288, 2, Rows(count=10, length=12288, held_bytes=24576, threads=1024, worked=0.75)),  # as a normalization
    ],
)
def test_softmax(length: int, itemsize: int, expected: Rows) -> None:
    assert softmax_rows(10, length, itemsize) == expected


@pytest.mark.parametrize(
    ("length", "itemsize", "threads"),
    # NeuSight's table has the blocks of PyTorch 2.1: 128 threads up to 1031 numbers, 256 up to 2055, then 512
    [(1031, 4, 128), (1033, 4, 256), (2053, 4, 256), (2065, 4, 512), (16384, 4, 512), (1032, 2, 64), (2048, 2, 128)],
)
def test_softmax_before_rows_were_held(length: int, itemsize: int, threads: int) -> None:
    old = softmax_rows(10, length, itemsize, like=Release.parse("2.1.0"))
    assert (old.threads, old.passes) == (threads, 3)
    assert softmax_rows(10, length, itemsize, backward=True).threads == threads  # as gradients still are


def test_normalization() -> None:
    # statistics, then the result: two reads by four warps; of half the bytes three quarters of the time
    assert norm_rows(7, 768, 4) == Rows(count=7, length=768, passes=2, held_bytes=3072, warps=4)
    assert norm_rows(7, 768, 2) == Rows(count=7, length=768, passes=2, held_bytes=1536, warps=4, worked=0.75)


# --- on traced ops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [functional.softmax, functional.log_softmax])
@pytest.mark.parametrize("dim", [-1, 2])
def test_softmax_over_the_last_size_of_a_trace(op: object, dim: int) -> None:
    (kernel,) = kernels(lambda x: op(x, dim), rk.Input(3, 5, 2048))
    # 15 rows of 2048 numbers of 4 bytes
    assert kernel.rows == Rows(count=15, length=2048, held_bytes=8192, threads=1024)


def test_softmax_over_another_size_has_no_rows() -> None:
    (kernel,) = kernels(lambda x: functional.softmax(x, 1), rk.Input(3, 5, 2048))
    assert kernel.rows == NO_ROWS


def test_the_gradient_of_softmax_has_the_rows_of_softmax() -> None:
    found = kernels(Learned(lambda x: functional.softmax(x, -1)), rk.Input(6, 64), mode="training")
    rows = {kernel.kind: kernel.rows for kernel in found}
    assert rows["aten._softmax"] == Rows(count=6, length=64, held_bytes=256)
    # a sum and the result, where the softmax has a maximum before
    assert rows["aten._softmax_backward_data"] == replace(rows["aten._softmax"], held_bytes=512, worked=2 / 3)
    longer = kernels(Learned(lambda x: functional.softmax(x, -1)), rk.Input(6, 4097), mode="training")
    assert {k.kind: k.rows.passes for k in longer if "softmax" in k.kind} == {
        "aten._softmax": 3,
        "aten._softmax_backward_data": 2,
    }


def test_layer_norm_over_the_sizes_that_it_normalizes() -> None:
    (kernel,) = kernels(nn.LayerNorm((5, 32)), rk.Input(3, 7, 5, 32, dtype="float16"), dtype="float16")
    # 21 rows of 160 numbers of 2 bytes
    assert kernel.rows == Rows(count=21, length=160, passes=2, held_bytes=320, warps=4, worked=0.75)


def test_of_layer_norm_backward_only_the_gradient_of_the_input_goes_by_rows() -> None:
    layer = nn.LayerNorm(32)
    found = kernels(Learned(layer), rk.Input(6, 32), mode="training")
    rows = {k.cost.label: k.rows for k in found if k.kind == "aten.native_layer_norm_backward"}
    assert rows == {
        "input gradient": Rows(count=6, length=32, passes=2, held_bytes=256, warps=4),  # input and gradient, again
        "gain and shift gradient": NO_ROWS,
    }


def test_a_warp_has_a_short_group() -> None:
    (kernel,) = kernels(nn.GroupNorm(2, 8), rk.Input(4, 8, 10))  # 8 groups of 4 channels of 10 numbers
    assert kernel.rows == Rows(count=8, length=40, held_bytes=160)


@pytest.mark.parametrize("op", [torch.exp, torch.sum, lambda x: functional.batch_norm(x, None, None, training=True)])
def test_other_ops_have_no_rows(op: object) -> None:
    assert {kernel.rows for kernel in kernels(op, rk.Input(4, 8))} == {NO_ROWS}


def test_a_group_norm_on_a_gpu_is_statistics_factors_and_a_result() -> None:
    graph = rk.trace(Learned(nn.GroupNorm(2, 8)), rk.Input(4, 8, 600), mode="training")
    issues = issues_of(graph, device=load_device("nvidia-t4"))
    forward, backward = ([k for i in issues for k in i.kernels if k.kind == f"aten.native_group_norm{end}"]
                         for end in ("", "_backward"))  # fmt: skip
    size, factors = 4 * 8 * 600, 4 * 8 * 2 * 4  # numbers; bytes of two factors of each channel of each image
    assert [k.indexed for k in forward] == [0, 0, 4 * size]  # the result: x, two factors, y
    assert [k.cost.write_bytes for k in forward] == [factors, factors, 4 * size]
    # sums, two kernels of factors, the result by gradient, x and three factors; gain and shift by sums of sums
    assert [k.indexed for k in backward] == [0, 0, 0, 6 * size, 0]
    assert backward[0].blocks == Blocks(count=4 * 8, loads=1, bytes=2 * 4 * size)
    assert (backward[-1].cost.read_bytes, backward[-1].blocks.loads) == (factors, 1)


def test_channels_groups_columns_and_windows() -> None:
    x = torch.empty(4, 8, 64, 64, device="meta")  # 16,384 numbers a channel, 131,072 numbers of 512 KiB in all
    batch, group = nn.BatchNorm2d(8, device="meta"), nn.GroupNorm(2, 8, device="meta")

    def sums(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            batch(x), functional.instance_norm(x), group(x), torch.softmax(x, dim=1), functional.max_pool2d(x, 2),
            functional.avg_pool2d(x, 3, stride=1),
        ]  # fmt: skip

    summed = kernels(sums, x, mode="forward")
    found = {k.kind: k for k in summed}
    norms = [k for k in summed if "batch_norm" in k.kind]
    size = 4 * 8 * 64 * 64 * 4
    # 16,384 numbers by 512 threads are 32 steps, 16 with two numbers of 4 bytes a load; read twice, written once
    assert norms[0].blocks == Blocks(count=8, loads=32, bytes=3 * size)
    # an image's channel each, 4,096 numbers by 512 threads, one at a time, for the statistics alone
    assert norms[1].blocks == Blocks(count=32, loads=8, bytes=size)
    # four channels of an image
    assert found["aten.native_group_norm"].blocks == Blocks(count=8, loads=32, bytes=size)
    assert found["aten.native_group_norm"].rows == Rows(count=8, length=16384, held_bytes=65536, threads=512)
    softmax = found["aten._softmax"]
    assert (softmax.column, softmax.reread_bytes, softmax.blocks) == (32, 2 * size, NO_BLOCKS)
    # four taps, and nine with four for the place: 32 · 32 · 32 and 32 · 62 · 62 results
    assert found["aten.max_pool2d_with_indices"].accesses == 32 * 1024 * 4
    assert found["aten.avg_pool2d"].accesses == 32 * 3844 * (9 + 4)


def test_one_warp_takes_all_targets_up_to_2_7() -> None:
    x, target = rk.Input(1000, 10), rk.Input(1000, dtype="int64")

    def loss(like: str, reduction: str = "mean") -> dict[str, Blocks]:
        model = Learned(lambda x, target: functional.nll_loss(x, target, reduction=reduction).sum())
        found = kernels(model, x, target, mode="training", like=like)
        return {kernel.kind.removeprefix("aten.nll_loss_"): kernel.blocks for kernel in found if "nll" in kernel.kind}

    # 1000 targets by 32 threads are 32 rounds: the target and what it names, the target alone for its gradient
    assert loss("2.7") == {"forward": Blocks(count=1, loads=64), "backward": Blocks(count=1, loads=32)}
    assert {*loss("2.8").values()} == {*loss("2.7", "none").values()} == {NO_BLOCKS}


def test_channels_next_to_each_other_are_summed_by_many_blocks() -> None:
    x = TensorSpec(name="x", shape=(4, 8, 64, 64), dtype=DType.FLOAT32)
    op = Op(name="norm", kind="aten.native_batch_norm", inputs=(x,), outputs=(x,), attrs={"training": True})
    assert blocks_of(op, Cost()) == Blocks(count=8, loads=32, bytes=4 * 8 * 64 * 64 * 4)
    assert blocks_of(replace(op, inputs=(replace(x, stride=(32768, 1, 512, 8)),)), Cost()) == NO_BLOCKS
    assert blocks_of(replace(op, attrs={"training": False}), Cost()) == NO_BLOCKS


def test_a_gain_as_large_as_a_row_is_read_for_each_row_where_the_cache_does_not_hold_it() -> None:
    """16 rows of 2²² numbers in fp32 times one: 16 MiB of the gain, of what is read and of the result pass a row."""
    graph = rk.trace(lambda x, gain: x * gain, rk.Input("batch", 2**22), rk.Input(2**22))
    l4 = load_device("nvidia-l4").replace(
        dram={"bandwidth": 30e9}
    )  # so slow that working out where elements lie is hidden
    short, long = (
        [rk.predict(graph, l4.replace(l2_capacity=size * 2**20), batch=batch).timings[0] for batch in (1, 16)]
        for size in (96, 8)
    )
    held = (2 * 16 + 1) / 3  # 16 MiB each: x and the result 16 times, the gain once; of one row 3
    again = (3 * 16) / 3  # the gain 16 times, too
    passed = [(rows[1].total_s - rows[1].launch_s) / (rows[0].total_s - rows[0].launch_s) for rows in (short, long)]
    assert passed == pytest.approx([held, again], rel=0.02)
