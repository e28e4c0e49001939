"""Arithmetic intensity as a formula of the named sizes, for a workload or a part of it."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from rooflinekit.errors import InputError, SizeError, nearest
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph, whole_of
from rooflinekit.ir.op import PricedOp
from rooflinekit.ir.sizes import evaluator, symbol


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """FLOP by compulsory bytes of a workload, or of the part of it that `name` says, in the sizes still open."""

    name: str
    flop: sympy.Expr
    bytes: sympy.Expr

    @property
    def formula(self) -> sympy.Expr:
        """FLOP/byte, with common factors cancelled where both are polynomials."""
        if not self._rational:
            return self.flop / self.bytes
        return sympy.factor(sympy.cancel(self.flop / self.bytes))

    @property
    def _rational(self) -> bool:
        # Rounded sizes stand inside floor, ceiling or Min, which are no polynomials.
        symbols = sorted(self.flop.free_symbols | self.bytes.free_symbols, key=str)
        return all(part.is_polynomial(*symbols) for part in (self.flop, self.bytes))

    @property
    def latex(self) -> str:
        """The formula as LaTeX, the sizes' names upright."""
        names = {free: rf"\mathrm{{{str(free).replace('_', chr(92) + '_')}}}" for free in self.formula.free_symbols}
        return str(sympy.latex(self.formula, symbol_names=names))

    def at(self, **sizes: int) -> float:
        """FLOP/byte at these sizes. Raises SizeError while one is open."""
        at = evaluator(sizes)
        flop, moved = (sympy.sympify(at(part)) for part in (self.flop, self.bytes))
        missing = sorted(str(free) for free in flop.free_symbols | moved.free_symbols)
        if missing:
            raise SizeError(f"no number is given for size {missing[0]!r}: add {missing[0]}=…")
        return float(flop / moved)

    def limit(self, size: str) -> sympy.Expr:
        """What it tends to as this size grows without end, in the others. Raises InputError for what has no limit."""
        free = self._free(size)
        real = sympy.Dummy(size, positive=True)
        return sympy.factor(sympy.limit(self.formula.subs(free, real), real, sympy.oo))

    def reaching(self, value: float | sympy.Expr, size: str) -> tuple[sympy.Expr, ...]:
        """The values of a size at which it is `value`, such as a ridge point, in the other sizes; none for never.

        Values are real, not rounded to whole sizes. Raises InputError where the formula is not polynomial.
        """
        free = self._free(size)
        real = sympy.Dummy(size, positive=True)
        # A float would turn exact roots into long decimals.
        wanted = sympy.nsimplify(value, rational=True)
        equation = sympy.numer(sympy.together(self.formula.subs(free, real) - wanted))
        return tuple(sympy.solve(equation, real))

    def _free(self, size: str) -> sympy.Symbol:
        if symbol(size) not in self.formula.free_symbols:
            has = ", ".join(sorted(map(str, self.formula.free_symbols))) or "no size"
            raise InputError(f"the intensity of {self.name} does not depend on {size!r}: it depends on {has}")
        if not self._rational:
            raise InputError(f"the intensity of {self.name} is no quotient of polynomials: {self.formula}")
        return symbol(size)

    def __str__(self) -> str:
        return f"{self.name}: {self.formula} FLOP/byte"


@checked
def intensity(graph: Graph, *, module: str | None = None, op: str | None = None) -> Intensity:
    """FLOP by bytes of the whole workload, of a module with all below it, or of one op by its name.

    The formula holds the sizes as they were traced: open, also where the graph is at numbers. Counts are those of
    `Graph.flop` and `Graph.bytes`. Raises InputError for a name that is not there, and for what moves nothing.

    >>> intensity(graph, module="blocks.0").latex  # doctest: +SKIP
    """
    whole = whole_of(graph)
    name, chosen = part_of(whole, module=module, op=op)
    cost = sum((cost for priced in chosen for cost in priced.costs), Cost())
    if cost.bytes == 0:
        raise InputError(f"{name} moves no bytes, so that it has no intensity")
    return Intensity(name=name, flop=sympy.expand(cost.flop), bytes=sympy.expand(cost.bytes))


def part_of(graph: Graph, *, module: str | None = None, op: str | None = None) -> tuple[str, tuple[PricedOp, ...]]:
    """What a part of a graph is called, and its ops. Raises InputError for a name that is not there, and for both."""
    if module is not None and op is not None:
        raise InputError("name a module or an op, not both")
    if module is not None:
        found = tuple(priced for priced in graph.priced if is_within(priced.op.module, module))
        known = {priced.op.module for priced in graph.priced}
        what, name = "module", module or graph.name
    elif op is not None:
        found = tuple(priced for priced in graph.priced if priced.op.name == op)
        known = {priced.op.name for priced in graph.priced}
        what, name = "op", op
    else:
        return graph.name, graph.priced
    if not found:
        raise InputError(f"{graph.name} has no {what} {name!r}{nearest(name, sorted(known))}")
    return name, found


def is_within(path: str, module: str) -> bool:
    """Whether a module path is this module or below it; "" is the root.

    >>> is_within("layer1.0.conv1", "layer1"), is_within("layer10", "layer1")
    (True, False)
    """
    return not module or path == module or path.startswith(f"{module}.")
