"""What the CPU spends on entering one more compiled graph, in microseconds, forward and backward.

    python -m benchmarks.speed.graph_entry [PIECES]

The same small network is compiled by inductor as one graph, in pieces by DDP's optimizer, and module by module, as
`fully_shard`'s hooks leave it; each time by what it takes longer than the one graph is shared among the further ones.
A CPU runs the kernels, so the difference holds them too: three small ops a piece, some microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._inductor.compile_fx import compile_fx

_WARM, _RUNS = 30, 2000


class Piece(nn.Module):
    """Three ops with two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(16)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * self.scale + self.shift)


def times_s(model: Callable[..., Any]) -> tuple[float, float]:
    """The fastest of forward and of backward, which other work on the machine has delayed least."""
    x = torch.randn(4, 16)
    found = []
    for _ in range(_WARM + _RUNS):
        start = perf_counter()
        loss = model(x).sum()
        middle = perf_counter()
        loss.backward()
        found.append((middle - start, perf_counter() - middle))
    forward, backward = zip(*found[_WARM:], strict=True)
    return min(forward), min(backward)


def main() -> None:
    """Prints a line for each way."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    torch.set_num_threads(1)
    one = times_s(torch.compile(nn.Sequential(*(Piece() for _ in range(count)))))
    print(f"one graph of {count} pieces: {one[0] * 1e6:.0f} forward, {one[1] * 1e6:.0f} backward")
    torch._dynamo.reset()
    cut = DDPOptimizer(1, compile_fx, first_bucket_cap=1)
    parts = torch.compile(nn.Sequential(*(Piece() for _ in range(count))), backend=cut.compile_fn)
    report("each further piece of DDP", times_s(parts), one, count)
    torch._dynamo.reset()
    modules = nn.Sequential(*(Piece() for _ in range(count)))
    for module in modules:
        module.compile()
    report("each further module", times_s(modules), one, count)


def report(what: str, found: tuple[float, float], one: tuple[float, float], count: int) -> None:
    """A line: how much longer, by the number of further graphs."""
    forward, backward = ((a - b) / (count - 1) * 1e6 for a, b in zip(found, one, strict=True))
    print(f"{what}: {forward:.0f} forward, {backward:.0f} backward")


if __name__ == "__main__":
    main()
