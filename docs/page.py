"""Parts of documentation pages that programs write, between two comments."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rooflinekit.files import write_text

FOLDER = Path(__file__).parent


def printed(command: str) -> str:
    """What `rooflinekit …` prints where no terminal is, called from the root: no empty lines, none with blanks at its end.

    The program is called in this process: starting another costs four seconds, mostly torch's.
    """
    from rooflinekit.cli.app import main

    out, words, variables = io.StringIO(), sys.argv, dict(os.environ)
    for name in ("COLUMNS", "LINES", "TERM"):
        os.environ.pop(name, None)
    sys.argv = shlex.split(command)
    try:
        with contextlib.chdir(FOLDER.parent), contextlib.redirect_stdout(out):
            main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = words
        os.environ.update(variables)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def run(page: str, part: str, made: Callable[[], str], script: str) -> None:
    """Writes the part of a page that `script` makes; with --check says whether it is current, by the exit status."""
    run_all({page: {part: made}}, script)


def run_all(pages: Mapping[str, Mapping[str, Callable[[], str]]], script: str) -> None:
    """The same for several parts of several pages."""
    parser = argparse.ArgumentParser(description=f"Writes its parts of {' and '.join(pages)}.")
    parser.add_argument("--check", action="store_true", help="only say whether the pages are current")
    arguments, command = parser.parse_args(), f"python docs/{Path(script).name}"
    for page, parts in pages.items():
        file = FOLDER / page
        there = wanted = file.read_text(encoding="utf-8")
        for part, made in parts.items():
            wanted = _current(wanted, f"<!-- {part}: made by {command} -->", f"<!-- end of {part} -->", made())
        if arguments.check and there != wanted:
            sys.exit(f"{page} is behind: run {command}")
        if not arguments.check:
            write_text(wanted, file)
    sys.exit(0)


def _current(page: str, begin: str, end: str, made: str) -> str:
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"expected the lines {begin!r} and {end!r} in the page, between which the text stands")
    return f"{before}{begin}\n{made}\n{end}{after}"
