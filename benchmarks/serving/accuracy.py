"""Served models against measured ones: time per token and time to first token, by engine and number of GPUs.

    python -m benchmarks.serving.accuracy DATA [--gpu b200] [--rows] [--experts | --products]
    python -m benchmarks.serving.accuracy DATA --source blis [--cached 0]
    python -m benchmarks.serving.accuracy DATA --source ml_energy   (or llmservingsim)
    python -m benchmarks.serving.accuracy DATA --source tensorrt_llm   (or llm_inference_bench, splitwise)
    python -m benchmarks.serving.accuracy DATA --page docs/serving_accuracy.md

What each source tells, and what is assumed where it does not, is in benchmarks/serving/closed.py (clients that ask one
request after the other), benchmarks/serving/open.py (requests at a rate) and benchmarks/serving/static.py (batches that
start together). `--page` writes the tables of all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.serving.closed import GPUS, MODELS, MODELS_WITH_EXPERTS, judged, ml_energy
from benchmarks.serving.open import blis, llmservingsim
from benchmarks.serving.page import page
from benchmarks.serving.products import products
from benchmarks.serving.static import SOURCES
from benchmarks.serving.static import judged as static_rows
from benchmarks.serving.tables import closed_tables, other_tables
from benchmarks.sources.tables import read_table
from rooflinekit.files import write_text
from rooflinekit.serving.settings import HOST_SEQUENCE_S, HOST_SHARED_S, HOST_STEP_S

#: Sources that are no streams of aiconfigurator's.
OTHERS = ("blis", "llmservingsim", "ml_energy", *SOURCES)


def host_line(data: Path) -> str:
    """The CPU's seconds a step, fitted again on vidur's table."""
    table = read_table(data / "vidur" / "cpu_overheads.parquet")
    table = table[table["source"].str.contains("bf106186") & (table["gpu"] == "a100")]
    alone = table["tensor_parallel_degree"] == 1
    parts = ("schedule", "sampler_launch", "prepare_inputs_launch", "model_execution_launch", "process_model_outputs")
    seconds = table[[f"{part}_median_ms" for part in parts]].sum(axis=1) * 1e-3
    slope, start = np.polyfit(table["batch_size"][alone], seconds[alone], 1)
    more = (seconds - start - slope * table["batch_size"])[~alone].median()
    return (
        f"CPU a step, vidur's {alone.sum()} rows: {start * 1e3:.3f} ms and {slope * 1e6:.1f} µs a sequence (shipped: "
        f"{HOST_STEP_S * 1e3:.3f} ms, {HOST_SEQUENCE_S * 1e6:.1f} µs); with several GPUs {more * 1e3:.2f} ms more, "
        f"{(~alone).sum()} rows ({HOST_SHARED_S * 1e3:.2f})"
    )


def rows_of_source(data: Path, source: str, cached: int | None) -> pd.DataFrame:
    """Measured and predicted, of another source than aiconfigurator."""
    if source == "blis":
        return blis(data, cached)
    if source in ("ml_energy", "llmservingsim"):
        return {"ml_energy": ml_energy, "llmservingsim": llmservingsim}[source](data)
    return static_rows(data, source)


def main() -> None:
    """Prints the tables, or writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--links", choices=("predicted", "measured"), default="predicted",
        help="all-reduces as rk.collective_time says, or the fastest measured kernel of each size",
    )  # fmt: skip
    parser.add_argument("--gpu", choices=tuple(GPUS), default="h100", help="whose measured streams")
    parser.add_argument("--rows", action="store_true", help="also every row")
    parser.add_argument("--experts", action="store_true", help="models with experts")
    parser.add_argument("--fewer", type=int, default=0, help="sequences that engines hold less than there are clients")
    parser.add_argument("--products", action="store_true", help="products in fewer bits instead")
    parser.add_argument("--source", default="aiconfigurator", choices=("aiconfigurator", *OTHERS))
    parser.add_argument("--cached", type=int, help="blis: tokens of each prompt that the prefix cache holds")
    parser.add_argument("--page", type=Path, help="write all tables into this file")
    parser.add_argument(
        "--keep", type=Path, help="with --page: a folder for each source's rows, read if they are there"
    )
    given = parser.parse_args()
    if given.page is not None:
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
        write_text(page(given.data, given.keep), given.page)
        return
    with pd.option_context("display.width", 240, "display.max_columns", None, "display.max_rows", None):
        if given.products:
            print(products(given.data).to_string(index=False))
            return
        if given.source != "aiconfigurator":
            found = rows_of_source(given.data, given.source, given.cached)
            if given.rows:
                print(found.round(4).to_string(index=False))
            for what, table in other_tables(given.source, found):
                print(f"{what}:\n{table.to_string(index=False)}")
            return
        models = MODELS_WITH_EXPERTS if given.experts else MODELS
        found = judged(given.data, given.gpu, given.links, models, given.fewer)
        if given.rows:
            print(found.round(4).to_string(index=False))
        for table in closed_tables(found):
            print(table.to_string(index=False))
    print(host_line(given.data))


if __name__ == "__main__":
    main()
