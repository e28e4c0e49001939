"""Norms, losses, rotary embeddings and gated feed-forward layers as Liger's benchmarks timed PyTorch's own of them.

    python -m benchmarks.networks.liger DATA [--out rows.parquet] [--worst 20]

DATA/liger/kernels.parquet holds times and memory of Triton kernels and of what they replace; judged is the latter:
modules of PyTorch and of Hugging Face, forward, backward, and both. No fit has seen a row. Each call was timed by
Triton's `do_bench`: calls follow each other, and 256 MB are written between them to flush the L2, meanwhile the CPU
issues the next. So a row is the longer of the time that the GPU computes the module's kernels, and what the CPU takes
to issue them beyond that writing. How slow the hosts were is not known: the tables tell both kinds of rows apart.

The gradient that comes to the module is a tensor of its own. Left out are names of something else than a module with
given sizes (preference losses, sparse attention), an embedding's gradient, which adds up in the weight's, and that of a
divergence, whose input is a log-softmax that is taken back too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.pairs import options_of, show
from benchmarks.sources.tables import read_table
from rooflinekit.errors import RooflinekitError
from rooflinekit.ir.op import Op
from rooflinekit.kernels.kernel import Kernel

_REFERENCES = ("torch", "huggingface")
_VECTORS = "2025-08-06"  # PyTorch 2.8 came out: rows of before are taken for 2.7
_PHASES = {"forward": ("forward",), "no-grad-forward": ("forward",), "backward": ("backward",),
           "full": ("forward", "backward")}  # fmt: skip
Settings = dict[str, Any]
#: A module, its inputs, and the format of both; "" where the inputs say theirs, and weights are in fp32.
Case = tuple[nn.Module, tuple[rk.Input, ...], str]
_WITH_GRADIENT = {"rope": 2}  # of the first inputs; one elsewhere
_FORWARD_ALONE = ("embedding", "kl_div")
_FLUSHED = 256_000_000  # bytes that `do_bench` writes before each call, while the CPU issues it


class RmsNorm(nn.Module):
    """LlamaRMSNorm of Hugging Face: in fp32, and back."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size]."""
        stored = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(stored)


class Gated(nn.Module):
    """LlamaMLP of Hugging Face: down(act(gate(x)) · up(x))."""

    def __init__(self, hidden: int, inner: int, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down, self.act = nn.Linear(inner, hidden, bias=False), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [b, t, hidden]."""
        return self.down(self.act(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """apply_rotary_pos_emb of Hugging Face, of queries and keys in one tensor [b, heads, t, d]."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        """q and k [b, heads, t, d], cos and sin [b, t, d]."""
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return tuple(x * cos + _half_turned(x) * sin for x in (q, k))


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class CrossEntropy(nn.Module):
    """nn.CrossEntropyLoss of x [rows, classes]."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean."""
        return functional.cross_entropy(x, target)


class HeadAndLoss(nn.Module):
    """A language model's head, and the loss of its logits as they are."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, classes, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden]."""
        return functional.cross_entropy(self.head(x), target)


class Divergence(nn.Module):
    """nn.KLDivLoss of log-probabilities x against probabilities y, [rows, classes]."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean over rows."""
        return functional.kl_div(x, y, reduction="batchmean")


def _rows_of(s: Settings) -> int:
    return int(s["BT"] if "BT" in s else s.get("B", s.get("bsz", 1)) * s.get("T", s.get("seq_len", 1)))


def _classes(s: Settings) -> int:
    return int(s.get("V") or s["vocab_size"])


def _rms_norm(s: Settings) -> Case:
    """Of x in 16 bits, with a weight in fp32."""
    layer, (x,), dtype = _norm(RmsNorm, "H")(s)
    return layer, (rk.Input(*x.shape, dtype=dtype.removeprefix("torch.")),), ""


def _norm(make: Callable[[int], nn.Module], size: str) -> Callable[[Settings], Case]:
    def case(s: Settings) -> Case:
        width, rows = (s[size], s["M"]) if "M" in s else (s["hidden_size"], _rows_of(s))
        return make(int(width)), (rk.Input(int(rows), int(width)),), s["dtype"]

    return case


def _gated(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Settings], Case]:
    def case(s: Settings) -> Case:
        batch, hidden, inner = int(s.get("B") or s["bsz"]), s["hidden_size"], s["intermediate_size"]
        return Gated(hidden, inner, act), (rk.Input(batch, int(s["T"]), hidden),), s["dtype"]

    return case


