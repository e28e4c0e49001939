"""Products in fewer bits against measured ones. Called by benchmarks/serving/accuracy.py --products.

Judged are shapes that no fit may see (calibration/make/operators.py), as a decoder's graph has them. TensorRT's
profiler, by which the tables of A100 were made, adds to each layer what is found on the other half of the shapes; the
other tables are of CUDA graphs with up to six weights in turn, of which only those are taken that do not stay in the
cache, and too few calls for power to hold the board.

The grouped products of experts are InferSim's, of DeepGEMM on H800 for DeepSeek V3's layers, of which nothing is
fitted: each expert of a GPU has as many tokens as the table says, 4 or more, as with fewer it says not how many experts
have any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from benchmarks.sources.operators import CALLS, split_hash
from benchmarks.sources.tables import read_table
from rooflinekit.api.predict import machines_of
from rooflinekit.cost.table import price_all
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import WEIGHT_FORMATS, Options
from rooflinekit.decoder.inference import Inference
from rooflinekit.decoder.layers import Tape
from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.timing.kernel_batch import Floats, work_of
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import time_work

_SEEN = 0.5  # share of the shapes that fits may see
_FEW = 64  # rows, as of a batch that decodes
#: By GPU: the table, and its formats' names here.
_TABLES = {
    "nvidia-a100-sxm4-80gb": ("gemm_a100_sxm80", {"int4_wo": "int4", "int8_wo": "int8"}),
    "nvidia-h100-sxm5-80gb": ("gemm_h100_sxm", {"fp8": "fp8-dynamic", "fp8_block": "fp8-block"}),
    "nvidia-l40s": ("gemm_l40s", {"fp8": "fp8-dynamic", "fp8_block": "fp8-block"}),
    "nvidia-b200-sxm-180gb": (
        "gemm_b200_sxm", {"fp8": "fp8-dynamic", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
    ),
}  # fmt: skip
_COPIES = 6
#: Of vLLM these were timed without a graph, or with one weight alone (the data's README).
_LEFT_OUT = (("vllm", "fp8_block"), ("vllm", "nvfp4"))


def products(data: Path, sample: int = 600) -> pd.DataFrame:
    """Errors of each format by GPU and library, of few rows and of many."""
    lines = []
    for gpu, (file, names) in _TABLES.items():
        (machine,) = machines_of([gpu])
        table = read_table(data / "aiconfigurator" / f"{file}.parquet")
        table = table[table["dtype"].isin(names) & (table[["n", "k"]] >= 1024).all(axis=1)]
        for (dtype, library), part in table.groupby(["dtype", "framework"]):
            if (library, dtype) in _LEFT_OUT:
                continue
            profiled = "a100" in file
            few = machine if profiled else _few_calls(machine)
            weights = names[str(dtype)]
            rows = part.groupby(["m", "n", "k"], as_index=False)["latency_us"].median()
            if not profiled:
                held = rows["n"] * rows["k"].astype(float) * WEIGHT_FORMATS[weights].bits / 8 * _COPIES
                rows = rows[held > 2 * machine.device.l2_capacity]
            unseen = split_hash(rows) >= _SEEN
            seen, rows = (some.sample(min(sample, len(some)), random_state=1) for some in (rows[~unseen], rows[unseen]))
            added = _added_s(_seconds(seen, weights, few), seen) if profiled else 0.0
            ratio = (_seconds(rows, weights, few) + added) * 1e6 / rows["latency_us"].to_numpy()
            lines.append(_line((gpu, weights, str(library)), ratio, rows["m"].to_numpy(), added))
    return pd.DataFrame([*lines, *_grouped(data)])


def _line(of: tuple[str, str, str], ratio: Floats, rows: Floats, added: float = 0.0) -> dict[str, object]:
    few = rows <= _FEW
    return {
        **dict(zip(("gpu", "weights", "library"), of, strict=True)), "rows": len(rows),
        "median %": round(100 * float(np.median(abs(ratio - 1))), 1),
        "p90 %": round(100 * float(np.quantile(abs(ratio - 1), 0.9)), 1),
        f"bias, {_FEW} rows or fewer": round(float(np.median(ratio[few])), 2),
        "bias, more": round(float(np.median(ratio[~few])), 2), "timer, µs": round(added * 1e6, 1),
    }  # fmt: skip


def _grouped(data: Path) -> Iterator[dict[str, object]]:
    """Of experts: a line for steps that decode and one for those that read prompts."""
    gpu, weights = "nvidia-h800-sxm5-80gb", "fp8-block"
    (machine,) = machines_of([gpu])
    table = read_table(data / "infersim" / "kernels_h20_h800.csv", low_memory=False)
    table = table[table["op"].str.startswith("grouped_gemm/") & (table["tokens_per_expert"] >= 4)]
    for op, part in table.groupby("op"):
        ratios = []
        for row in part.to_dict("records"):
            experts, tokens, hidden, width = (
                int(row[name])
                for name in ("num_local_experts", "tokens_per_expert", "hidden_size", "intermediate_size")
            )
            for inner, outer, measured in ((hidden, 2 * width, "up_proj_us"), (width, hidden, "down_proj_us")):
                engine = _engine(weights)
                x = TensorSpec(name="x", shape=(experts, tokens, inner), dtype=DType.BFLOAT16)
                engine.grouped(x, "w", outer, experts, experts * tokens)
                kernels = [one for priced in price_all(engine.tape.ops) for one in plain_kernels(priced, None)]
                products = [kernel for kernel in kernels if kernel.cost.gemms]
                seconds = float(time_work(work_of(products), _graphed(machine)).total_s.sum())
                ratios.append(seconds * 1e6 / row[measured])
        rows = np.repeat(part["tokens_per_expert"].to_numpy(), 2)
        yield _line((gpu, f"{weights}, experts, {str(op).partition('/')[2]}", "DeepGEMM"), np.array(ratios), rows)


def _engine(weights: str) -> Inference:
    """Products alone, whatever the decoder."""
    form, any_ = WEIGHT_FORMATS[weights], Decoder.from_config("llama-3.1-8b")
    return Inference(
        decoder=any_, tape=Tape(dtype=form.outside), vocab=any_.vocab, parts=(), format=form, cached=form.outside,
        options=Options(weights=weights),
    )  # fmt: skip


def _few_calls(machine: Machine) -> Machine:
    return replace(machine, calls=float(CALLS["calls"]), warm_calls=float(CALLS["warmup"]))


def _graphed(machine: Machine) -> Machine:
    return machine.with_values({**machine.values, "kernel_gap": machine.values["kernel_gap_graph"]})


def _seconds(rows: pd.DataFrame, weights: str, machine: Machine) -> Floats:
    """Predicted, as kernels of a CUDA graph."""
    kernels, owner = [], []
    for i, (m, n, k) in enumerate(rows[["m", "n", "k"]].astype(int).to_numpy().tolist()):
        engine = _engine(weights)
        engine.linear(TensorSpec(name="x", shape=(m, k), dtype=DType.BFLOAT16), "w", n)
        found = [kernel for priced in price_all(engine.tape.ops) for kernel in plain_kernels(priced, None)]
        kernels += found
        owner += [i] * len(found)
    seconds: Floats = np.bincount(owner, weights=time_work(work_of(kernels), _graphed(machine)).total_s)
    return seconds


def _added_s(predicted: Floats, rows: pd.DataFrame) -> float:
    """What the timer adds: with the least mean error, as a logarithm."""
    measured = rows["latency_us"].to_numpy() * 1e-6
    found = minimize_scalar(lambda s: float(np.mean(abs(np.log((predicted + s) / measured)))), bounds=(0.0, 2e-5),
                            method="bounded")  # fmt: skip
    return float(found.x)
