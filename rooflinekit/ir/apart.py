"""Sizes that an open trace does not speak for.

Operators treat a size of 1 apart: it broadcasts, and lies contiguous in every layout, so that copies are made or not.
An open size stands for 2 and more. At such sizes the model is traced again, with them as numbers, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import SizeError, TraceError
from rooflinekit.ir.sizes import numbers_of, symbol

if TYPE_CHECKING:
    import sympy

    from rooflinekit.ir.graph import Graph

_COPY = "aten.clone"  # what makes the difference wherever one was found
#: Named sizes with their numbers, in order.
Numbers = tuple[tuple[str, int], ...]


def numbers_apart(graph: Graph, given: Mapping[str, int]) -> Numbers:
    """Which of the given sizes the trace does not speak for, with their numbers; none where it does."""
    known = {**graph.sizes, **given}
    found: set[str] = set()
    for relation in graph.apart:
        names = {free.name for free in relation.free_symbols}
        if names <= known.keys() and not names.isdisjoint(given) and not _holds(relation, known):
            found |= names
    return tuple((name, known[name]) for name in sorted(found))


def _holds(relation: sympy.Basic, known: Mapping[str, int]) -> bool:
    import sympy

    values = numbers_of({free.name: known[free.name] for free in relation.free_symbols})
    return bool(relation.xreplace(values) != sympy.false)


def unspoken_note(graph: Graph) -> str:
    """That a graph may hold copies too many, where its trace does not speak for its sizes; else ""."""
    copies = sum(priced.op.kind == _COPY for priced in graph.priced)
    found = ", ".join(f"{name}={value}" for name, value in numbers_apart(graph, graph.sizes)) if copies else ""
    if not found:
        return ""
    return (
        f"{graph.name}: not traced at {found}, where some of its copies ({_COPY}, {copies}) may fall away, and the "
        "graph does not know its model any more: the time may be too long; trace the model at these sizes, fixed=True"
    )


def traced_at(graph: Graph, numbers: Numbers) -> Graph:
    """The whole graph with these sizes traced as numbers; remembered. Itself where no model is known.

    Raises SizeError where the model cannot be run at these sizes.
    """
    found = graph.traced.get(numbers)
    if found is None:
        trace = graph.origin.trace if graph.origin is not None else None
        if trace is None:
            return graph
        try:
            fixed = {**graph.sizes, **dict(numbers)}
            found = trace(sizes={**graph.examples, **fixed}, fixed=tuple(fixed))
        except TraceError as error:
            at = ", ".join(f"{name}={value}" for name, value in numbers)
            raise SizeError(f"{graph.name} cannot be run at {at}: {error}") from error
        graph.traced[numbers] = found
    return found


def parts(graph: Graph, sizes: Mapping[str, NDArray[np.int64]]) -> Iterator[tuple[Graph, NDArray[np.int64]]]:
    """The rows of columns of sizes, by the graph that speaks for them; raises what `traced_at` raises."""
    count = len(next(iter(sizes.values()))) if sizes else 1
    known = {name: np.full(count, value) for name, value in graph.sizes.items()} | dict(sizes)
    relations = [r for r in graph.apart if {free.name for free in r.free_symbols} <= known.keys()]
    broken = np.stack([_broken(r, known) for r in relations], axis=1) if relations else np.zeros((count, 0), dtype=bool)
    plain = np.flatnonzero(~broken.any(axis=1))
    if plain.size:
        yield graph, plain
    for pattern in np.unique(broken[broken.any(axis=1)], axis=0):
        names = sorted({free.name for r, no in zip(relations, pattern, strict=True) if no for free in r.free_symbols})
        rows = np.flatnonzero((broken == pattern).all(axis=1))
        values, which = np.unique(np.stack([known[name][rows] for name in names], axis=1), axis=0, return_inverse=True)
        for i, numbers in enumerate(values.tolist()):
            among = rows[which.reshape(-1) == i]
            own = traced_at(graph, tuple(zip(names, numbers, strict=True)))
            if own is graph or not own.dims:
                yield own, among
                continue
            for part, places in parts(own, {name: column[among] for name, column in known.items() if name in own.dims}):
                yield part, among[places]


def _broken(relation: sympy.Basic, known: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Rows at which it does not hold."""
    names = sorted(free.name for free in relation.free_symbols)
    columns = [known[name] for name in names]
    import sympy

    if relation == sympy.Ne(symbol(names[0]), 1):
        return np.asarray(columns[0] == 1)
    values, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    answers = [not _holds(relation, dict(zip(names, row, strict=True))) for row in values.tolist()]
    return np.array(answers, dtype=bool)[which.reshape(-1)]
