"""Arguments of public functions and records, held against their annotations.

What takes them says in its own sentence what is wrong with them. This is the net below: an error of Python's own that
comes of an argument of another type, or of NaN, names the argument instead.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from itertools import chain, cycle, islice
from numbers import Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rooflinekit.errors import InputError, RooflinekitError
from rooflinekit.ir.sizes import LARGEST, finite, shown, whole


def expect(fits: bool, what: str, words: str, got: object) -> None:
    """Raises InputError unless an argument fits, in the sentence that all of them have.

    >>> expect(True, "batch", "a positive integer", 3)
    """
    if not fits:
        raise InputError(f"{what}: expected {words}; got {shown(got)}")


def expect_count(what: str, got: object, least: int = 1, most: int = LARGEST, words: str = "") -> None:
    """Raises InputError for what is no whole number from least to most."""
    number = whole(got)
    told = f"{least} or more" if most == LARGEST else f"{least} to {most:,}"
    expect(number is not None and least <= number <= most, what, words or told, got)


#: What makes a record that beginners have not made yet, by the record's words.
_MAKERS = {
    "a Prediction": "rk.predict(model, …, gpu=…)",
    "a Decoder": "rk.Decoder.from_config('llama-3.1-8b')",
    "a Graph": "rk.trace(model, …, mode='training')",
}

_Checked = TypeVar("_Checked", bound=Callable[..., Any])
_LOOKED_AT = 1000  # members of a list
_WORDS: Mapping[Any, str] = {
    str: "a text", Path: "a path", bool: "True or False", int: "a whole number", float: "a number", NoneType: "None",
}  # fmt: skip


def checked(given: _Checked) -> _Checked:
    """The function or class, which from now on raises InputError where an argument does not fit its annotation.

    What is called comes first: its own error says more, and stands. An annotation that cannot be read where it stands,
    as one for type checkers alone, admits anything.
    """
    called: Any = given.__init__ if isinstance(given, type) else given  # type: ignore[misc]
    signature = inspect.signature(called)
    hint = cache(lambda name: _hint(signature.parameters[name].annotation, called.__globals__))

    by_place = [name for name, one in signature.parameters.items() if one.kind <= one.POSITIONAL_OR_KEYWORD]
    further = [name for name, one in signature.parameters.items() if one.kind is one.VAR_POSITIONAL]
    others = [name for name, one in signature.parameters.items() if one.kind is one.VAR_KEYWORD]
    needed = [
        name for name, one in signature.parameters.items() if one.default is one.empty and name not in further + others
    ]

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for name, value in (*zip(chain(by_place, cycle(further)), args, strict=False), *kwargs.items()):
            for parameter in (name,) if name in signature.parameters else others:
                if not _fits(value, hint(parameter)):
                    words = _words(hint(parameter))
                    made = next((f"; {how} makes one" for what, how in _MAKERS.items() if what in words), "")
                    raise InputError(f"{name}: expected {words}; got {shown(value)}{made}")

    @wraps(called)
    def checking(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = called(*args, **kwargs)
        except RooflinekitError:
            raise
        except Exception:
            check(args, kwargs)
            given_names = {*by_place[: len(args)], *kwargs}
            if missing := [name for name in needed if name not in given_names]:
                form = ", ".join(f"{name}=…" for name in missing)
                raise InputError(f"{given.__name__}: {' and '.join(missing)} must be given: add {form}") from None
            raise  # an argument too many: Python's own sentence says it
        check(args, kwargs)
        return answer

    if not isinstance(given, type):
        return checking  # type: ignore[return-value]
    given.__init__ = checking  # type: ignore[misc]
    return given


def _hint(annotation: Any, names: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:  # of `self`
        return Any
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), names).get("it", Any)
    except (NameError, TypeError, AttributeError):
        return Any


def _fits(value: Any, hint: Any) -> bool:
    """Whether an annotation admits a value; numbers may be numpy's, and a list may be any series."""
    if type(value) is hint and hint is not float:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) or (isinstance(value, Hashable) and value in parts)
    if hint is float:
        return finite(value) or (isinstance(value, Real) and abs(value) == math.inf)
    if hint is int:
        return whole(value) is not None
    if hint is bool:
        return type(value).__name__ in ("bool", "bool_")  # numpy's too
    kind = origin or hint
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, Mapping) and parts:
        return isinstance(value, Mapping) and _holds(value, parts[0]) and _holds(value.values(), parts[1])
    if kind is tuple and parts and parts[-1] is not ...:
        fits = isinstance(value, tuple | list) and len(value) == len(parts)
        return fits and all(map(_fits, value, parts))
    if issubclass(kind, Sequence) and parts:
        return _holds(value, parts[0])
    return isinstance(value, kind)


def _holds(value: Any, hint: Any) -> bool:
    """Whether it is a series whose members the annotation admits, as far as they can be looked at twice."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return isinstance(value, Iterator) or all(_fits(one, hint) for one in islice(_members(value), _LOOKED_AT))


def _members(series: Iterable[Any]) -> Iterator[Any]:
    """Its members; one that is no member of anything where it cannot be gone through, as a tensor without axes."""
    try:
        yield from series
    except TypeError:
        yield series


def _words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a mapping"
    if isinstance(kind, type) and parts and issubclass(kind, Iterable):
        return f"a list of {_words(parts[0]).removeprefix('a ')}"
    if kind is Callable:
        return "a function"
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"
