"""A small network's training step, for tests of steps on several devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.hardware.specs import load_cluster
from rooflinekit.ir.op import Phase


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


#: So that a step has several.
SMALL = rk.DDP(bucket_bytes=20_000, first_bucket_bytes=1)


def overlapped() -> rk.ParallelPrediction:
    """Small buckets over a slow switch: some are hidden, the last ones exposed."""
    return step(SMALL, cluster=slow_cluster(5e8), batch=65536)


def unmade(graph: rk.Graph) -> list[str]:
    """Ops that read what nothing has made, before the optimizer's."""
    made = {spec.memory for spec in (*graph.inputs, *graph.weights)}
    found = []
    for op in graph.ops:
        if op.phase is not Phase.OPTIMIZER and not {spec.memory for spec in op.inputs} <= made:
            found.append(op.name)
        made |= {spec.memory for spec in op.outputs}
    return found


#: Of the transformer below.
WIDTH, LAYERS, SEQUENCE = 64, 2, 16


class Layer(nn.Module):
    """Attention of four heads and a feed-forward, each after a norm and before a dropout and a residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (layer(y).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.down(self.act(self.up(self.between(x)))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 100, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


@cache
def transformer_step() -> rk.Graph:
    """Its training step with Adam, of sequences of SEQUENCE tokens; the batch is open."""
    tokens = rk.Input("batch", "seq", dtype="int64")
    step = rk.trace(
        Transformer(), tokens, mode="training", optimizer=torch.optim.Adam, loss=loss, targets=[tokens]
    )  # fmt: skip
    return step.at(seq=SEQUENCE)
