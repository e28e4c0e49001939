"""Flexible attention counts the pairs that its mask keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex

import rooflinekit as rk

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


class Attending(nn.Module):
    """One product before it, so that there is something to train."""

    def __init__(self, mask: Callable[..., Any] | None) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(16, 16, bias=False), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.layer(x)
        s = q.shape[2]
        mask = None if self.mask is None else flex.create_block_mask(self.mask, None, None, s, s, device="cuda")
        return flex.flex_attention(q, q, q, block_mask=mask)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() <= 4


def flops(graph: rk.Graph, kind: str) -> list[Any]:
    return [cost.matrix_flop for op in graph.priced if op.op.kind == kind for cost in op.costs]


PAIRS = {
    None: 256 * 256,
    causal: 256 * 257 // 2,
    window: 9 * 256 - 2 * (1 + 2 + 3 + 4),  # nine keys a query, but for those beyond both ends
}


@pytest.mark.parametrize("mask", PAIRS, ids=lambda mask: getattr(mask, "__name__", "none"))
def test_pairs_are_those_that_the_mask_keeps(mask: Callable[..., Any] | None) -> None:
    """2 batches of 3 heads 16 wide: 2·2·3·pairs·(16 + 16) forward, and five products to two backward."""
    graph = rk.trace(Attending(mask), rk.Input(2, 3, 256, 16), mode="training", optimizer=torch.optim.SGD)
    forward = 2 * 2 * 3 * PAIRS[mask] * (16 + 16)
    assert flops(graph, "higher_order.flex_attention") == [forward]
    assert flops(graph, "higher_order.flex_attention_backward") == [forward * 5 // 2]
    assert not graph.assumptions


def test_a_causal_mask_is_known_at_every_length() -> None:
    graph = rk.trace(Attending(causal), rk.Input("b", 3, "s", 16))
    assert graph.dims == ("b", "s")
    for s in (128, 640):
        assert flops(graph.at(b=2, s=s), "higher_order.flex_attention") == [2 * 2 * 3 * (s * (s + 1) // 2) * 32]


def test_another_mask_keeps_the_share_of_the_sizes_traced_with_and_says_so() -> None:
    graph = rk.trace(Attending(window), rk.Input(2, 3, "s", 16), sizes={"s": 256})
    (assumption,) = graph.assumptions
    assert assumption.name == "flex_mask"
    assert "as at the sizes of the trace" in str(assumption)
    at_500 = flops(graph.at(s=500), "higher_order.flex_attention")[0]
    assert at_500 == pytest.approx(2 * 2 * 3 * 32 * PAIRS[window] * (500 / 256) ** 2, rel=1e-3)


def test_a_mask_of_data_is_an_assumption_that_the_user_can_set() -> None:
    """Documents of a batch stand in a tensor: all pairs, or as many as the user says."""

    class Documents(Attending):
        def forward(self, x: torch.Tensor, document: torch.Tensor | None = None) -> torch.Tensor:
            self.mask = lambda b, h, q, k: document[q] == document[k]
            return super().forward(x)

    def graph(**options: Any) -> rk.Graph:
        return rk.trace(Documents(None), rk.Input(2, 3, 256, 16), rk.Input(256, dtype="int64"), **options)

    assert flops(graph(), "higher_order.flex_attention") == [2 * 2 * 3 * 256 * 256 * 32]
    quarter = graph(assume={"flex_mask": 0.25})
    assert flops(quarter, "higher_order.flex_attention") == [2 * 2 * 3 * 256 * 256 * 32 // 4]
