"""Batches that start together, against measured ones: prompts are read in one step, then all sequences go on.

Called by benchmarks/serving/accuracy.py --source tensorrt_llm, llm_inference_bench or splitwise. No time of a kernel is
fitted on them; what is chosen by looking at some of the rows says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.serving.models import DECODERS
from benchmarks.serving.static_steps import Batch, Place
from benchmarks.sources.tables import read_table
from rooflinekit.serving.settings import HOST_STEP_S, HOST_TOKEN_S, Heads, Sums
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.step.bounds import widened

#: The GPU of each table's name, and the cluster whose links join several.
PLACES = {
    "A100": ("nvidia-a100-sxm4-80gb", "dgx-a100"),
    "H100": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
    "L40S": ("nvidia-l40s", "l40s-x8"),
    "MI250": ("amd-mi250-gcd", None),
    "Nvidia A100 GPU": ("nvidia-a100-sxm4-40gb", "dgx-a100"),
    "Nvidia H100 GPU": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
    "a100-80gb": ("nvidia-a100-sxm4-80gb", "dgx-a100"),
    "h100-80gb": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
}
#: What TensorRT-LLM takes of the memory: 0.9 of what is free beside the weights (kv_cache_free_gpu_memory_fraction).
TRTLLM_MEMORY = 0.97
#: Seconds of TensorRT-LLM's session in Python between steps for each sequence, beside `HOST_STEP_S`: by half of the
#: sets of llm_inference_bench (by a hash of GPU, model and tp; without Mixtral). Those on H100 are 16.2 % off without
#: all of its work and 5.5 with it, on A100 7.3 and 3.7; the other half 29.5 and 5.7 %, 17.4 and 4.4. Good to 5 µs.
#: NVIDIA's own batches told nothing: GPT-J's of 1024 sequences on H100 are 15 % off with it, 31 with vLLM's 42 µs.
SESSION_SEQUENCE_S = 10e-6
#: Seconds more that a step of vLLM takes behind llm_inference_bench's H100 than behind its A100, at all batches and on
#: one GPU and four alike, as if its CPU were slower: by the same half of the sets 12.8 % off without, 3.7 with it; the
#: other half 18.3 and 5.1 %. Good to 0.2 ms. Its MI250 lacks 1.5 to 2.5 ms, of an unknown cause, which is not added:
#: those who ask for that GPU get none of it either.
SLOWER_CPU_S = {"Nvidia H100 GPU": 1.0e-3}
#: Engines whose harness seems to send all sequences of a batch the same prompt: Mixtral's steps of 16 take less than
#: reading all of its experts does, and as much more than a step of one as Mistral's.
SAME_PROMPTS = ("TensorRT-LLM", "Deepspeed-MII")
#: Seconds in which DeepSpeed-MII launches a layer: Llama 2 7B's on four A100, one sequence (llm_inference_bench).
MII_LAYER_S = 0.35e-3
#: Seconds of a step of vLLM of 2023 beside the GPU's work, which its CPU waits for: Ray's calls of each GPU's process
#: and sampling. Llama 2 70B on two H100, one sequence: 37.2 ms, of which the GPU takes 28.5. A100's
#: and BLOOM's rows judge it, per token: without it 3.1 % off on A100, BLOOM 21 and 27 %, with it 2.5, 12 and 18.
V0_STEP_S = 8.5e-3
#: Seconds in which it launches a layer that decodes, without CUDA graphs: Llama 2 70B's 80 layers take 29 to 31 ms on
#: four and eight H100 at all small batches (Splitwise), less `V0_STEP_S`, and 45 ms behind an A100's slower CPU. A step
#: that reads prompts takes 48 to 52 and 63 to 67 ms at the least. BLOOM's rows judge both. Splitwise's capped H100
#: ("pcap") is not judged: its 76 cases are the free one's, prompts 1.300 times as long in each.
EAGER_LAYER_S = {"a100-80gb": 0.45e-3, "h100-80gb": 0.26e-3}
EAGER_PROMPT_LAYER_S = {"a100-80gb": 0.7e-3, "h100-80gb": 0.54e-3}
#: Seconds of its CPU for each sequence of a step, and for each token of a prompt: Llama 2 70B on four and eight H100,
#: 16 and 32 sequences that decode against one; 1024 and 2048 tokens of prompts, on two, four and eight H100 alike.
#: A100's and BLOOM's rows judge them.
V0_SEQUENCE_S = 0.24e-3
V0_PROMPT_TOKEN_S = 22e-6
#: Seconds in which TensorRT-LLM 0.5 to 0.9 launches a layer that reads prompts: Llama 2 7B's of 128 tokens on H100 (6.3
#: and 6.4 ms of 32 layers, with the CPU's 0.8 ms). The other models and GPUs judge it.
TRTLLM_PROMPT_LAYER_S = 0.175e-3


@cache
def place_of(
    model: str, place: str, weights: str, kv: str, tp: int, engine: rk.Engine, release: str = "", *, same: bool = False
) -> Place:  # fmt: skip
    """The steps of a model on `tp` GPUs of a kind, in an engine with the attention of this release. same: all sequences
    have the same tokens, which pass the same experts: no others are there.
    """
    gpu, cluster = PLACES[place]
    decoder = DECODERS[model]
    if same and decoder.experts:
        decoder = decoder.with_changes(experts=decoder.experts_per_token)
    return Place(decoder, gpu, cluster, weights=weights, kv=kv, tp=tp, engine=engine, release=release)


def step_times(model: str, place: str, weights: str, kv: str, tp: int, sums: Sums = "nccl") -> StepTimes:
    """The same in an engine with the settings that most have."""
    return place_of(model, place, weights, kv, tp, rk.Engine(sums=sums)).times


def tensorrt_llm(data: Path) -> Iterator[dict[str, Any]]:
    """TensorRT-LLM 0.5 to 0.9: tokens of answers a second (and GPU), seconds to the first token."""
    table = read_table(data / "tensorrt_llm" / "static_batch.csv")
    table["first"] = table["metric"].str.contains("1st token")
    keys = ["version", "gpu", "dtype", "model", "batch", "tp", "input", "output", "first", "value"]
    for row in table.drop_duplicates(keys).to_dict("records"):
        if row["model"] not in DECODERS:
            continue
        form = "fp8" if row["dtype"] == "FP8" else "fp16"
        decoder = DECODERS[row["model"]]
        engine = _trtllm("threads" if pd.isna(row["version"]) else "xqa")  # pages of 2023 came before XQA
        place = place_of(row["model"], row["gpu"], form, form, int(row["tp"]), engine, "tensorrt-llm:0.9")
        first, batch, given = row["first"], int(row["batch"]), int(row["input"])
        # The first page gives what all GPUs do together; later ones, which it calls peaks, what one does, though the
        # page of 2023-12-20 forgot to say so: its numbers are those of the next, which does.
        gpus = 1 if "High Throughput" in row["section"] else place.tp
        output = 1 if first else int(row["output"])
        timed = place.batch(batch, given, output, prompt_layer_s=TRTLLM_PROMPT_LAYER_S)
        yield {
            "engine": "TensorRT-LLM", "gpu": row["gpu"], "model": decoder.name, "tp": place.tp, "batch": batch,
            "in": given, "out": row["output"], "what": "first token" if first else "tokens/s",
            "measured": row["value"] * 1e-3 if first else row["value"],
            **(_times(timed.first, "first token") if first else _rates(timed, batch * row["output"] / gpus)),
        }  # fmt: skip


def llm_inference_bench(data: Path) -> Iterator[dict[str, Any]]:
    """vLLM, TensorRT-LLM and DeepSpeed-MII on A100s of 40 GB, vLLM on a GCD of an MI250: input + output a second."""
    table = read_table(data / "llm_inference_bench" / "all.parquet")
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
        decoder = DECODERS[row["model"]]
        engine = _engine_of_2024(row["framework"], decoder, place)
        steps = place_of(
            row["model"], place, "fp16", "fp16", int(row["gpus"]), engine, RELEASES_OF_2024[row["framework"]],
            same=row["framework"] in SAME_PROMPTS,
        )  # fmt: skip
        if not steps.fits():
            continue  # Mixtral's 93 GB on "one" MI250: both of its dies, and how they share it is not told
        if row["latency_s"] < length * steps.reading_s / 2:
            continue  # 11 rows whose answers ended before their length: Qwen2's of 2048 tokens in TensorRT-LLM on H100
        layer_s = TRTLLM_PROMPT_LAYER_S if row["framework"] == "TensorRT-LLM" else 0.0
        timed = steps.batch(batch, length, length, waves=True, prompt_layer_s=layer_s)
        yield {
            "engine": row["framework"], "gpu": place, "model": decoder.name, "tp": steps.tp, "batch": batch,
            "in": length, "out": length, "what": "tokens/s", "measured": 2 * length * batch / row["latency_s"],
            **_rates(timed, 2 * length * batch),
        }  # fmt: skip


def _trtllm(heads: Heads) -> rk.Engine:
    """Without CUDA graphs, which its sessions of that time captured when asked to (cuda_graph_mode)."""
    return rk.Engine(
        host="overlapped", heads=heads, graph_sizes=(), memory_share=TRTLLM_MEMORY, reserve="whole",
        host_sequence_s=SESSION_SEQUENCE_S,
    )  # fmt: skip


#: Whose attention ran; DeepSpeed-MII's is FlashAttention 2, as vLLM's.
RELEASES_OF_2024 = {
    "TensorRT-LLM": "tensorrt-llm:0.9",
    "vLLM": "vllm:0.4",
    "Deepspeed-MII": "vllm:0.4",
}


def _engine_of_2024(framework: str, decoder: rk.Decoder, place: str) -> rk.Engine:
    """vLLM took PagedAttention's kernels for models with a window, as FlashAttention's had none (attention/selector.py
    of 0.4 and 0.5), and on AMD's GPUs. DeepSpeed-MII decodes by its kernel of prompts, blocked FlashAttention, and its
    steps are launched by Python.
    """
    if framework == "TensorRT-LLM":  # by Python, which waits for each step's tokens
        return replace(_trtllm("xqa"), host="serial")
    if framework == "vLLM":
        paged = decoder.window is not None or place == "MI250"
        heads: Heads = "apart" if paged else "together"
        more_s = SLOWER_CPU_S.get(place, 0.0)
        return rk.Engine(host="serial", heads=heads, handed=True, host_token_s=HOST_TOKEN_S, host_more_s=more_s)
    return rk.Engine(host="serial", heads="tiles", handed=True, graph_sizes=(), layer_s=MII_LAYER_S)


def splitwise(data: Path) -> Iterator[dict[str, Any]]:
    """vLLM of 2023 on DGX A100 and H100: seconds to the first token and between tokens (medians of five)."""
    table = read_table(data / "splitwise" / "perf_model.csv")
    keys = ["model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    for key, part in table[table["hardware"].isin(PLACES)].groupby(keys):
        row: Mapping[str, Any] = dict(zip(keys, key, strict=True))
        engine = rk.Engine(
            host="serial", heads="apart", graph_sizes=(), layer_s=EAGER_LAYER_S[row["hardware"]],
            host_sequence_s=V0_SEQUENCE_S, host_more_s=V0_STEP_S - HOST_STEP_S,
        )  # fmt: skip
        steps = place_of(row["model"], row["hardware"], "fp16", "fp16", int(row["tensor_parallel"]), engine, "vllm:0.2")
        batch, given, output = (int(row[name]) for name in ("batch_size", "prompt_size", "token_size"))
        launched_s = EAGER_PROMPT_LAYER_S[row["hardware"]]
        timed = steps.batch(batch, given, output, prompt_layer_s=launched_s, prompt_token_s=V0_PROMPT_TOKEN_S)
        common = {
            "engine": "vLLM 2023", "gpu": row["hardware"], "model": steps.decoder.name, "tp": steps.tp, "batch": batch,
            "in": given, "out": output,
        }  # fmt: skip
        measured = part[["prompt_time", "token_time"]].median() * 1e-3
        parts = ("first token", "prompt_time", timed.first), ("per token", "token_time", timed.further)
        for what, column, seconds in parts:
            yield {**common, "what": what, "measured": measured[column], **_times(seconds, what)}


_NINETY = 1.645  # standard deviations that hold 90 % of a normal distribution


def _times(seconds: tuple[float, float, float], source: str) -> dict[str, float]:
    predicted, *bounds = seconds
    low, high = widened((bounds[0], bounds[1]), predicted, source, _NINETY)
    return {"predicted": predicted, "low": low, "high": high}


def _rates(timed: Batch, tokens: float) -> dict[str, float]:
    """Tokens a second, which are most where seconds are fewest."""
    seconds = _times(timed.whole, "per token")
    return {name: tokens / seconds[of] for name, of in (("predicted", "predicted"), ("low", "high"), ("high", "low"))}


SOURCES = {"tensorrt_llm": tensorrt_llm, "llm_inference_bench": llm_inference_bench, "splitwise": splitwise}


def judged(data: Path, source: str) -> pd.DataFrame:
    """A line each: measured and predicted, and whether the interval of 90 % holds what was measured."""
    rows = pd.DataFrame(SOURCES[source](data))
    return rows.assign(hit=(rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"]))


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Median error, its 90th percentile and the bias of each group, and of all, for each thing that is measured.

    With `hit` in the rows also the share of those within their interval.
    """
    ratio = rows["predicted"] / rows["measured"]
    rows = rows.assign(ratio=ratio, error=100 * (ratio - 1).abs())

    def line(part: pd.DataFrame) -> dict[str, Any]:
        told = part["hit"].dropna() if "hit" in part else pd.Series(dtype=bool)
        hits = {"in 90 %": f"{told.astype(str).eq('True').mean():.0%}"} if len(told) else {}
        return {
            "rows": len(part), "median %": round(part["error"].median(), 1),
            "p90 %": round(part["error"].quantile(0.9), 1), "bias": round(part["ratio"].median(), 2), **hits,
        }  # fmt: skip

    lines = []
    for what, part in rows.groupby("what"):
        lines += [{"what": what, **dict(zip(by, map(str, key), strict=True)), **line(group)}
                  for key, group in part.groupby(by)]  # fmt: skip
        lines.append({"what": what, by[0]: "all", **line(part)})
    return pd.DataFrame(lines).fillna("")
