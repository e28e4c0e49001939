"""Commands from records: an option is declared once, as a parameter or a record's field; all commands answer alike.

    depth: Annotated[int, "--depth LEVELS", "how many levels below the network", {"min": 1}] = 3

is `typer.Option("--depth", metavar="LEVELS", help="how many …", min=1)`. The words with hyphens may be left out.
"""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from rooflinekit.errors import InputError, printable
from rooflinekit.present.text.form import FORM, PRINTED, being
from rooflinekit.present.text.progress import following


@dataclass(frozen=True)
class Answer:
    """What a command has found: a command that returns it has --json. failed: the exit status is then 1.

    name, fields: of the document, whose schema is in docs/schemas (docs/make_schemas.py). text: prints it for a person;
    lines: said after that, such as where files were written. version: of the document, which rises when a field goes or
    changes its meaning, and not when one is added.
    """

    name: str
    fields: Callable[[], Mapping[str, object]]
    text: Callable[[], object] = lambda: None
    failed: bool = False
    lines: Sequence[object] = ()
    version: int = 1

    def print(self, *, as_json: bool) -> None:
        """Prints the answer: as JSON, or as words and tables."""
        if as_json:
            whole = {"schema": f"rooflinekit/{self.name}/{self.version}", **self.fields()}
            print(json.dumps(whole, indent=2, ensure_ascii=False))
        else:
            self.text()
            say(*self.lines)
        if self.failed:
            raise typer.Exit(1)


class Tables(Answer):
    """An answer whose text is tables, which --brief, --csv and --markdown print alone."""


Command = Callable[..., Answer | None]


#: Declared by commands that have to know whether the document is asked for.
Json = Annotated[bool, "--json", "print JSON and nothing else"]


class Options:
    """A record of options: each annotated attribute is one, with its default."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @property
    def given(self) -> list[str]:
        """The options that are not as by default, as they are typed."""
        own = fields(type(self)).items()  # type: ignore[arg-type]
        return [f"--{name.replace('_', '-')}" for name, one in own if getattr(self, name) != one.default]


class _Json(Options):
    as_json: Json = False


class _Forms(Options):
    """Their names are those of the forms of `rooflinekit.present.text.form`."""

    brief: Annotated[bool, "print the table alone, without the words around it"] = False
    csv: Annotated[
        bool, "print the table as CSV, in base units: s, byte, FLOP; tables of other columns follow an empty line"
    ] = False
    markdown: Annotated[bool, "print the table in Markdown"] = False


def made(command: Command) -> Callable[..., None]:
    """A command as typer takes it: each record among its parameters is the record's fields."""
    signature = inspect.signature(command, eval_str=True)
    given = {name: one.annotation for name, one in signature.parameters.items()}
    records: dict[str, Any] = {
        name: kind for name, kind in given.items() if isinstance(kind, type) and issubclass(kind, Options)
    }
    answers = get_args(signature.return_annotation) or (signature.return_annotation,)
    kinds = [kind for kind in answers if isinstance(kind, type) and issubclass(kind, Answer)]
    shared = [_Json] * bool(kinds) + [_Forms] * (Tables in kinds)

    parameters: dict[str, inspect.Parameter] = {}
    for name, one in signature.parameters.items():
        parameters |= fields(given[name]) if name in records else {name: _option(name, given[name], one.default)}
    for record in shared:
        parameters |= fields(record)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        as_json = bool(values.get("as_json"))
        forms = [name for name in (fields(_Forms) if _Forms in shared else ()) if values.pop(name)]
        both = [*forms, *(["json"] if as_json else ())]
        if both[1:]:
            raise InputError(f"--{both[0]} and --{both[1]}: choose one")
        if "as_json" not in given:
            values.pop("as_json", None)
        for name, record in records.items():
            values[name] = record(**{field: values.pop(field) for field in fields(record)})
        with being(FORM, forms[0] if forms else "text"), being(PRINTED, []):  # type: ignore[misc]
            answer = command(**values)
            if answer is not None:
                answer.print(as_json=as_json)

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    return run


@functools.cache
def fields(record: type[Options]) -> dict[str, inspect.Parameter]:
    """The fields of a record as a command's parameters."""
    hints = get_type_hints(record, include_extras=True)
    return {name: _option(name, hint, getattr(record, name)) for name, hint in hints.items()}


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter as typer takes it: see the head of this file. Those that are declared for typer stay as they are."""
    kind, *notes = (annotation.__origin__, *annotation.__metadata__) if hasattr(annotation, "__metadata__") else (None,)
    texts = [note for note in notes if isinstance(note, str)]
    if texts:
        words = [word for text in texts if text.startswith("-") for word in text.split()]
        names = [word for word in words if word.startswith("-")]
        if not names and default is False:
            names = [f"--{name.replace('_', '-')}"]  # and no --no-…
        metavar = next((word for word in words if not word.startswith("-")), None)
        help = next(text for text in texts if not text.startswith("-"))
        more = next((note for note in notes if isinstance(note, dict)), {})
        annotation = Annotated[kind, typer.Option(*names, metavar=metavar, help=help, **more)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def typed() -> str:
    """The command as it was typed, by which an answer is made again."""
    return shlex.join(["rooflinekit", *sys.argv[1:]])


def say(*texts: object) -> None:
    """Prints texts that may hold paths, a line each."""
    for text in texts:
        print(printable(str(text)))


def tell(line: object) -> None:
    """Says a line on standard error."""
    print(f"rooflinekit: {printable(str(line))}", file=sys.stderr)


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error, with the time passed, that says what is being done; None where it is no terminal."""
    with following("SpinnerColumn", "text", "TimeElapsedColumn", description=first) as update:
        yield update and (lambda doing: update(description=doing))
