"""Tables in Markdown, and a page's between the marks that name the command which made them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

_END = "<!-- end of numbers -->"


def markdown_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown of texts."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def frame_lines(frame: pd.DataFrame) -> str:
    """The same of a frame with its index: a first column of counts, then numbers with a digit, a dash for none."""
    rows = [
        [*map(str, name if isinstance(name, tuple) else (name,)), f"{row.iloc[0]:.0f}",
         *("–" if math.isnan(value) else f"{value:.1f}" for value in row.iloc[1:])]
        for name, row in frame.iterrows()
    ]  # fmt: skip
    return markdown_lines([*map(str, frame.index.names), *map(str, frame.columns)], rows)


def print_frames(frames: Iterable[pd.DataFrame]) -> None:
    """Frames below each other, numbers with a digit."""
    with pd.option_context("display.width", 200, "display.float_format", "{:.1f}".format):
        for frame in frames:
            print(frame.to_string(), end="\n\n")


def write_tables(tables: Iterable[str], page: Path, module: str) -> None:
    """Puts tables in Markdown in the place of those that `python -m MODULE DATA --page …` made before."""
    begin = f"<!-- numbers: made by `python -m {module} DATA --page"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    mark, _, rest = rest.partition("\n")
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{begin}{mark}\n\n" + "\n\n".join(tables) + f"\n\n{_END}{after}", encoding="utf-8")
