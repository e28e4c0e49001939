"""Runs the Python blocks of tutorials/*.md and writes what each prints under it, and the figures that they save.

    python docs/make_tutorials.py [PAGE ...]

tests/test_tutorials.py holds the pages against the same.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import textwrap

from page import FOLDER

from rooflinekit.files import write_text

PAGES = FOLDER / "tutorials"
_WIDTH = 116
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def made(page: str, name: str) -> str:
    """The page with the output of each block under it; figures go to the current folder."""
    namespace: dict[str, object] = {"__name__": name}

    def block(found: re.Match[str]) -> str:
        printed = io.StringIO()
        above = "\n" * (page[: found.start("code")].count("\n"))  # so that a traceback names the page's own line
        with contextlib.redirect_stdout(printed):
            exec(compile(above + found["code"], PAGES / f"{name}.md", "exec"), namespace)  # noqa: S102  our own pages
        lines = [part for line in printed.getvalue().strip("\n").splitlines() for part in _wrapped(line.rstrip())]
        output = "\n".join(["", "```text", *lines, "```", ""]) if lines else ""
        return f"```python\n{found['code']}```\n{output}"

    return _BLOCK.sub(block, page)


def _wrapped(line: str) -> list[str]:
    """A sentence of any length as lines that fit the page; a table's row as it is."""
    return textwrap.wrap(line, _WIDTH, break_on_hyphens=False) if len(line) > _WIDTH else [line]


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))  # for examples/
    os.chdir(PAGES)
    for file in sorted(PAGES.glob("*.md")):
        if file.stem in sys.argv[1:] or not sys.argv[1:]:
            write_text(made(file.read_text(encoding="utf-8"), file.stem), file)
            print(file.name)
