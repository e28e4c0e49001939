"""A small network's training step, traced once."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rooflinekit as rk


class Blocks(nn.Module):
    """A linear layer, four equal blocks of two, and a head: 64 wide, or 256 in the middle of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(4))
        self.head = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


# Parameters: 64·64 + 64 = 4160 of stem and of head, 64·256 + 256 + 256·64 + 64 = 33088 of each block.
# 2·4160 + 4·33088 = 140672.


def traced(optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam) -> rk.Graph:
    """The step with its batch open."""
    targets = [rk.Input("batch", dtype="int64")]
    loss = nn.functional.cross_entropy
    return rk.trace(Blocks(), rk.Input("batch", 64), mode="training", optimizer=optimizer, loss=loss, targets=targets)


@pytest.fixture(scope="session")
def blocks() -> rk.Graph:
    return traced()
