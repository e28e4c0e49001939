"""Docstrings as the reference shows them: an item for each argument, and doctests as code.

mkdocs.yml names this file, an extension of griffe.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> |$).*\n?)*)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^(?=\*{0,2}[a-z_]\w*(?: to \w+|(?:, \*{0,2}\w+)*): )", re.MULTILINE)


class Texts(Extension):
    """Rewrites each docstring before it is rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object, once its members are there."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


def shown(text: str) -> str:
    """The text as Markdown: a paragraph that begins with an argument is a list of them.

    >>> shown("Adds.\\n\\na: one.\\nb: two.\\n\\n>>> f(1)\\n2").splitlines()
    ['Adds.', '', '* a: one.', '* b: two.', '', '```pycon', '>>> f(1)', '2', '```']
    """
    parts = _DOCTEST.split(text)
    tests = [*(f"```pycon\n{test.rstrip()}\n```\n" for test in _DOCTEST.findall(text)), ""]
    return "".join(_listed(part) + test for part, test in zip(parts, tests, strict=True)).rstrip()


def _listed(text: str) -> str:
    paragraphs = text.split("\n\n")
    return "\n\n".join(_ARGUMENT.sub("* ", one) if _ARGUMENT.match(one.lstrip("\n")) else one for one in paragraphs)