def _rotary(s: Settings) -> Case:
    heads, kv = s.get("num_q_heads") or s["num_attention_heads"], s.get("num_kv_heads") or s["num_key_value_heads"]
    hidden = int(s.get("H") or s["hidden_size"])
    d, t = hidden // heads, int(s.get("T") or s["seq_len"])
    states = (rk.Input(1, heads, t, d), rk.Input(1, kv, t, d), rk.Input(1, t, d), rk.Input(1, t, d))
    return Rotary(), states, s["dtype"]


def _cross_entropy(s: Settings) -> Case:
    rows = _rows_of(s)
    return CrossEntropy(), (rk.Input(rows, _classes(s)), rk.Input(rows, dtype="int64")), s.get("dtype", "float32")


def _head_and_loss(s: Settings) -> Case:
    rows, hidden = _rows_of(s), int(s.get("H") or s["hidden_size"])
    inputs = rk.Input(rows, hidden), rk.Input(rows, dtype="int64")
    return HeadAndLoss(hidden, _classes(s)), inputs, s["dtype"]


def _divergence(s: Settings) -> Case:
    shape = rk.Input(_rows_of(s), _classes(s))
    return Divergence(), (shape, shape), s.get("dtype", "float32")


def _softmax(s: Settings) -> Case:
    width = int(s.get("N") or s["hidden_size"])
    return nn.Softmax(dim=-1), (rk.Input(int(s.get("M") or _rows_of(s)), width),), s["dtype"]


def _embedding(s: Settings) -> Case:
    return nn.Embedding(int(s["V"]), s["D"]), (rk.Input(s["B"], s["T"], dtype="int64"),), s["dtype"]


