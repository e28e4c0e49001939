"""Judged rows of served models → tables: by model, engine, GPU, and beside what sources publish of simulators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from benchmarks.serving.closed import ENGINES
from benchmarks.serving.static import summary as by_group

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
        "all fit the cache": found[~found["waits"].astype(bool)],
        "all": found,
    }
    yield pd.DataFrame([{"": name, **summary(part)} for name, part in parts.items() if len(part)])


def other_tables(source: str, found: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tables of another source, each with what it shows."""
    if source == "llmservingsim":
        yield "seconds, measured and predicted", found.round(4)
        return
    if source == "ml_energy":
        yield "by model", by_group(found, ["model", "tp", "dp"])
    elif source == "blis":
        for part, half in found.groupby("part"):
            table = by_group(half, ["gpu"])
            if part == "judged":
                own = [
                    BLIS_OWN.get(what, "") if gpu == "all" else "" for what, gpu in table[["what", "gpu"]].to_numpy()
                ]
                table["BLIS, median %"] = own
            yield f"experiments that the cached tokens are {part}", table
        yield "by model", by_group(found[found["what"].str.endswith("mean")], ["gpu", "model"])
    else:
        yield "by engine, GPU and model", by_group(found, ["engine", "gpu", "model"])
