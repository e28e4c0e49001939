"""Small networks by a seed: layers of all families in an order that nobody chose, for laws that hold for every one."""

from collections.abc import Callable
from random import Random

import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk

GPUS = (
    "nvidia-a100-sxm4-80gb", "nvidia-t4", "nvidia-l4", "nvidia-rtx-4090", "nvidia-h100-sxm5-80gb", "amd-mi300x",
    "amd-rx-6800-xt", "nvidia-v100-sxm2-16gb", "nvidia-a40",
)  # fmt: skip
BATCHES = (1, 2, 4, 16, 28, 64, 256)
_WIDTHS = (5, 7, 16, 33, 64, 127, 256, 511, 1000, 2048)
_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Hardswish, nn.Dropout)


class _Beside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class _Attending(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.heads = nn.Linear(width, 3 * width), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _rows(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Of vectors."""
    width = first = random.choice(_WIDTHS)
    layers: list[nn.Module] = []
    for _ in range(random.randint(1, 5)):
        kind = random.choice(("linear", "linear", "activation", "norm", "softmax", "beside"))
        out = random.choice(_WIDTHS) if kind == "linear" else width
        layers.append({
            "linear": lambda: nn.Linear(width, out, bias=random.random() < 0.7),  # noqa: B023
            "activation": random.choice(_ACTIVATIONS),
            "norm": lambda: nn.LayerNorm(width),  # noqa: B023
            "softmax": lambda: nn.Softmax(-1),
            "beside": lambda: _Beside(nn.Sequential(nn.Linear(width, width), nn.ReLU())),  # noqa: B023
        }[kind]())  # fmt: skip
        width = out
    return nn.Sequential(*layers), (first,)


def _tokens(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Of sequences."""
    width, length = random.choice((32, 64, 128, 256, 512)), random.choice((1, 17, 64, 128, 512))
    parts: tuple[Callable[[], nn.Module], ...] = (
        lambda: _Beside(nn.Sequential(nn.LayerNorm(width), _Attending(width, random.choice((2, 4, 8))))),
        lambda: _Beside(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))),
        lambda: nn.Linear(width, width), random.choice(_ACTIVATIONS), lambda: nn.Softmax(random.choice((1, -1))),
    )  # fmt: skip
    return nn.Sequential(*(random.choice(parts)() for _ in range(random.randint(1, 4)))), (length, width)


def _images(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Of lines, images and volumes."""
    sides = random.choice((1, 2, 2, 2, 3))
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[sides - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[sides - 1]
    pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[sides - 1]
    side = random.choice(((64, 333, 1024), (14, 28, 56, 112), (8, 16))[sides - 1])
    channels = first = random.choice((3, 8, 16, 64, 128))
    layers: list[nn.Module] = []
    for _ in range(random.randint(1, 5)):
        kind = random.choice(("wide", "wide", "depthwise", "activation", "norm", "group norm", "pool", "beside"))
        out = random.choice((8, 16, 33, 64, 128)) if kind == "wide" else channels
        window, stride = random.choice((1, 3, 3, 5, 7)), random.choice((1, 1, 2))
        layers.append({
            "wide": lambda: convolution(channels, out, window, stride=stride, padding=window // 2),  # noqa: B023
            "depthwise": lambda: convolution(channels, channels, 3, padding=1, groups=channels),  # noqa: B023
            "activation": random.choice(_ACTIVATIONS),
            "norm": lambda: norm(channels),  # noqa: B023
            "group norm": lambda: nn.GroupNorm(1, channels),  # noqa: B023
            "pool": lambda: pool(3, 1, 1),
            "beside": lambda: _Beside(convolution(channels, channels, 3, padding=1)),  # noqa: B023
        }[kind]())  # fmt: skip
        channels = out
    return nn.Sequential(*layers), (first, *(side,) * sides)


def network(seed: int) -> tuple[rk.Graph, Random]:
    """A step of a network with open "batch", in inference or training, and what else to draw of this seed."""
    random = Random(seed)
    model, shape = random.choice((_rows, _tokens, _images))(random)
    training = random.random() < 0.33 and any(True for _ in model.parameters())
    options = {"mode": "training", "optimizer": random.choice((torch.optim.SGD, torch.optim.AdamW))} if training else {}
    autocast = random.choice((None, None, "fp16", "bf16"))
    return rk.trace(model, rk.Input("batch", *shape), autocast=autocast, **options), random


def launched(p: rk.Prediction) -> int:
    """Kernels that the CPU launches one by one: the second stage of a sum comes with its first."""
    return sum("(second stage)" not in timing.kernel.name for timing in p.timings)
