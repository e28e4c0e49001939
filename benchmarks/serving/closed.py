"""Closed loops of clients, against measured ones. Called by accuracy.py beside it, by default or --source ml_energy.

DATA holds `aiconfigurator/e2e_serving_*.parquet` (validation: of all that is shipped, five numbers are by half of its
first tokens, `REQUEST_S`, `INPUT_TOKEN_S` and `TRTLLM_REQUEST_S`, and of H200's `SGLANG_TOKEN_S` and
`SGLANG_REQUEST_S`). Judged are rows of dense models that prefill and decode on the same GPUs (mode "agg"), with
`--experts` those of models with experts. What each row does not say is assumed
from its source:

* formats: dense models in fp8 with fixed scales in InferenceX, whose checkpoints hold them, and with scales found in
  each step in aiconfigurator's own runs, which name models of 16 bits: SGLang and vLLM make 8 bits of these by
  themselves (SGLang 0.5.6, quantization/fp8.py: per channel and token, also where the rows say `fp8_block`), and the
  tables of products call TensorRT-LLM's with such scales fp8; the cache in fp8 where TensorRT-LLM serves fp8, and in
  vLLM on B200 (`FP8_CACHE`), else in bf16; models with experts in blocks of fp8, as published, with scales found in
  each step, GPT-OSS in mxfp4, which the table calls nvfp4, Kimi K2 in int4, all as well in nvfp4 where the rows
  say so;
* engine: vLLM (0.12 and before) works on the CPU between its steps, TensorRT-LLM 1.0 and SGLang beside them, a step
  ahead, as vLLM from 0.14 on does; SGLang reads prompts before it goes on with answers, the others beside them, as
  SGLang 0.5.6.post2 with `--enable-mixed-chunk`, which aiconfigurator's generator writes (first tokens on H200 would be
  2.5 times too long otherwise; the rows of 0.5.1.post1 tell that it was not set there);
  TensorRT-LLM does not cut prompts (`enable_chunked_prefill` is off by default), the others do; steps that
  read prompts are launched kernel by kernel (vLLM's above 512 tokens) and take 0.6 ms a layer or more, told
  from five rows of Llama 3.1 8B on TensorRT-LLM; 0.9 of the memory;
* InferenceX, TensorRT-LLM, 1024 tokens in and out, fewer than 8 GPUs: first tokens wait 11 to 18 steps longer than in
  its other rows, as `batch_wait_timeout_iters` makes prompts wait for further ones; `WAITED` by the rows of two GPUs
  (18: 2.7 %), those of one and four judge it (7.0 and 4.7 %, without it 53 and 53 %);
* tokens of a step: aiconfigurator writes them into the engine's settings, by the rules of its generator (version
  0.12.0, rule_plugin/*.rule): clients + input + 1500 (vLLM), clients + input + 500 up to a multiple of 32
  (TensorRT-LLM). InferenceX and SGLang: 8192;
* groups with attention of their own: `batch_size` is of each of them. InferenceX's rows that tell as many groups as
  GPUs share attention are GPUs that do: 4 and 4 are 4 GPUs and no groups. The source's analysis of Kimi K2 has the same
  measurements so, and the other models' rows fit it better as well (of 8192 tokens on H100 per token 25 to 7 %);
* clients: ten requests each, all of the stated lengths. Rows out of InferenceX's database have lengths between 80 % and
  100 % of the stated ones, as its client draws them (`random_range_ratio` 0.8).

Several GPUs: an all-reduce takes what was measured for its size (`collectives_h100_sxm.parquet`: the fastest of the
implementations, between sizes in proportion), so that the table says how good the rest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import rooflinekit as rk
from benchmarks.serving.models import DECODERS
from benchmarks.sources.tables import read_table
from rooflinekit.api.predict import machines_of
from rooflinekit.decoder.formats import Sampling
from rooflinekit.hardware.specs import DEFAULT_HOST, load_host
from rooflinekit.serving.engine import Setup
from rooflinekit.serving.served import serve_on
from rooflinekit.serving.settings import release_of
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.serving.traffic import Stream
from rooflinekit.step.bounds import widened
from rooflinekit.timing.estimate import deviations

#: By the name in the source's files: the GPU, and the cluster whose links join several.
GPUS = {
    "h100": ("nvidia-h100-sxm5-80gb", "dgx-h100"),
    "b200": ("nvidia-b200-sxm-180gb", "dgx-b200"),
    "h200": ("nvidia-h200-sxm-141gb", "dgx-h200"),
}
GPU = GPUS["h100"][0]
#: Engines that keep the cache in fp8 beside weights in fp8, by GPU, where it is not TensorRT-LLM alone: vLLM's recipe
#: for Llama, by which InferenceX starts it, sets `kv-cache-dtype: fp8` and `async-scheduling` on Blackwell (as
#: remembered).
FP8_CACHE = {"b200": ("trtllm", "vllm")}
CLUSTER_GPUS = 8  # whose links are described
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
MODELS_WITH_EXPERTS = {
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "moonshotai/Kimi-K2.5": "kimi-k2",
}
ENGINES = {
    "vllm": rk.Engine.of("vllm:0.12", sequences=None),  # and what came before 0.14
    "trtllm": rk.Engine.of("tensorrt-llm:1.0", sequences=None),
    "sglang": rk.Engine.of("sglang:0.5"),
}
#: Steps that prompts wait for further ones where InferenceX set it (the module's text).
WAITED = 18
#: vLLM from 0.14 on, which schedules a step ahead, and before it by that recipe.
VLLM_AHEAD = rk.Engine.of("vllm:0.14", sequences=None)
#: Runs of SGLang with `--enable-mixed-chunk`, which aiconfigurator's generator writes and SGLang leaves off by default.
MIXED_CHUNKS = ("0.5.6.post2",)
#: Of the memory, to runs of SGLang that leave it less than by its own rule: 0.5.8.post1's of Qwen3 32B on one H100 hold
#: as many tokens as `--mem-fraction-static 0.8` leaves beside the weights, 6,800 (0.821 with the work space of steps in
#: it): told from the three with prompts of 1024 tokens, which the three of 2048 judge.
TOLD_MEMORY = {"0.5.8.post1": 0.821}
#: Rows that have these in common, times rounded to 0.1 ms, are one measurement.
SETTINGS = (
    "backend", "model_path", "mode", "isl", "osl", "gemm_quant_mode", "batch_size", "tp_size", "attention_dp_size",
    "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip
#: Deployments of NVIDIA Dynamo: several copies of the model behind a router, how many is not recorded.
DYNAMO = "dynamo_version"


def engine_of(row: Mapping[str, Any], fewer: int) -> rk.Engine:
    """The engine with the step that its source gave it: of InferenceX and SGLang the default of 8192 tokens.

    fewer: sequences that it holds less than there are clients.
    """
    engine, least = ENGINES[row["backend"]], row["batch_size"] + row["isl"]
    version = str(row["backend_version"])  # "nan" where it is not told
    if row["backend"] == "vllm":
        ahead = release_of(f"vllm:{version}").since == "0.14" if version[0].isdigit() else row["system"] == "b200_sxm"
        engine = VLLM_AHEAD if ahead else engine
    if version in MIXED_CHUNKS:
        engine = replace(engine, policy="mixed")
    if version in TOLD_MEMORY:
        engine = replace(engine, memory_share=TOLD_MEMORY[version])
    if fewer:
        engine = replace(engine, sequences=max(1, int(row["batch_size"]) - fewer))
    if is_inferencex(row) and row["backend"] == "trtllm" and row["isl"] == row["osl"] == 1024 and row["tp_size"] < 8:
        engine = replace(engine, wait_steps=WAITED)
    if is_inferencex(row) or row["backend"] == "sglang":
        return engine
    whole_blocks = -(-int(least + 500) // 32) * 32  # of TensorRT-LLM's cache
    return replace(engine, step_tokens=int(least) + 1500 if row["backend"] == "vllm" else whole_blocks)


def is_inferencex(row: Mapping[str, Any]) -> bool:
    """Whether the row is out of InferenceX's database: its tables name the model, its dumps themselves, and an analysis
    of Kimi K2 has its rows once more, with rounded times.
    """
    source = row["silicon_data_source"]
    return "model=" in source or source.startswith("db-dump") or "-gap-analysis.csv" in source


def _weights_of(row: Mapping[str, Any], decoder: rk.Decoder) -> str:
    """The format of the weights (the module's text)."""
    form = {"nvfp4": "nvfp4", "int4_wo": "int4"}.get(row["gemm_quant_mode"], "fp8-block")
    if decoder.experts or form == "nvfp4":
        return "mxfp4" if decoder.weights == "mxfp4" else form
    dynamic = "" if is_inferencex(row) else "-dynamic"
    return f"fp8{dynamic}" if str(row["gemm_quant_mode"]).startswith("fp8") else "bf16"


def rows_of(data: Path, gpu: str, models: Mapping[str, str]) -> pd.DataFrame:
    """The rows that are judged, each once, and how many of which kind are not; `batch_size` is of all groups."""
    (file,) = (data / "aiconfigurator").glob(f"e2e_serving_{gpu}_sxm*.parquet")
    table = read_table(file)
    groups = table["attention_dp_size"].fillna(1)
    table["batch_size"] *= groups  # of each group, which its number of clients (silicon_concurrency) tells
    squared = (groups > 1) & (groups == table["tp_size"])  # one number of GPUs, told twice (the module's text)
    table["moe_ep_size"] = table["moe_ep_size"].where(~squared, table["moe_ep_size"] / groups)
    table["attention_dp_size"] = groups = groups.where(~squared, 1)
    rounded = table.assign(**{name: table[name].round(1) for name in ("silicon_ttft_ms", "silicon_tpot_ms")})
    kept = ~rounded.duplicated(list(SETTINGS))
    table, groups = table[kept], groups[kept]
    other = ~table["model_path"].isin(models)
    apart = ~other & (table["mode"] != "agg")
    routed = ~other & ~apart & table["silicon_data_source"].str.contains(DYNAMO)
    over = np.maximum(table["tp_size"] * groups, table["moe_tp_size"] * table["moe_ep_size"])
    beyond = ~other & ~apart & ~routed & (over > CLUSTER_GPUS)
    print(
        f"{len(table)} rows; left out: {other.sum()} of other models, {apart.sum()} with prefill and decode on GPUs of "
        f"their own, {routed.sum()} of several copies behind a router, {beyond.sum()} on more than {CLUSTER_GPUS} GPUs"
    )
    return table[~(other | apart | routed | beyond)]


def all_reduce_times(data: Path, gpu: str) -> Any:
    """Seconds of an all-reduce by bytes and number of GPUs, as measured."""
    table = read_table(data / "aiconfigurator" / f"collectives_{gpu}_sxm.parquet")
    table = table[table["collective"].isin(["all_reduce", "allreduce"]) & (table["mode"] != "eager")]
    known: Mapping[int, pd.Series] = {
        int(gpus): part.groupby("message_bytes")["latency_us"].min().sort_index()
        for gpus, part in table.groupby("num_gpus")
    }

    def seconds(size_bytes: float, gpus: int) -> float:
        times = known[gpus]
        sizes = times.index.to_numpy(dtype=float)
        if size_bytes > sizes[-1]:
            return float(times.iloc[-1] * size_bytes / sizes[-1]) * 1e-6
        return float(np.interp(size_bytes, sizes, times.to_numpy())) * 1e-6

    return seconds


@cache
def predicted_all_reduce_s(size_bytes: float, gpus: int, cluster: str) -> float:
    """Seconds of NCCL's all-reduce by bytes and number of GPUs, as predicted for a cluster."""
    return rk.collective_time("all-reduce", size_bytes, cluster, gpus).total_s


def judged(data: Path, gpu: str, links: str, models: Mapping[str, str], fewer: int = 0, most: int = 0) -> pd.DataFrame:
    """A line each: measured and predicted. links: whether all-reduces are "measured" or "predicted". most: of about so
    many rows, evenly taken, or of all (0).
    """
    name, cluster = GPUS[gpu]
    (machine,) = machines_of([name])
    host = load_host(DEFAULT_HOST)
    collective_s = (
        all_reduce_times(data, gpu) if links == "measured" else partial(predicted_all_reduce_s, cluster=cluster)
    )
    decoders = {path: rk.Decoder.from_config(name) for path, name in models.items()}
    known: dict[tuple[Any, ...], StepTimes] = {}
    found = []
    rows = rows_of(data, gpu, models).to_dict("records")
    for row in rows[:: max(1, len(rows) // most) if most else 1]:
        decoder, tp = decoders[row["model_path"]], int(row["tp_size"])
        weights = _weights_of(row, decoder)
        in_eight_bits = weights != "bf16" and row["backend"] in FP8_CACHE.get(gpu, ("trtllm",))
        groups = int(row["attention_dp_size"]) if row["attention_dp_size"] > 1 else 1
        formats: dict[str, Any] = {
            "weights": weights,
            "kv": "fp8" if in_eight_bits else "bf16",
            "tp": tp,
            "ep": int(row["moe_ep_size"]) if decoder.experts else 1,
            "dp": groups,
            "collective_s": collective_s,
        }
        drawn = 0.8 if is_inferencex(row) else 1.0
        mean = (1 + drawn) / 2
        stream = Stream(
            clients=int(row["batch_size"]),
            input=round(mean * row["isl"]),
            output=round(mean * row["osl"]),
            spread=(1 - drawn) / mean,
        )
        engine = engine_of(row, fewer).on(machine.device)
        key = (decoder.name, formats["weights"], formats["kv"], tp, formats["ep"], groups, engine.named)
        own = {"own_sums": engine.sums == "one-shot", "release": engine.named}
        times = known.setdefault(key, StepTimes(decoder=decoder, machine=machine, **own, **formats))
        served = serve_on(host, stream, Setup(engine=engine, times=times))
        bounds = served.interval()
        found.append({
            "model": decoder.name, "engine": row["backend"], "weights": formats["weights"], "tp": tp, "dp": groups,
            "in": row["isl"], "out": row["osl"], "clients": stream.clients, "waits": served.running < stream.clients,
            **{
                name: seconds for which in ("ttft", "tpot") for name, seconds in (
                    (which, row[f"silicon_{which}_ms"] * 1e-3), (f"{which}_predicted", getattr(served, f"{which}_s")),
                    (f"{which}_low", bounds[f"{which}_s"][0]), (f"{which}_high", bounds[f"{which}_s"][1]),
                )
            },
        })  # fmt: skip
    return pd.DataFrame(found)


#: Models of ml_energy's chats whose tokens vLLM draws of the most likely ones, as their generation_config.json says
#: (top_k 20, top_p 0.8 or 0.95), which it has followed by default since 0.7. Llama's says top_p 0.9, but by the rows it
#: is not sorted for: with it they would be too slow by as much as Qwen3's are too fast without.
DRAWN = ("Qwen/Qwen3",)
#: Tokens of a prompt of ml_energy's chats, which the table does not tell: of LMSYS-Chat-1M's 69.5 on average a turn
#: (arXiv 2309.11998, table 1), and the template's.
_CHAT_TOKENS = 100


def ml_energy(data: Path) -> pd.DataFrame:
    """vLLM on H100 at a number of sequences that are always there: median between tokens, tokens a second.

    Requests are of a data set (LM Arena), with answers of the stated length on average; how long prompts are is not
    told, nor how lengths differ: prompts of `_CHAT_TOKENS`, answers from half to one and a half times the mean. The
    table's sequences are those that ran. Prompts are read in steps of their own kind, few enough not to be the median,
    and short enough for vLLM's CUDA graphs. Where experts are divided, the table says `tensor_parallel` 1: that is of
    the experts. Attention is shared by all GPUs: whole on each, Qwen3 235B in 16 bits would need 73 GB of each of eight
    H100 (an eighth of 454 GB of experts, 16 GB of all else) before any cache, and it ran 228 chats.
    """
    (machine,), host = machines_of([GPU]), load_host(DEFAULT_HOST)
    table = read_table(data / "ml_energy" / "leaderboard_v3.csv")
    table = table[(table["task"] == "lm-arena-chat") & table["model_id"].isin(DECODERS) & (table["data_parallel"] == 1)]
    known: dict[Any, StepTimes] = {}
    lines = []
    for row in table.to_dict("records"):
        decoder, tp = DECODERS[row["model_id"]], int(row["tensor_parallel"])
        ep = 1
        if row["expert_parallel"] > 1:
            tp = ep = int(row["num_gpus"])
        fp8 = "fp8-block" if decoder.experts else "fp8-dynamic"
        formats: dict[str, Any] = {"weights": fp8 if row["weight_precision"] == "fp8" else "bf16", "tp": tp, "ep": ep}
        collective_s = partial(predicted_all_reduce_s, cluster="dgx-h100")
        key = decoder.name, *formats.values()
        sampling: Sampling = "sorted" if row["model_id"].startswith(DRAWN) else "greedy"
        if key not in known:
            known[key] = StepTimes(
                decoder=decoder,
                machine=machine,
                collective_s=collective_s,
                sampling=sampling,
                release="vllm:0.11",
                **formats,
            )
        stream = Stream(clients=round(row["avg_batch_size"]), input=_CHAT_TOKENS, output=round(row["avg_output_len"]),
                        spread=1.0, rounds=4)  # fmt: skip
        engine = rk.Engine(host="serial", sampling=sampling)
        served = serve_on(host, stream, Setup(engine=engine, times=known[key]))
        cpu_s = served.engine.host_s(served.running)
        kernels = [(served.decode_s - cpu_s) * bound / served.decode.total_s for bound in served.decode.interval()]
        low, high = widened((kernels[0], kernels[1] + cpu_s), served.decode_s, "per token", deviations(0.9))
        common = {
            "engine": "vllm", "gpu": "H100", "model": decoder.name, "tp": tp, "dp": 1, "weights": formats["weights"],
            "clients": stream.clients,
        }  # fmt: skip
        measured_s = row["median_itl_ms"] * 1e-3
        lines.append({**common, "what": "between tokens, median", "measured": measured_s, "predicted": served.decode_s,
                      "hit": low <= measured_s <= high})  # fmt: skip
        lines.append({**common, "what": "tokens/s", "measured": row["output_throughput_tokens_per_sec"],
                      "predicted": served.tokens_per_s, "hit": None})  # fmt: skip
    return pd.DataFrame(lines)
