"""Measured steps of whole networks: what to trace for each row, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from measured import gpu_name

import rooflinekit as rk


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measured step."""

    table: str
    gpu: str
    workload: str  # equal for steps that are traced once
    sizes: dict[str, int]
    trace: Callable[[], rk.Graph]
    options: dict[str, Any]  # of the prediction
    seconds: float
    columns: dict[str, Any]  # to report by


def transformer_steps(data: Path) -> Iterator[Step]:
    """NeuSight's eager transformer steps in fp32 without TF32: forward, or forward and backward."""
    file = data / "neusight" / "models.csv"
    if not file.is_file():
        return
    table = pd.read_csv(file)
    table = table[(table["fused"] == False) & (table["dist"] == "none")]  # noqa: E712
    for row in table.itertuples():
        gpu = gpu_name(str(row.gpu))
        config = data / "neusight" / str(row.config)
        if gpu is None or not config.is_file() or "switch" in str(row.model):
            continue
        yield Step(
            table="neusight transformers",
            gpu=gpu,
            workload=f"{row.model} {row.mode}",
            sizes={"batch": int(row.batch), "seq": int(row.seq)},
            trace=lambda config=config, mode=str(row.mode): _transformer(config, mode),
            options={"execution": rk.Execution(sync="step")},
            seconds=float(row.time_ms) * 1e-3,
            columns={"model": row.model, "mode": row.mode, "suspect": row.suspect},
        )


def _transformer(config: Path, mode: str) -> rk.Graph:
    from rooflinekit.tracing.targets import load_target

    load_target("timm:resnet18")  # torchvision's operators, where they are missing
    import torch
    import transformers

    words = json.loads(config.read_text())
    layers = words.get("num_hidden_layers", words.get("n_layer"))
    made = transformers.AutoConfig.for_model(**{**words, "num_hidden_layers": layers})
    if mode == "inference":
        made.use_cache = False
    kind = "AutoModelForCausalLM"
    if made.model_type == "bert":
        kind = "AutoModelForSequenceClassification" if mode == "inference" else "AutoModelForPreTraining"
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(made, attn_implementation="eager")
    ids = rk.Input("batch", "seq", dtype="int64")
    loss = None if mode == "inference" else (lambda output: output[0].sum())
    return rk.trace(model, ids, mode=mode, loss=loss, tf32=False)
