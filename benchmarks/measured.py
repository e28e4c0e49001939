"""Readers of published measurements: a folder of their tables → campaigns in rooflinekit's form.

The folder holds `neusight/`, `aiconfigurator/`, `vidur/` and `cnn/` as tidied from their sources; each is optional, and
any GPU that rooflinekit knows may occur.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaign import Campaign
from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware.specs import load_device

NEUSIGHT = ("github.com/sitar-lab/NeuSight 6945927", "MIT, NeuSight (Lee, Phanishayee, Mahajan, ASPLOS 2025)")
AICONFIGURATOR = (
    "github.com/ai-dynamo/aiconfigurator 095f58a",
    "Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; changed: columns renamed, repeated keys reduced to their median",
)
VIDUR = ("github.com/microsoft/vidur 7d47513", "MIT, (c) Microsoft Corporation")
VIDUR_FORK = ("github.com/AKafakA/vidur_opt_scheduler 20bdc49", "MIT, (c) Microsoft Corporation")
DEEPBENCH = ("github.com/baidu-research/DeepBench", "Apache-2.0, Baidu; changed: rows of its sheets as one table")

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
    readers = (_neusight, _gemm_consensus, _gemm_fp8, _attention, _quantize, _vidur, _deepbench)
    return [campaign for reader in readers for campaign in reader(data)]


def _by_gpu(rows: pd.DataFrame, source: tuple[str, str], table: str, timing: str) -> Iterator[Campaign]:
    for name, part in rows.groupby("gpu", sort=True):
        gpu = gpu_name(str(name))
        if gpu is None:
            print(f"{table}: no specification of {name!r}: {len(part)} rows left out")
            continue
        columns = part.drop(columns="gpu").reset_index(drop=True)
        yield Campaign(gpu=gpu, source=f"{source[0]}, {table}", licence=source[1], timing=timing, rows=columns)


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
        for file in data.glob(f"neusight/ops_{family}.parquet"):
            table = pd.read_parquet(file)
            rows = _numbers(table, sizes).assign(
                gpu=table["gpu"],
                op="conv_fwd" if family == "conv" else table["op"],
                dtype=table["dtype"],
                split=table["split"],
                seconds=table["time_us"] * 1e-6,
            )
            yield from _by_gpu(rows, NEUSIGHT, file.stem, "event")


def _gemm_consensus(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/gemm_bf16_consensus_*.parquet")):
        table = pd.read_parquet(file)
        table = table[table["n_collections"] >= 2]
        rows = _numbers(table, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=table["gpu"], op="mm", dtype="bf16", seconds=table["median_us"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem, "graph")


def _gemm_fp8(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/gemm_[!b]*.parquet")):
        table = pd.read_parquet(file)
        table = table[table["dtype"] == "fp8"]
        pooled = table.groupby(["gpu", "m", "n", "k"], as_index=False)["latency_us"].agg(["median", "count"])
        pooled = pooled[pooled["count"] >= 2]
        rows = _numbers(pooled, {"m": "m", "n": "n", "k": "k"}).assign(
            gpu=pooled["gpu"], op="mm_quantized", dtype="fp8", seconds=pooled["median"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem, "graph")


_ATTENTION_FORMATS = {"bfloat16": "bf16", "fp8": "fp8"}


def _attention(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/attention_*.parquet")):
        table = pd.read_parquet(file)
        if "window_size" in table:
            table = table[table["window_size"] == 0]
        if "kv_cache_dtype" in table:
            table = table[(table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")]
        table = table[table["attn_dtype"] == "bfloat16"]
        decode, encoder = "decode" in file.stem, "encoder" in file.stem
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
                "seconds": table["latency_us"] * 1e-6,
            }
        )
        keys = [name for name in rows if name != "seconds"]
        pooled = rows.groupby(keys, as_index=False)["seconds"].agg(["median", "count"])
        pooled = pooled[pooled["count"] >= 2].rename(columns={"median": "seconds"}).drop(columns="count")
        pooled = pooled.assign(op="attention" if encoder else "attention_call", dtype="bf16")
        yield from _by_gpu(pooled, AICONFIGURATOR, file.stem, "backend")


def _quantize(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("aiconfigurator/quantize_*.parquet")):
        table = pd.read_parquet(file)
        table = table[table["framework"] != "sglang"]  # unfused: four kernels
        pooled = table.groupby(["gpu", "m", "k"], as_index=False)["latency_us"].median()
        rows = _numbers(pooled, {"rows": "m", "cols": "k"}).assign(
            gpu=pooled["gpu"], op="quantize", dtype="bf16", seconds=pooled["latency_us"] * 1e-6
        )
        yield from _by_gpu(rows, AICONFIGURATOR, file.stem, "graph")


_VIDUR_PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def _vidur(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("vidur/mlp_*.parquet")):
        table = pd.read_parquet(file)
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


def _deepbench(data: Path) -> Iterator[Campaign]:
    for file in sorted(data.glob("cnn/deepbench_conv.parquet")):
        table = pd.read_parquet(file)
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
            yield from _by_gpu(rows[rows["seconds"] > 0], DEEPBENCH, file.stem, "profiler")


def split_hash(rows: pd.DataFrame) -> np.ndarray:
    """A number in [0, 1) for each shape, the same for equal shapes: to hold some back."""
    sizes = [name for name in rows if name not in ("seconds", "gpu", "split")]
    keys = rows[sizes].reindex(columns=sorted(sizes))
    return pd.util.hash_pandas_object(keys, index=False).to_numpy() / 2.0**64
