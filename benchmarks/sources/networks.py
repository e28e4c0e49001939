"""Measured steps of whole networks: what to trace for each row, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.tables import read_table
from rooflinekit.cost.table import price_all
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import Op, Phase


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
    of: Callable[[rk.Prediction], float] = lambda p: p.total_s  # what of it was measured


def transformer_steps(data: Path) -> Iterator[Step]:
    """NeuSight's eager transformer steps in fp32 without TF32: forward, or forward and backward."""
    files = [file for part in ("", "more") if (file := data / "neusight" / part / "models.csv").is_file()]
    if not files:
        return
    table = pd.concat(map(read_table, files))
    table = table[(table["fused"].astype(str) == "False") & (table["dist"] == "none")]
    for row in table.itertuples():
        gpu = gpu_name(str(row.gpu))
        config = data / "neusight" / str(row.config)
        if gpu is None or not config.is_file() or "switch" in str(row.model):
            continue
        like = "2.4" if gpu.startswith("amd") else "2.1"  # as the tables of operators say
        yield Step(
            table="neusight transformers",
            gpu=gpu,
            workload=f"{row.model} {row.mode} {like}",
            sizes={"batch": int(row.batch), "seq": int(row.seq)},
            trace=lambda config=config, mode=str(row.mode), like=like: _transformer(config, mode, like),
            options={"execution": rk.Execution(sync="step")},
            seconds=float(row.time_ms) * 1e-3,
            columns={"model": row.model, "step": row.mode, "suspect": row.suspect},
        )


_TIMM_DEVICES = {
    "rtx3090": "nvidia-rtx-3090",
    "rtx4090": "nvidia-rtx-4090",
    "rtx5090": "nvidia-rtx-5090",
    "cpu_i7_12700h": "intel-core-i7-12700h",
    "cpu_i9_10940x": "intel-core-i9-10940x",
}


def timm_steps(data: Path) -> Iterator[Step]:
    """timm's benchmark: eager and compiled steps of CNNs and ViTs, under autocast to fp16 on GPUs, in fp32 on CPUs."""
    files = sorted((data / "timm").glob("benchmarks*.parquet"))
    for row in chain.from_iterable(read_table(file).itertuples() for file in files):
        gpu = _TIMM_DEVICES.get(str(row.device)) or gpu_name(str(row.device))
        if gpu is None:
            continue
        backend = "compiled" if row.compile else "eager"
        merged = str(row.torch).startswith("2.9")  # benchmark.py --reparam
        like = Release.parse(row.torch)
        half = row.precision == "amp_fp16"
        old = str(like) if not like.fuses_attention else ""
        yield Step(
            table=f"timm {row.mode}, torch {row.torch}, {_ran(row)}",
            gpu=gpu,
            workload=f"{row.model} {row.img_size} {row.layout} {row.mode} {row.param_count_m} {merged} {old}"
            + ("" if half else " fp32"),
            sizes={"batch": int(row.batch_size)},
            trace=lambda row=row, merged=merged, like=like, half=half: timm_graph(
                row.model, int(row.img_size), row.layout, row.mode, row.param_count_m, like, merged=merged, half=half
            ),
            options={"execution": rk.Execution(backend=backend)},
            seconds=float(row.step_time_ms) * 1e-3,
            columns={"model": row.model, "family": row.family, "step": row.mode},
        )


def _ran(row: Any) -> str:
    """How a row of timm's was run: those of CPUs are compiled."""
    if row.precision == "fp32":
        return "CPU"
    return "compiled" if row.compile else str(row.layout)


def timm_graph(
    name: str, size: int, layout: str, mode: str, parameters_m: float, like: Release, *,
    merged: bool = False, half: bool = True,
) -> rk.Graph:  # fmt: skip
    """The step of a timm model; `merged` joins its parallel branches, where it has such, into one convolution.

    half: under autocast to fp16, as on GPUs; else all in fp32.

    Raises ValueError where it has other parameters today than when it was measured.
    """
    import torch

    model = _timm_model(name, size, merged=merged, fast_norm=half and mode == "infer")  # as the numbers imply
    found = sum(p.numel() for p in model.parameters()) / 1e6
    if abs(found / parameters_m - 1) > 0.01:
        raise ValueError(f"{name}: {found:.2f} M parameters; measured with {parameters_m}")
    image = rk.Input("batch", 3, size, size)
    options = {"autocast": "float16" if half else None, "channels_last": layout == "nhwc", "tf32": half, "like": like}
    if mode == "infer":
        return rk.trace(model, image, **options)
    graph = rk.trace(
        model,
        image,
        mode="training",
        loss=torch.nn.functional.cross_entropy,
        targets=[rk.Input("batch", dtype="int64")],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
        **options,
    )
    # benchmark.py calls zero_grad() before its clock starts
    timed = tuple(p for p in graph.priced if not (p.op.phase is Phase.OPTIMIZER and p.op.kind == "aten.zero_"))
    return replace(graph, priced=timed)


#: Methods of timm's modules that join parallel branches.
_MERGING = ("fuse", "reparameterize", "switch_to_deploy")


def _timm_model(name: str, size: int, *, merged: bool, fast_norm: bool) -> Any:
    """The model on the meta device; on the CPU where it cannot be built there, or branches are joined."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    import timm
    import torch

    timm.layers.set_fast_norm(fast_norm)

    def build(device: str) -> Any:
        with torch.device(device):
            try:
                return timm.create_model(name, img_size=size)
            except TypeError:
                return timm.create_model(name)

    try:
        model = build("meta")
    except RuntimeError:  # one that runs a part of itself while it is built, and asks for autocast on its device
        model = build("cpu")
    if merged and any(hasattr(module, method) for module in model.modules() for method in _MERGING):
        return timm.utils.reparameterize_model(build("cpu").eval())
    return model


def _transformer(config: Path, mode: str, like: str) -> rk.Graph:
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
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
    graph = rk.trace(model, ids, mode=mode, loss=loss, tf32=False, like=like)
    sums = [
        Op(
            name=f"sum of {new.name}", kind="aten.add_", phase=Phase.BACKWARD, outputs=(new,),
            inputs=(new, replace(new, name=f"{new.name} of this step", storage="")),
        )
        for new in graph.gradients
    ]  # fmt: skip
    return replace(graph, priced=(*graph.priced, *price_all(sums)))  # gradients add up over all repetitions
