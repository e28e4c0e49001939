"""Served models against measured ones: time per token and time to first token, by engine and number of GPUs.

    python benchmarks/serving_accuracy.py DATA [--gpu b200] [--sums one-shot] [--rows] [--experts | --products]
    python benchmarks/serving_accuracy.py DATA --source blis [--cached 0]
    python benchmarks/serving_accuracy.py DATA --source ml_energy   (or llmservingsim)
    python benchmarks/serving_accuracy.py DATA --source tensorrt_llm   (or llm_inference_bench, splitwise)
    python benchmarks/serving_accuracy.py DATA --page docs/serving_accuracy.md

What each source tells, and what is assumed where it does not, is in serving_closed.py (clients that ask one request
after the other), serving_open.py (requests at a rate) and serving_static.py (batches that start together). `--page`
writes the tables of all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from serving_closed import ENGINES, GPUS, MODELS, MODELS_WITH_EXPERTS, judged, ml_energy
from serving_open import blis, llmservingsim
from serving_products import products
from serving_static import SOURCES
from serving_static import judged as static_rows
from serving_static import summary as static_summary

from rooflinekit.files import write_text
from rooflinekit.serving.settings import HOST_SEQUENCE_S, HOST_STEP_S

#: Sources that are no streams of aiconfigurator's.
OTHERS = ("blis", "llmservingsim", "ml_energy", *SOURCES)
#: What BLIS publishes of its own simulator on these experiments, median %: the mark to beat.
BLIS_OWN = {"e2e mean": 6.8, "itl mean": 6.5, "ttft mean": 18.4}


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


def closed_tables(found: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """By model, engine, format and GPUs; and by parts of all rows."""
    yield pd.DataFrame([
        {"model": model, "engine": engine, "weights": weights, "tp": tp, "dp": dp, **summary(part)}
        for (model, engine, weights, tp, dp), part in found.groupby(["model", "engine", "weights", "tp", "dp"])
    ])  # fmt: skip
    gpus = found["tp"] * found["dp"]
    parts = {
        "one GPU": found[gpus == 1],
        "several": found[gpus > 1],
        **{engine: found[found["engine"] == engine] for engine in ENGINES},
        "all fit the cache": found[~found["waits"]],
        "all": found,
    }
    yield pd.DataFrame([{"": name, **summary(part)} for name, part in parts.items() if len(part)])


def other_tables(data: Path, source: str, cached: int | None, rows: bool = False) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tables of another source, each with what it shows."""
    if source == "llmservingsim":
        yield "seconds, measured and predicted", llmservingsim(data).round(4)
        return
    if source == "ml_energy":
        found = ml_energy(data)
        yield "by model", static_summary(found, ["model", "tp", "dp"])
    elif source == "blis":
        found = blis(data, cached)
        for part, half in found.groupby("part"):
            table = static_summary(half, ["gpu"])
            if part == "judged":
                own = [
                    BLIS_OWN.get(what, "") if gpu == "all" else "" for what, gpu in table[["what", "gpu"]].to_numpy()
                ]
                table["BLIS, median %"] = own
            yield f"experiments that the cached tokens are {part}", table
        yield "by model", static_summary(found, ["gpu", "model"])
    else:
        found = static_rows(data, source)
        yield "by engine, GPU and model", static_summary(found, ["engine", "gpu", "model"])
    if rows:
        yield "rows", found.round(4)
    if "hit" in found:
        means = found[found["hit"].notna()]
        hits = means.groupby("what")["hit"].agg(["size", lambda hits: f"{hits.astype(float).mean():.0%}"])
        yield "within the interval of 90 %", hits.set_axis(["rows", "share"], axis=1).reset_index()


def markdown(table: pd.DataFrame) -> str:
    """A table of a page."""
    rows = [list(map(str, table.columns)), ["---"] * len(table.columns)]
    rows += [[("" if cell is None else str(cell)) for cell in row] for row in table.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def page(data: Path) -> str:
    """All tables, in Markdown."""
    text = [PAGE_HEAD]
    for title, gpu, models, sums in (
        ("H100", "h100", MODELS, "nccl"),
        ("H100, models with experts", "h100", MODELS_WITH_EXPERTS, "nccl"),
        ("B200, summed by the engines' kernels", "b200", MODELS, "one-shot"),
        ("B200, summed by NCCL", "b200", MODELS, "nccl"),
        ("B200, models with experts", "b200", MODELS_WITH_EXPERTS, "one-shot"),
    ):
        by_model, parts = closed_tables(judged(data, gpu, "predicted", models, sums=sums))  # type: ignore[arg-type]
        text += [f"### {title}\n", markdown(parts), markdown(by_model)]
    for title, source in (
        ("vLLM on H100, chats (ml_energy)", "ml_energy"),
        ("Requests at a rate (blis)", "blis"),
        ("A log of requests (llmservingsim)", "llmservingsim"),
        ("Batches that start together (tensorrt_llm)", "tensorrt_llm"),
    ):
        text.append(f"## {title}\n")
        for what, table in other_tables(data, source, 300 if source == "blis" else None):
            text += [f"{what[0].upper()}{what[1:]}:\n", markdown(table)]
    return "\n".join(text)


PAGE_HEAD = """# Serving: how good it is

Made by `python benchmarks/serving_accuracy.py DATA --page docs/serving_accuracy.md`, DATA with the tables that
benchmarks/serving_closed.py, serving_open.py and serving_static.py name, which also say what was assumed. Errors are
medians and 90th percentiles of |predicted / measured - 1|; bias is the median of predicted / measured; "in 90 %" is the
share of rows within the stated interval. What it means is in [serving.md](serving.md#how-good-it-is).

## Closed loops (aiconfigurator: its own runs and InferenceX)
"""


def main() -> None:
    """Prints the tables, or writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--links", choices=("predicted", "measured"), default="predicted",
        help="all-reduces as rk.collective_time says, or the fastest measured kernel of each size",
    )  # fmt: skip
    parser.add_argument("--sums", choices=("nccl", "one-shot"), default="nccl", help="as of rk.Engine")
    parser.add_argument("--gpu", choices=tuple(GPUS), default="h100", help="whose measured streams")
    parser.add_argument("--rows", action="store_true", help="also every row")
    parser.add_argument("--experts", action="store_true", help="models with experts")
    parser.add_argument("--fewer", type=int, default=0, help="sequences that engines hold less than there are clients")
    parser.add_argument("--products", action="store_true", help="products in fewer bits instead")
    parser.add_argument("--source", default="aiconfigurator", choices=("aiconfigurator", *OTHERS))
    parser.add_argument("--cached", type=int, help="blis: tokens of each prompt that the prefix cache holds")
    parser.add_argument("--page", type=Path, help="write all tables into this file")
    given = parser.parse_args()
    if given.page is not None:
        write_text(given.page, page(given.data))
        return
    with pd.option_context("display.width", 240, "display.max_columns", None, "display.max_rows", None):
        if given.products:
            print(products(given.data).to_string(index=False))
            return
        if given.source != "aiconfigurator":
            for what, table in other_tables(given.data, given.source, given.cached, given.rows):
                print(f"{what}:\n{table.to_string(index=False)}")
            return
        models = MODELS_WITH_EXPERTS if given.experts else MODELS
        found = judged(given.data, given.gpu, given.links, models, given.fewer, given.sums)
        if given.rows:
            print(found.round(4).to_string(index=False))
        for table in closed_tables(found):
            print(table.to_string(index=False))
    print(host_line(given.data))


if __name__ == "__main__":
    main()
