"""A graph as bytes and back, without its model: a table of plain nodes, never code.

Each node names what it is (a record of `_RECORDS`, a word of `_WORDS`, a tuple, a formula) and refers to nodes before
it, so that shared parts stay shared and nothing nests. What is read is checked node by node against the annotations of
the records: a damaged or hostile file is refused, with ValueError, and cannot do more than that.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooflinekit.files import refuse_constant
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.coverage import Assumption, Ground
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import Basis, DType, Family, Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import Condition, ForcedSize, is_formula, symbol

if TYPE_CHECKING:
    import sympy

_HEAD = b"rooflinekit graph 1\n"
_DIGEST = 32  # bytes
_MOST_BYTES = 1 << 28  # of the table, unpacked
_DIGITS = 60  # of an integer in a formula
_POWER = 64  # of an exponent in a formula
_BITS = 1 << 14  # of a number that a formula comes to
_NODES = 1 << 16  # of a formula, written out
_DEPTH = 100  # of a formula

_RECORDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Graph, PricedOp, Op, Cost, Gemm, TensorSpec, Condition, ForcedSize, Assumption)
}
_WORDS: dict[str, type[StrEnum]] = {kind.__name__: kind for kind in (DType, Role, Phase, Basis, Family, Ground)}
_FORMULAS = frozenset((
    "Add", "Mul", "Pow", "Mod", "floor", "ceiling", "Min", "Max", "Abs", "Piecewise", "ITE", "Eq", "Ne", "Lt", "Le",
    "Gt", "Ge", "And", "Or", "Not", "Tuple", "sqrt", "log", "Equality", "Unequality", "StrictLessThan", "LessThan",
    "StrictGreaterThan", "GreaterThan", "ExprCondPair",
))  # fmt: skip
_CONSTANTS = frozenset(("true", "false", "oo"))
_LEFT_OUT = {"fx", "origin", "traced"}  # of a Graph: what stands for the model behind it

_Scalar = (str, int, float, bool, type(None))


def packed(graph: Graph) -> bytes:
    """The graph as bytes. Raises ValueError for one that holds what is not plain, as a model's own objects."""
    writer = _Writer()
    root = writer.place(graph)
    table = json.dumps([writer.nodes, root], separators=(",", ":"), ensure_ascii=True).encode()
    body = zlib.compress(table, 1)
    return _HEAD + hashlib.sha256(body).digest() + body


