"""Memory told against memory measured, and whether a run fits, by source and GPU.

    python -m benchmarks.memory.accuracy DATA [--most 300] [--share 0.01] [--worst 10] [--page]

Sources are laid side by side. What is allocated is `torch.cuda.max_memory_allocated`: ranks of Megatron (the last
one's), the encoder of Segment Anything, the modules of Liger's benchmarks, torchtune's ladder, QLoRA by fsdp_qlora,
detectron2's detectors, and Llama 3.1 405B in NVIDIA's logs of MLPerf, the fullest rank's. Fine-tuning by PEFT logs what
is allocated and reserved after each step; it needs the package `peft`, and of 25 rows asked for one method is followed,
which takes half a minute. GPUMemNet's perceptrons were watched with nvidia-smi, on a GPU that their repository does not
name: an A100 of 40 GB is assumed, and what stands beside the allocator's segments is shown as a difference. That source
has no licence, so nothing is fitted on it.

Verdicts: every run that was measured fitted. timm's benchmark also says what did not: it tries the next smaller batch
where memory does not suffice, so the one before did not fit. --share is of timm's models, by a hash of their names.
--page writes the table into docs/execution.md.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from benchmarks.clusters.accuracy import Bench
from benchmarks.memory.detectron2 import GPU as DETECTRON2_GPU
from benchmarks.memory.detectron2 import judged as detectron2_rows
from benchmarks.memory.fsdp_qlora import GPU as QLORA_GPU
from benchmarks.memory.fsdp_qlora import judged as qlora_rows
from benchmarks.memory.largest_batch import verdicts as timm_rows
from benchmarks.memory.liger import judged as liger_rows
from benchmarks.memory.peft import judged as peft_rows
from benchmarks.memory.sam import GPU as SAM_GPU
from benchmarks.memory.sam import judged as sam_rows
from benchmarks.memory.torchtune import GPU as TORCHTUNE_GPU
from benchmarks.memory.torchtune import judged as torchtune_rows
from benchmarks.sources.command import asked
from benchmarks.sources.page_tables import frame_lines, print_frames, write_tables
from benchmarks.sources.tables import read_table
from rooflinekit.errors import RooflinekitError

PAGE = Path(__file__).parents[2] / "docs" / "execution.md"
_GPU = "nvidia-a100-sxm4-40gb"
_ACTIVATIONS = {"swish": "SiLU", "relu": "ReLU", "gelu": "GELU", "prelu": "PReLU", "leaky_relu": "LeakyReLU"} | {
    name: name.capitalize() for name in ("softplus", "mish", "tanh", "identity")
} | {name: name.upper() for name in ("selu", "elu")}  # fmt: skip


def clusters(source: str, data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Steps on many GPUs; the source's peaks, where it has some, as a ratio of told to measured."""
    for row in Bench().rows(source, data, most).itertuples():
        kind = "verdict" if math.isnan(row.peak) else "allocated"
        yield {"kind": kind, "gpu": row.gpu, "run": f"{row.note} {row.layout}", "ratio": row.peak, "right": row.fits}


def timm(data: Path, share: float) -> Iterator[dict[str, Any]]:
    """The batch that ran, and the larger one that did not fit."""
    for row in timm_rows(data, share).itertuples():
        run = f"{row.model} {row.set} {row.batch} {'ran' if row.ran else 'did not'}"
        yield {"kind": "verdict", "gpu": row.gpu, "run": run, "ratio": math.nan, "right": row.fits == row.ran}


