"""What several subcommands take and print alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rooflinekit.present.progress import following

TARGET_HELP = "timm:NAME, transformers:NAME or transformers:config.json, FILE.py:NAME, or package.module:name"

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON and nothing else")]


def print_json(value: object) -> None:
    """The one document that `--json` asks for."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error, with the time passed, that says what is being done; None where it is no terminal."""
    with following("SpinnerColumn", "text", "TimeElapsedColumn", description=first) as update:
        yield update and (lambda doing: update(description=doing))
