"""Values by a key: in lists, and added up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def lists(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; both stand in the order in which they come.

    >>> lists([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def sums(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The sum of each key's numbers.

    >>> sums([("a", 1.0), ("b", 2.0), ("a", 3.0)])
    {'a': 4.0, 'b': 2.0}
    """
    found: dict[K, float] = {}
    for key, number in pairs:
        found[key] = found.get(key, 0.0) + number
    return found


def added(parts: Iterable[Mapping[K, float]]) -> dict[K, float]:
    """The sum of each key's numbers in all of these.

    >>> added([{"a": 1.0, "b": 2.0}, {"a": 3.0}])
    {'a': 4.0, 'b': 2.0}
    """
    return sums(chain.from_iterable(one.items() for one in parts))
