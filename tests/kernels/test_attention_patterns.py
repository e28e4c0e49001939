"""Attention that a network writes out, and what torch.compile makes of it."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.kernels.attention_patterns import with_fused_attention


class WrittenOut(nn.Module):
    """Attention of 4 heads of 16, from products and a softmax."""

    mask: torch.Tensor

    def __init__(
        self, *, masked: bool = False, returns_weights: bool = False, dim: int = -1, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.masked, self.returns_weights, self.dim = masked, returns_weights, dim
        self.drop = nn.Dropout(drop)
        self.register_buffer("mask", torch.zeros(128, 96))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
        scores = q @ k.transpose(-2, -1) / 4
        if self.masked:
            scores = scores + self.mask
        weights = self.drop(scores.softmax(self.dim))
        found = weights @ v
        return (found, weights) if self.returns_weights else found


def traced(net: nn.Module, *, dtype: str = "float32", mode: str = "inference") -> rk.Graph:
    sizes = rk.Input(2, 4, 128, 16), rk.Input(2, 4, 96, 16), rk.Input(2, 4, 96, 32)
    return rk.trace(net, *sizes, dtype=dtype, mode=mode)  # type: ignore[arg-type]


def kinds(graph: rk.Graph) -> list[str]:
    return [p.op.kind.removeprefix("aten.") for p in with_fused_attention(graph).priced if p.costs]


@pytest.mark.parametrize(
    ("dtype", "masked", "kernel"),
    [
        ("float32", False, "_scaled_dot_product_efficient_attention"),
        ("bfloat16", False, "_scaled_dot_product_flash_attention"),
        ("bfloat16", True, "_scaled_dot_product_efficient_attention"),  # flash attention has no masks
    ],
)
def test_products_with_a_softmax_between_are_one_kernel(dtype: str, masked: bool, kernel: str) -> None:
    graph = traced(WrittenOut(masked=masked).to(getattr(torch, dtype)), dtype=dtype)
    found = [kind for kind in kinds(graph) if kind != "clone"]
    assert found == [kernel]
    (cost,) = next(p.costs for p in with_fused_attention(graph).priced if "scaled_dot" in p.op.kind)
    # 8 heads of 128 queries, 96 keys, 16 deep, values 32 wide: 2·8·128·96·(16 + 32)
    assert cost.matrix_flop == 9_437_184


def test_dropout_between_them_is_part_of_it() -> None:
    net = WrittenOut(drop=0.1).train()
    assert "native_dropout" not in kinds(traced(net, mode="forward"))


@pytest.mark.parametrize("changed", [{"returns_weights": True}, {"dim": -2}])
def test_weights_that_are_wanted_and_other_softmaxes_are_left(changed: dict[str, object]) -> None:
    graph = traced(WrittenOut(**changed))  # type: ignore[arg-type]
    assert with_fused_attention(graph) is graph


def test_compiled_it_stores_no_scores() -> None:
    p = rk.predict(traced(WrittenOut()), "nvidia-a100-sxm4-80gb", execution="compiled")
    assert any("scaled_dot_product" in t.kernel.kind for t in p.timings)
    assert not any("softmax" in t.kernel.name for t in p.timings)
    assert any("written out" in note for note in p.notes)
