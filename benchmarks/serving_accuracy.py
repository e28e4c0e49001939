"""Served models against measured ones: time per token and time to first token, by engine and number of GPUs.

    python benchmarks/serving_accuracy.py DATA [--rows] [--experts | --products]
    python benchmarks/serving_accuracy.py DATA --source blis [--cached 0]
    python benchmarks/serving_accuracy.py DATA --source llmservingsim
    python benchmarks/serving_accuracy.py DATA --source tensorrt_llm   (or llm_inference_bench, splitwise)

Other sources than aiconfigurator's are in serving_open.py (requests at a rate) and serving_static.py (batches that
start together).

DATA holds `aiconfigurator/e2e_serving_h100_sxm.parquet` (validation: nothing is fitted on it). Judged are rows of
dense models that prefill and decode on the same GPUs (mode "agg"), with `--experts` those of models with experts,
each token choosing evenly among all. What each row does not say is assumed from its source:

* formats: as `gemm_quant_mode` says, fp8 with fixed scales; the cache in fp8 where TensorRT-LLM serves an fp8
  checkpoint, else in bf16; models with experts in blocks of fp8, as published, with scales found in each step;
* engine: vLLM (0.12 and before) works on the CPU between its steps, TensorRT-LLM 1.0 and SGLang beside them, a step
  ahead, as vLLM from 0.14 on does; SGLang reads prompts before it goes on with answers, the others beside them;
  TensorRT-LLM does not cut prompts (`enable_chunked_prefill` is off by default), the others do; its steps that read
  prompts take `TRTLLM_LAYER_S` a layer or more, told from five rows of Llama 3.1 8B; 0.9 of the memory;
* tokens of a step: aiconfigurator writes them into the engine's settings, by the rules of its generator (version
  0.12.0, rule_plugin/*.rule): clients + input + 1500 (vLLM), clients + input + 500 up to a multiple of 32
  (TensorRT-LLM). InferenceX and SGLang: 8192;
* clients: ten requests each, all of the stated lengths. Rows out of InferenceX's database have lengths between 80 % and
  100 % of the stated ones, as its client draws them (`random_range_ratio` 0.8).

Several GPUs: an all-reduce takes what was measured for its size (`collectives_h100_sxm.parquet`: the fastest of the
implementations, between sizes in proportion), so that the table says how good the rest is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from serving_open import blis, llmservingsim
from serving_static import SOURCES
from serving_static import judged as static_rows
from serving_static import summary as static_summary

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.cost.table import price_all
from rooflinekit.hardware.specs import DEFAULT_HOST, load_host
from rooflinekit.ir.tensor import DType, TensorSpec
from rooflinekit.model.columns import work_of
from rooflinekit.model.kernels import plain_kernels
from rooflinekit.model.roofline import time_work
from rooflinekit.serving.engine import Stream
from rooflinekit.serving.formats import WEIGHT_FORMATS
from rooflinekit.serving.serve import serve_on
from rooflinekit.serving.settings import HOST_SEQUENCE_S, HOST_STEP_S, TRTLLM_LAYER_S
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.serving.tape import Tape

GPU = "nvidia-h100-sxm5-80gb"
FOLDER = Path(__file__).parent.parent / "examples" / "decoders"
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
MODELS_WITH_EXPERTS = {
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
}
ENGINES = {
    "vllm": rk.Engine(host="serial"),
    "trtllm": rk.Engine(chunks=False, layer_s=TRTLLM_LAYER_S),
    "sglang": rk.Engine(policy="prefill-first"),
}
#: Versions of vLLM that schedule a step ahead (`async_scheduling`, the default from 0.14 on).
SCHEDULED_AHEAD = ("0.18.0",)
#: Deployments of NVIDIA Dynamo: several copies of the model behind a router, how many is not recorded.
DYNAMO = "dynamo_version"
#: Requests at a rate.
OPEN = ("blis", "llmservingsim")


def engine_of(row: Mapping[str, Any], fewer: int) -> rk.Engine:
    """The engine with the step that its source gave it: of InferenceX and SGLang the default of 8192 tokens.

    fewer: sequences that it holds less than there are clients.
    """
    engine, least = ENGINES[row["backend"]], row["batch_size"] + row["isl"]
    if row["backend_version"] in SCHEDULED_AHEAD:
        engine = replace(engine, host="overlapped")
    if fewer:
        engine = replace(engine, sequences=max(1, int(row["batch_size"]) - fewer))
    if is_inferencex(row) or row["backend"] == "sglang":
        return engine
    whole_blocks = -(-int(least + 500) // 32) * 32  # of TensorRT-LLM's cache
    return replace(engine, step_tokens=int(least) + 1500 if row["backend"] == "vllm" else whole_blocks)


def is_inferencex(row: Mapping[str, Any]) -> bool:
    """Whether the row is out of InferenceX's database, which names its model."""
    return "model=" in row["silicon_data_source"]