def _group_norm(s: Settings) -> Case:
    channels = int(s["C"])
    layer = nn.GroupNorm(channels // s["channels_per_group"], channels)
    return layer, (rk.Input(s["M"], channels, s["H"]),), s["dtype"]


_CASES: dict[str, Callable[[Settings], Case]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _norm(nn.LayerNorm, "N"),
    "group_norm": _group_norm,
    "softmax": _softmax,
    "swiglu": _gated(functional.silu),
    "geglu": _gated(lambda x: functional.gelu(x, approximate="tanh")),
    "rope": _rotary,
    "cross_entropy": _cross_entropy,
    "fused_linear_cross_entropy": _head_and_loss,
    "kl_div": _divergence,
    "embedding": _embedding,
}


class Flush(torch.autograd.Function):
    """Writes over the L2, as the timer does between calls."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        torch.zeros(_FLUSHED, dtype=torch.uint8, device=x.device)
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.zeros(_FLUSHED, dtype=torch.uint8, device=gradient.device)
        return gradient


class Timed(nn.Module):
    """The module, and a loss whose gradient comes to it as a tensor: neither is the module's own."""

    def __init__(self, layer: nn.Module, wanting: int, *, apart: bool) -> None:
        super().__init__()
        self.layer, self.wanting, self.apart = layer, wanting, apart
        self.before = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The sum of all that it returns, each weighed."""
        given = [x, *others]
        for i in range(self.wanting):
            given[i] = Flush.apply(given[i] * self.before) if given[i].is_floating_point() else given[i]
        found = self.layer(*given)
        outputs = found if isinstance(found, tuple) else (found,)
        if self.apart:  # the gradient is called alone
            outputs = tuple(map(Flush.apply, outputs))
        return torch.stack([(y.float().pow(2)).sum() for y in outputs]).sum()


@cache
def _graph(name: str, settings: str, like: str, apart: bool) -> rk.Graph:
    with torch.device("meta"):
        layer, inputs, dtype = _CASES[name](json.loads(settings))
    options = {"dtype": dtype.removeprefix("torch.")} if dtype else {}
    with torch.device("meta"):
        timed = Timed(layer, _WITH_GRADIENT.get(name, 1), apart=apart)
    return rk.trace(timed, *inputs, mode="training", loss=lambda loss: loss, name=name, like=like, **options)


def predicted(name: str, mode: str, settings: str, gpu: str, like: str) -> tuple[float, str]:
    """Seconds in these phases, and which side they are of.

    Of the module's kernels, or of the CPU that issues them, less what flushing the L2 takes.
    """
    p = rk.predict(_graph(name, settings, like, mode == "backward"), gpu, host="generic-server")
    phases = _PHASES[mode]
    kernels = [timing for timing in p.timings if _is_timed(timing.kernel, phases)]
    spans = [span for span in p.timeline.cpu if isinstance(span.what, Op) and _is_timed(span.what, phases)]
    gpu_s = sum(timing.total_s for timing in kernels)
    cpu_s = sum(span.end_s - span.start_s for span in spans) - _FLUSHED / p.machine.sustained_bandwidth
    return max((gpu_s, "GPU"), (cpu_s, "CPU"))


def _is_timed(part: Op | Kernel, phases: tuple[str, ...]) -> bool:
    return part.module.partition(".")[0] == "layer" and part.phase in phases


def settings_of(row: pd.Series) -> str:
    """All of a row's sizes and formats, as JSON."""
    given = json.loads(row["extra_benchmark_config_str"])
    value = float(row["x_value"])
    return json.dumps({**given, row["x_name"]: int(value) if value.is_integer() else value}, sort_keys=True)


def judged(file: Path) -> pd.DataFrame:
    """A line a measurement of a module that can be predicted."""
    table = read_table(file)
    chosen = table[
        table["metric_name"].eq("speed")
        & table["kernel_provider"].isin(_REFERENCES)
        & table["kernel_name"].isin(_CASES)
        & table["kernel_operation_mode"].isin(_PHASES)
        & ~(table["kernel_name"].isin(_FORWARD_ALONE) & table["kernel_operation_mode"].ne("forward"))
    ]
    gpus = {name: gpu_name(name) for name in chosen["gpu_name"].unique()}
    rows, why = [], defaultdict(int)
    for _, row in chosen.iterrows():
        gpu = gpus[row["gpu_name"]]
        if gpu is None:
            why[f"no specification of {row['gpu_name']}"] += 1
            continue
        try:
            like = "2.7" if row["timestamp"] < _VECTORS else "2.9"
            seconds, side = predicted(row["kernel_name"], row["kernel_operation_mode"], settings_of(row), gpu, like)
        except (KeyError, RooflinekitError) as error:
            why[f"{row['kernel_name']}: {type(error).__name__} {error}".splitlines()[0]] += 1
            continue
        rows.append(
            {
                "op": row["kernel_name"],
                "mode": row["kernel_operation_mode"],
                "gpu": gpu,
                "side": side,
                "settings": settings_of(row),
                "measured_s": row["y_value_50"] * 1e-3,
                "predicted_s": seconds,
            }
        )
    for reason, count in why.items():
        print(f"left out: {count} rows: {reason}", file=sys.stderr)
    keys = ["op", "mode", "gpu", "side", "settings"]
    return pd.DataFrame(rows).groupby(keys, as_index=False).median()  # repeated collections


def main(options: argparse.Namespace) -> None:
    """Prints the tables."""
    rows = judged(options.data / "liger" / "kernels.parquet")
    rows = rows[rows["predicted_s"].gt(0) & rows["measured_s"].gt(0)]
    show(rows, (["op", "side"], ["op", "mode"], ["gpu", "side"], ["side"]), options)


if __name__ == "__main__":
    main(options_of(__doc__))