def segment_anything(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """The encoder's peaks."""
    for row in sam_rows(data).head(most or None).to_dict("records"):
        run = f"{row['model']} {row['format']} {row['batch']}"
        yield {"kind": "allocated", "gpu": SAM_GPU, "run": run, "ratio": 1 + row["off"], "right": row["fits"]}


def liger(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Modules forward and backward."""
    rows = liger_rows(data / "liger" / "kernels.parquet")
    for row in rows.iloc[:: max(1, len(rows) // most) if most else 1].itertuples():
        run = f"{row.op} {row.settings}"
        yield {"kind": "allocated", "gpu": row.gpu, "run": run, "ratio": 1 + row.off, "right": bool(row.fits)}


def fine_tuning(data: Path, most: int) -> Iterator[dict[str, Any]]:
    """Methods of PEFT on an L40S."""
    for row in peft_rows(data, -(-most // 25)).itertuples():
        yield {"kind": row.kind, "gpu": "nvidia-l40s", "run": row.method, "ratio": row.ratio, "right": row.fits}


def peaks(
    judged: Callable[[Path], Iterator[dict[str, Any]]], gpu: str, data: Path, most: int
) -> Iterator[dict[str, Any]]:
    """torchtune's ladder of optimizations, fsdp_qlora's runs on two GPUs, detectron2's list of models."""
    rows = (row for row in judged(data) if not row.get("stating"))
    for row in islice(rows, most or None):
        kind = row.get("kind", "allocated")
        yield {"kind": kind, "gpu": gpu, "run": row["run"], "ratio": row["ratio"], "right": row["fits"]}


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
    table = read_table(data / "gpumemnet" / "mlp.parquet")
    for row in table.iloc[:: max(1, len(table) // most) if most else 1].itertuples():
        with torch.device("meta"):
            network = Perceptron(row)
        graph = rk.trace(
            network, rk.Input(int(row.batch), int(row.input)), mode="train", optimizer="Adam", name="perceptron"
        )
        use = rk.predict(graph, gpu=_GPU).memory
        told, measured = (use.reserved_bytes + use.context_bytes) / 2**20, row.max_gpu_memory_mib
        beside = measured - use.reserved_bytes / 2**20
        found = {"kind": "nvidia-smi", "gpu": _GPU, "run": str(row.Index), "ratio": told / measured}
        yield {**found, "right": use.fits, "beside MiB": beside}


SOURCES: dict[str, Callable[[Path, int], Iterator[dict[str, Any]]]] = {
    **{name: partial(clusters, name) for name in ("megatron_lm", "mlperf_training", "llm_foundry", "vtrain",
                                                  "megatron_bridge")},
    "segment_anything_fast": segment_anything, "gpumemnet": perceptrons, "liger": liger, "peft": fine_tuning,
    "finetune_tables": partial(peaks, torchtune_rows, TORCHTUNE_GPU),
    "fsdp_qlora": partial(peaks, qlora_rows, QLORA_GPU), "detectron2": partial(peaks, detectron2_rows, DETECTRON2_GPU),
}  # fmt: skip


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One line a group."""
    found = {}
    for name, part in rows.groupby(by):
        off = part.ratio - 1
        known = off.dropna()
        found[name] = {
            "n": len(part), "median error %": 100 * known.abs().median(), "bias %": 100 * known.median(),
            **{f"within {most} %": 100 * (known.abs() <= most / 100).mean() for most in (3, 10)},
            "right verdicts %": 100 * part.right.astype(float).mean(), "beside MiB": part["beside MiB"].median(),
        }  # fmt: skip
    table = pd.DataFrame.from_dict(found, orient="index")
    table.index = table.index.set_names(by)
    return table


def main() -> None:
    """Prints the table."""
    options = asked(
        __doc__, most={"type": int, "default": 300, "help": "about so many rows of each source; 0: all"},
        worst={"type": int, "default": 10, "help": "rows furthest off that are printed too"},
        source={"choices": [*SOURCES, "timm"], "action": "append", "help": "by default all"},
        share={"type": float, "default": 0.01, "help": "of timm's models that is taken"},
        page={"action": "store_true", "help": "write the table into docs/execution.md"},
    )  # fmt: skip
    rows = pd.DataFrame(_judged(options)).astype({"beside MiB": float})
    table = summary(rows, ["source", "kind", "gpu"])
    print_frames([table])
    if options.page:
        write_tables([frame_lines(table)], PAGE, "benchmarks.memory.accuracy")
    if options.worst:
        far = (rows.ratio - 1).abs().sort_values(ascending=False).index
        print(rows.reindex(far).head(options.worst).round(3).to_string(index=False))


def _judged(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    known = {**SOURCES, "timm": lambda data, _: timm(data, options.share)}
    for source in options.source or known:
        try:
            yield from (
                {"source": source, "beside MiB": math.nan, **row} for row in known[source](options.data, options.most)
            )
        except (FileNotFoundError, RooflinekitError) as error:
            print(f"{source}: left out: {error}")


if __name__ == "__main__":
    main()
