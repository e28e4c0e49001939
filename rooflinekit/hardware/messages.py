"""Turns what pydantic found wrong with a file into one line: file, key path, what was expected, what came."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rooflinekit.errors import nearest, printable

_EXPECTED = {
    "int_type": "a whole number without a unit",
    "float_type": "a number",
    "string_type": "text",
    "date_type": "a date, such as 2024-11-18",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "string_too_short": "some text",
    "string_pattern_mismatch": "lower-case words joined by hyphens, such as 'nvidia-l4'",
}


def one_line(error: ValidationError, model: type[BaseModel], label: str) -> str:
    """The first problem in words, and how many more there are.

    An unknown key comes before a missing one, because the second is usually the first misspelt.
    """
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"] if part != "[key]"]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return printable(": ".join([label, *path, _words(first, model)]) + more)


def _words(problem: Any, model: type[BaseModel]) -> str:
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(problem['loc'][-1]), _keys(model, problem['loc'][:-1]), 1)}"
    if kind == "missing":
        return "the key is missing"
    if kind in ("value_error", "assertion_error"):
        return str(problem["ctx"]["error"])
    if kind in ("greater_than_equal", "greater_than", "less_than_equal"):
        bounds = {"ge": "of at least", "gt": "above", "le": "of at most"}
        limit = next(f"{words} {problem['ctx'][key]}" for key, words in bounds.items() if key in problem["ctx"])
        return f"expected a number {limit}; got {given!r}"
    if kind in _EXPECTED:
        quotes = " in quotes" if kind == "string_type" and isinstance(given, bool | int | float) else ""
        return f"expected {_EXPECTED[kind]}{quotes}; got {_short(given)}"
    message: str = problem["msg"]
    return f"{message[0].lower()}{message[1:]}; got {_short(given)}"


def _keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys that the mapping at `path` may hold."""
    for part in path:
        field = model.model_fields.get(str(part))
        candidates = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
