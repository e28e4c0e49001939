"""Memory told against memory measured, by what was measured: allocated, reserved, or the process.

    python benchmarks/memory_accuracy.py DATA [--most 300] [--worst 10]

Sources are laid side by side. Ranks of Megatron, the encoder of Segment Anything and the modules of Liger's benchmarks
log `torch.cuda.max_memory_allocated`. Fine-tuning by PEFT logs what is allocated and reserved after each step; it needs
the package `peft`, and of 25 rows asked for one method is followed, which takes half a minute. GPUMemNet's perceptrons
were watched with nvidia-smi, on a GPU that their repository does not name: an A100 of 40 GB is assumed, and what stands
beside the allocator's segments is shown as a difference. That source has no licence, so nothing is fitted on it.
"""

from __future__ import annotations

import argparse
import ast
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from clusters_accuracy import Bench
from liger_memory import judged as liger_rows
from peft_memory import judged as peft_rows
from sam_memory import judged as sam_rows
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError

_GPU = "nvidia-a100-sxm4-40gb"
_ACTIVATIONS = {"swish": "SiLU", "relu": "ReLU", "gelu": "GELU", "prelu": "PReLU", "leaky_relu": "LeakyReLU"} | {
    name: name.capitalize() for name in ("softplus", "mish", "tanh", "identity")
} | {name: name.upper() for name in ("selu", "elu")}  # fmt: skip


def megatron(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Peaks of the last rank, as a ratio of told to measured."""
    rows = Bench().rows("megatron_lm", data, most).dropna(subset=["peak"])
    for row in rows.itertuples():
        yield {"kind": "allocated", "run": f"{row.note} {row.layout}", "ratio": row.peak}


def segment_anything(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """The encoder's peaks."""
    for row in sam_rows(data).head(most or None).to_dict("records"):
        run = f"{row['model']} {row['format']} {row['batch']}"
        yield {"kind": "allocated", "run": run, "ratio": 1 + row["off"]}


def liger(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Modules forward and backward."""
    rows = liger_rows(data / "liger" / "kernels.parquet")
    for row in rows.iloc[:: max(1, len(rows) // most) if most else 1].itertuples():
        yield {"kind": "allocated", "run": f"{row.op} {row.settings}", "ratio": 1 + row.off}


def fine_tuning(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Methods of PEFT on an L40S."""
    for row in peft_rows(data, -(-most // 25)).itertuples():
        yield {"kind": row.kind, "run": row.method, "ratio": row.ratio}


class Perceptron(nn.Sequential):
    """A network of GPUMemNet by its list of layers: kind, width, parameters."""

    def __init__(self, row: Any) -> None:
        made: list[nn.Module] = []
        width = int(row.input)
        for kind, out, _ in ast.literal_eval(row.layers):
            if kind == "linear":
                made.append(nn.Linear(width, out))
                width = out
            elif kind == "batch_normalization":
                made.append(nn.BatchNorm1d(out))
            elif kind == "dropout":
                made.append(nn.Dropout(float(row.dropout_rate)))
            elif kind != "Softmax":
                made.append(getattr(nn, _ACTIVATIONS[row.activation])())
        super().__init__(*made, nn.Softmax(dim=1))


def perceptrons(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Whole GPUs' memory while a perceptron trains."""
    table = pd.read_parquet(data / "gpumemnet" / "mlp.parquet")
    for row in table.iloc[:: max(1, len(table) // most) if most else 1].itertuples():
        with torch.device("meta"):
            network = Perceptron(row)
        graph = rk.trace(
            network, rk.Input(int(row.batch), int(row.input)), mode="train", optimizer="Adam", name="perceptron"
        )
        use = rk.predict(graph, gpu=_GPU).memory
        told, measured = (use.reserved_bytes + use.context_bytes) / 2**20, row.max_gpu_memory_mib
        beside = measured - use.reserved_bytes / 2**20
        yield {"kind": "nvidia-smi", "run": str(row.Index), "ratio": told / measured, "beside MiB": beside}


SOURCES: dict[str, Callable[[Path, int], Iterator[dict[str, Any]]]] = {
    "megatron_lm": megatron, "segment_anything_fast": segment_anything, "gpumemnet": perceptrons,
    "liger": liger, "peft": fine_tuning,
}  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a source and kind."""
    found = []
    for (source, kind), part in rows.groupby(["source", "kind"]):
        off = part.ratio - 1
        found.append(
            {
                "source": source, "kind": kind, "n": len(part), "median error %": 100 * off.abs().median(),
                "bias %": 100 * off.median(), "within 10 %": 100 * (off.abs() <= 0.1).mean(),
                "beside MiB, 5 %": part["beside MiB"].quantile(0.05), "50 %": part["beside MiB"].median(),
                "95 %": part["beside MiB"].quantile(0.95),
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--most", type=int, default=300, help="about so many rows of each source; 0: all")
    parser.add_argument("--worst", type=int, default=10, help="rows furthest off that are printed too")
    parser.add_argument("--source", choices=SOURCES, action="append", help="by default all")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    found: list[dict[str, Any]] = []
    for source in options.source or SOURCES:
        try:
            found += [
                {"source": source, "beside MiB": None, **row} for row in SOURCES[source](options.data, options.most)
            ]
        except (FileNotFoundError, RooflinekitError) as error:
            print(f"{source}: left out: {error}")
    rows = pd.DataFrame(found).astype({"beside MiB": float})
    print(summary(rows).round(1).to_string(index=False))
    if options.worst:
        far = (rows.ratio - 1).abs().sort_values(ascending=False).index
        print(rows.reindex(far).head(options.worst).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
