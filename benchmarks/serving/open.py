"""Requests that come at a rate, against measured ones. Called by accuracy.py beside it, --source blis or llmservingsim.

blis: vLLM on H100, A100 and L40S under inference-perf, by stages of one rate each. What the table does not say:

* rates and lengths are those of the data's README, by the workload's name. Of `general-lite` the weights of the two
  stages are 2 to 5, and Llama 2 70B on H100 takes 17.6 ms a token in the second, as in `codegen` at 5 requests a
  second (17.4 ms): 2 and 5 a second. `reasoning-lite` tells no rate and is left out, as are Llama 4 (its attention in
  chunks) and the rows over all stages, which are not the average of the stages that the table has;
* requests come evenly: 90 % of the first tokens are within 13 % of their mean, where a Poisson process would spread
  them over twice that;
* the prefix cache is vLLM's default and holds part of the prompts: first tokens of prompts of 547, 566 and 750 tokens
  take the same time. How much is one number for all rows, chosen on half of the experiments (by a hash of their names)
  by the error of whole answers, and judged on the other half; `--cached 0` judges without;
* steps are scheduled ahead, 600 requests a stage, none left out;
* GPUs sum by vLLM's own kernels (`SUMS`), its default where they reach each other's memory (custom_all_reduce.py): all
  stages on several are of A100 and H100 with NVLink.

Stages whose mean first token takes more than a second are saturated: there waiting grows with the stage's length, which
the table does not tell; they are counted and left out.

llmservingsim: a log of 300 requests to vLLM with Llama 3.1 8B on an RTX 4090, whose small cache makes most wait; its
times begin in the engine's queue.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.serving.models import DECODERS
from benchmarks.serving.static import PLACES, step_times
from benchmarks.sources.tables import read_table
from rooflinekit.hardware.specs import DEFAULT_HOST, host_of
from rooflinekit.serving.engine import Setup
from rooflinekit.serving.served import ServedTraffic, percentile_of, serve_traffic_on
from rooflinekit.serving.settings import Sums

#: Tokens in and out, and requests a second by stage.
WORKLOADS = {
    "codegen": (566, 247, (5, 10)),
    "general": (547, 248, (8, 20)),
    "general-lite": (547, 248, (2, 5)),
    "reasoning": (1034, 1448, (4,)),
    "roleplay": (750, 251, (6,)),
}
HARDWARE = {"H100": "H100", "A100-80GB": "A100", "L40S": "L40S"}
#: Tokens of each prompt that the prefix cache may hold.
CACHED = (0, 100, 200, 300)
SUMS: Sums = "one-shot"
_SATURATED_MS = 1000.0
_REQUESTS = 600


def stages(data: Path) -> pd.DataFrame:
    """A line a stage that is judged."""
    table = read_table(data / "blis" / "vllm_measured.csv")
    keys = ["experiment", "model", "workload", "stage_index", "hardware", "tp", "max_num_batched_tokens"]
    table = table.pivot_table(index=keys, columns="metric_name", values="actual").reset_index()
    lite = table["experiment"].str.contains("lite") & ~table["workload"].str.contains("lite")
    table.loc[lite, "workload"] += "-lite"
    known = table["model"].isin(DECODERS) & table["workload"].isin(WORKLOADS) & (table["stage_index"] >= 0)
    full = known & (table["ttft_mean"] > _SATURATED_MS)
    print(
        f"{len(table)} lines; left out: {(table['stage_index'] < 0).sum()} over all stages, "
        f"{((table['stage_index'] >= 0) & ~known).sum()} of other models or workloads, {full.sum()} saturated"
    )
    return table[known & ~full]


def played(row: dict[str, Any], cached: int) -> ServedTraffic:
    """A stage, predicted."""
    times = step_times(row["model"], HARDWARE[row["hardware"]], "bf16", "bf16", int(row["tp"]), SUMS)
    given, output, rates = WORKLOADS[row["workload"]]
    traffic = rk.Traffic(
        rate=rates[int(row["stage_index"])], input=given, output=output, requests=_REQUESTS, cv=0,
        cached=cached / given,
    )  # fmt: skip
    engine = rk.Engine(step_tokens=int(row["max_num_batched_tokens"]), sums=SUMS)
    return serve_traffic_on(host_of(DEFAULT_HOST), traffic, Setup(engine=engine, times=times))


def blis(data: Path, cached: int | None) -> pd.DataFrame:
    """Measured and predicted; `part` says which half of the experiments."""
    lines = []
    for row in stages(data).to_dict("records"):
        for tokens in CACHED if cached is None else (cached,):
            served = played(row, tokens)
            part = "chosen on" if zlib.crc32(row["experiment"].encode()) % 2 else "judged"
            common = {
                "part": part, "cached": tokens, "gpu": row["hardware"], "model": served.decoder.name, "tp": served.tp,
                "workload": row["workload"], "rate": served.traffic.rate,
            }  # fmt: skip
            for what, measure in (("e2e", "e2e_s"), ("itl", "tpot_s"), ("ttft", "ttft_s")):
                low, high = served.bounds[measure]
                measured = row[f"{what}_mean"] * 1e-3
                lines.append({
                    **common, "what": f"{what} mean", "measured": measured, "predicted": served.mean(measure),
                    "hit": low <= measured <= high,
                })  # fmt: skip
                lines += [
                    {**common, "what": f"{what} p{share}", "measured": row[f"{what}_p{share}"] * 1e-3,
                     "predicted": served.percentile(measure, share), "hit": None}
                    for share in (90, 99) if f"{what}_p{share}" in row
                ]  # fmt: skip
    found = pd.DataFrame(lines)
    if cached is not None:
        return found
    whole = found[(found["what"] == "e2e mean") & (found["part"] == "chosen on")]
    error = (whole["predicted"] / whole["measured"] - 1).abs().groupby(whole["cached"]).median()
    best = int(error.idxmin())
    print(f"tokens of a prompt that the cache holds, by the median error of whole answers on one half: {best}")
    print((100 * error).round(1).to_string())
    return found[found["cached"] == best]


def llmservingsim(data: Path) -> pd.DataFrame:
    """The log, replayed: medians and means of waiting, first token, time per token, whole answer."""
    log = read_table(data / "llmservingsim" / "vllm_requests.csv").sort_values("queued_ts")
    start = log["queued_ts"].min()
    traffic = rk.Traffic.of(
        rk.Request(arrival_s=row.queued_ts - start, input=row.input_toks, output=row.output_toks)
        for row in log.itertuples()
    )
    PLACES["RTX4090"] = ("nvidia-rtx-4090", None)
    times = step_times("Llama-3.1-8B", "RTX4090", "bf16", "bf16", 1)
    setup = Setup(engine=rk.Engine(step_tokens=2048, request_s=0, input_s=0), times=times)
    served = serve_traffic_on(host_of(DEFAULT_HOST), traffic, setup)
    first = log["first_token_ts"] - log["queued_ts"]
    measured = {
        "queue_s": log["scheduled_ts"] - log["queued_ts"], "ttft_s": first,
        "tpot_s": (log["last_token_ts"] - log["first_token_ts"]) / (log["output_toks"] - 1),
        "e2e_s": log["last_token_ts"] - log["queued_ts"],
    }  # fmt: skip
    lines = [
        {"what": name, "measured": values.mean(), "predicted": served.mean(name), "p90": values.quantile(0.9),
         "p90 predicted": percentile_of(served.values(name), 90)}
        for name, values in measured.items()
    ]  # fmt: skip
    lines.append({
        "what": "sequences at once", "measured": float((measured["e2e_s"] - measured["queue_s"]).sum()
                                                       / (log["last_token_ts"].max() - start)),
        "predicted": served.played.running,
    })  # fmt: skip
    return pd.DataFrame(lines)
