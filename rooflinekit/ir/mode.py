"""Which step a graph is of, also by the words that people write."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rooflinekit.errors import InputError, nearest

Mode = Literal["inference", "training", "forward"]

_MEANT: dict[str, Mode] = {"train": "training", "eval": "inference", "infer": "inference", "fwd": "forward"}


def mode_of(given: Any, option: str = "mode") -> Mode:
    """The mode that is meant. Raises InputError for a word that means none.

    >>> mode_of("train")
    'training'
    """
    known: tuple[Mode, ...] = get_args(Mode)
    for mode in known:
        if _MEANT.get(given if isinstance(given, str) else "", given) == mode:
            return mode
    near = nearest(str(given), known)
    raise InputError(f"{option} {given!r:.60}: expected {' or '.join(map(repr, known))}{near}")
