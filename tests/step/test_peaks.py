"""Peaks of training steps against real ones on the CPU: all storages that are alive there, to the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alive import Alive, real_peak
from torch import nn
from torch.nn import functional

import rooflinekit as rk

CPU = "generic-cloud-cpu-avx2"


class With(nn.Module):
    """A function of layers and an input."""

    def __init__(self, function: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(*self.layers, x)


def squares(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


def swiglu(a: nn.Module, b: nn.Module, c: nn.Module, x: torch.Tensor) -> Any:
    return c(functional.silu(a(x)) * b(x))


def highway(a: nn.Module, b: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(a(x))
    return gate * torch.relu(b(x)) + (1 - gate) * x


def attention(q: nn.Module, k: nn.Module, v: nn.Module, x: torch.Tensor) -> Any:
    return (q(x) @ k(x).transpose(-1, -2) / 8).softmax(-1) @ v(x)


def standardized(a: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = a(x)
    return (y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True) + 1e-5)


def root_mean_square(a: nn.Module, x: torch.Tensor) -> Any:
    y = a(x)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)


def gated_recurrence(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
    states = [x[:, 0]]
    for step in x.unbind(1):
        states.append(torch.tanh(cell(step)) * states[-1])
    return torch.stack(states)


def linears(*widths: tuple[int, int]) -> list[nn.Module]:
    return [nn.Linear(*width) for width in widths]


WIDE = (64, 512)
NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "SwiGLU": (With(swiglu, *linears((64, 2048), (64, 2048), (2048, 64))), (512, 64)),
    "perceptron": (nn.Sequential(nn.Linear(*WIDE), nn.GELU(), nn.Linear(512, 512), nn.ReLU()), (256, 64)),
    "two gates": (With(lambda a, b, x: torch.tanh(a(x)) * torch.sigmoid(b(x)), *linears(WIDE, WIDE)), (256, 64)),
    "highway": (With(highway, *linears((512, 512), (512, 512))), (256, 512)),
    "attention": (With(attention, *linears((64, 64), (64, 64), (64, 64))), (4, 256, 64)),
    "products": (With(lambda a, x: a(x) * a(x).exp() * x.sum(), *linears(WIDE)), (256, 64)),
    "quotient": (With(lambda a, x: a(x) / (1 + a(x).exp()), *linears(WIDE)), (256, 64)),
    "powers": (With(lambda a, x: a(x) ** 3 + a(x) ** 2, *linears(WIDE)), (256, 64)),
    "concatenation": (With(lambda a, b, x: torch.cat([a(x), b(x)], -1).relu(), *linears(WIDE, (64, 256))), (256, 64)),
    "layer norms": (nn.Sequential(nn.Linear(*WIDE), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512)), (256, 64)),
    "selection": (With(lambda a, x: torch.where(a(x) > 0, a(x), a(x) * 2), *linears(WIDE)), (256, 64)),
    "batched products": (With(lambda a, x: (a(x) @ a(x).mT).relu().sum(-1), nn.Linear(64, 64)), (4, 128, 64)),
    "outer products": (With(lambda a, b, x: torch.einsum("bi,bj->bij", a(x), b(x)), *linears(WIDE, WIDE)), (8, 64)),
    "standardized": (With(standardized, nn.Linear(*WIDE)), (256, 64)),
    "root mean square": (With(root_mean_square, nn.Linear(*WIDE)), (256, 64)),
    "GLU": (nn.Sequential(nn.Linear(64, 1024), nn.GLU(), nn.Linear(512, 10)), (256, 64)),
    "PReLU, softplus": (nn.Sequential(nn.Linear(*WIDE), nn.PReLU(), nn.Linear(512, 64), nn.Softplus()), (256, 64)),
    "log softmax": (nn.Sequential(nn.Linear(*WIDE), nn.LogSoftmax(-1)), (256, 64)),
    "embedding": (With(lambda e, a, x: a(e(x.long())), nn.Embedding(10, 256), nn.Linear(256, 100)), (64, 16)),
    "recurrence": (With(gated_recurrence, nn.Linear(256, 256)), (16, 8, 256)),
}


@pytest.mark.parametrize(("model", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_a_peak_is_that_of_a_real_step(model: nn.Module, shape: tuple[int, ...]) -> None:
    real = real_peak(model, [torch.rand(shape)], squares)
    model.zero_grad()
    told = rk.predict(model, rk.Input(*shape), gpu=CPU, mode="training", loss=squares).memory.peak_bytes
    assert abs(told / real - 1) < 1e-3


def test_numbers_in_the_code_live_as_long_as_they_are_used() -> None:
    # Of 1024 numbers 4 KiB at a time: the input and the result, and what a literal and its product take.
    numbers = [1.0] * 1024

    def scaled(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = x * torch.tensor(numbers)
        return x

    x = torch.rand(1024)
    with torch.no_grad(), Alive([x]) as alive:
        scaled(x)
    told = rk.predict(scaled, rk.Input(1024), gpu=CPU).memory.peak_bytes
    assert told == alive.peak == 4 * 4096


class _Cache:
    """What a model returns that torch knows nothing of."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


class _Caching(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, _Cache]:
        cache = _Cache()
        for _ in range(3):
            x = x.exp()
            cache.kept.append(x)
        return x.sum(), cache


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_what_a_returned_object_holds_stays(backend: str) -> None:
    # An input and three tensors of 1 MiB that the cache holds, then a sum in a block of 512 bytes.
    graph = rk.trace(_Caching(), rk.Input(2**18))
    assert rk.predict(graph, "nvidia-l4", execution=backend).memory.peak_bytes == 4 * 2**20 + 512


def test_a_compiled_kernel_writes_over_what_it_is_the_last_to_read() -> None:
    # As inductor's own code of this block has it: `buf1 = buf0  # reuse` for GELU, `buf6 = buf2  # reuse` for the sum
    # and its norm. 2^16 rows: x of 64 numbers 16 MiB, the first product of 256 numbers 64 MiB, the second 16 MiB.
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x * 2 + self.down(nn.functional.gelu(self.up(x))))  # type: ignore[no-any-return]

    graph = rk.trace(Block(), rk.Input(2**16, 64))
    memory = rk.predict(graph, "nvidia-l4", execution="compiled").memory
    within = memory.peak_bytes - memory.workspace_bytes - memory.weight_bytes
    assert within == pytest.approx((16 + 64 + 16) * 2**20, abs=8 * 512)
    # in eager mode GELU's result is another 64 MiB beside the product, which forward's caller holds meanwhile
    eager = rk.predict(graph, "nvidia-l4").memory
    assert eager.peak_bytes >= memory.peak_bytes + 64 * 2**20


def test_a_transposed_reader_is_not_written_over() -> None:
    # The sum's second reading is in another order than its result: three tensors of 16 MiB lie beside each other.
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ x
            return y + y.T

    graph = rk.trace(Turned(), rk.Input(2048, 2048))
    memory = rk.predict(graph, "nvidia-l4", execution="compiled").memory
    assert memory.peak_bytes - memory.workspace_bytes == pytest.approx(3 * 16 * 2**20, abs=4 * 512)
