"""The sizes of a sweep: lists, of which there is every combination, or which vary together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError, SizeError, nearest
from rooflinekit.ir.graph import Graph, parts
from rooflinekit.ir.sizes import check_at_all, check_dims, check_names, shown

_AT_ONCE = 2**16  # combinations of sizes looked at together

#: Sizes that vary together: their names, or several groups of names.
Together: TypeAlias = Sequence[str] | Sequence[Sequence[str]] | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """For each size its values: every combination of them, the last fastest."""

    lists: Mapping[str, tuple[int, ...]]
    together: tuple[tuple[str, ...], ...] = ()  # sizes of which the first values go together, the second, and so on

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """What varies by itself: sizes, alone or together."""
        of = {name: names for names in self.together for name in names}
        return tuple(dict.fromkeys(of.get(name, (name,)) for name in self.lists))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many values each group has."""
        return tuple(len(self.lists[names[0]]) for names in self.groups)

    @property
    def points(self) -> int:
        """How many combinations there are."""
        return math.prod(self.lengths)

    def at(self, index: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The sizes of these combinations, by their numbers."""
        return self.at_places(np.unravel_index(index, self.lengths)) if self.lists else {}

    def at_places(self, places: Sequence[NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
        """The sizes at these places of the values of each group."""
        place = {name: one for names, one in zip(self.groups, places, strict=True) for name in names}
        return {name: np.array(values, dtype=np.int64)[place[name]] for name, values in self.lists.items()}


def grid_of(graphs: Iterable[Graph], sizes: Mapping[str, Any], together: Together) -> Grid:
    """The sizes at which these graphs are predicted, without those that a graph forces to the only value given.

    sizes: for each open size a positive integer, or a list, range or array of them. together: names of sizes that vary
    together, or several such groups. Raises SizeError as `Graph.at` does, and where a trace does not hold at one of the
    sizes; InputError for groups that cannot be.
    """
    graphs = list(graphs)
    lists = {name: _listed(name, given) for name, given in sizes.items()}
    groups = _groups(together, lists)
    for graph in graphs:
        for name in (size.name for size in graph.forced if size.name in lists):
            for value in lists[name]:
                graph.at(**{name: value})
    forced = {size.name for graph in graphs for size in graph.forced}
    lists = {name: values for name, values in lists.items() if name not in forced}
    left = tuple(tuple(name for name in names if name in lists) for names in groups)
    grid = Grid(lists=lists, together=tuple(names for names in left if len(names) > 1))
    for graph in graphs:
        check_names(lists, graph.dims)
        for condition in graph.conditions:
            check_at_all(condition, [{name: lists[name] for name in names} for names in grid.groups], graph.sizes)
        _trace_apart(graph, grid)
    return grid


def check_sizes(sizes: Mapping[str, Any], together: Together) -> None:
    """What can be said of sizes before there is a graph: raises SizeError and InputError as `grid_of` does."""
    _groups(together, {name: _listed(name, given) for name, given in sizes.items()})


def _trace_apart(graph: Graph, grid: Grid) -> None:
    """Has the graph traced at those of the sizes that it does not speak for: other processes have no model."""
    if graph.apart:
        for start in range(0, grid.points, _AT_ONCE):
            for _ in parts(graph, grid.at(np.arange(start, min(start + _AT_ONCE, grid.points)))):
                pass


def _listed(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str) or getattr(given, "shape", None) == ():
        return tuple(check_dims({name: given}, (name,)).values())
    found = list(given)
    if not found:
        raise SizeError(f"size {name!r}: expected a positive integer or a list of them; got {given!r:.60}")
    return tuple(check_dims({name: value}, (name,))[name] for value in found)


def _members(together: Any) -> Iterable[Any]:
    if together is None or isinstance(together, Iterable):
        return together or ()
    return (together,)


def _groups(together: Together, lists: Mapping[str, Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    if isinstance(together, str) or not all(isinstance(one, str | tuple | list) for one in _members(together)):
        raise InputError(f"zip: expected names of sizes, such as ('batch', 'seq'); got {shown(together)}")
    given = list(_members(together))
    single = bool(given) and all(isinstance(name, str) for name in given)
    groups = [tuple(map(str, names)) for names in ([given] if single else given)]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in lists:
            raise InputError(
                f"zip: no size {name!r} is given; given are {', '.join(lists) or 'none'}{nearest(name, lists)}"
            )
        if names.count(name) > 1:
            raise InputError(f"zip: {name!r} is there more than once")
    for group in groups:
        if len(group) < 2:
            raise InputError(f"zip: expected two or more sizes that vary together; got {', '.join(group) or 'none'}")
        if len({len(lists[name]) for name in group}) > 1:
            counts = ", ".join(f"{name} {len(lists[name])}" for name in group)
            raise InputError(f"zip: sizes that vary together have as many values each; got {counts}")
    return tuple(groups)
