"""What a kernel fetches of tensors that lie in another order, and what it copies before."""

from functools import partial

import pytest
import torch
from learned import Learned, in_mode
from learned import kernels as launched
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.kernels.coalescing import SECTOR_BYTES, sector_bytes
from rooflinekit.kernels.eager import MADE_CONTIGUOUS, TIMES_RESULT
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.memory_system import levels

A100, CPU = rk.load_device("nvidia-a100-sxm4-80gb"), rk.load_device("intel-core-i7-12700h")
kernels = partial(launched, device=A100)


def fetched(model: object, *inputs: rk.Input, **options: object) -> int:
    """Bytes beyond what the only op with a kernel reads."""
    graph = rk.trace(model, *inputs, **options)
    (found,) = (one for one in graph.priced if one.costs)
    return sector_bytes(found.op, found.timed_as)


def test_sectors_of_a_transposed_copy() -> None:
    # A block has 512 elements of a row of the result, each of another row of what it reads: a sector for each.
    assert fetched(lambda x: x.t().contiguous(), rk.Input(4096, 4096)) == 4096**2 * (32 - 4)
    assert fetched(lambda x: x.t().contiguous(), rk.Input(4096, 4096), dtype="float16") == 4096**2 * (32 - 2)
    # A block has 8 rows of 64 of the result: 8 numbers of 2 bytes in each of 64 rows, half of a sector of 16.
    assert fetched(lambda x: x.t().contiguous(), rk.Input(64, 64), dtype="float16") == 64 * 64 * (4 - 2)


def test_what_lies_in_order_costs_nothing_beyond() -> None:
    image = rk.Input(8, 64, 56, 56)
    assert fetched(lambda x: x + 1, image) == 0
    assert fetched(lambda x: x.t() + 1, rk.Input(256, 256)) == 0  # the result takes the order of what is read
    assert fetched(lambda x, y: x + y, image, rk.Input(8, 64, 1, 1)) == 0  # broadcast
    # rows of 64 numbers, of which every third one is read: whole sectors
    assert fetched(lambda x: x.view(128, 3, 64)[:, 1].contiguous(), rk.Input(128, 192)) == 0
    # heads moved before the sequence: 64 numbers of each stay together
    assert fetched(lambda x: x.transpose(1, 2).contiguous(), rk.Input(2, 128, 16, 64)) == 0


def test_operands_in_two_orders() -> None:
    # the result takes the first one's order, in which the other's numbers lie 256 apart
    both = rk.Input(256, 256), rk.Input(256, 256)
    assert fetched(lambda x, y: x + y.t(), *both) == fetched(lambda x, y: y.t() * x, *both) > 0


def test_a_norm_copies_what_is_not_contiguous() -> None:
    norm = nn.LayerNorm(768)
    copy, kernel = kernels(lambda x: norm(x.transpose(1, 2)), rk.Input(4, 768, 196))
    assert (copy.cost.label, copy.family, kernel.kind) == (MADE_CONTIGUOUS, "movement", "aten.native_layer_norm")
    assert copy.cost.read_bytes == copy.cost.write_bytes == 4 * 768 * 196 * 4
    assert (copy.reread_bytes, copy.column) == (4 * 768 * 196 * (32 - 4), SECTOR_BYTES)
    (alone,) = kernels(norm, rk.Input(4, 196, 768))
    assert alone.kind == "aten.native_layer_norm"
    assert [k.kind for k in kernels(lambda x: functional.softmax(x.t(), -1), rk.Input(64, 96))] == ["aten._softmax"] * 2
    # of one number that stands for 96: read once, written 64·96 times
    copy, _ = kernels(lambda x: functional.softmax(x.expand(64, 96), -1), rk.Input(64, 1))
    assert (copy.cost.read_bytes, copy.cost.write_bytes) == (64 * 4, 64 * 96 * 4)


def test_the_gradient_of_a_softmax_is_multiplied_by_its_result_before() -> None:
    def found(device: object) -> list[Kernel]:
        model = Learned(lambda x: functional.softmax(x, -1))
        whole = kernels(model, rk.Input(64, 96), **in_mode("training"), device=device)
        return [kernel for kernel in whole if kernel.kind == "aten._softmax_backward_data"]

    times, gradient = found(A100)
    assert (times.cost.label, gradient.cost.label) == (TIMES_RESULT, "")
    # each reads two tensors and writes one, of 64·96 numbers of 4 bytes
    assert times.cost.read_bytes == gradient.cost.read_bytes == 2 * 64 * 96 * 4
    assert times.cost.write_bytes == gradient.cost.write_bytes == 64 * 96 * 4
    (alone,) = found(CPU)
    assert alone.cost == gradient.cost


@pytest.mark.parametrize("gpu", ["nvidia-p4", "nvidia-t4", "nvidia-h100-sxm5-80gb", "amd-mi300x", "amd-rx-6800-xt"])
def test_a_copy_in_another_order_is_never_faster(gpu: str) -> None:
    def seconds(model: object) -> float:
        return rk.predict(model, rk.Input(2048, 4096), gpu=gpu, dtype="float16").gpu_s

    assert seconds(lambda x: x.t().contiguous()) > seconds(lambda x: x.clone())


