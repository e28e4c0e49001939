"""Measured calls find their predicted ops, and no second is lost or counted twice."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.study.profile.matching import OpTime, kind_of, match


def calls(*described: tuple[int, str, float]) -> list[ProfiledOp]:
    """Depth, name and microseconds of each call."""
    return [ProfiledOp(depth=depth, name=name, seconds=micros * 1e-6) for depth, name, micros in described]


def kernels(*described: tuple[str, str, str, float]) -> list[Any]:
    """Kind, name, module and microseconds of each kernel."""
    return [
        SimpleNamespace(kernel=SimpleNamespace(kind=kind, name=name, module=module), total_s=micros * 1e-6)
        for kind, name, module, micros in described
    ]


def micros(found: tuple[OpTime, ...]) -> dict[str, tuple[int, float, float]]:
    return {op.name: (op.count, round(op.measured_s * 1e6, 9), round(op.predicted_s * 1e6, 9)) for op in found}


def test_a_call_of_a_predicted_kind_stands_with_what_it_calls() -> None:
    measured = calls(
        (0, "aten::linear", 10), (1, "aten::t", 1), (1, "aten::addmm", 8), (2, "aten::expand", 3), (0, "aten::relu_", 2)
    )  # fmt: skip
    predicted = kernels(("aten.addmm", "addmm", "fc", 5), ("aten.relu", "relu", "act", 3))
    found = match(measured, predicted)
    # linear itself: 10 − 1 − 8; what addmm calls is addmm's
    assert micros(found) == {"addmm": (1, 8, 5), "relu": (1, 2, 3), "linear": (1, 1, 0), "t": (1, 1, 0)}
    assert [op.module for op in found] == ["fc", "act", "", ""]
    assert found[0].difference_s == pytest.approx(3e-6)


def test_the_kernels_of_an_op_are_one_op() -> None:
    predicted = kernels(
        ("aten.convolution_backward", "convolution_backward_1: input gradient", "conv", 4),
        ("aten.convolution_backward", "convolution_backward_1: weight gradient", "conv", 5),
        ("aten.convolution", "convolution", "conv", 1),
        ("aten.convolution", "convolution (x to channels last)", "conv", 2),
    )
    found = match(calls((0, "aten::convolution_backward", 7), (0, "aten::conv2d", 6)), predicted)
    assert micros(found) == {"convolution_backward_1": (1, 7, 9), "convolution": (1, 6, 3)}


def test_ops_are_told_apart_by_their_order_where_the_counts_agree() -> None:
    predicted = kernels(("aten.mm", "mm", "a", 1), ("aten.mm", "mm_1", "b", 2))
    two = match(calls((0, "aten::mm", 10), (0, "aten::mm", 20)), predicted)
    assert micros(two) == {"mm": (1, 10, 1), "mm_1": (1, 20, 2)}
    three = match(calls((0, "aten::mm", 10), (0, "aten::mm", 20), (0, "aten::mm", 5)), predicted)
    assert micros(three) == {"mm": (3, 35, 3)}
    assert three[0].module == ""
    none = match([], predicted)
    assert micros(none) == {"mm": (2, 0, 3)}


def test_fused_kernels_are_compared_together() -> None:
    measured = calls((0, "Torch-Compiled Region: 0/0", 9), (1, "aten::mm", 4), (1, "triton_poi_fused_add_3", 2))
    predicted = kernels(("inductor.pointwise", "triton_poi_fused_add_0", "", 6), ("aten.mm", "mm", "", 3))
    # 9 − 4 − 2 beside the two of the kernel
    assert micros(match(measured, predicted)) == {"fused": (2, 5, 6), "mm": (1, 4, 3)}


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("aten.convolution", "aten::conv2d", "aten::_convolution", "aten::mkldnn_convolution",
          "aten::cudnn_convolution", "aten::conv_transpose2d", "aten::_conv_depthwise2d"), "convolution"),
        (("aten.convolution_backward", "aten::convolution_backward"), "convolution_backward"),
        (("aten.native_batch_norm", "aten::batch_norm", "aten::cudnn_batch_norm"), "batch_norm"),
        (("aten.native_batch_norm_backward", "aten::cudnn_batch_norm_backward"), "batch_norm_backward"),
        (("aten._scaled_dot_product_efficient_attention", "aten::scaled_dot_product_attention",
          "aten::_scaled_dot_product_flash_attention_for_cpu"), "attention"),
        (("aten._scaled_dot_product_flash_attention_backward",), "attention_backward"),
        (("aten._cudnn_rnn", "aten::lstm", "aten::gru", "aten::mkldnn_rnn_layer"), "recurrent"),
        (("aten.native_dropout", "aten::dropout"), "dropout"),
        (("aten._softmax", "aten::softmax"), "softmax"),
        (("aten._log_softmax",), "log_softmax"),
        (("aten._foreach_mul_", "aten::_foreach_mul"), "foreach_mul"),
        (("aten.relu_", "aten::relu"), "relu"),
        (("AddmmBackward0", "autograd::engine::evaluate_function: AddmmBackward0"), "autograd's engine"),
        (("Optimizer.step#AdamW.step",), "optimizer's own code"),
    ],
)  # fmt: skip
def test_one_kind_has_many_names(names: tuple[str, ...], kind: str) -> None:
    assert {kind_of(name) for name in names} == {kind}


@st.composite
def trees(draw: st.DrawFn, depth: int = 0) -> list[tuple[int, str, float]]:
    """Calls in order, each as long as its children and a whole number of microseconds more."""
    found: list[tuple[int, str, float]] = []
    for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
        below = draw(trees(depth + 1))
        own = draw(st.integers(0, 9))
        inside = sum(seconds for level, _, seconds in below if level == depth + 1)
        found += [
            (depth, draw(st.sampled_from(["aten::mm", "aten::add", "aten::t", "triton_x_1"])), own + inside),
            *below,
        ]
    return found


@given(trees(), st.lists(st.tuples(st.sampled_from(["aten.mm", "aten.add", "aten.mul"]), st.integers(1, 9))))
def test_every_second_counts_once(tree: list[tuple[int, str, float]], ops: list[tuple[str, int]]) -> None:
    predicted = kernels(*((kind, f"op_{i}", "", micros) for i, (kind, micros) in enumerate(ops)))
    found = match(calls(*tree), predicted)
    roots = sum(micros for depth, _, micros in tree if depth == 0)
    assert sum(op.measured_s for op in found) == pytest.approx(roots * 1e-6)
    assert sum(op.predicted_s for op in found) == pytest.approx(sum(micros for _, micros in ops) * 1e-6)
