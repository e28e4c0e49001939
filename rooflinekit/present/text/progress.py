"""Bars and lines on standard error that follow long work; only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def following(*columns: str, **task: Any) -> Iterator[Callable[..., None] | None]:
    """Shows a task with these columns of rich.progress, by the names of their classes, and "text" for what is done.

    task: its `description` and `total`. The result updates it, with the arguments of `rich.progress.Progress.update`;
    None where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from functools import partial

    from rich import progress
    from rich.console import Console

    made = [
        progress.TextColumn("{task.description}") if name == "text" else getattr(progress, name)() for name in columns
    ]
    with progress.Progress(*made, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(**task))


@contextmanager
def bar(what: str, *, share: bool = False) -> Iterator[Callable[..., None] | None]:
    """A bar; the result is told what is done: a share of 1, or a number, of how many, and what is being done now."""
    columns = ("text", "BarColumn", "TaskProgressColumn" if share else "MofNCompleteColumn", "TimeRemainingColumn")
    with following(*columns, description=what, total=1.0) as update:
        yield update and (lambda done, total=1.0, now=what: update(completed=done, total=total, description=now))


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar; the result is told how many more are done."""
    columns = ("text", "BarColumn", "MofNCompleteColumn", "TimeElapsedColumn", "TimeRemainingColumn")
    with following(*columns, description=what, total=total) as update:
        yield update and (lambda more: update(advance=more))
