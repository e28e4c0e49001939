"""Readers of published measurements: a folder of their tables → campaigns in rooflinekit's form.

The folder holds `neusight/`, `aiconfigurator/`, `vidur/`, `azure/`, `cnn/`, `miopen/` and `kernelbench/` as tidied from
their sources; each is optional, and any GPU that rooflinekit knows may occur.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.sources import tracelens
from benchmarks.sources.tables import read_table
from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware.specs import load_device

NEUSIGHT = ("github.com/sitar-lab/NeuSight 6945927", "MIT, NeuSight (Lee, Phanishayee, Mahajan, ASPLOS 2025)")
AICONFIGURATOR = (
    "github.com/ai-dynamo/aiconfigurator 095f58a",
    "Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; changed: columns renamed, repeated keys reduced to their median",
)
TENSORRT = ("github.com/ai-dynamo/aiconfigurator/tensorrt 095f58a", AICONFIGURATOR[1])  # another way of timing
VIDUR = ("github.com/microsoft/vidur 7d47513", "MIT, (c) Microsoft Corporation")
VIDUR_FORK = ("github.com/AKafakA/vidur_opt_scheduler 20bdc49", "MIT, (c) Microsoft Corporation")
AITER = (
    "github.com/ROCm/aiter e404860",
    "MIT, (c) Advanced Micro Devices, Inc.; changed: columns renamed; the best of many tuned kernels, a lower bound",
)
APEX_PLUS = ("github.com/microsoft/apex_plus 8769096", "MIT, (c) Microsoft Corporation; changed: columns renamed")
INFERSIM = ("github.com/alibaba/InferSim f2293da", "Apache-2.0, (c) Alibaba Group; changed: columns renamed")
AZURE = ("github.com/Azure/AI-benchmarking-guide 8fd0c6e", "MIT, (c) Microsoft Corporation; changed: rates as seconds")
LLMSERVINGSIM = (
    "github.com/casys-kaist/LLMServingSim 5daddb2",
    "MIT, (c) CASYS, KAIST; changed: layers named by their sizes, repeated ones reduced to their median",
)
DEEPBENCH = ("github.com/baidu-research/DeepBench", "Apache-2.0, Baidu; changed: rows of its sheets as one table")

#: Sets of weights that aiconfigurator's graphs go through in turn; inputs and outputs stay the same.
WEIGHTS = 6.0
#: Calls in a row of its harness: 6 replays of as many layers, after 3 that are not timed.
CALLS = {"calls": "36", "warmup": "18"}
MIOPEN = (
    "github.com/ROCm/MIOpen 2d1fd99",
    "MIT, (c) Advanced Micro Devices, Inc.; changed: keys and times of src/kernels/*.HIP.fdb.txt as one table",
)
KERNELBENCH = (
    "github.com/ScalingIntelligence/KernelBench 423217d",
    "MIT, (c) Anne Ouyang, Simon Guo, Azalia Mirhoseini; changed: single convolutions and activations of "
    "results/timing as one table",
)

#: What these sources call a GPU, where no alias of its specification says so.
_NICKNAMES = {
    "a100": "nvidia-a100-sxm4-80gb",
    "a100_sxm80": "nvidia-a100-sxm4-80gb",
    "a100_sxm": "nvidia-a100-sxm4-80gb",
    "h100": "nvidia-h100-sxm5-80gb",
    "h100_sxm": "nvidia-h100-sxm5-80gb",
    "h200_sxm": "nvidia-h200-sxm-141gb",
    "b200_sxm": "nvidia-b200-sxm-180gb",
    "v100": "nvidia-v100-sxm2-16gb",
    "p100": "nvidia-p100-pcie-16gb",
    "gfx90878": "amd-mi100",
    "gfx906_60": "amd-mi50",
    "gfx906_64": "amd-mi60",
    "gfx900_56": "amd-vega-56",
    "gfx900_64": "amd-vega-64",
    "gfx1030_36": "amd-rx-6800-xt",  # HIP counts pairs of its 72 compute units
    "nvidia h100 pcie": "nvidia-h100-pcie-80gb",
    "nvidia b200": "nvidia-b200-sxm-180gb",
}


def gpu_name(name: str) -> str | None:
    """The specification behind a source's word for a GPU; None where rooflinekit has none."""
    if name.lower() in _NICKNAMES:
        return _NICKNAMES[name.lower()]
    spaced = re.sub(r"[_]+", " ", name)
    for word in (spaced, f"nvidia {spaced}", spaced.replace("rtx", "rtx "), f"geforce {spaced}", f"tesla {spaced}"):
        try:
            return load_device(word).name
        except RooflinekitError:
            continue
    return None


