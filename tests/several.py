"""A small network's training step, for tests of steps on several devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.specs import load_cluster


class Chain(nn.Module):
    """Four equal blocks of two linear layers without bias, 64 wide."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False)) for _ in range(4)]
        self.blocks = nn.Sequential(*(nn.Sequential(*block) for block in layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)  # type: ignore[no-any-return]


#: Eight matrices of 64 · 64 numbers in fp32.
PARAMETER_BYTES = 8 * 64 * 64 * 4


@cache
def chain() -> rk.Graph:
    """Its step with the batch open."""
    return rk.trace(Chain(), rk.Input("batch", 64), mode="training", optimizer=torch.optim.SGD)


def step(
    strategy: Any = "ddp", *, cluster: Any = "dgx-a100", gpus: int = 4, batch: int = 8192
) -> rk.ParallelPrediction:
    """The step on several devices."""
    return rk.parallel(chain(), cluster=cluster, strategy=strategy, gpus=gpus, batch=batch)


def slow_cluster(bandwidth: str | float) -> rk.Cluster:
    """DGX A100's GPUs behind a switch of another bandwidth."""
    base = load_cluster("dgx-a100")
    assert base.nvlink is not None
    link = base.nvlink.model_copy(update={"bandwidth_both_directions": None, "bandwidth_per_direction": bandwidth})
    return base.model_copy(update={"nvlink": link})
