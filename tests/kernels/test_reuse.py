"""What kernels find in the cache: distances counted along hand-written sequences, and along small traces."""

import pytest
import torch
from learned import kernels
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.kernels.kernel import Reuse, Traffic


def tensor(name: str, count: int, storage: str = "") -> TensorSpec:
    """`count` numbers of 4 bytes."""
    return TensorSpec(name=name, shape=(count,), dtype=DType.FLOAT32, storage=storage)


def op(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Op:
    return Op(name="op", kind="aten.op", inputs=tuple(inputs), outputs=tuple(outputs))


def found(model: object, *inputs: object, **options: object) -> list[tuple[str, list[tuple[int, int]]]]:
    """Each kernel with (bytes, distance) of what it finds."""
    return [
        (kernel.name, [(recent.bytes, recent.distance) for recent in kernel.recent])
        for kernel in kernels(model, *inputs, **options)
    ]


# --- sequences by hand ------------------------------------------------------------------------------------------


def test_distances_count_the_traffic_since_the_last_touch() -> None:
    a, b, c, d = (tensor(name, 100) for name in "abcd")  # 400 B each
    traffic = Traffic()
    assert traffic.passed(op([a], [b]), 800, whole=True) == ()  # nothing was touched before: 400 in, 400 out
    assert traffic.passed(op([b], [c]), 800, whole=True) == (Reuse(bytes=400, distance=0),)  # just written
    # a was last read 800 B ago, b 0 B ago
    assert traffic.passed(op([a, b], [d]), 1200, whole=True) == (
        Reuse(bytes=400, distance=800),
        Reuse(bytes=400, distance=0),
    )
    # c was written before the last 1200 B; d, a and b within them
    assert traffic.passed(op([c, d, a], [c]), 1600, whole=True) == (
        Reuse(bytes=400, distance=1200),
        Reuse(bytes=400, distance=0),
        Reuse(bytes=400, distance=0),
    )
    assert traffic.total == 4400


def test_a_tensor_that_is_passed_twice_is_read_once() -> None:
    a, b, c = (tensor(name, 100) for name in "abc")
    traffic = Traffic()
    traffic.passed(op([a], [b]), 800, whole=True)
    assert traffic.passed(op([b, b], [c]), 800, whole=True) == (Reuse(bytes=400, distance=0),)


def test_views_share_the_memory_of_what_they_view() -> None:
    a, b = tensor("a", 100), tensor("b", 100)
    flat = tensor("flat", 100, storage="b")
    traffic = Traffic()
    traffic.passed(op([a], [b]), 800, whole=True)
    assert traffic.passed(op([flat], [tensor("c", 100)]), 800, whole=True) == (Reuse(bytes=400, distance=0),)
    assert traffic.passed(op([b], [tensor("d", 100)]), 800, whole=True) == (Reuse(bytes=400, distance=0),)


def test_a_kernel_of_its_own_for_the_bias_reads_the_output() -> None:
    x, y, bias = tensor("x", 100), tensor("y", 200), tensor("bias", 10)
    traffic = Traffic()
    assert traffic.passed(op([x, bias], [y]), 1200, whole=True) == ()
    # 800 B of the output, written just now; the bias itself is not looked for
    assert traffic.passed(op([x, bias], [y]), 1640, whole=False) == (Reuse(bytes=800, distance=0),)


@pytest.mark.parametrize(("between", "remembered"), [(2**30 - 1, True), (2**30, False)])
def test_after_a_gibibyte_nothing_is_remembered(between: int, remembered: bool) -> None:
    a, b = tensor("a", 100), tensor("b", 100)
    traffic = Traffic()
    traffic.passed(op([], [a]), 400, whole=True)
    traffic.passed(op([], [b]), between, whole=True)
    expected = (Reuse(bytes=400, distance=between),) if remembered else ()
    assert traffic.passed(op([a], [b]), 800, whole=True) == expected


# --- traces -------------------------------------------------------------------------------------------------------


def test_a_chain_finds_what_was_just_written() -> None:
    # 64 numbers, 256 B; x is read again after exp and tanh have moved 512 B each
    assert found(lambda x: torch.tanh(torch.exp(x)) + x, rk.Input(8, 8)) == [
        ("exp", []),
        ("tanh", [(256, 0)]),
        ("add", [(256, 0), (256, 512)]),
    ]


def test_in_place_ops_touch_the_memory_of_their_input() -> None:
    assert found(lambda x: x.exp().add_(1).tanh(), rk.Input(8, 8)) == [
        ("exp", []),
        ("add_", [(256, 0)]),
        ("tanh", [(256, 0)]),
    ]


def test_views_move_nothing_and_are_seen_through() -> None:
    assert found(lambda x: x.exp().view(16, 4).t().tanh(), rk.Input(8, 8)) == [("exp", []), ("tanh", [(256, 0)])]


def test_a_convolution_with_bias() -> None:
    # the product reads 384 + 96 B and writes 1024 B; the bias reads these and writes them again, 1024 + 32 + 1024 B
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    assert found(model, rk.Input(2, 3, 4, 4)) == [
        ("convolution", []),
        ("convolution: bias", [(1024, 0)]),
        ("relu", [(1024, 0)]),
    ]


def test_alternatives_find_the_same() -> None:
    *_, convolution = kernels(
        lambda x, w: functional.conv2d(x.exp(), w, padding=1), rk.Input(1, 4, 8, 8), rk.Input(4, 4, 3, 3)
    )
    # the implicit product as oneDNN and as MIOpen have it, three of Winograd, written-out windows, and the naive kernel
    assert len(convolution.alternatives) == 7
    # 4·64 numbers of 4 B, just written
    assert convolution.recent == (Reuse(bytes=1024, distance=0),)
    assert {other.recent for other in convolution.alternatives} == {convolution.recent}


# --- kernels of an op, and views of a memory ----------------------------------------------------------------------


def test_three_views_of_parts_of_one_tensor_are_all_found() -> None:
    # query, key and value are the thirds of one projection: 3 · 1024 B are read, all just written
    def attend(x: torch.Tensor) -> torch.Tensor:
        query, key, value = x.exp().view(2, 16, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return functional.scaled_dot_product_attention(query, key, value)

    *_, (_, recent) = found(attend, rk.Input(2, 16, 48, dtype="float16"))
    assert sum(size for size, _ in recent) == 3072


def test_the_bias_gradient_finds_the_gradient_that_it_sums() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 3), nn.Tanh())
    recent = dict(found(model, rk.Input(2, 3, 8, 8), mode="training"))["convolution_backward: bias gradient"]
    # 2·5·4·4 numbers of 4 B, read by the two kernels before it
    assert recent == [(640, 0)]


def test_the_input_gradient_does_not_find_the_input_that_it_does_not_read() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 3), nn.Tanh())
    gradient = next(
        k for k in kernels(model, rk.Input(2, 3, 8, 8), mode="training") if k.cost.label == "input gradient"
    )
    # it reads the gradient, 640 B, and the weight, 5·4·9·4 = 720 B
    assert gradient.cost.read_bytes == 640 + 720
    assert sorted(recent.bytes for recent in gradient.recent) == [640, 720]
