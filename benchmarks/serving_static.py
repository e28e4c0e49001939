"""Batches that start together, against measured ones: prompts are read in one step, then all sequences go on.

Called by serving_accuracy.py --source tensorrt_llm, llm_inference_bench or splitwise. Nothing is fitted on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from serving_models import DECODERS

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.model.clocks import limited
from rooflinekit.serving.step_times import StepTimes

#: The GPU of each table's name, and the cluster whose links join several.
PLACES = {
    "A100": ("nvidia-a100-sxm4-80gb", "dgx-a100"),
    "H100": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
    "L40S": ("nvidia-l40s", "l40s-x8"),
    "MI250": ("amd-mi250-gcd", None),
    "Nvidia A100 GPU": ("nvidia-a100-sxm4-40gb", "dgx-a100"),
    "a100-80gb": ("nvidia-a100-sxm4-80gb", "dgx-a100"),
    "h100-80gb-pcap": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
}
#: Watts of a GPU: Splitwise's capped machines have half of the power for each (arXiv 2311.18677, Splitwise-HHcap).
LIMITS = {"h100-80gb-pcap": 350.0}


@cache
def collective_s(size_bytes: float, gpus: int, cluster: str) -> float:
    """Seconds of an all-reduce over the first GPUs of a cluster."""
    return rk.collective_time("all-reduce", size_bytes, cluster, gpus).total_s


@cache
def step_times(model: str, place: str, weights: str, kv: str, tp: int) -> StepTimes:
    """The steps of a model on `tp` GPUs of a kind."""
    gpu, cluster = PLACES[place]
    machine = limited(machines_of([gpu])[0], power_w=LIMITS.get(place))
    links = (lambda size, gpus: collective_s(size, gpus, cluster)) if cluster is not None else None
    return StepTimes(decoder=DECODERS[model], machine=machine, weights=weights, kv=kv, tp=tp, collective_s=links)


def batch_s(times: StepTimes, engine: rk.Engine, batch: int, input: int, output: int) -> tuple[float, float]:
    """Seconds to the first token, and of the whole batch."""
    first = engine.step_s(times.prefill_s(batch, input), batch)
    along = [input + share * output for share in (0.1, 0.5, 0.9)]
    decode = sum(engine.step_s(times.decode_s(batch, context), batch) for context in along) / len(along)
    return first, first + (output - 1) * decode


def tensorrt_llm(data: Path) -> Iterator[dict[str, Any]]:
    """TensorRT-LLM 0.8 and 0.9: tokens of answers a second and GPU, seconds to the first token."""
    table = pd.read_csv(data / "tensorrt_llm" / "static_batch.csv")
    keys = ["version", "gpu", "dtype", "model", "batch", "tp", "input", "output", "metric"]
    for row in table.drop_duplicates([*keys, "value"]).to_dict("records"):
        if row["model"] not in DECODERS:
            continue
        fp8 = row["dtype"] == "FP8"
        times = step_times(row["model"], row["gpu"], "fp8" if fp8 else "fp16", "fp8" if fp8 else "fp16", int(row["tp"]))
        first = "1st token" in row["metric"]
        batch, given = int(row["batch"]), int(row["input"])
        first_s, whole_s = batch_s(times, rk.Engine(), batch, given, 1 if first else int(row["output"]))
        yield {
            "engine": "TensorRT-LLM", "gpu": row["gpu"], "model": times.decoder.name, "tp": times.tp, "batch": batch,
            "in": given, "out": row["output"], "what": "first token" if first else "tokens/s",
            "measured": row["value"] * 1e-3 if first else row["value"],
            "predicted": first_s if first else batch * row["output"] / whole_s / times.tp,
        }  # fmt: skip


def llm_inference_bench(data: Path) -> Iterator[dict[str, Any]]:
    """vLLM, TensorRT-LLM and DeepSpeed-MII on A100s of 40 GB, vLLM on a GCD of an MI250: input + output a second."""
    table = pd.read_parquet(data / "llm_inference_bench" / "all.parquet")
    table = table[table["source_file"] == "Plots/All_results.csv"]
    for row in table.to_dict("records"):
        place = "MI250" if "MI250" in row["gpu"] else row["gpu"]
        if row["model"] not in DECODERS or row["framework"] == "llama.cpp":
            continue
        if place == "MI250" and int(row["gpus"]) > 1:
            continue  # links of MI250 are not described
        try:
            batch, length = int(float(row["batch"])), int(row["input_output"])
        except ValueError:
            continue
        times = step_times(row["model"], place, "fp16", "fp16", int(row["gpus"]))
        engine = rk.Engine(host="overlapped" if row["framework"] == "TensorRT-LLM" else "serial")
        _, whole_s = batch_s(times, engine, batch, length, length)
        yield {
            "engine": row["framework"], "gpu": place, "model": times.decoder.name, "tp": times.tp, "batch": batch,
            "in": length, "out": length, "what": "tokens/s", "measured": 2 * length * batch / row["latency_s"],
            "predicted": 2 * length * batch / whole_s,
        }  # fmt: skip


def splitwise(data: Path) -> Iterator[dict[str, Any]]:
    """vLLM of 2023 on DGX A100 and capped H100: seconds to the first token and between tokens (medians of five)."""
    table = pd.read_csv(data / "splitwise" / "perf_model.csv")
    keys = ["model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    for key, part in table[table["hardware"].isin(PLACES)].groupby(keys):
        row: Mapping[str, Any] = dict(zip(keys, key, strict=True))
        times = step_times(row["model"], row["hardware"], "fp16", "fp16", int(row["tensor_parallel"]))
        batch, given, output = (int(row[name]) for name in ("batch_size", "prompt_size", "token_size"))
        first_s, whole_s = batch_s(times, rk.Engine(host="serial"), batch, given, output)
        common = {
            "engine": "vLLM 2023", "gpu": row["hardware"], "model": times.decoder.name, "tp": times.tp, "batch": batch,
            "in": given, "out": output,
        }  # fmt: skip
        measured = part[["prompt_time", "token_time"]].median() * 1e-3
        yield {**common, "what": "first token", "measured": measured["prompt_time"], "predicted": first_s}
        yield {
            **common, "what": "per token", "measured": measured["token_time"],
            "predicted": (whole_s - first_s) / (output - 1),
        }  # fmt: skip


SOURCES = {"tensorrt_llm": tensorrt_llm, "llm_inference_bench": llm_inference_bench, "splitwise": splitwise}


def judged(data: Path, source: str) -> pd.DataFrame:
    """A line each: measured and predicted."""
    return pd.DataFrame(SOURCES[source](data))


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Median error, its 90th percentile and the bias of each group, and of all, for each thing that is measured."""
    ratio = rows["predicted"] / rows["measured"]
    rows = rows.assign(ratio=ratio, error=100 * (ratio - 1).abs())

    def line(part: pd.DataFrame) -> dict[str, Any]:
        return {
            "rows": len(part), "median %": round(part["error"].median(), 1),
            "p90 %": round(part["error"].quantile(0.9), 1), "bias": round(part["ratio"].median(), 2),
        }  # fmt: skip

    lines = []
    for what, part in rows.groupby("what"):
        lines += [{"what": what, **dict(zip(by, map(str, key), strict=True)), **line(group)}
                  for key, group in part.groupby(by)]  # fmt: skip
        lines.append({"what": what, by[0]: "all", **line(part)})
    return pd.DataFrame(lines).fillna("")
