"""Parameters of a kind of their own keep what they hold beside their numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import rooflinekit as rk


class Packed(nn.Parameter):
    """As 8-bit weights of bitsandbytes: the numbers, and a scale a row beside them."""

    scale: torch.Tensor
    group: int

    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, group: int) -> Any:
        self = torch.Tensor._make_subclass(cls, data, False)
        self.scale, self.group = scale, group
        return self


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Packed(torch.zeros(16, 8, dtype=torch.int8), torch.ones(16), 4)

    def forward(self, x: torch.Tensor) -> Any:
        weight: Any = self.weight
        return (x @ weight.to(x.dtype).T) * weight.scale / weight.group


def test_what_a_parameter_keeps_beside_its_numbers_is_there_and_unharmed() -> None:
    """[n, 8] × [8, 16], and a scale an output."""
    model = Scaled()
    graph = rk.trace(model, rk.Input("n", 8))
    assert graph.at(n=3).matrix_flop == 2 * 3 * 8 * 16
    weight: Any = model.weight
    assert type(weight) is Packed
    assert type(weight.scale) is torch.Tensor
    assert model(torch.ones(1, 8)).tolist() == [[0.0] * 16]
