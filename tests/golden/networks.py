"""Networks of every kind of kernel, in few layers of real sizes: what the golden file's predictions are of."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.tracing.targets import load_target

IMAGE = rk.Input("batch", 3, 224, 224)
TOKENS = rk.Input("batch", "seq", dtype="int64")


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a network is built on the meta device, what it is called with, and the sizes at which it is predicted."""

    build: Callable[[], Callable[..., Any]]
    inputs: tuple[rk.Input, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)  # of rk.trace


class Applied(nn.Module):
    """A function behind a product, so that there is something to train."""

    def __init__(self, function: Callable[..., Any], width: int = 256) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(width, width), function

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        return self.function(self.first(x), *others)


# --- convolutions -------------------------------------------------------------------------------------------------


def windows() -> nn.Module:
    """Windows of 7, 5, 3 and 1, strided and dilated, with norms, pooling and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 96, 5, padding=2), nn.GELU(),
        nn.Conv2d(96, 256, 1), nn.Conv2d(256, 256, 3, stride=2, padding=1), nn.SiLU(),
        nn.Conv2d(256, 200, 3, padding=2, dilation=2), nn.AvgPool2d(2), nn.Conv2d(200, 64, 11, padding=5),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000),
    )  # fmt: skip


def depthwise() -> nn.Module:
    """Depthwise windows of several sizes and strides, with a multiplier, and products between them."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
        nn.BatchNorm2d(32), nn.Hardswish(), nn.Conv2d(32, 96, 1),
        nn.Conv2d(96, 96, 5, stride=2, padding=2, groups=96), nn.Conv2d(96, 192, 1),
        nn.Conv2d(192, 192, 7, padding=3, groups=192), nn.Conv2d(192, 384, 3, padding=1, groups=192),
        nn.Conv2d(384, 384, 3, padding=2, dilation=2, groups=384), nn.Hardsigmoid(),
    )  # fmt: skip


def grouped() -> nn.Module:
    """Convolutions in groups, of few and of many channels each."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.Conv2d(64, 128, 3, padding=1, groups=32), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1, groups=4), nn.Conv2d(256, 256, 1, groups=2),
        nn.Conv2d(256, 256, 3, padding=1, groups=64), nn.GroupNorm(32, 256),
    )  # fmt: skip


def volume() -> nn.Module:
    """Three dimensions: windows, pooling, a transposed convolution."""
    return nn.Sequential(
        nn.Conv3d(3, 32, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)), nn.BatchNorm3d(32), nn.ReLU(),
        nn.MaxPool3d(2), nn.Conv3d(32, 64, 3, padding=1), nn.Conv3d(64, 64, 1), nn.LeakyReLU(),
        nn.ConvTranspose3d(64, 32, 2, stride=2), nn.Conv3d(32, 32, 3, padding=1, groups=32),
    )  # fmt: skip


class Skipping(nn.Module):
    """A U-shaped network: down, up, concatenated with what went by."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.norm, self.up = nn.GroupNorm(8, 128), nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1)
        self.last = nn.Conv2d(192, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        near = functional.silu(self.down(x))
        deep = functional.silu(self.norm(self.deep(near)))
        larger = functional.interpolate(deep, scale_factor=2, mode="nearest")[:, :64]
        return self.last(torch.cat([near, self.up(deep), larger], 1))


def signal() -> nn.Module:
    """One dimension: dilated, depthwise, transposed."""
    return nn.Sequential(
        nn.Conv1d(80, 256, 7, padding=3), nn.Conv1d(256, 256, 3, padding=4, dilation=4), nn.Tanh(),
        nn.Conv1d(256, 256, 9, padding=4, groups=256), nn.ConvTranspose1d(256, 64, 8, stride=4, padding=2),
        nn.InstanceNorm1d(64, affine=True), nn.Conv1d(64, 1, 1),
    )  # fmt: skip


# --- products, attention ------------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    """Products wide and narrow, with norms, dropout and gelu."""
    return nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024), nn.Dropout(0.1),
        nn.RMSNorm(1024), nn.Linear(1024, 1000, bias=False), nn.Linear(1000, 7), nn.Softmax(-1),
    )  # fmt: skip


def encoder() -> nn.Module:
    """Two layers of PyTorch's own encoder, to be called with a mask of padding."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True), 2)


class Attending(nn.Module):
    """Attention in each form: causal, with a mask, to another sequence, with keys that heads share, and written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
        self.bias = nn.Parameter(torch.empty(8, 1, 1))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        across = other.unflatten(-1, (8, 64)).transpose(1, 2)
        causal = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        masked = functional.scaled_dot_product_attention(q, k, v, attn_mask=(q @ k.mT > 0) | (self.bias > 0))
        crossed = functional.scaled_dot_product_attention(q, across, across)
        few = functional.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
        written = (q @ k.transpose(-1, -2) * 0.125 + self.bias).softmax(-1) @ v
        return self.out((causal + masked + crossed + few + written).transpose(1, 2).flatten(2))


