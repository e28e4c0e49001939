"""Tables of how far KernelBench's points are predicted off, and the page that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.sources.page_tables import markdown_lines, write_tables

_LEAST = 10  # points of a line of the page
_STEADY = 0.1  # of its mean, at most, is the standard deviation of trials that tell a time


def summary(rows: pd.DataFrame) -> pd.Series:
    """Errors in per cent; bias is the median of predicted / measured; `inside` the share in 90 % intervals."""
    error = (rows["predicted_s"] / rows["measured_s"] - 1).abs()
    bias = (rows["predicted_s"] / rows["measured_s"]).median() - 1
    held = (rows["measured_s"] >= rows["low_s"]) & (rows["measured_s"] <= rows["high_s"])
    return pd.Series(
        {
            "n": len(rows),
            "median %": 100 * error.median(),
            "MAPE %": 100 * error.mean(),
            "p90 %": 100 * error.quantile(0.9),
            "bias %": 100 * bias,
            "inside %": 100 * held.mean(),
            "width": np.sqrt(rows["high_s"] / rows["low_s"]).median(),
        }
    )


def tables(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The summary of all, by mode, by GPU, by what decides, and by the operator that takes most."""
    bound = np.where(rows["cpu_s"] > rows["gpu_s"], "CPU", "GPU")
    for title, by in (
        ("all", np.zeros(len(rows), int)),
        ("mode", rows["mode"]),
        ("GPU, eager", rows["gpu"].where(rows["mode"] == "eager")),
        ("GPU, compiled", rows["gpu"].where(rows["mode"] != "eager")),
        ("mode and which side takes longer", [rows["mode"], bound]),
        ("operator that takes most, eager", rows["operator"].where(rows["mode"] == "eager")),
        ("operator that takes most, default", rows["operator"].where(rows["mode"] == "default")),
    ):
        yield title, rows.groupby(by)[rows.columns.tolist()].apply(summary)


def steady_tables(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Points whose trials agree, whatever is predicted: on a machine that others use too they do not."""
    steady = rows[rows["scatter"] <= _STEADY]
    for title, by in (
        ("trials within 10 %", np.zeros(len(steady), int)),
        ("trials within 10 %, mode", steady["mode"]),
    ):
        yield title, steady.groupby(by)[steady.columns.tolist()].apply(summary)


def worst(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Problems and modes by the median over GPUs of |ln(predicted / measured)|."""
    log = np.log(rows["predicted_s"] / rows["measured_s"])
    named = rows.assign(log=log, us=1e6 * rows["measured_s"])
    found = named.groupby(["level", "problem", "mode"]).agg(
        n=("log", "size"), ratio=("log", lambda log: np.exp(log.median())), us=("us", "median"),
        operator=("operator", "first"), term=("term", "first"),
    )  # fmt: skip
    return found.reindex(np.log(found["ratio"]).abs().sort_values(ascending=False).index).head(count)


def known_hosts_tables(judged: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The other half of the problems, with hosts of known pace."""
    level = judged["level"].str.removeprefix("level")
    for title, by in (
        ("pace of hosts known", np.zeros(len(judged), int)),
        ("pace of hosts known, mode", judged["mode"]),
        ("pace of hosts known, level and mode", [level, judged["mode"]]),
    ):
        yield title, judged.groupby(by)[judged.columns.tolist()].apply(summary)


def write_page(found: Iterable[tuple[str, pd.DataFrame]], page: Path) -> None:
    """The tables of a page, between its marks: medians, not means."""
    shown = []
    for title, whole in found:
        table, rows = whole.drop(columns="MAPE %"), []
        for name, row in table[table["n"] >= _LEAST].sort_values("n", ascending=False).iterrows():
            words = "all" if name == 0 else ", ".join(name) if isinstance(name, tuple) else str(name)
            cells = [f"{row['n']:.0f}", *(f"{row[column]:.1f}" for column in table.columns[1:])]
            rows.append([words, *cells])
        shown.append(markdown_lines([title, *table.columns], rows))
    write_tables(shown, page, "benchmarks.networks.kernelbench")