def read_ops(data: Path) -> list[Campaign]:
    """Every op-level table of the folder."""
    readers = (
        _neusight, _gemm_consensus, _gemm_fp8, _gemm_packed, _gemm_nvfp4, _attention, _quantize, _vidur, _deepbench,
        _aiter, _tracelens, _apex_plus, _infersim, _azure, _llmservingsim, _miopen, _kernelbench,
    )  # fmt: skip
    return [campaign for reader in readers for campaign in reader(data)]


def _by_gpu(rows: pd.DataFrame, source: tuple[str, str], table: str, timing: str, **notes: str) -> Iterator[Campaign]:
    for name, part in rows.groupby("gpu", sort=True):
        gpu = gpu_name(str(name))
        if gpu is None:
            print(f"{table}: no specification of {name!r}: {len(part)} rows left out")
            continue
        columns = part.drop(columns="gpu").reset_index(drop=True)
        named = f"{source[0]}, {table}"
        yield Campaign(gpu=gpu, source=named, licence=source[1], timing=timing, rows=columns, notes=notes)


def _numbers(table: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({new: pd.to_numeric(table[old]).astype(float) for new, old in names.items()})


_NEUSIGHT_SIZES: dict[str, dict[str, str]] = {
    "linear": {"m": "m", "n": "out_features", "k": "in_features"},
    "bmm": {"b": "b", "m": "m", "n": "n", "k": "k"},
    "elementwise": {"rows": "rows", "cols": "cols"},
    "softmax": {"rows": "rows", "cols": "cols"},
    "layernorm": {"rows": "rows", "cols": "cols"},
    "conv": {
        "b": "b", "c_in": "c_in", "c_out": "c_out", "h": "h_in", "w": "w_in", "r": "kernel_size", "s": "kernel_size",
        "stride_h": "stride", "stride_w": "stride", "pad_h": "padding", "pad_w": "padding",
    },
}  # fmt: skip


def _neusight(data: Path) -> Iterator[Campaign]:
    for family, sizes in _NEUSIGHT_SIZES.items():
        for file in (*data.glob(f"neusight/ops_{family}.parquet"), *data.glob(f"neusight/more/ops_{family}.parquet")):
            table = read_table(file)
            rows = _numbers(table, sizes).assign(
                gpu=table["gpu"],
                op="conv_fwd" if family == "conv" else table["op"],
                dtype=table["dtype"],
                split=table["split"],
                seconds=table["time_us"] * 1e-6,
            )
            if family != "conv":
                rows["copies"] = 1.0
            for release, places in table.groupby("torch", sort=True).groups.items():
                yield from _by_gpu(rows.loc[places], NEUSIGHT, file.stem, "event", torch=str(release))


def _gemm_consensus(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/gemm_bf16_consensus_*.parquet")):
        table = read_table(file)
        table = table[table["n_collections"] >= 2]
        rows = _numbers(table, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=table["gpu"], op="mm", dtype="bf16", copies=WEIGHTS, seconds=table["median_us"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem, "graph", **CALLS)


def _gemm_files(data: Path) -> list[Path]:
    return [file for file in sorted(data.glob("aiconfigurator/gemm_*.parquet")) if "consensus" not in file.stem]


def _gemm_pooled(data: Path, dtype: str, op: str, stored: str, ending: str) -> Iterator[Campaign]:
    """Products that two collections or more timed: the median of theirs."""
    for file in _gemm_files(data):
        table = read_table(file)
        table = table[table["dtype"] == dtype]
        pooled = table.groupby(["gpu", "m", "n", "k"], as_index=False)["latency_us"].agg(["median", "count"])
        pooled = pooled[pooled["count"] >= 2]
        rows = _numbers(pooled, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=pooled["gpu"], op=op, dtype=stored, copies=WEIGHTS, seconds=pooled["median"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem + ending, "graph", **CALLS)


def _gemm_fp8(data: Path) -> Iterator[Campaign]:
    yield from _gemm_pooled(data, "fp8", "mm_quantized", "fp8", "")


def _gemm_nvfp4(data: Path) -> Iterator[Campaign]:
    yield from _gemm_pooled(data, "nvfp4", "mm_nvfp4", "bf16", "_nvfp4")


#: TensorRT-LLM's kernels of weights in fewer bits; in 16 bits all else. Each was timed as a layer of an engine, by
#: TensorRT's profiler, with which one of hardly any work takes 8 to 11 µs.
_PACKED = {"int8_wo": "mm_int8", "int4_wo": "mm_int4"}


def _gemm_packed(data: Path) -> Iterator[Campaign]:
    for file in _gemm_files(data):
        table = read_table(file)
        table = table[table["dtype"].isin(_PACKED)]
        rows = _numbers(table, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=table["gpu"], op=table["dtype"].map(_PACKED), dtype="fp16", seconds=table["latency_us"] * 1e-6
        )
        yield from _by_gpu(rows, TENSORRT, f"{file.stem}_packed", "backend", **CALLS)


_ATTENTION_FORMATS = {"bfloat16": "bf16", "fp8": "fp8"}


#: TensorRT-LLM's own kernels for prompts, and Triton's: 0.8 and a fourth of the others' rate, FlashAttention's, which
#: `model.attention_backends` takes engines to run.
_OTHER_KERNELS = ("torch_flow", "torch_flow_flashinfer", "triton", "vllm_triton_attn")
_MOST_SHARED = 32


def _attention(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/attention_*.parquet")):
        table = read_table(file)
        if "window_size" in table:
            table = table[table["window_size"] == 0]
        if "kv_cache_dtype" in table:
            table = table[(table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")]
        table = table[table["attn_dtype"] == "bfloat16"]
        decode, encoder = "decode" in file.stem, "encoder" in file.stem
        others = _unlike_others(table) if decode else table["kernel_source"].isin(_OTHER_KERNELS)
        table = table[~others]
        rows = pd.DataFrame(
            {
                "gpu": table["gpu"],
                "b": table["batch_size"].astype(float),
                "s": 1.0 if decode else table["isl"].astype(float),
                "t": table["step"].astype(float) + 1 if decode else table["isl"].astype(float),
                "heads": table["num_heads"].astype(float),
                "kv_heads": table.get("num_key_value_heads", table["num_heads"]).astype(float),
                "d": table["head_dim"].astype(float),
                "causal": 0.0 if encoder else 1.0,
                "copies": 1.0,
                "seconds": table["latency_us"] * 1e-6,
            }
        )
        keys = [name for name in rows if name != "seconds"]
        pooled = rows.groupby(keys, as_index=False)["seconds"].agg(["median", "count"])
        least = min(2, table["framework"].nunique())
        pooled = pooled[pooled["count"] >= least].rename(columns={"median": "seconds"}).drop(columns="count")
        pooled = pooled.assign(op="attention_encoder" if encoder else "attention_call", dtype="bf16")
        yield from _by_gpu(pooled, AICONFIGURATOR, file.stem, "backend", **CALLS)


def _unlike_others(table: pd.DataFrame) -> pd.Series:
    """Rows of decoding by TensorRT-LLM that tell nothing of attention kernels for it.

    With more than 32 queries a key it has none, and takes ten times as long as the others. On an A100 its calls of long
    contexts are over before DRAM could have brought the keys and values.
    """
    own = table["framework"] == "trtllm"
    found = own & (table["num_heads"] > _MOST_SHARED * table["num_key_value_heads"])
    if (gpu := gpu_name(str(table["gpu"].iloc[0]))) is not None:  # a table is of one
        device = load_device(gpu)
        cached = 4 * table["batch_size"] * table["num_key_value_heads"] * table["step"] * table["head_dim"]  # 16 bits
        sooner = cached > 1e-6 * table["latency_us"] * device.dram.bandwidth
        found |= own & (cached > device.last_cache) & sooner
    return found


def _quantize(data: Path) -> Iterator[Campaign]:
    """By vLLM's kernel: SGLang's are four, and TensorRT-LLM's takes 2.7 µs on L40S however little there is to do."""
    for file in sorted(data.glob("aiconfigurator/quantize_*.parquet")):
        table = read_table(file, filters=[("framework", "==", "vllm")])
        pooled = table.groupby(["gpu", "m", "k"], as_index=False)["latency_us"].median()
        rows = _numbers(pooled, {"rows": "m", "cols": "k"}).assign(
            gpu=pooled["gpu"], op="quantize", dtype="bf16", copies=1.0, seconds=pooled["latency_us"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem, "graph", **CALLS)


_VIDUR_PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def _vidur(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("vidur/mlp_*.parquet")):
        table = read_table(file)
        source = VIDUR_FORK if "fork" in file.stem else VIDUR
        products = table[table["op"].isin(_VIDUR_PRODUCTS)].dropna(subset=["m", "n", "k"])
        rows = _numbers(products, {"m": "m", "n": "n", "k": "k"}).assign(gpu=products["gpu"], op="mm")
        others = pd.concat(list(_vidur_others(table)), ignore_index=True)
        seconds = pd.concat([products["median_us"], others.pop("us")], ignore_index=True) * 1e-6
        both = pd.concat([rows, others], ignore_index=True).assign(dtype="fp16", seconds=seconds.to_numpy())
        yield from _by_gpu(both[both["seconds"] > 0], source, file.stem, "profiler")


def _vidur_others(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    width = table["n_embd"].astype(float)
    inner = table["n_expanded_embd"].astype(float) / table["tp"]
    turned = width / table["tp"] * (1 + table["n_kv_head"].astype(float) / table["n_head"])
    gated = table["use_gated_mlp"].astype(bool)
    norms = ["input_layernorm", "post_attention_layernorm"]
    ops: list[tuple[str, Callable[[], pd.Series], pd.Series]] = [
        ("llm_norm", lambda: table["op"].isin(norms) & gated, width),
        ("layernorm", lambda: table["op"].isin(norms) & ~gated, width),  # of the models without gates, PyTorch's own
        ("llm_add", lambda: table["op"].eq("add"), width),
        ("llm_act", lambda: table["op"].eq("mlp_act") & gated, inner),
        ("llm_gelu", lambda: table["op"].eq("mlp_act") & ~gated, inner),
        ("llm_rope", lambda: table["op"].eq("attn_rope"), turned),
    ]
    for op, chosen, columns in ops:
        mask = chosen()
        yield pd.DataFrame(
            {
                "gpu": table["gpu"][mask],
                "op": op,
                "rows": table["num_tokens"][mask].astype(float),
                "cols": columns[mask],
                "us": table["median_us"][mask],
            }
        )


_DEEPBENCH_FORMATS = {"fp32": "fp32", "fp16_mixed": "fp16"}
#: T4's fp32 rows stay at 4.0 to 4.2 TFLOP/s from 0.2 ms on, in all directions, as NeuSight's products do that a T4
#: sustains at its 70 W; those of fp16 reach 42, twice what the energy of other boards' FLOP leaves.
_DEEPBENCH_TIMINGS = {"fp32": "profiler", "fp16": "rested"}


def _deepbench(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("cnn/deepbench_conv*.parquet")):
        table = read_table(file)
        table = table[table["dtype"].isin(_DEEPBENCH_FORMATS)].copy()
        sizes = {
            "b": "N", "c_in": "C", "c_out": "K", "h": "H", "w": "W", "r": "R", "s": "S",
            "stride_h": "stride_h", "stride_w": "stride_w", "pad_h": "pad_h", "pad_w": "pad_w",
        }  # fmt: skip
        table = table.dropna(subset=list(sizes.values()))
        for op, column in (
            ("conv_fwd", "fwd_ms"),
            ("conv_bwd_data", "bwd_data_ms"),
            ("conv_bwd_weight", "bwd_weight_ms"),
        ):
            rows = _numbers(table, sizes).assign(
                gpu=table["gpu"], op=op, dtype=table["dtype"].map(_DEEPBENCH_FORMATS), seconds=table[column] * 1e-3
            )
            for dtype, part in rows[rows["seconds"] > 0].groupby("dtype", sort=True):
                yield from _by_gpu(part, DEEPBENCH, file.stem, _DEEPBENCH_TIMINGS[dtype])


_AITER_FORMATS = {"a8w8_blockscale": "fp8", "bf16": "bf16"}


def _aiter(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiter/gemm.parquet")):
        table = read_table(file)
        table = table[table["kind"].isin(_AITER_FORMATS) & table["cu_num"].eq(304)]
        for kind, part in table.groupby("kind", sort=True):
            rows = _numbers(part, {"m": "M", "n": "N", "k": "K"}).assign(
                gpu="MI300X", op="mm", dtype=_AITER_FORMATS[kind], seconds=part["us"] * 1e-6
            )
            if part["B"].notna().any():
                rows = rows.assign(op="bmm", b=part["B"].astype(float))
            yield from _by_gpu(rows, AITER, f"gemm_{kind}", "profiler")


def _tracelens(data: Path) -> Iterator[Campaign]:
    for rows in tracelens.cases(data):
        yield from _by_gpu(rows, tracelens.SOURCE, "operators", "profiler", tells="own")


def _apex_plus(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("apex_plus/gemm_*.parquet")):
        table = read_table(file)
        whole = (table[["n", "k"]] % 8 == 0).all(axis=1) & (table["k"] >= 64)  # others have no tensor cores on a V100
        table = table[whole & (table["time(us)"] >= 20)]  # whole microseconds
        rows = _numbers(table, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=table["gpu"], op="mm", dtype="fp16", seconds=table["time(us)"] * 1e-6
        )
        yield from _by_gpu(rows, APEX_PLUS, file.stem, "backend")


#: InferSim's products are timed by DeepGEMM's `bench_kineto`, 30 calls by default with the L2 flushed before each (as
#: remembered, not re-read): too short for the board's power to count. Large ones reach 1,439 TFLOP/s (median), where an
#: H100, the same chip at the same power, sustains 1,030 by the constants that all other tables give.
BENCH_KINETO_CALLS = "30"


def _infersim(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("infersim/*.csv")):
        table = read_table(file)
        products = table[table["op"].eq("gemm")]
        rows = _numbers(products, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=products["gpu"], op="mm", dtype="fp8", seconds=products["latency_us"] * 1e-6
        )
        yield from _by_gpu(rows, INFERSIM, "gemm", "profiler", calls=BENCH_KINETO_CALLS)
        whole = table["op"].eq("mha/decode") & table["heads_config"].str.fullmatch(r"\d+-\d+-\d+")
        decode = table[whole & table["dtype"].eq("bf16") & table["kv_dtype"].eq("bf16")]
        heads = decode["heads_config"].str.split("-", expand=True).astype(float)
        rows = pd.DataFrame(
            {
                "gpu": decode["gpu"], "op": "attention", "dtype": "bf16", "b": decode["batch_size"], "s": 1.0,
                "t": decode["kv_len"], "heads": heads[0], "kv_heads": heads[1], "d": heads[2], "causal": 0.0,
                "seconds": decode["latency_us"] * 1e-6,
            }
        )  # fmt: skip
        yield from _by_gpu(rows, INFERSIM, "decode", "event")  # as it looks: none takes less than 26 µs


_AZURE_GPU, _AZURE_FORMAT = "H100", "fp8"  # those of A100 and H200 judge (benchmarks/ledger.py)
_AZURE_FLOP = 1e11  # of products that hide their launches


def _azure(data: Path) -> Iterator[Campaign]:
    """cuBLASLt's products of random numbers after 10,000 others: what the board's power sustains."""
    for file in sorted(data.glob("azure/tables.csv")):
        table = read_table(file)
        table = table[table["section"].str.contains("GEMM") & table["gpu"].eq(_AZURE_GPU)]
        rows = _numbers(table, {"m": "c0", "n": "c1", "k": "c2"})
        flop = 2 * rows.prod(axis=1)
        seconds = flop / (pd.to_numeric(table["c3"]) * 1e12)
        rows = rows.assign(gpu=_AZURE_GPU, op="mm", dtype=_AZURE_FORMAT, seconds=seconds)
        yield from _by_gpu(rows[flop > _AZURE_FLOP], AZURE, "gemm_azure", "graph")


#: Of a layer: [outputs, inputs], of which those with True are cut by a tensor group.
_LAYERS = {
    "meta-llama/Llama-3.1-8B": {
        "q_proj": (4096, 4096), "o_proj": (4096, 4096), "k_proj": (1024, 4096), "gate_proj": (14336, 4096),
        "down_proj": (4096, 14336), "lm_head": (128256, 4096), "qkv_proj": (6144, 4096), "gate_up_proj": (28672, 4096),
    },
    "microsoft/Phi-mini-MoE-instruct": {
        "q_proj": (4096, 4096), "k_proj": (1024, 4096), "lm_head": (32064, 4096),
    },
}  # fmt: skip
_CUT_INPUTS = ("o_proj", "down_proj")  # the others have their outputs cut
_WIDTHS = {"act_fn": ("llm_act", 14336), "layernorm": ("llm_norm", 4096), "final_layernorm": ("llm_norm", 4096)}


def _llmservingsim(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("llmservingsim/layers_v*.parquet")):
        table = read_table(file).rename(
            columns={"layer_name": "layer", "input": "tokens", "latency_us": "time_us", "tp_size": "tp"}
        )
        table = table.dropna(subset=["tokens"])
        table["tp"] = table["tp"].astype(str).str.removeprefix("tp").astype(int)
        found = []
        for (gpu, model, layer, tp), part in table.groupby(["gpu", "model", "layer", "tp"], sort=True):
            rows = pd.DataFrame({"gpu": gpu, "dtype": "bf16", "seconds": part["time_us"] * 1e-6})
            if layer in _LAYERS[model]:
                n, k = _LAYERS[model][layer]
                n, k = (n, k // tp) if layer in _CUT_INPUTS else (n // tp, k)
                found.append(rows.assign(op="mm", m=part["tokens"].astype(float), n=float(n), k=float(k)))
            elif file.stem == "layers_v1" and layer in _WIDTHS:  # the older layers are chains of PyTorch's operators
                op, width = _WIDTHS[layer]
                found.append(rows.assign(op=op, rows=part["tokens"].astype(float), cols=float(width)))
        rows = pd.concat(found, ignore_index=True)
        keys = [name for name in rows if name != "seconds"]  # layers of one size, and of both models
        pooled = rows.groupby(keys, dropna=False, as_index=False)["seconds"].median()
        yield from _by_gpu(pooled, LLMSERVINGSIM, file.stem, "profiler")


_MIOPEN_FORMATS = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}
_WITHDRAWN = "ConvMPBidirectWinograd"  # of MI60 and Vega 64 alone: their runs began with earlier libraries
_DIRECTIONS = {"F": "conv_fwd", "B": "conv_bwd_data", "W": "conv_bwd_weight"}
_SIDES = {"depth": "_depth", "height": "_h", "width": "_w"}


def _miopen(data: Path) -> Iterator[Campaign]:
    return (replace(c, rows=c.rows.drop(columns="solver")) for c in read_solvers(data))


def read_solvers(data: Path) -> Iterator[Campaign]:
    """The time of MIOpen's best solver of each problem, and its name; sizes are the forward convolution's.

    Where MLIR's solver or the library of products was the only one that was timed, by runs for it alone, it is not the
    best of any. Early tables have no naive solver, so that one may have been all there was.
    """
    for file in sorted(data.glob("miopen/find_db.parquet")):
        table = read_table(file)
        named = table["best_solver"].astype(str)
        early = set(table.loc[named.str.startswith(_WITHDRAWN), "arch"])
        asked = named.str.contains("Mlir") | (named.str.startswith("Gemm") & ~table["arch"].isin(early))
        alone = asked & table["solvers_timed"].eq(1)
        table = table[table["dtype"].isin(_MIOPEN_FORMATS) & ~alone]
        sizes = {"b": "batch", "c_in": "in_channels", "c_out": "out_channels", "h": "in_h", "w": "in_w"}
        rows = _numbers(table, sizes).assign(
            gpu=table["arch"].astype(str),
            op=table["direction"].astype(str).map(_DIRECTIONS),
            dtype=table["dtype"].astype(str).map(_MIOPEN_FORMATS),
            seconds=table["best_us"] * 1e-6,
            solver=table["best_solver"].astype(str),
            groups=table["groups"].astype(float),
            depth=table["in_d"].astype(float),
            **_by_side(table["kernel"], ("kernel_depth", "r", "s"), 1),
            **{k: v for name, least in (("pad", 0), ("stride", 1), ("dilation", 1))
               for k, v in _by_side(table[name], [name + end for end in _SIDES.values()], least).items()},
        )  # fmt: skip
        rows = rows[_agrees(table, rows) & (rows["seconds"] > 0)]
        for (dtype, gpu), part in rows.groupby(["dtype", "gpu"], sort=True):
            notes = {"products": "tuned"} if gpu in early else {}
            yield from _by_gpu(part, MIOPEN, f"{file.stem}_{dtype}", "alone", **notes)


def _agrees(table: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Whether a key's result is that of its image: one in 600 contradicts itself."""
    agrees = pd.Series(True, index=rows.index)
    for image, window, end, result in (("h", "r", "_h", "out_h"), ("w", "s", "_w", "out_w")):
        seen = rows["dilation" + end] * (rows[window] - 1) + 1
        agrees &= (rows[image] + 2 * rows["pad" + end] - seen) // rows["stride" + end] + 1 == table[result]
    return agrees


def _by_side(column: pd.Series, names: Sequence[str], least: int) -> dict[str, pd.Series]:
    """ "1x3x3" as three columns, the first of them `least` where there is no depth."""
    words = column.astype(str)
    parts = {word: [int(n) for n in word.split("x")] for word in words.unique()}
    full = {word: [least] * (3 - len(numbers)) + numbers for word, numbers in parts.items()}
    return {name: words.map({word: float(n[i]) for word, n in full.items()}) for i, name in enumerate(names)}


#: Below this the CPU's work before a call is a part that no one knows.
_ALONE_MS = 0.3
_FEWEST = 4  # problems of a kind that tell a GPU from those of its architecture


def _kernelbench(data: Path) -> Iterator[Campaign]:
    """Problems that are one convolution or activation: the least of the collections of a GPU, whose hosts differ."""
    files = [data / "kernelbench" / name for name in ("ops.jsonl.gz", "times.parquet")]
    if not all(file.exists() for file in files):
        return
    with gzip.open(files[0], "rt") as stream:
        problems = {one["blob"]: one for one in map(json.loads, stream) if _is_convolution(one) or _is_stream(one)}
    times = read_table(files[1])
    times = times[(times["config"] == "torch") & times["problem_blob"].isin(problems)]
    times = times[times["hardware"] != "NVIDIA GeForce RTX 3090 Ti"]  # a shared machine
    least = times.groupby(["hardware", "problem_blob"], observed=True)["mean_ms"].min().reset_index()
    least = least[least["mean_ms"] >= _ALONE_MS]
    convolves = least["problem_blob"].map(lambda blob: _is_convolution(problems[blob]))
    engines = {name: _multiplies_tf32(str(name)) for name in least["hardware"].unique()}
    formats = {name: "tf32" if engine else "fp32" for name, engine in engines.items()}
    for table, part, described in (
        ("convolutions", least[convolves], _convolution_of),
        ("activations", least[~convolves], _stream_of),
    ):
        rows = pd.DataFrame([described(problems[blob]) for blob in part["problem_blob"]]).assign(
            gpu=part["hardware"].to_numpy(),
            seconds=part["mean_ms"].to_numpy() * 1e-3,
            dtype=part["hardware"].map(formats).to_numpy() if table == "convolutions" else "fp32",
        )
        sizes = [name for name in rows if name != "seconds"]  # problems of several versions may be one op
        rows = rows.groupby(sizes, dropna=False, as_index=False)["seconds"].min()
        for dtype, same in rows.groupby("dtype", sort=True):
            told = same.groupby("gpu")["op"].transform("size") >= _FEWEST
            yield from _by_gpu(same[told], KERNELBENCH, f"{table}_{dtype}", "profiler")


def _multiplies_tf32(name: str) -> bool:
    gpu = gpu_name(name)
    return gpu is not None and "tf32" in load_device(gpu).matrix_peak


def _is_convolution(problem: dict[str, Any]) -> bool:
    ops = problem["ops"]
    return len(ops) == 1 and ops[0]["kind"] == "aten.convolution" and ops[0]["attrs"]["bias"] is None


#: Activations that campaigns know; none of them depends on what more than a multiplication takes.
_STREAMS = {"aten.relu": "relu", "aten.tanh": "tanh", "aten.gelu": "gelu", "aten.mul": "mulu"}


def _is_stream(problem: dict[str, Any]) -> bool:
    """One activation of a tensor of two dimensions; a product with a tensor is none."""
    ops = problem["ops"]
    if len(ops) != 1 or ops[0]["kind"] not in _STREAMS:
        return False
    return len(ops[0]["in"]) == 1 and len(problem["tensors"][ops[0]["in"][0]][0]) == 2


def _stream_of(problem: dict[str, Any]) -> dict[str, Any]:
    op = problem["ops"][0]
    rows, cols = problem["tensors"][op["in"][0]][0]
    return {"op": _STREAMS[op["kind"]], "rows": float(rows), "cols": float(cols), "copies": 1.0}


def _convolution_of(problem: dict[str, Any]) -> dict[str, Any]:
    """Its sizes, as those of a plain convolution: a transposed one is the gradient of the image."""
    op = problem["ops"][0]
    image, weight, result = (problem["tensors"][name][0] for name in (*op["in"][:2], op["out"][0]))
    attrs, transposed = op["attrs"], op["attrs"]["transposed"]
    if transposed:
        image, result = result, image
    sides = list(_SIDES.values())[-(len(image) - 2) :]
    named = {"_depth": ("depth", "kernel_depth"), "_h": ("h", "r"), "_w": ("w", "s")}
    found = {"op": "conv_bwd_data" if transposed else "conv_fwd", "b": image[0], "c_in": image[1], "c_out": result[1]}
    found |= {"h": 1, "r": 1, "groups": attrs["groups"]}
    for i, side in enumerate(sides):
        found |= {named[side][0]: image[2 + i], named[side][1]: weight[2 + i]}
        given = {"stride": attrs["stride"], "pad": attrs["padding"], "dilation": attrs["dilation"]}
        found |= {name + side: values[i] for name, values in given.items()}
    return found


def split_hash(rows: pd.DataFrame) -> np.ndarray:
    """A number in [0, 1) for each shape, the same for equal shapes: to hold some back."""
    sizes = [name for name in rows if name not in ("seconds", "gpu", "split", "copies", "solver")]
    keys = rows[sizes].reindex(columns=sorted(sizes))
    return pd.util.hash_pandas_object(keys, index=False).to_numpy() / 2.0**64