def decoding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query a sequence beside a long cache, whose heads four queries share."""
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def windowed(x: Tensor) -> Tensor:
    """Flexible attention in a window."""
    from torch.nn.attention import flex_attention as flex

    s = x.shape[2]
    mask = flex.create_block_mask(lambda b, h, q, k: (q - k).abs() <= 64, None, None, s, s, device="cuda")
    return flex.flex_attention(x, x, x, block_mask=mask)


def eight_bits(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """A product of numbers in 8 bits with scales, and what is done to its result."""
    return torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16).relu()


def eight_bit_rows(a: Tensor, b: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The same with a scale a row."""
    return torch._scaled_mm(a, b.t(), left, right, out_dtype=torch.bfloat16)


def four_bits(a: Tensor, b: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Numbers of 4 bits, two a byte, with scales of blocks of sixteen."""
    return torch._scaled_mm(a, b.t(), left, right, out_dtype=torch.bfloat16)


def integers(a: Tensor, b: Tensor) -> Tensor:
    """A product of whole numbers of 8 bits."""
    return torch._int_mm(a, b)


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Products in batches, and along a vector."""
    return torch.einsum("bij,bjk->bik", a, b) + torch.baddbmm(a, a, b) + (a @ b[0, :, 0]).unsqueeze(-1)


class Mixture(nn.Module):
    """Eight experts over a buffer of rows; each token goes to one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(512, 8, bias=False)
        self.up, self.down = nn.Parameter(torch.empty(8, 512, 1024)), nn.Parameter(torch.empty(8, 1024, 512))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 512)
        rows = tokens.shape[0] // 8
        share, expert = self.router(tokens).softmax(-1).max(-1)
        chosen = functional.one_hot(expert, 8)
        slot = expert * rows + ((chosen.cumsum(0) - 1) * chosen).sum(-1).clamp(max=rows - 1)
        buffer = x.new_zeros(8 * rows, 512).index_copy(0, slot, tokens).view(8, rows, 512)
        found = torch.bmm(functional.gelu(torch.bmm(buffer, self.up)), self.down)
        return (found.reshape(-1, 512)[slot] * share.unsqueeze(-1)).view_as(x)


# --- recurrences, and what only moves numbers -----------------------------------------------------------------------


class Recurrent(nn.Module):
    """A recurrent layer behind an embedding."""

    def __init__(self, kind: type[nn.RNNBase], hidden: int, **options: Any) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(5000, 256), kind(256, hidden, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x))[0])


class Stepped(nn.Module):
    """A cell called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(128, 256)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 256)
        for step in range(4):
            h, c = self.cell(x[:, step], (h, c))
        return h


def pointwise(x: Tensor) -> Tensor:
    """A chain of element-wise ops, broadcast, converted and reduced along both sides."""
    y = functional.gelu(x) * torch.sigmoid(x.t().contiguous()).t() + x.exp().clamp(max=3).to(torch.float64).float()
    return y.softmax(-1).var(0) + (y - y.mean(1, keepdim=True)).abs().amax(1) * y.sum()


def shuffled(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """Gathers, scatters, sorts, sums along a dimension, permutations and concatenations."""
    rows = x[index]
    spread = torch.zeros_like(x).index_add(0, index, rows).scatter_add(0, index[:, None].expand_as(rows), rows)
    best, place = x.topk(8, -1)
    wide = torch.cat([x, spread, rows.flip(0)], 1).view(-1, 3, 256).permute(2, 0, 1).contiguous()
    return wide, x.sort(-1)[0].cumsum(0), best, place, torch.where(x > 0, x, spread).tril(), x.roll(3, 0)


def transformed(x: Tensor) -> Tensor:
    """Fourier transforms, and solving."""
    found: Tensor = torch.fft.irfft2(torch.fft.rfft2(x) * 2)
    return found + torch.linalg.cholesky(x @ x.mT) + torch.linalg.solve(x @ x.mT, x)


def resampled(x: Tensor) -> Tensor:
    """Resizing, padding, sampling on a grid, pixels shuffled."""
    larger = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    grid = functional.affine_grid(x.new_zeros(x.shape[0], 2, 3), list(larger.shape), align_corners=False)
    padded = functional.pad(functional.pixel_shuffle(functional.grid_sample(larger, grid), 2), (1, 1, 1, 1))
    return functional.local_response_norm(functional.adaptive_max_pool2d(padded, 16), 3)


# --- libraries' ---------------------------------------------------------------------------------------------------

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2},
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024,
        "intermediate_size": 3584, "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 4,
        "num_local_experts": 4, "vocab_size": 8000,
    },
}  # fmt: skip


