"""Peak memory of norms, losses, rotary embeddings and gated layers, against what Liger's benchmarks measured.

    python -m benchmarks.memory.liger DATA [--worst 20]

DATA/liger/kernels.parquet holds `torch.cuda.max_memory_allocated` of a module's forward and backward, called again and
again: gradients of its input and of its weights are there from the call before, and are added to. Judged are modules of
PyTorch and Hugging Face. Input, the gradient that comes in, and others that the module reads stand all the time.

Beside them stands what those programs hold: the input of the log-softmax before a divergence; in older programs, whose
sizes have one letter, the weights of Liger's own head beside PyTorch's; a gradient in the input's format that autograd
casts to the output's; cuBLAS's workspace of the product that makes a rotary embedding's tables. Left out are
embeddings, beside which the programs held 8 to 12 GB of something else, and rows of less than a module's input and
result, which are in another unit than they say.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from benchmarks.networks.liger import _CASES, _REFERENCES, _WITH_GRADIENT, HeadAndLoss, settings_of
from benchmarks.sources.command import asked
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.tables import read_table
from rooflinekit.distributed.saving import accumulated
from rooflinekit.errors import RooflinekitError
from rooflinekit.ir.op import Phase
from rooflinekit.step.memory import product_workspace

_WITHOUT = ("embedding",)
_ASKED_FOR = ("rope",)  # gradients by `torch.autograd.grad`: nothing is there from the call before


class _Handed(torch.autograd.Function):
    """Ends forward; backward begins with a tensor that is there already."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """One number."""
        ctx.gradient = gradient
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """What was handed over."""
        return ctx.gradient, None


class Called(nn.Module):
    """The module with its input as a parameter, and all else that it reads as buffers."""

    def __init__(self, layer: nn.Module, inputs: tuple[rk.Input, ...], dtype: str, name: str, twin: bool) -> None:
        super().__init__()
        self.layer, self.given = layer, []
        for i, one in enumerate(inputs):
            kind = getattr(torch, str(one.dtype))
            kind = getattr(torch, dtype) if dtype and kind.is_floating_point else kind
            tensor = torch.zeros(tuple(map(int, one.shape)), dtype=kind)
            self.given.append(f"given_{i}")
            if i < _WITH_GRADIENT.get(name, 1) and kind.is_floating_point:
                self.register_parameter(f"given_{i}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"given_{i}", tensor)
        for i, y in enumerate(self.outputs()):
            self.register_buffer(f"gradient_{i}", torch.zeros_like(y) if y.dim() else None)
            if y.dim() and y.dtype != self.given_0.dtype:
                self.register_buffer(f"cast_{i}", torch.zeros_like(y, dtype=self.given_0.dtype))
        if name == "kl_div":
            self.register_buffer("beside", torch.zeros_like(self.given_0))
        if twin and isinstance(layer, HeadAndLoss):
            self.register_buffer("beside", torch.zeros_like(layer.head.weight))

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Of the module."""
        found = self.layer(*(getattr(self, name) for name in self.given))
        return found if isinstance(found, tuple) else (found,)

    def forward(self, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What backward begins with, and what the caller holds meanwhile. A loss's own gradient is 1."""
        ends, found = [], self.outputs()
        for i, y in enumerate(found):
            gradient = getattr(self, f"gradient_{i}")
            ends.append(y if gradient is None else _Handed.apply(y, gradient))
        return (torch.stack(ends).sum() if len(ends) > 1 else ends[0]), *found


@cache
def graph_of(name: str, settings: str) -> rk.Graph:
    """Two calls, of which the second adds to gradients of the first."""
    with torch.device("meta"):
        layer, inputs, dtype = _CASES[name](json.loads(settings))
        dtype = dtype.removeprefix("torch.")
        called = Called(
            layer.to(getattr(torch, dtype)) if dtype else layer, inputs, dtype, name, twin="H" in json.loads(settings)
        )  # fmt: skip
    graph = rk.trace(called, rk.Input(1), mode="training", loss=lambda found: found[0], name=name)
    return graph if name in _ASKED_FOR else again(graph)


def again(graph: rk.Graph) -> rk.Graph:
    """A second call, whose gradients are added to the first's. What it saves lives until it is over: its graph is kept
    (`retain_graph=True`), as are its results.
    """
    own = {spec.memory for p in graph.priced if p.op.phase is Phase.FORWARD for spec in p.op.outputs}
    own -= {spec.memory for spec in graph.weights}
    read = {spec.memory for p in graph.priced if p.op.phase is Phase.BACKWARD for spec in p.op.inputs}
    last = [p.op.name for p in graph.priced if p.op.phase is Phase.BACKWARD][-1]
    kept = own & (read | {spec.memory for spec in graph.outputs})
    held = MappingProxyType({**graph.held, **dict.fromkeys(kept, last)})
    return accumulated(replace(graph, held=held, outputs=()), 2)


def judged(file: Path) -> pd.DataFrame:
    """One line a module, its sizes and a GPU."""
    table = read_table(file)
    chosen = table[
        table["metric_name"].eq("memory") & table["kernel_provider"].isin(_REFERENCES)
        & table["kernel_name"].isin(set(_CASES) - set(_WITHOUT)) & table["kernel_operation_mode"].eq("full")
    ]  # fmt: skip
    rows, left = [], 0
    for _, row in chosen.iterrows():
        gpu = gpu_name(row["gpu_name"])
        try:
            use = None if gpu is None else rk.predict(graph_of(row["kernel_name"], settings_of(row)), gpu).memory
        except (KeyError, RooflinekitError):
            use = None
        if use is None:
            left += 1
            continue
        if float(row["y_value_50"]) * 2**20 < 2 * use.weight_bytes / 3:
            left += 1
            continue
        tables = product_workspace(rk.load_device(gpu)) if row["kernel_name"] == "rope" else 0
        rows.append(
            {
                "op": row["kernel_name"], "gpu": gpu, "settings": settings_of(row),
                "measured_mib": float(row["y_value_50"]), "allocated_mib": (use.peak_bytes + tables) / 2**20,
                "reserved_mib": (use.reserved_bytes + tables) / 2**20, "fits": use.fits,
            }
        )  # fmt: skip
    if left:
        print(f"left out: {left} rows of other GPUs, whose sizes are not told, or in another unit")
    found = pd.DataFrame(rows).groupby(["op", "gpu", "settings"], as_index=False).median()
    found["off"] = found["allocated_mib"] / found["measured_mib"] - 1
    return found


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line an op, and one for all."""
    return pd.DataFrame(
        {
            "op": name, "n": len(part), "median error %": 100 * part["off"].abs().median(),
            "bias %": 100 * part["off"].median(), "within 12 %": 100 * (part["off"].abs() <= 0.12).mean(),
            "reserved / allocated": (part["reserved_mib"] / part["allocated_mib"]).median(),
        }
        for name, part in [*rows.groupby("op"), ("all", rows)]
    )  # fmt: skip


def main() -> None:
    """Prints the tables."""
    further = {"type": int, "default": 0, "help": "also so many rows that are furthest off"}
    options = asked(__doc__, silent=logging.ERROR, worst=further)
    rows = judged(options.data / "liger" / "kernels.parquet")
    print(summary(rows).round(1).to_string(index=False))
    if options.worst:
        worst = rows.reindex(rows["off"].abs().sort_values(ascending=False).index).head(options.worst)
        print(worst.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
