"""Nested tensors: the operators that they ask of the values inside."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nested._internal import nested_tensor
from torch.nn import functional

import rooflinekit as rk

LINEAR = nn.Linear(4, 6)


def sentences(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A linear layer and GELU over sentences of different lengths, one behind the other."""
    x = torch.nested.nested_tensor_from_jagged(values, offsets)
    return functional.gelu(LINEAR(x)).values()


@pytest.mark.parametrize("words", ["words", 11])
def test_a_layer_over_nested_tensors_counts_its_words(words: str | int) -> None:
    graph = rk.trace(sentences, rk.Input(words, 4), rk.Input(4, dtype="int64"), mode="training")
    assert not graph.coverage.default_kinds
    assert not graph.forced
    at = graph.at(words=11) if graph.dims else graph
    assert at.matrix_flop == 1056  # 2 · 11·4·6 forward, and for the gradient of the weight
    assert at.gradients[0].shape == (6, 4)


def test_the_first_nested_tensor_of_a_process_is_traced_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    nested: Any = nested_tensor
    monkeypatch.setattr(nested, "_dummy_instance", None)
    first, second = (rk.trace(sentences, rk.Input(11, 4), rk.Input(4, dtype="int64")) for _ in range(2))
    assert [op.kind for op in first.ops] == [op.kind for op in second.ops]
    assert not isinstance(nested._dummy_instance.values(), FakeTensor)  # nothing of the trace is left for real ones


def test_a_list_of_tensors_is_put_together() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2

    graph = rk.trace(model, rk.Input(6, 4), rk.Input(5, 4))
    (scaled,) = [p for p in graph.priced if p.op.kind == "aten.mul"]
    assert scaled.op.outputs[0].shape == (11, 4)
    assert graph.vector_flop >= 44  # 11 · 4 products, and the places where each begins
