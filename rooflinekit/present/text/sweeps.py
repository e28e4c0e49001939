"""Sweeps and searches in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from rooflinekit.errors import printable
from rooflinekit.present.text.tables import console, print_table, table, whole
from rooflinekit.study.sweep.search import cells_of

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.study.sweep.search import Found

_SHOWN = 100  # rows


def print_rows(frame: pd.DataFrame) -> None:
    """The first rows of a sweep."""
    _print(frame if whole() else frame.head(_SHOWN))
    if len(frame) > _SHOWN:
        console().print(f"… {len(frame)} rows in all; --out writes them")


def print_found(found: Found) -> None:
    """What a search found: the best configuration of each GPU and way, or those that come closest."""
    for line in found.head:
        console().print(line, markup=False)
    _print(found.table if found.best is not None else found.closest, found.currency)
    for line in found.doubts:
        console().print(f"note: {line}", markup=False)


def _print(frame: pd.DataFrame, currency: str | None = None) -> None:
    heads, body = cells_of(frame, currency)
    rows = table(*heads)
    for cells in body:
        rows.add_row(*(Text(printable(cell)) for cell in cells))
    print_table(rows, lambda: frame)
