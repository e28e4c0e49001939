"""The forms of what a subcommand prints: --json, or its tables alone, as text, CSV or Markdown."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rooflinekit.errors import InputError
from rooflinekit.present.text.form import FORM, being


def _forms(
    brief: Annotated[bool, typer.Option("--brief", help="print the table alone, without the words around it")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="print the table as CSV, in base units: s, byte, FLOP")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print the table in Markdown")] = False,
) -> None:
    """The options; their names are those of the forms."""


def prints_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: adds the options to a subcommand, which prints through `rooflinekit.present.text.tables`."""
    forms = inspect.signature(_forms, eval_str=True).parameters

    @functools.wraps(command)
    def in_form(**values: Any) -> None:
        asked = [name for name in forms if values.pop(name)]
        both = [*asked, *(["json"] if values.get("as_json") else ())]
        if both[1:]:
            raise InputError(f"--{both[0]} and --{both[1]}: choose one")
        if not asked:
            command(**values)
            return
        with being(FORM, asked[0]):  # type: ignore[misc]
            command(**values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *forms.values())]
    in_form.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    in_form.__annotations__ = {p.name: p.annotation for p in parameters}
    return in_form
