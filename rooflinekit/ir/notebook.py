"""How a result shows itself to who only names it: a line for a prompt, and small tables in HTML for notebooks.

Everything is escaped in these, and there are no scripts and no outside styles.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_LEFT, _RIGHT = "text-align:left", "text-align:right"


class FirstLine:
    """A result whose `repr` is its class and the first line of its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self).splitlines()[0]}>"


def block(title: str, *parts: str) -> str:
    """A heading and what `table` and `paragraphs` made.

    >>> block("a < b")
    '<div><strong>a &lt; b</strong></div>'
    """
    return f"<div><strong>{html.escape(title)}</strong>{''.join(parts)}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, its first column for names and the others for numbers.

    >>> table(["module", "time"], [["<b>", "1 s"]]).count("&lt;b&gt;")
    1
    """
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(texts: Iterable[str]) -> str:
    """Each text on lines of its own.

    >>> paragraphs(["note: x > y"])
    '<p>note: x &gt; y</p>'
    """
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def folded(title: str, *parts: str) -> str:
    """What opens at a click.

    >>> folded("details", "<p>x</p>")
    '<details><summary>details</summary><p>x</p></details>'
    """
    return f"<details><summary>{html.escape(title)}</summary>{''.join(parts)}</details>"


def _cells(tag: str, texts: Sequence[str]) -> str:
    styles = [_LEFT, *[_RIGHT] * (len(texts) - 1)]
    return "".join(
        f'<{tag} style="{style}">{html.escape(text)}</{tag}>' for style, text in zip(styles, texts, strict=True)
    )


# Small tables as plain text, for `print` of a record.


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
