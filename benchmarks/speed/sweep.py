"""How long a million predictions take, and whether they are what single predictions say.

    python -m benchmarks.speed.sweep [--points 1000000] [--workers N] [--memory none|peak|fits] [decoder|resnet50|…]

`decoder`: a step of a decoder of GPT-2's size that makes one token, over batch × keys it looks back on × GPUs.
`resnet50`: its inference over batch × GPUs. `training`: a step of training it. The trace is not counted.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import rooflinekit as rk
from rooflinekit.tracing.targets import load_target

HEADS, WIDTH, LAYERS, WORDS = 12, 768, 12, 50257


class Layer(nn.Module):
    """Attention of one new token to those before it, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        seen = F.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(
        self, token: torch.Tensor, place: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        x = self.words(token) + self.places(place)
        for layer, k, v in zip(self.layers, keys.unbind(), values.unbind(), strict=True):
            x = layer(x, k, v)
        return self.last(x) @ self.words.weight.T


def workload(name: str, points: int) -> tuple[rk.Graph, list[str], dict[str, range]]:
    """The graph, and GPUs and sizes for about so many points."""
    gpus = list(rk.devices(kind="gpu", vendor="nvidia").index)
    if name == "decoder":
        past = rk.Input(LAYERS, "batch", HEADS, "past", WIDTH // HEADS, dtype="float16")
        with torch.device("meta"):
            model = Decoder()
        token, place = rk.Input("batch", 1, dtype="int64"), rk.Input("batch", 1, dtype="int64")
        graph = rk.trace(model, token, place, past, past, dtype="float16")
        return graph, gpus[::6][:10], {"batch": range(1, points // 10_000 + 1), "past": range(8, 8001, 8)}
    graph = rk.trace(load_target("timm:resnet50").model, rk.Input("batch", 3, 224, 224), mode=(
        "training" if name == "training" else "inference"
    ))  # fmt: skip
    return graph, gpus[::2][:25], {"batch": range(1, points // 25 + 1)}


def check(graph: rk.Graph, table: object, count: int = 20) -> float:
    """The largest relative difference between rows at random and single predictions."""
    rows = table.iloc[np.random.default_rng(0).integers(0, len(table), count)]  # type: ignore[attr-defined]
    worst = 0.0
    for row in rows.to_dict("records"):
        p = rk.predict(graph, row["gpu"], **{name: int(row[name]) for name in graph.dims})
        low, high = p.interval()
        exact = {"total_s": p.total_s, "low_s": low, "high_s": high, "gpu_s": p.gpu_s, "cpu_s": p.cpu_s}
        assert row["regime"] == p.regime
        if "fits" in row:
            assert row["fits"] == p.memory.fits
        if "peak_bytes" in row:
            assert row["peak_bytes"] == p.memory.peak_bytes
        worst = max(worst, *(abs(row[name] / value - 1) for name, value in exact.items()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="?", default="decoder", choices=("decoder", "resnet50", "training"))
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--memory", default="peak", choices=("none", "peak", "fits"), help="columns of memory")
    given = parser.parse_args()
    graph, gpus, sizes = workload(given.workload, given.points)
    begun = time.perf_counter()
    memory = {"none": False, "peak": "peak", "fits": True}[given.memory]
    table = rk.sweep(graph, gpus=gpus, memory=memory, workers=given.workers, **sizes)
    seconds = time.perf_counter() - begun
    used = sum(os.times()[:4])
    print(
        f"{given.workload}: {len(table)} predictions of {len(graph.ops)} ops in {seconds:.1f} s with {given.workers} "
        f"processes, {used:.0f} s of CPU time with start and trace, memory={given.memory};\n"
        "20 of them differ from single ones by no more than "
        f"{check(graph, table):.0e}"
    )


if __name__ == "__main__":
    main()
