"""The form of what is printed: values with their units, tables in Markdown, for how many columns. Without rich."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from rooflinekit.units import format_bytes, format_quantity

T = TypeVar("T")

#: "text": tables and words; "brief": tables alone; "csv", "markdown": tables alone, in that form.
Form = Literal["text", "brief", "csv", "markdown"]
FORM: ContextVar[Form] = ContextVar("FORM", default="text")

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


def said(value: Any, unit: str = "") -> str:
    """A value with three digits and its unit, "–" for none and for NaN.

    unit: a base unit ("s", "byte", "flop", …); "GiB" for bytes in powers of two; a format of Python's, which begins
    with a point or a comma; "" for words.

    >>> said(0.0025, "s"), said(0.5, ".1%"), said(None, "W"), said(-3.0, "s")
    ('2.50 ms', '50.0%', '–', '−3.00 s')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not unit or unit[0] in ".,":
        return format(value, unit) if unit else str(value)
    text = format_bytes(value) if unit == "GiB" else format_quantity(value, unit)
    return text.replace("-", "−")


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], words: Sequence[bool]) -> list[str]:
    """The lines of a table in Markdown; columns of words stand to the left, others to the right.

    >>> markdown(["GPU", "time"], [["a|b", "1 s"]], [True, False])
    ['| GPU | time |', '| --- | ---: |', '| a\\\\|b | 1 s |']
    """
    marks = ["---" if left else "---:" for left in words]
    body = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *body)]
