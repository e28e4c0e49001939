"""What a sweep is: axes, each with its choices, times sizes; and how it is cut into pieces of work."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.sizes import check_dims, check_names
from rooflinekit.ir.validity import check_at_all
from rooflinekit.study.sweep_points import Memory, Setting, Table, predict_points

BLOCK = 8192  # points of one piece: arrays of as many numbers stay in a core's cache
_ROWS = 65536  # of one piece: as many settings as this leaves room for share the points' kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What varies beside the sizes: for each choice, by its name, the fields of a `Case` that it sets."""

    name: str
    choices: Mapping[str, Mapping[str, Any]]
    shown: bool = True  # whether results have a column of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One choice on every axis."""

    labels: Mapping[str, str]  # axis → choice
    graph: Graph
    setting: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Cases that share a graph, at some of the sizes: what one process works on at a time."""

    number: int
    first: int  # of its cases
    cases: int  # how many
    start: int  # the first of its combinations of sizes
    payload: bytes  # graph and settings
    sizes: Mapping[str, NDArray[np.int64]]
    memory: Memory

    def predict(self) -> list[Table]:
        """A table for each case."""
        graph, settings = opened(self.payload)
        return predict_points(graph, settings, self.sizes, memory=self.memory)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep: its cases, and for each size its values; every case at every combination, the last fastest."""

    axes: tuple[Axis, ...]
    cases: tuple[Case, ...]
    lists: Mapping[str, tuple[int, ...]]
    memory: Memory = True

    @property
    def points(self) -> int:
        """Combinations of sizes."""
        return math.prod(len(values) for values in self.lists.values())

    @property
    def rows(self) -> int:
        """Predictions."""
        return self.points * len(self.cases)

    def pieces(self) -> Iterator[Piece]:
        """The work, in the order of the cases and sizes; many cases together where sizes are few."""
        number = 0
        together = max(1, _ROWS // max(1, min(BLOCK, self.points)))
        for first, cases in self._batches(together):
            payload = packed(cases[0].graph, [case.setting for case in cases])
            for start in range(0, self.points, BLOCK):
                index = np.arange(start, min(start + BLOCK, self.points))
                yield Piece(
                    number=number, first=first, cases=len(cases), start=start, payload=payload,
                    sizes=self.sizes_at(index), memory=self.memory,
                )  # fmt: skip
                number += 1

    def sizes_at(self, index: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The sizes of these combinations."""
        if not self.lists:
            return {}
        places = np.unravel_index(index, [len(values) for values in self.lists.values()])
        arrays = [np.array(values, dtype=np.int64) for values in self.lists.values()]
        return {name: array[place] for name, array, place in zip(self.lists, arrays, places, strict=True)}

    def _batches(self, together: int) -> Iterator[tuple[int, tuple[Case, ...]]]:
        first = 0
        while first < len(self.cases):
            end = first + 1
            while end < min(first + together, len(self.cases)) and self.cases[end].graph is self.cases[first].graph:
                end += 1
            yield first, self.cases[first:end]
            first = end

    @cached_property
    def parts(self) -> dict[str, str]:
        """What tells this sweep from others: a digest of each axis and of the sizes."""
        found = {axis.name: _digest(axis.choices) for axis in self.axes}
        return {**found, "sizes": _digest(self.lists), "columns": _digest(self.memory)}


def plan_of(
    axes: Sequence[Axis], common: Mapping[str, Any], sizes: Mapping[str, Any], *, memory: Memory = True
) -> Plan:
    """The sweep over these axes and sizes.

    common: fields of a `Case` that no axis sets. sizes: for each open size a positive integer, or a list, range or
    array of them. Raises SizeError as `Graph.at` does, and where the trace does not hold at one of the sizes.
    """
    cases = []
    for chosen in product(*(axis.choices.items() for axis in axes)):
        set_by = {name: value for _, changes in chosen for name, value in changes.items()}
        given = {**common, **set_by}
        setting = Setting(**{f.name: given[f.name] for f in fields(Setting)})
        labels = {axis.name: label for axis, (label, _) in zip(axes, chosen, strict=True)}
        cases.append(Case(labels=labels, graph=given["graph"], setting=setting))
    lists = {name: _listed(name, given) for name, given in sizes.items()}
    for graph in {id(case.graph): case.graph for case in cases}.values():
        for name in (size.name for size in graph.forced if size.name in lists):
            for value in lists[name]:
                graph.at(**{name: value})
    forced = {size.name for case in cases for size in case.graph.forced}
    lists = {name: values for name, values in lists.items() if name not in forced}
    for graph in {id(case.graph): case.graph for case in cases}.values():
        check_names(lists, graph.dims)
        for condition in graph.conditions:
            check_at_all(condition, lists, graph.sizes)
    return Plan(axes=tuple(axes), cases=tuple(cases), lists=lists, memory=memory)


def _listed(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        return tuple(check_dims({name: given}, (name,)).values())
    found = list(given)
    if not found:
        raise SizeError(f"size {name!r}: expected a positive integer or a list of them; got {given!r:.60}")
    return tuple(check_dims({name: value}, (name,))[name] for value in found)


# --- to other processes ----------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Pickles read-only mappings too, of which records are full."""

    def reducer_override(self, value: Any) -> Any:
        return (_read_only, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _read_only(values: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(values)


def packed(graph: Graph, settings: Sequence[Setting]) -> bytes:
    """A graph and settings for another process. Raises InputError for a graph that holds what cannot go there."""
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump((replace(graph, fx=None, origin=None), tuple(settings)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(f"{graph.name}: cannot be handed to another process: {error}") from error
    return stream.getvalue()


@lru_cache(maxsize=4)
def opened(payload: bytes) -> tuple[Graph, tuple[Setting, ...]]:
    """What `packed` has packed."""
    return pickle.loads(payload)  # type: ignore[no-any-return]


# --- which sweep it is -----------------------------------------------------------------------------------------------


def _digest(value: Any) -> str:
    """Equal for equal records, in any process."""
    memory: dict[int, tuple[Any, str]] = {}

    def text(value: Any) -> str:
        if isinstance(value, str | int | float | bool | None):
            return repr(value)
        if id(value) not in memory:
            memory[id(value)] = (value, hashlib.sha256(plain(value).encode()).hexdigest())
        return memory[id(value)][1]

    def plain(value: Any) -> str:
        if is_dataclass(value) and not isinstance(value, type):
            kept = [f.name for f in fields(value) if f.compare and f.name != "fx"]
            return f"{type(value).__name__}({', '.join(f'{name}={text(getattr(value, name))}' for name in kept)})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{text(k)}: {text(v)}' for k, v in value.items())}}}"
        if isinstance(value, frozenset | set):
            return f"{{{', '.join(sorted(map(text, value)))}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text, value))}]"
        return f"{type(value).__name__} {sympy.srepr(value) if isinstance(value, sympy.Basic) else value}"

    return hashlib.sha256(text(value).encode()).hexdigest()