def test_operands_that_do_not_lie_alike_have_their_places_worked_out() -> None:
    rows, size = rk.Input(64, 4096), 64 * 4096

    def indexed(model: object, *inputs: rk.Input) -> list[int]:
        return [kernel.indexed for kernel in kernels(model, *inputs)]

    assert indexed(lambda x: x * 2, rows) == indexed(lambda x, y: x + y, rows, rows) == [0]
    assert indexed(lambda x, y: x * y, rows, rk.Input(1)) == [0]  # a single number
    # two operands and the result, of a row, of a column, and in another order
    assert indexed(lambda x, y: x * y, rows, rk.Input(4096)) == [3 * size]
    assert indexed(lambda x, y: x * y, rows, rk.Input(64, 1)) == [3 * size]
    assert indexed(lambda x, y: x * y.t(), rows, rk.Input(4096, 64)) == [3 * size]
    assert indexed(lambda x: x.t().contiguous(), rows) == [2 * size]


def test_padded_and_interpolated_images_divide_for_each_result() -> None:
    video, image = rk.Input(2, 3, 4, 8, 8), rk.Input(2, 4, 8, 8)

    def found(model: object, *inputs: rk.Input) -> list[tuple[int, int]]:
        return [(kernel.indexed, kernel.accesses) for kernel in kernels(model, *inputs)]

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=2)

    size = 2 * 3 * 8 * 16 * 16  # seven divisions of two places' time, and a load
    assert found(doubled, video) == [(size * 14, size)]
    assert found(lambda x: functional.pad(x, (1, 1, 1, 1, 0, 0), "replicate"), video) == [(2400 * 6, 2400)]
    assert found(doubled, image) == [(0, 2048)]  # a grid of three sizes tells the place
    # channels next to each other have a kernel of their own, a slice is copied before
    last = kernels(lambda x: doubled(x.to(memory_format=torch.channels_last)), image)[-1]
    assert (last.indexed, last.accesses) == (2048 * 6, 2048)
    assert [k.cost.label for k in kernels(lambda x: doubled(x[..., :4]), image)] == [MADE_CONTIGUOUS, ""]


def test_places_take_the_threads_as_long_as_they_say() -> None:
    """64 rows of 2¹⁸ bf16 numbers times one: 3 · 23 cycles of a lane for each, beside what the memory takes."""
    graph = rk.trace(lambda x, y: x * y, rk.Input(64, 2**18), rk.Input(2**18), dtype="bfloat16")
    alike = rk.trace(lambda x, y: x * y, *[rk.Input(64, 2**18)] * 2, dtype="bfloat16")
    places_s = 64 * 2**18 * 3 * 23 / (108 * 64 * 1.41e9)
    fast = A100.replace(dram={"bandwidth": 1e15}, l2_capacity=2**20)
    own, others = ([rk.predict(one, device).timings[0].memory_s for device in (A100, fast)] for one in (graph, alike))
    assert own[1] == pytest.approx(places_s, rel=0.01)
    assert others[1] < 0.01 * places_s
    # a norm: more than either, less than both
    assert max(places_s, others[0] * 2 / 3) < own[0] < places_s + others[0]
    p = rk.predict(graph, A100)
    ((dram, _),) = levels([p.timings[0].kernel], [own[0]], p.machine)
    assert dram == pytest.approx((2 * 64 + 1) * 2**18 * 2, rel=1e-3)  # no place passes the memory


def test_lists_of_tensors_are_walked_one_by_one() -> None:
    x, y = rk.Input(8, 1, 64), rk.Input(8, 3, 64)
    assert {kernel.indexed for kernel in kernels(lambda x, y: torch.cat([x, y], 1), x, y)} == {0}
    assert {kernel.indexed for kernel in kernels(lambda x, y: torch._foreach_mul([x, y], 2.0), x, y)} == {0}


def test_what_fills_a_result_before_has_no_operands() -> None:
    index = rk.Input(64, 1, dtype="int64")
    copy, scatter = kernels(lambda x, index: x.scatter(1, index, 1.0), rk.Input(64, 8192), index)
    assert (copy.cost.label, copy.indexed, scatter.cost.label) == ("copy", 0, "scatter")


def test_rows_that_an_index_names_are_copied_by_elements_up_to_2_7() -> None:
    table, index = nn.Embedding(65536, 4096, device="meta"), rk.Input(16384, dtype="int64")

    def seconds(like: str) -> float:
        (timing,) = rk.predict(rk.trace(table, index, like=like), A100).timings
        return timing.total_s

    # An element takes 138 cycles of a core: 16384·4096 of them on 108 SMs of 64 cores at 1.41 GHz take 0.95 ms.
    places = 16384 * 4096 * 138 / (108 * 64 * 1.41e9)
    assert seconds("2.7") == pytest.approx(places, rel=0.1)
    # From 2.8 on the memory binds: 268 MB read and 268 MB written at 2.04 TB/s take at least 0.26 ms.
    assert 0.26e-3 < seconds("2.8") < 0.36e-3


def test_an_expanded_index_names_whole_rows_from_2_8_on() -> None:
    def places(like: str, copies: bool = False) -> list[int]:
        def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return x.gather(0, index.repeat(1, 64) if copies else index.expand(16, 64))

        return [one.indexed for one in kernels(gathered, rk.Input(512, 64), rk.Input(16, 1, dtype="int64"), like=like)]

    # before, an expanded index lies in another order than the result: its place and the result's for each number
    assert places("2.7") == [2 * 16 * 64]
    assert places("2.8") == [0]
    assert places("2.8", copies=True) == places("2.7", copies=True)
