"""Tables in a terminal, or in a file that takes its place."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def table(*columns: str) -> Table:
    """An empty table, the first column for names, the others for numbers."""
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        found.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return found


def console(*, wide: bool = False) -> Console:
    """Standard output. Where that is no terminal, lines have 120 columns, or with `wide` as many as a table needs."""
    out = Console(highlight=False, emoji=False)
    return out if out.is_terminal else Console(highlight=False, emoji=False, width=240 if wide else 120)
