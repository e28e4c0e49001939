"""Peak memory of fine-tuning Llama 3.2 3B by torchtune's ladder of optimizations.

    python -m benchmarks.memory.torchtune DATA

DATA/finetune_tables/tables.csv: bf16 weights, AdamW, texts packed to full length; each row adds one technique to those
before it, and gives torch's peak of active blocks. How many tokens a step has is not told: 8,192, by the first row with
packed texts, which is left out of the judgement. The GPU is not told either; an A100 of 80 GB is assumed. AdamW is the
fused one: weights, gradients and states alone are 24.0 GiB, so the first row's 25.5 with short texts, which is left out
too, leave no room for the copy of the second moments that the multi-tensor one makes. Traced is Hugging Face's model;
keys and values are copied for each query's head, as torchtune copies them. An optimizer's step inside backward, paged
states and LoRA in 4 bits are not described, so the ladder is followed up to checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from benchmarks.sources.command import asked
from benchmarks.sources.tables import read_table
from rooflinekit.ir.op import EAGER, PricedOp
from rooflinekit.published.models import published

GPU = "nvidia-a100-sxm4-80gb"
_CLUSTER = "dgx-a100"
_BATCH, _LENGTH = 2, 4096
_CHUNKS = 8  # torchtune's CEWithChunkedOutputLoss
_STATING = "packed"
#: Words of a row: chunks of the loss, backend, whether each layer is checkpointed.
_LADDER = {
    _STATING: (1, "eager", False), "compile": (1, "compiled", False),
    "chunked": (_CHUNKS, "compiled", False), "checkpointing": (_CHUNKS, "compiled", True),
}  # fmt: skip


class _Head(torch.autograd.Function):
    """The products that give logits, which torchtune does not compile: autograd adds the gradients of their weights up
    as they come, where a kernel of a step compiled as a whole would wait for all of them.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, chunks: int) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(hidden, weight)
        return tuple(part @ weight.t() for part in hidden.chunk(chunks, dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        hidden, weight = ctx.saved_tensors
        parts = [part.flatten(0, 1) for part in hidden.chunk(len(gradients), dim=1)]
        rows = [gradient.flatten(0, 1).t() for gradient in gradients]
        total = rows[0] @ parts[0]
        for left, right in zip(rows[1:], parts[1:], strict=True):
            total.addmm_(left, right)
        return torch.cat([gradient @ weight for gradient in gradients], dim=1), total, None


class Chunked(nn.Module):
    """The model with its loss, of so many chunks of each text one after another."""

    def __init__(self, model: nn.Module, chunks: int) -> None:
        super().__init__()
        self.model, self.chunks = model, chunks

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The sum over all tokens."""
        hidden = self.model.model(ids, use_cache=False).last_hidden_state
        logits = _Head.apply(hidden, self.model.lm_head.weight, self.chunks)
        labels = ids.chunk(self.chunks, dim=1)
        losses = [
            nn.functional.cross_entropy(x.float().flatten(0, 1), y.flatten())
            for x, y in zip(logits, labels, strict=True)
        ]
        return torch.stack(losses).sum()


def traced(chunks: int) -> rk.Graph:
    """A training step."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**dict(published("llama-3.2-3b")[1]))).to(torch.bfloat16)
    ids = rk.Input("batch", _LENGTH, dtype="int64")
    fused = partial(torch.optim.AdamW, fused=True)
    with mock.patch("transformers.integrations.sdpa_attention.use_gqa_in_sdpa", _never):
        graph = rk.trace(Chunked(model, chunks), ids, mode="training", loss=lambda y: y, optimizer=fused, name="llama")
    return graph if chunks > 1 else replace(graph, priced=tuple(map(_made_fp32_outside, graph.priced)))


def _never(*_: Any) -> bool:
    return False  # what a mock is called with stays alive, and would count


def _made_fp32_outside(priced: PricedOp) -> PricedOp:
    """The copy of all logits in fp32 belongs to the model, of which torchtune compiles only the layers; that of a chunk
    belongs to the loss, which it compiles.
    """
    op = priced.op
    casts = op.kind == "aten._to_copy" and op.outputs[0].shape[-1] == published("llama-3.2-3b")[1]["vocab_size"]
    return replace(priced, op=replace(op, attrs={**op.attrs, EAGER: True})) if casts else priced


def judged(data: Path) -> Iterator[dict[str, Any]]:
    """One record a row of the ladder that can be described."""
    table = read_table(data / "finetune_tables" / "tables.csv")
    rows = table[table["columns"].str.startswith("Technique | Peak Memory Active")]
    graphs: dict[int, rk.Graph] = {}
    for row in rows.itertuples():
        step = next((word for word in _LADDER if word in str(row.c0).partition("]")[0].lower()), None)
        if step is None:
            continue
        chunks, backend, checkpoint = _LADDER[step]
        if chunks not in graphs:
            graphs[chunks] = traced(chunks)
        found = rk.parallel(
            graphs[chunks], cluster=_CLUSTER, gpus=1, savers=rk.Savers(checkpoint=checkpoint), execution=backend,
            batch=_BATCH,
        )  # fmt: skip
        use = found.fullest.memory
        measured = float(row.c1) * 2**30
        yield {
            "run": step, "ratio": use.peak_bytes / measured, "measured GiB": float(row.c1), "fits": use.fits,
            "told GiB": use.peak_bytes / 2**30, "stating": step == _STATING,
        }  # fmt: skip


def main() -> None:
    """Prints the table."""
    print(pd.DataFrame(judged(asked(__doc__).data)).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
