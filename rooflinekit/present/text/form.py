"""The form of what is printed: tables in Markdown, for how many columns. Without rich."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeVar

T = TypeVar("T")

#: "text": tables and words; "brief": tables alone; "csv", "markdown": tables alone, in that form.
Form = Literal["text", "brief", "csv", "markdown"]
FORM: ContextVar[Form] = ContextVar("FORM", default="text")

#: The heads of the tables that a command has printed as CSV or Markdown.
PRINTED: ContextVar[list[list[str]] | None] = ContextVar("PRINTED", default=None)

#: What the user's COLUMNS says. It is looked at before anything else is loaded: readline, which torch loads, sets it to
#: 80 where there is no terminal.
COLUMNS: ContextVar[int | None] = ContextVar("COLUMNS", default=None)


@contextmanager
def being(variable: ContextVar[T], value: T) -> Iterator[None]:
    """The variable has this value within."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def columns_of(told: str) -> int | None:
    """What a text such as COLUMNS means; None for no positive number."""
    return int(told) or None if told.isdecimal() and len(told) < 6 else None


def beyond_a_pipe() -> int | None:
    """The columns that COLUMNS says, or of the terminal that shows the errors of a command in a pipe."""
    if told := COLUMNS.get():
        return told
    try:
        piped = stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
        return os.get_terminal_size(sys.stderr.fileno()).columns if piped else None
    except (OSError, ValueError, AttributeError):
        return None


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], words: Sequence[bool]) -> list[str]:
    """The lines of a table in Markdown; columns of words stand to the left, others to the right.

    >>> markdown(["GPU", "time"], [["a|b", "1 s"]], [True, False])
    ['| GPU | time |', '| --- | ---: |', '| a\\\\|b | 1 s |']
    """
    marks = ["---" if left else "---:" for left in words]
    body = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *body)]