def published(name: str) -> Callable[..., Any]:
    """A model of transformers, of the small configuration above."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.json"
        file.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
        return load_target(f"transformers:{file}").model


def listed(name: str) -> Callable[..., Any]:
    """A model of timm."""
    return load_target(f"timm:{name}").model


def _of(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


def _images(build: Callable[[], Callable[..., Any]], batch: int) -> Network:
    return Network(build=build, inputs=(IMAGE,), sizes={"batch": batch})


def _fp8(*shape: int | str) -> rk.Input:
    return rk.Input(*shape, dtype="float8_e4m3fn")


NETWORKS: Mapping[str, Network] = {
    "windows": _images(windows, 16),
    "depthwise": _images(depthwise, 8),
    "grouped": _images(grouped, 32),
    "volume": Network(build=volume, inputs=(rk.Input("batch", 3, 16, 112, 112),), sizes={"batch": 4}),
    "skipping": Network(build=Skipping, inputs=(rk.Input("batch", 3, 128, 128),), sizes={"batch": 8}),
    "signal": Network(build=signal, inputs=(rk.Input("batch", 80, 1000),), sizes={"batch": 16}),
    "perceptron": Network(build=perceptron, inputs=(rk.Input("batch", 1024),), sizes={"batch": 512}),
    "encoder": Network(build=encoder, inputs=(rk.Input("batch", "seq", 512),), sizes={"batch": 8, "seq": 256}),
    "attending": Network(
        build=Attending, inputs=(rk.Input("batch", "seq", 512), rk.Input("batch", 77, 512)),
        sizes={"batch": 4, "seq": 384},
    ),
    "decoding": Network(
        build=_of(decoding),
        inputs=(rk.Input("batch", 32, 1, 128), *[rk.Input("batch", 8, "context", 128)] * 2),
        sizes={"batch": 16, "context": 3000}, options={"dtype": "bfloat16"},
    ),
    "windowed": Network(build=lambda: windowed, inputs=(rk.Input(2, 8, 512, 64),), sizes={}),
    "eight bits": Network(
        build=_of(eight_bits), inputs=(_fp8("tokens", 4096), _fp8(11008, 4096), rk.Input()), sizes={"tokens": 300},
    ),
    "eight-bit rows": Network(
        build=_of(eight_bit_rows),
        inputs=(_fp8("tokens", 2048), _fp8(1024, 2048), rk.Input("tokens", 1), rk.Input(1, 1024)),
        sizes={"tokens": 2048},
    ),
    "four bits": Network(
        build=_of(four_bits),
        inputs=(
            rk.Input("tokens", 1024, dtype="float4_e2m1fn_x2"), rk.Input(4096, 1024, dtype="float4_e2m1fn_x2"),
            _fp8("tokens", 128), _fp8(4096, 128),
        ),
        sizes={"tokens": 512},
    ),
    "integers": Network(
        build=_of(integers), inputs=(rk.Input("tokens", 1024, dtype="int8"), rk.Input(1024, 4096, dtype="int8")),
        sizes={"tokens": 512},
    ),
    "batched": Network(build=_of(batched), inputs=(rk.Input("batch", 96, 96),) * 2, sizes={"batch": 200}),
    "mixture": Network(build=Mixture, inputs=(rk.Input("batch", 128, 512),), sizes={"batch": 8}),
    "lstm": Network(
        build=partial(Recurrent, nn.LSTM, 512, num_layers=2, bidirectional=True), inputs=(TOKENS,),
        sizes={"batch": 32, "seq": 50},
    ),
    "gru": Network(
        build=partial(Recurrent, nn.GRU, 1024), inputs=(TOKENS,), sizes={"batch": 8, "seq": 120},
    ),
    "rnn": Network(build=partial(Recurrent, nn.RNN, 96), inputs=(TOKENS,), sizes={"batch": 64, "seq": 30}),
    "stepped": Network(build=Stepped, inputs=(rk.Input("batch", 4, 128),), sizes={"batch": 32}),
    "pointwise": Network(build=partial(Applied, pointwise, 1024), inputs=(rk.Input(1024, 1024),), sizes={}),
    "shuffled": Network(
        build=partial(Applied, shuffled), inputs=(rk.Input(4096, 256), rk.Input(4096, dtype="int64")), sizes={},
    ),
    "transformed": Network(build=_of(transformed), inputs=(rk.Input("batch", 64, 64),), sizes={"batch": 24}),
    "resampled": Network(build=_of(resampled), inputs=(rk.Input("batch", 16, 48, 48),), sizes={"batch": 8}),
    "resnet50": _images(partial(listed, "resnet50"), 32),
    "mobilenetv3": _images(partial(listed, "mobilenetv3_small_050"), 64),
    "convnext": _images(partial(listed, "convnext_atto"), 16),
    "vit": _images(partial(listed, "vit_tiny_patch16_224"), 24),
    "gpt2": Network(build=partial(published, "gpt2"), inputs=(TOKENS,), sizes={"batch": 4, "seq": 512}),
    "llama": Network(build=partial(published, "llama"), inputs=(TOKENS,), sizes={"batch": 1, "seq": 1024}),
    "mixtral": Network(build=partial(published, "mixtral"), inputs=(TOKENS,), sizes={"batch": 2, "seq": 256}),
}  # fmt: skip
