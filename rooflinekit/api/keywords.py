"""Words handed over by name: options, named sizes or inputs of the model; what is none of them gets a sentence."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rooflinekit.errors import InputError, nearest

_ALIKE = 0.85  # of difflib: one letter of six or more is another


def further_inputs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `keywords` holds. Raises InputError where it is no mapping of names."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise InputError(f"keywords: expected inputs by name, such as {{'mode': 'fan_in'}}; got {given!r:.60}")
    return dict(given or {})


def check_keywords(
    model: Callable[..., Any], given: Mapping[str, Any], *functions: Callable[..., Any], sizes: Collection[str] = ()
) -> None:
    """Raises InputError for a name that is no option of the functions, none of the sizes and no input of the model.

    A model that takes any keyword swallows those that are spelled like an option, so they are refused too: an
    `optimiser` would be a step without one. `keywords={…}` hands them over all the same.
    """
    own, takes_any = _arguments(model)
    options = {
        name
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    for name in given.keys() - {*own, *options, *sizes}:
        if takes_any and not _almost(name, options):
            continue
        called = type(model).__name__ if hasattr(model, "forward") else getattr(model, "__name__", "the model")
        hint = nearest(name, [*own, *sizes, *options], 1)
        takes = f"; {called} takes {', '.join(own)}" if own and not hint else ""
        raise InputError(f"{name!r} is neither an option nor an input of {called}{hint}{takes}")


def _arguments(model: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The names that a model's inputs have, and whether it takes any other; also where nobody can tell."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except Exception:  # a signature that cannot be read, or the model's own code
        return (), True
    named = tuple(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _almost(name: str, options: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, options, n=1, cutoff=_ALIKE))
