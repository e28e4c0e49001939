"""Small tables as plain text, for `print` of a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A line for the head and each row; the first column is for names, the others for numbers.

    >>> aligned(["gpu", "step"], [["l4", "12 ms"], ["h100", "2 ms"]])
    ['gpu    step', 'l4    12 ms', 'h100   2 ms']
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
