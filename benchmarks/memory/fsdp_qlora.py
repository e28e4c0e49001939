"""Peak memory of fine-tuning 7B models by LoRA and QLoRA on two GPUs of 24 GB, against fsdp_qlora's benchmarks.

    python -m benchmarks.memory.fsdp_qlora DATA

DATA/fsdp_qlora/tables.csv: weights in bf16 or in blocks of 64 numbers of 4 bits, with a scale in fp32 each, adapters of
rank 64 on every product of a layer, AdamW, checkpoints of all layers; shared out by FSDP, or whole on each GPU (DDP).
A layer's weights are made whole for its products, in forward, in its repetition and for gradients. Logits are made fp32
and shifted by a copy, as transformers 4.38 did. Whether its peaks are of tensors or of segments is not told: both are
shown, and they are judged as segments, which are what fills the cards. What rows with `offload` keep on the CPU is not
described. Rows of 70B state no peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from benchmarks.sources.command import asked
from benchmarks.sources.tables import read_table
from rooflinekit.published.models import published

GPU = "nvidia-rtx-4090"
_CLUSTER, _GPUS, _LENGTH, _RANK = "rtx-4090-x4", 2, 2048, 64


class _FromFourBits(torch.autograd.Function):
    """A product with weights that are made whole for it, and again for the gradient of its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, width: int) -> torch.Tensor:
        ctx.save_for_backward(packed)
        ctx.width = width
        return x @ _whole(packed, width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (packed,) = ctx.saved_tensors
        return gradient @ _whole(packed, ctx.width).t(), None, None


def _whole(packed: torch.Tensor, width: int) -> torch.Tensor:
    values = packed[: packed.numel() // 9 * 8]  # the rest are scales
    return values.repeat(4).view(-1, width)


class Adapted(nn.Module):
    """A product whose weights are frozen, and an adapter beside it."""

    def __init__(self, inner: nn.Linear, four_bits: bool) -> None:
        super().__init__()
        self.width, count = inner.out_features, inner.weight.numel()
        size = count // 4 + count // 32 if four_bits else count  # of bf16
        self.weight = nn.Parameter(torch.empty(size, dtype=torch.bfloat16), requires_grad=False)
        self.four_bits = four_bits
        self.down = nn.Linear(inner.in_features, _RANK, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(_RANK, inner.out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        if self.four_bits:
            base = _FromFourBits.apply(x, self.weight, self.width)
        else:
            base = nn.functional.linear(x, self.weight.view(self.width, -1))
        return base + self.up(self.down(x))


class Shifted(nn.Module):
    """The model with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean over all tokens."""
        hidden = self.model.model(ids, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden).float()
        shifted = logits[:, :-1].contiguous()
        return nn.functional.cross_entropy(shifted.flatten(0, 1), ids[:, 1:].flatten())


@cache
def traced(name: str, four_bits: bool) -> rk.Graph:
    """A training step, batch and length open."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(published(name)[1])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).to(torch.bfloat16)
        model.requires_grad_(False)
        for layer in model.model.layers:
            for path, product in list(layer.named_modules()):
                if isinstance(product, nn.Linear):
                    layer.set_submodule(path, Adapted(product, four_bits))
    ids = rk.Input("batch", "seq", dtype="int64")
    return rk.trace(
        Shifted(model), ids, mode="training", loss=lambda y: y, optimizer="AdamW", sizes={"seq": 256}, name=name
    )


def judged(data: Path) -> Iterator[dict[str, Any]]:
    """One record a row with a peak."""
    table = read_table(data / "fsdp_qlora" / "tables.csv")
    for row in table[table.peak_memory_gib.notna()].itertuples():
        name = "mistral-7b" if "Mistral" in f"{row.section} {row.caption}" else "llama-2-7b"
        length = int(str(row.context_length).replace(",", "")) if pd.notna(row.context_length) else _LENGTH
        batch = int(row.batch_size) if row.batch_size > 0 else 1
        shared = str(row.ddp) != "True"
        found = rk.parallel(
            traced(name, row.train_type == "QLoRA"), cluster=_CLUSTER, gpus=_GPUS, batch=batch * _GPUS, seq=length,
            strategy="fsdp" if shared else "ddp",
            savers=rk.Savers(checkpoint=True),
        )  # fmt: skip
        use = found.fullest.memory
        told, reserved = (size / 2**30 for size in (use.peak_bytes, use.reserved_bytes))
        yield {
            "run": f"{name} {row.train_type} {'FSDP' if shared else 'DDP'} {batch} x {length}", "fits": use.fits,
            "offload": str(row.cpu_offload), "measured GiB": row.peak_memory_gib, "allocated GiB": told,
            "reserved GiB": reserved, "ratio": reserved / row.peak_memory_gib, "kind": "reserved",
        }  # fmt: skip


def main() -> None:
    """Prints the table."""
    print(pd.DataFrame(judged(asked(__doc__).data)).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