def opened(data: bytes) -> Graph:
    """The graph that `packed` packed. Raises ValueError for anything else."""
    start = len(_HEAD) + _DIGEST
    body = data[start:]
    if not data.startswith(_HEAD) or hashlib.sha256(body).digest() != data[len(_HEAD) : start]:
        raise ValueError("not a packed graph, or a damaged one")
    try:
        unpacker = zlib.decompressobj()
        table = unpacker.decompress(body, _MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError("too large")
        nodes, root = json.loads(table, parse_constant=refuse_constant)
        found = _Reader().read(nodes, root)
    except (zlib.error, KeyError, IndexError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"not a packed graph: {type(error).__name__}") from error
    if not isinstance(found, Graph):
        raise ValueError("not a packed graph")
    return found


class _Writer:
    """Nodes in the order in which they refer to each other."""

    def __init__(self) -> None:
        self.nodes: list[list[Any]] = []
        self._by_id: dict[int, tuple[Any, list[int]]] = {}  # with the object, so that its id stays its own
        self._formulas: dict[sympy.Basic, list[int]] = {}

    def place(self, value: Any) -> Any:
        """A scalar as it is; of all else where its node is."""
        if isinstance(value, StrEnum):
            return self._added(["word", type(value).__name__, value.value], value)
        if type(value) in _Scalar:
            return value
        if is_formula(value):
            return self._formula(value)
        known = self._by_id.get(id(value))
        return known[1] if known is not None else self._added(self._node(value), value)

    def _added(self, node: list[Any], value: Any) -> list[int]:
        known = self._by_id.get(id(value))
        if known is None:
            self.nodes.append(node)
            known = self._by_id[id(value)] = value, [len(self.nodes) - 1]
        return known[1]

    def _node(self, value: Any) -> list[Any]:
        if type(value).__name__ in _RECORDS and isinstance(value, _RECORDS[type(value).__name__]):
            names = _stored(type(value).__name__)
            return ["record", type(value).__name__, *(self.place(getattr(value, name)) for name in names)]
        if isinstance(value, Release):
            return ["release", *value]
        if type(value) in (tuple, list):
            return [type(value).__name__, *map(self.place, value)]
        if isinstance(value, MappingProxyType | dict):
            return ["mapping", *(self.place(part) for item in value.items() for part in item)]
        raise ValueError(f"{type(value).__name__} cannot be packed")

    def _formula(self, value: sympy.Basic) -> list[int]:
        import sympy

        if value not in self._formulas:
            node: list[Any]
            if isinstance(value, sympy.Symbol):
                if value != symbol(value.name):
                    raise ValueError(f"{value!r} is no named size")
                node = ["size", value.name]
            elif isinstance(value, sympy.Rational) and not value.is_infinite:
                node = ["number", str(value.p), str(value.q)]
            elif isinstance(value, sympy.Float):
                node = ["float", float(value)]
            elif constant := next((name for name in _CONSTANTS if value is getattr(sympy, name)), ""):
                node = ["constant", constant]
            elif type(value).__name__ in _FORMULAS:
                node = ["formula", type(value).__name__, *map(self._formula, value.args)]
            else:
                raise ValueError(f"{type(value).__name__} cannot be packed")
            self.nodes.append(node)
            self._formulas[value] = [len(self.nodes) - 1]
        return self._formulas[value]


class _Reader:
    """Values of nodes, each checked."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._formulas: dict[int, tuple[int, int]] = {}  # of each place with a formula, its nodes written out and depth

    def read(self, nodes: list[list[Any]], root: Any) -> Any:
        """The value of the node at `root`."""
        for kind, *parts in nodes:
            self._values.append(self._made(kind, parts))
        return self._at(root)

    def _at(self, part: Any) -> Any:
        if not isinstance(part, list):
            return part
        (place,) = part
        if not 0 <= place < len(self._values):
            raise ValueError("a node refers to none before it")
        return self._values[place]

    def _made(self, kind: str, parts: list[Any]) -> Any:
        if kind == "record":
            return _record(parts[0], [self._at(part) for part in parts[1:]])
        if kind == "word":
            return _WORDS[parts[0]](parts[1])
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(map(self._at, parts))
        if kind == "mapping":
            values = list(map(self._at, parts))
            return MappingProxyType(dict(zip(values[::2], values[1::2], strict=True)))
        if kind == "release":
            return Release(*(_typed(part, int) for part in parts))
        return self._read_formula(kind, parts)

    def _read_formula(self, kind: str, parts: list[Any]) -> Any:
        import sympy

        if kind == "size":
            return symbol(_typed(parts[0], str))
        if kind == "number":
            p, q = (sympy.Integer(int(text)) for text in parts if len(_typed(text, str)) <= _DIGITS)
            return p / q
        if kind == "float":
            if not math.isfinite(_typed(parts[0], float)):
                raise ValueError("a number without end")
            return sympy.Float(parts[0])
        if kind == "constant":
            return getattr(sympy, _among(parts[0], _CONSTANTS))
        if kind != "formula":
            raise ValueError(f"no such node: {kind!r:.20}")
        args = [_typed(self._at(part), sympy.Basic) for part in parts[1:]]
        below = [self._formulas.get(place, (1, 1)) for (place,) in parts[1:]]
        nodes, depth = 1 + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)
        if nodes > _NODES or depth > _DEPTH:
            raise ValueError("a formula too large or too deep")
        self._formulas[len(self._values)] = nodes, depth
        if parts[0] == "Pow" and not (args[1].is_number and abs(args[1]) <= _POWER):
            raise ValueError("a power without bound")
        name = _among(parts[0], _FORMULAS)
        found = getattr(sympy.functions.elementary.piecewise if name == "ExprCondPair" else sympy, name)(*args)
        if isinstance(found, sympy.Rational) and max(int(found.p).bit_length(), int(found.q).bit_length()) > _BITS:
            raise ValueError("a number too large")
        return found


class _OfSympy(type):
    """Stands for a class of sympy's in annotations, so that a graph without formulas does without sympy."""

    def __instancecheck__(cls, value: Any) -> bool:
        return is_formula(value) and isinstance(value, getattr(sys.modules["sympy"], cls.__name__))


_Basic, _Expr = (_OfSympy(name, (), {}) for name in ("Basic", "Expr"))


@functools.cache
def _stored(kind: str) -> tuple[str, ...]:
    """The names of a record's fields that are in the file."""
    return tuple(f.name for f in fields(_RECORDS[kind]) if f.init and not (kind == "Graph" and f.name in _LEFT_OUT))


def _record(kind: str, values: list[Any]) -> Any:
    given = dict(zip(_stored(kind), values, strict=True))
    for name, holds in _checks(kind).items():
        if not holds(given[name]):
            raise ValueError(f"{kind}.{name} is no such thing: {given[name]!r:.40}")
    return _RECORDS[kind](**given)


@functools.cache
def _checks(kind: str) -> dict[str, Callable[[Any], bool]]:
    """For each field of a record whether a value is what its annotation says."""
    formulas = types.SimpleNamespace(Expr=_Expr, Basic=_Basic)
    names = {"Size": int | _Expr, "Numbers": tuple, "Origin": object, "sympy": formulas}
    hints = typing.get_type_hints(_RECORDS[kind], localns=names)
    return {name: _check_of(hints[name]) for name in _stored(kind)}


def _check_of(hint: Any) -> Callable[[Any], bool]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (typing.Union, types.UnionType):
        checks = [_check_of(arg) for arg in args]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        item = _check_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is not None and issubclass(origin, Mapping):
        key, item = map(_check_of, args)
        return lambda value: isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
    if hint is int:
        return lambda value: type(value) is int
    return lambda value: isinstance(value, hint)


def _among(name: Any, known: frozenset[str]) -> str:
    if name not in known:
        raise ValueError(f"no such name in formulas: {name!r:.20}")
    return str(name)


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}; got {value!r:.40}")
    return value
