"""Older releases of PyTorch: what a step asks of the GPU there."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import Release


def kinds(graph: rk.Graph, phase: str | None = None) -> Counter[str]:
    return Counter(op.kind.removeprefix("aten.") for op in graph.ops if phase in (None, op.phase.value))


def attention(q: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


HEADS = rk.Input("batch", 4, 16, 8)


def test_attention_is_its_arithmetic_before_2_0() -> None:
    old = kinds(rk.trace(attention, HEADS, like="1.13"))
    assert (old["mul"], old["bmm"], old["_softmax"]) == (1, 2, 1)
    assert not any("scaled_dot_product" in kind for kind in old)
    assert kinds(rk.trace(attention, HEADS, rk.Input(16, 16), like="1.12"))["add"] == 1
    assert kinds(rk.trace(attention, HEADS, rk.Input(16, 16, dtype="bool"), like="1.12"))["masked_fill"] == 1


def test_the_arithmetic_of_attention_is_counted_alike() -> None:
    # [batch, 4 heads, 16 rows, 8]: two products of 2·16·16·8 a head
    for like in ("1.13", "2.0"):
        assert rk.trace(attention, HEADS, like=like).at(batch=3).matrix_flop == 3 * 4 * 2 * (2 * 16 * 16 * 8)


def test_attention_that_no_fused_kernel_takes_is_in_16_bits_before_2_5() -> None:
    of_windows = rk.Input(2, 4, 3, 16, 8, dtype="float16")  # five dimensions
    formats = {
        like: {op.inputs[0].dtype.value for op in rk.trace(attention, of_windows, like=like).ops if "bmm" in op.kind}
        for like in ("2.4", "2.5")
    }
    assert formats == {"2.4": {"float16"}, "2.5": {"float32"}}
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()


def test_causal_attention_with_fewer_heads_of_keys() -> None:
    def model(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    graph = rk.trace(model, rk.Input(2, 4, 16, 8), rk.Input(2, 2, 16, 8), like="1.12")
    assert graph.outputs[0].shape == (2, 4, 16, 8)
    assert kinds(graph)["masked_fill"] == 1


def test_dropout_of_attention_is_a_kernel_in_training() -> None:
    project = nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(project(x), x, x, dropout_p=0.1)

    assert kinds(rk.trace(model, HEADS, mode="training", like="1.12"))["native_dropout"] == 1


def training(like: str | None, **options: object) -> rk.Graph:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return rk.trace(
        model,
        rk.Input("batch", 8),
        mode="training",
        like=like,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, **options),
    )


def test_optimizers_take_each_tensor_before_2_0() -> None:
    assert kinds(training("2.0"), "optimizer") == {"_foreach_add_": 1}
    old = kinds(training("1.13"), "optimizer")
    assert old == {"zero_": 4, "add_": 4}  # two weights and two biases
    assert kinds(training("1.13", foreach=True), "optimizer")["_foreach_add_"] == 1


def test_backward_adds_to_the_gradients_of_the_step_before_until_2_0() -> None:
    assert kinds(training("1.12"), "backward")["add_"] == 4
    assert kinds(training("2.0"), "backward")["add_"] == 0
    old, new = training("1.12"), training("2.0")
    assert sorted(g.shape for g in old.gradients) == sorted(g.shape for g in new.gradients)
    memory = [rk.predict(g, "nvidia-l4", batch=4).memory for g in (old, new)]
    assert memory[0].gradient_bytes == memory[1].gradient_bytes == 4 * (8 * 8 + 8 + 8 * 4 + 4)


@pytest.mark.parametrize("like", ["2.0", "2.0.1", "2.4.0+cu124", "2.13", None])
def test_later_releases_are_traced_as_the_present_one(like: str | None) -> None:
    present, later = training(None), training(like)
    assert [(op.kind, op.inputs, op.outputs) for op in later.ops] == [
        (op.kind, op.inputs, op.outputs) for op in present.ops
    ]
    assert later.tf32 is present.tf32 is None


@pytest.mark.parametrize(
    ("like", "expected"), [("1.6", False), ("1.7", True), ("1.11", True), ("1.12", None), ("2.1", None)]
)
def test_tf32_by_release(like: str, expected: bool | None) -> None:
    layer = nn.Linear(8, 8)
    assert rk.trace(layer, rk.Input(4, 8), like=like).tf32 is expected
    assert rk.trace(layer, rk.Input(4, 8), like=like, tf32=False).tf32 is False


@pytest.mark.parametrize("text", ["12", "one", "", "0.4", 1.12])
def test_what_is_no_release_is_refused(text: object) -> None:
    with pytest.raises(InputError) as error:
        rk.trace(nn.ReLU(), rk.Input(4), like=text)
    assert str(error.value) == (
        f"like: expected a release of PyTorch from 1.0 on, such as '1.12' or '2.4'; got {text!r}"
    )


def test_there_is_no_compiler_before_2_0() -> None:
    graph = rk.trace(nn.ReLU(), rk.Input(4), like="1.13")
    with pytest.raises(InputError) as error:
        rk.predict(graph, "nvidia-l4", execution="compiled")
    assert str(error.value) == (
        "execution 'compiled': PyTorch 1.13 has no torch.compile, which came with 2.0; choose 'eager' or 'cuda-graph', "
        "or a later release"
    )


def test_releases_are_ordered_by_number() -> None:
    ordered = ["1.9", "1.12", "2.5.0", "2.5.1", "2.5", "2.9", "2.10"]  # "2.5" is the last of its patches
    assert [str(one) for one in sorted(map(Release.parse, reversed(ordered)))] == ordered


def test_channels_last_is_what_converting_the_model_gives() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8))

    image = torch.empty(2, 3, 16, 16)
    graph = rk.trace(model(), image, channels_last=True)
    assert graph.inputs[0].stride == (3 * 16 * 16, 1, 3 * 16, 3)
    by_hand = rk.trace(model().to(memory_format=torch.channels_last), image)
    assert [w.stride for w in graph.weights] == [w.stride for w in by_hand.weights]
    assert graph.outputs[0].stride == (8 * 12 * 12, 1, 8 * 12, 8)
    opened = rk.trace(model(), rk.Input("batch", 3, 16, 16), channels_last=True)
    assert opened.at(batch=2).outputs[0].stride == graph.outputs[0].stride
    with pytest.raises(InputError) as error:
        rk.trace(model(), image, channels_last="nhwc")
    assert str(error.value) == "channels_last: expected True or False; got 'nhwc'"


def test_volumes_have_a_layout_with_channels_last_too() -> None:
    graph = rk.trace(nn.Conv3d(2, 4, 3), rk.Input(1, 2, 8, 8, 8), channels_last=True)
    assert graph.inputs[0].stride == (2 * 512, 1, 2 * 64, 2 * 8, 2)
