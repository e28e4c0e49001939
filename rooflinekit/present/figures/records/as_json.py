"""Records to and from the types of JSON. Reading is strict: nothing is guessed, converted or ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rooflinekit.errors import InputError

R = TypeVar("R")


def encode(value: Any) -> Any:
    """The value as dicts, lists, text and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [encode(part) for part in value]
    return value


def decode(kind: type[R], data: object, where: str) -> R:
    """The record of type `kind` that `encode` wrote; `where` names the place in messages.

    Raises InputError for a missing or unknown key and for a value of another type.
    """
    if not isinstance(data, Mapping):
        raise _wrong(where, "a mapping", data)
    hints = _hints(kind)
    for key in data:
        if key not in hints:
            raise InputError(f"{where}: unknown key {str(key)[:40]!r}; the keys are {', '.join(hints)}")
    required = {field.name for field in fields(kind) if field.default is MISSING}  # type: ignore[arg-type]
    for key in hints:
        if key not in data and key in required:
            raise InputError(f"{where}: the key {key!r} is missing")
    return kind(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, data: object, where: str) -> Any:
    if get_origin(hint) is Literal:
        if data not in get_args(hint):
            raise _wrong(where, " or ".join(map(repr, get_args(hint))), data)
        return data
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), data, where)
    if is_dataclass(hint):
        return decode(hint, data, where)  # type: ignore[arg-type]
    if hint is float:
        return _number(data, where)
    if type(data) is not hint:  # a bool is no int here
        raise _wrong(where, f"a value of type {hint.__name__}", data)
    return data


def _tuple(hints: tuple[Any, ...], data: object, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _wrong(where, "a list", data)
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(data)
    if len(hints) != len(data):
        raise _wrong(where, f"{len(hints)} values", data)
    return tuple(_value(hint, part, f"{where}[{i}]") for i, (hint, part) in enumerate(zip(hints, data, strict=True)))


def _number(data: object, where: str) -> float:
    if type(data) not in (int, float) or not math.isfinite(data):  # type: ignore[arg-type]
        raise _wrong(where, "a finite number", data)
    return float(data)  # type: ignore[arg-type]


def _wrong(where: str, expected: str, data: object) -> InputError:
    given = repr(data)
    return InputError(f"{where}: expected {expected}; got {given if len(given) <= 60 else given[:57] + '...'}")