def rows_of(data: Path, models: Mapping[str, str]) -> pd.DataFrame:
    """The rows that are judged, and how many of which kind are not."""
    table = pd.read_parquet(data / "aiconfigurator" / "e2e_serving_h100_sxm.parquet")
    other = ~table["model_path"].isin(models)
    apart = ~other & (table["mode"] != "agg")
    routed = ~other & ~apart & table["silicon_data_source"].str.contains(DYNAMO)
    over = table["moe_tp_size"] * table["moe_ep_size"]
    own = ~other & ~apart & ~routed & ((over != table["tp_size"]) & (over > 1) | (table["attention_dp_size"] > 1))
    print(
        f"{len(table)} rows; left out: {other.sum()} of other models, {apart.sum()} with prefill and decode on "
        f"GPUs of their own, {routed.sum()} of several copies behind a router, {own.sum()} with attention of their own "
        "on GPUs that share experts"
    )
    return table[~(other | apart | routed | own)]


def all_reduce_times(data: Path) -> Any:
    """Seconds of an all-reduce by bytes and number of GPUs, as measured."""
    table = pd.read_parquet(data / "aiconfigurator" / "collectives_h100_sxm.parquet")
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
def predicted_all_reduce_s(size_bytes: float, gpus: int) -> float:
    """Seconds of NCCL's all-reduce by bytes and number of GPUs, as predicted for a DGX H100."""
    return rk.collective_time("all-reduce", size_bytes, "dgx-h100", gpus).total_s


