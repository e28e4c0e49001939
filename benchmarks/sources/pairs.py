"""Measured and predicted seconds side by side: their options, their tables by group, the rows furthest off."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd


def options_of(doc: str | None) -> argparse.Namespace:
    """data, worst and out, as the command line gives them."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--worst", type=int, default=0, help="also so many of the rows furthest off")
    parser.add_argument("--out", type=Path, help="also write all rows, as .parquet")
    return parser.parse_args()


def summary(rows: pd.DataFrame) -> pd.Series:
    """Errors in per cent; bias is the median of predicted / measured."""
    ratio = rows["predicted_s"] / rows["measured_s"]
    error = (ratio - 1).abs()
    return pd.Series(
        {
            "n": len(rows), "median %": 100 * error.median(), "MAPE %": 100 * error.mean(),
            "p90 %": 100 * error.quantile(0.9), "bias %": 100 * (ratio.median() - 1),
        }
    )  # fmt: skip


def show(rows: pd.DataFrame, groups: Sequence[Sequence[str]], options: argparse.Namespace, *, fewest: int = 1) -> None:
    """Prints a table for each grouping, but for groups of fewer rows, all rows together, and those furthest off."""
    if options.out:
        rows.to_parquet(options.out)
    with pd.option_context("display.width", 160, "display.max_rows", 200, "display.float_format", "{:.1f}".format):
        for by in groups:
            table = rows.groupby([*by])[rows.columns.tolist()].apply(summary)
            print(f"\n{table[table['n'] >= fewest]}")
        print(f"\n{summary(rows)}")
    if options.worst:
        ratio = rows["predicted_s"] / rows["measured_s"]
        furthest = np.log(ratio).abs().sort_values(ascending=False).index
        print(rows.assign(ratio=ratio).loc[furthest].head(options.worst).to_string())