def judged(data: Path, links: str, models: Mapping[str, str], fewer: int) -> pd.DataFrame:
    """A line each: measured and predicted. links: whether all-reduces are "measured" or "predicted"."""
    (machine,) = machines_of([GPU])
    host = load_host(DEFAULT_HOST)
    collective_s = all_reduce_times(data) if links == "measured" else predicted_all_reduce_s
    decoders = {path: rk.Decoder.from_config(FOLDER / f"{name}.json") for path, name in models.items()}
    known: dict[tuple[Any, ...], StepTimes] = {}
    found = []
    for row in rows_of(data, models).to_dict("records"):
        decoder, tp, fp8 = decoders[row["model_path"]], int(row["tp_size"]), str(row["gemm_quant_mode"])[:3] == "fp8"
        formats: dict[str, Any] = {
            "weights": "fp8-dynamic" if decoder.experts else "fp8" if fp8 else "bf16",
            "kv": "fp8" if fp8 and row["backend"] == "trtllm" else "bf16",
            "tp": tp,
            "ep": int(row["moe_ep_size"]) if decoder.experts else 1,
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
        key = (decoder.name, formats["weights"], formats["kv"], tp, formats["ep"])
        times = known.setdefault(key, StepTimes(decoder=decoder, machine=machine, **formats))
        served = serve_on(decoder, machine, host, stream, engine_of(row, fewer), times=times, **formats)
        bounds = served.interval()
        found.append({
            "model": decoder.name, "engine": row["backend"], "weights": formats["weights"], "tp": tp, "in": row["isl"],
            "out": row["osl"], "clients": stream.clients, "waits": served.running < stream.clients,
            **{
                name: seconds for which in ("ttft", "tpot") for name, seconds in (
                    (which, row[f"silicon_{which}_ms"] * 1e-3), (f"{which}_predicted", getattr(served, f"{which}_s")),
                    (f"{which}_low", bounds[f"{which}_s"][0]), (f"{which}_high", bounds[f"{which}_s"][1]),
                )
            },
        })  # fmt: skip
    return pd.DataFrame(found)


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    """Median error, its 90th percentile, bias and the interval's share of hits."""
    line: dict[str, Any] = {"rows": len(rows)}
    for which in ("tpot", "ttft"):
        ratio = rows[f"{which}_predicted"] / rows[which]
        hit = (rows[which] >= rows[f"{which}_low"]) & (rows[which] <= rows[f"{which}_high"])
        error = (ratio - 1).abs()
        line |= {
            f"{which} median %": round(100 * error.median(), 1),
            f"{which} p90 %": round(100 * error.quantile(0.9), 1),
            f"{which} bias": round(ratio.median(), 2),
            f"{which} in 90 %": f"{hit.mean():.0%}",
        }
    return line


def host_line(data: Path) -> str:
    """The CPU's seconds a step, fitted again on vidur's table."""
    table = pd.read_parquet(data / "vidur" / "cpu_overheads.parquet")
    chosen = table[
        table["source"].str.contains("bf106186") & (table["gpu"] == "a100") & (table["tensor_parallel_degree"] == 1)
    ]
    parts = ("schedule", "sampler_launch", "prepare_inputs_launch", "model_execution_launch", "process_model_outputs")
    seconds = chosen[[f"{part}_median_ms" for part in parts]].sum(axis=1).to_numpy() * 1e-3
    slope, start = np.polyfit(chosen["batch_size"], seconds, 1)
    return (
        f"CPU a step, vidur's {len(chosen)} rows: {start * 1e3:.3f} ms and {slope * 1e6:.1f} µs a sequence (shipped: "
        f"{HOST_STEP_S * 1e3:.3f} ms, {HOST_SEQUENCE_S * 1e6:.1f} µs)"
    )


def products(data: Path, sample: int = 1500) -> pd.DataFrame:
    """Products in fewer bits as a decoder's graph has them, against measured ones, of few rows and of many."""
    files = {GPU: "gemm_h100_sxm", "nvidia-a100-sxm4-80gb": "gemm_a100_sxm80"}
    names = {"int4_wo": "int4", "int8_wo": "int8", "fp8": "fp8-dynamic"}
    lines = []
    for gpu, file in files.items():
        (machine,) = machines_of([gpu])
        machine = machine.with_values({**machine.values, "kernel_gap": machine.values["kernel_gap_graph"]})
        table = pd.read_parquet(data / "aiconfigurator" / f"{file}.parquet")
        for (dtype, framework), part in table[table["dtype"].isin(names)].groupby(["dtype", "framework"]):
            rows = part.groupby(["m", "n", "k"], as_index=False)["latency_us"].median()
            rows = rows.sample(min(sample, len(rows)), random_state=1)
            kernels, owner = [], []
            for i, (m, n, k) in enumerate(rows[["m", "n", "k"]].astype(int).to_numpy().tolist()):
                tape = Tape(format=WEIGHT_FORMATS[names[str(dtype)]])
                tape.linear(TensorSpec(name="x", shape=(m, k), dtype=DType.BFLOAT16), "w", n)
                found = [kernel for priced in price_all(tape.ops) for kernel in plain_kernels(priced, None)]
                kernels += found
                owner += [i] * len(found)
            seconds = np.bincount(owner, weights=time_work(work_of(kernels), machine).total_s)
            ratio = seconds * 1e6 / rows["latency_us"].to_numpy()
            few = rows["m"].to_numpy() <= 64
            lines.append({
                "gpu": gpu, "weights": names[str(dtype)], "library": framework, "rows": len(rows),
                "median %": round(100 * float(np.median(abs(ratio - 1))), 1),
                "bias, 64 rows or fewer": round(float(np.median(ratio[few])), 2),
                "bias, more": round(float(np.median(ratio[~few])), 2),
            })  # fmt: skip
    return pd.DataFrame(lines)


#: What BLIS publishes of its own simulator on these experiments, median %: the mark to beat.
BLIS_OWN = {"e2e mean": 6.8, "itl mean": 6.5, "ttft mean": 18.4}


def other_source(data: Path, source: str, cached: int | None, rows: bool) -> None:
    """Prints the tables of another source."""
    with pd.option_context("display.width", 240, "display.max_columns", None, "display.max_rows", None):
        if source == "llmservingsim":
            print(llmservingsim(data).round(4).to_string(index=False))
            return
        found = blis(data, cached) if source == "blis" else static_rows(data, source)
        if rows:
            print(found.round(4).to_string(index=False))
        if source != "blis":
            print(static_summary(found, ["engine", "gpu", "model"]).to_string(index=False))
            return
        for part, half in found.groupby("part"):
            print(f"experiments that the cached tokens are {part}:")
            print(static_summary(half, ["gpu"]).to_string(index=False))
        print(static_summary(found, ["gpu", "model"]).to_string(index=False))
        means = found[found["hit"].notna()]
        print(f"within the interval of 90 %: {means.groupby('what')['hit'].mean().round(2).to_dict()}")
        print(f"BLIS's own simulator, median % (as published, of its own choice of stages): {BLIS_OWN}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--links", choices=("predicted", "measured"), default="predicted",
        help="all-reduces as rk.collective_time says, or the fastest measured kernel of each size",
    )  # fmt: skip
    parser.add_argument("--rows", action="store_true", help="also every row")
    parser.add_argument("--experts", action="store_true", help="models with experts")
    parser.add_argument("--fewer", type=int, default=0, help="sequences that engines hold less than there are clients")
    parser.add_argument("--products", action="store_true", help="products in fewer bits instead")
    parser.add_argument("--source", default="aiconfigurator", choices=("aiconfigurator", *OPEN, *SOURCES))
    parser.add_argument("--cached", type=int, help="blis: tokens of each prompt that the prefix cache holds")
    arguments = parser.parse_args()
    if arguments.source != "aiconfigurator":
        other_source(arguments.data, arguments.source, arguments.cached, arguments.rows)
        return
    if arguments.products:
        print(products(arguments.data).to_string(index=False))
        return
    models = MODELS_WITH_EXPERTS if arguments.experts else MODELS
    found = judged(arguments.data, arguments.links, models, arguments.fewer)
    with pd.option_context("display.width", 240, "display.max_columns", None, "display.max_rows", None):
        if arguments.rows:
            print(found.round(4).to_string(index=False))
        groups = [
            {"model": model, "engine": engine, "weights": weights, "tp": tp, **summary(part)}
            for (model, engine, weights, tp), part in found.groupby(["model", "engine", "weights", "tp"])
        ]
        print(pd.DataFrame(groups).to_string(index=False))
        parts = {
            "one GPU": found[found["tp"] == 1],
            "several": found[found["tp"] > 1],
            **{engine: found[found["engine"] == engine] for engine in ENGINES},
            "all fit the cache": found[~found["waits"]],
            "all": found,
        }
        print(
            pd.DataFrame([{"": name, **summary(part)} for name, part in parts.items() if len(part)]).to_string(
                index=False
            )
        )
    print(host_line(arguments.data))


if __name__ == "__main__":
    main()
