"""A workload: the operators that one step asks a device to run, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sympy

from rooflinekit.errors import SizeError
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Basis, Op, PricedOp, nothing
from rooflinekit.ir.sizes import Size, check_dims, evaluator, product, symbol, total
from rooflinekit.ir.tensor import Role, TensorSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something the model's own code compared while it was traced: the trace holds where `holds` does."""

    holds: sympy.Basic  # a relation between named sizes
    where: str  # "model.py:12"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSize:
    """A named size that the model's code forces to a constant, so that the trace holds for this value alone."""

    name: str
    value: int
    where: str  # "model.py:12"

    def __str__(self) -> str:
        return f"size {self.name!r} is forced to {self.value} by {self.where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the counts of a graph rest on."""

    ops: Mapping[Basis, int]  # how many ops by basis
    default_kinds: Mapping[str, int]  # kinds without a rule, and how many ops of each
    flop_share: float  # share of FLOP that comes from exact rules, at the smallest sizes where symbolic
    bytes_share: float  # likewise of bytes

    def __str__(self) -> str:
        ruled = self.ops.get(Basis.RULE, 0)
        free = self.ops.get(Basis.FREE, 0)
        guessed = self.ops.get(Basis.DEFAULT, 0)
        text = (
            f"{ruled} ops by exact rules, {free} free, {guessed} by default "
            f"({self.flop_share:.2%} of FLOP and {self.bytes_share:.2%} of bytes are exact)"
        )
        if self.default_kinds:
            kinds = ", ".join(f"{kind} ×{count}" for kind, count in self.default_kinds.items())
            text += f"; by default: {kinds}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Graph:
    """The priced operators of one step, with sizes that may be symbolic.

    Counts (`flop`, `bytes` …) are sympy expressions in the named sizes, or integers of sympy where no size is open.
    See `rooflinekit.ir.cost` for what is counted.
    """

    name: str
    mode: str  # "inference" or "training"
    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]  # parameters and buffers, each once
    outputs: tuple[TensorSpec, ...]
    gradients: tuple[TensorSpec, ...] = ()  # of the parameters, once backward is over
    priced: tuple[PricedOp, ...]  # in the order of execution
    dims: tuple[str, ...] = ()  # names of the sizes still open
    sizes: Mapping[str, int] = field(default_factory=nothing)  # sizes already given
    conditions: tuple[Condition, ...] = ()
    forced: tuple[ForcedSize, ...] = ()
    tf32: bool | None = None  # whether fp32 products may run as tf32; None for PyTorch's defaults
    fx: Any = None  # torch.fx.Graph

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operators, in the order of execution."""
        return tuple(priced.op for priced in self.priced)

    def _sum(self, part: Callable[[Cost], Size]) -> sympy.Expr:
        # Equal blocks share their Cost objects: add each once, times how often it stands.
        counted = Counter(id(cost) for priced in self.priced for cost in priced.costs)
        costs = {id(cost): cost for priced in self.priced for cost in priced.costs}
        terms = [product((count, part(costs[key]))) for key, count in counted.items()]
        return sympy.expand(sympy.sympify(total(terms)))

    @property
    def matrix_flop(self) -> sympy.Expr:
        """FLOP of matrix products: 2 a multiply-add."""
        return self._sum(lambda cost: cost.matrix_flop)

    @property
    def dense_matrix_flop(self) -> sympy.Expr:
        """FLOP of matrix products by kernels that do masked work all the same (causal attention without skipping)."""
        return self._sum(lambda cost: cost.dense_matrix_flop)

    @property
    def vector_flop(self) -> sympy.Expr:
        """FLOP of element-wise work, reductions and normalization."""
        return self._sum(lambda cost: cost.vector_flop)

    @property
    def special_flop(self) -> sympy.Expr:
        """Evaluations of special functions (exp, tanh, rsqrt …), each counted as 1."""
        return self._sum(lambda cost: cost.special_flop)

    @property
    def flop(self) -> sympy.Expr:
        """Matrix, vector and special FLOP together."""
        return sympy.expand(self.matrix_flop + self.vector_flop + self.special_flop)

    @property
    def read_bytes(self) -> sympy.Expr:
        """Compulsory bytes read, summed over kernels."""
        return self._sum(lambda cost: cost.read_bytes)

    @property
    def write_bytes(self) -> sympy.Expr:
        """Compulsory bytes written, summed over kernels."""
        return self._sum(lambda cost: cost.write_bytes)

    @property
    def bytes(self) -> sympy.Expr:
        """Compulsory bytes read and written, summed over kernels."""
        return sympy.expand(self.read_bytes + self.write_bytes)

    @property
    def parameters(self) -> Size:
        """Number of trainable and frozen parameters, tied ones once."""
        return sum(int(w.numel) for w in self.weights if w.role is Role.WEIGHT)

    @property
    def coverage(self) -> Coverage:
        """How much of the counts comes from exact rules."""
        return _coverage(self)

    def at(self, **dims: int) -> Graph:
        """The same graph with numbers for some or all of its named sizes.

        Raises SizeError for an unknown name, a value below 1, or sizes for which the model would have taken another
        path than the one that was traced.
        """
        given = check_dims(dims, (*self.dims, *(forced.name for forced in self.forced)))
        for forced in self.forced:
            if given.pop(forced.name, forced.value) != forced.value:
                raise SizeError(f"{forced}; trace again with {forced.name}={dims[forced.name]}")
        _check_conditions(self.conditions, {**self.sizes, **given})
        return _map_graph(self, evaluator(given), given)

    def with_forced(self, forced: tuple[ForcedSize, ...]) -> Graph:
        """The same graph with the sizes that the model forces to constants put in and noted."""
        if not forced:
            return self
        given = {size.name: size.value for size in forced}
        return replace(_map_graph(self, evaluator(given), given), forced=(*self.forced, *forced))

    def __repr__(self) -> str:
        sizes = [*(f"{name}={value}" for name, value in self.sizes.items()), *(f"{name} open" for name in self.dims)]
        described = f" ({', '.join(sizes)})" if sizes else ""
        return f"<Graph {self.name} {self.mode}{described}: {len(self.priced)} ops, {self.matrix_flop} matrix FLOP>"

    def to_dataframe(self) -> pd.DataFrame:
        """One row an op: module, phase, kind, shapes, FLOP, bytes and arithmetic intensity (FLOP/byte)."""
        import pandas as pd

        return pd.DataFrame([_row(priced) for priced in self.priced])


def _row(priced: PricedOp) -> dict[str, object]:
    cost = sum(priced.costs, Cost())
    # An op that moves nothing has no intensity; the quotient of symbols stays a formula.
    intensity = None if cost.bytes == 0 else cost.flop / cost.bytes
    return {
        "module": priced.op.module,
        "phase": str(priced.op.phase),
        "kind": priced.op.kind,
        "inputs": [list(t.shape) for t in priced.op.inputs],
        "outputs": [list(t.shape) for t in priced.op.outputs],
        "matrix_flop": cost.matrix_flop,
        "vector_flop": cost.vector_flop,
        "special_flop": cost.special_flop,
        "read_bytes": cost.read_bytes,
        "write_bytes": cost.write_bytes,
        "intensity": intensity,
        "basis": str(priced.basis),
    }


def _check_conditions(conditions: tuple[Condition, ...], given: Mapping[str, int]) -> None:
    values = {symbol(name): sympy.Integer(value) for name, value in given.items()}
    for condition in conditions:
        if condition.holds.xreplace(values) == sympy.false:
            sizes = ", ".join(f"{name}={value}" for name, value in given.items())
            raise SizeError(
                f"the trace holds for {condition.holds} ({condition.where}), which is not so at {sizes}; "
                "trace again at these sizes"
            )


def _coverage(graph: Graph) -> Coverage:
    at = _smallest_sizes(graph)  # shares need numbers
    flop = {True: 0.0, False: 0.0}
    moved = {True: 0.0, False: 0.0}
    for priced in graph.priced:
        for cost in priced.costs:
            exact = priced.basis is not Basis.DEFAULT
            flop[exact] += float(at(cost.flop))
            moved[exact] += float(at(cost.bytes))
    kinds = Counter(p.op.kind for p in graph.priced if p.basis is Basis.DEFAULT)
    return Coverage(
        ops=MappingProxyType(dict(Counter(p.basis for p in graph.priced))),
        default_kinds=MappingProxyType(dict(kinds.most_common())),
        flop_share=flop[True] / (flop[True] + flop[False]) if any(flop.values()) else 1.0,
        bytes_share=moved[True] / (moved[True] + moved[False]) if any(moved.values()) else 1.0,
    )


def _smallest_sizes(graph: Graph) -> Callable[[Size], Size]:
    """An evaluator that puts one number for all open sizes: the smallest power of 2 at which no tensor vanishes.

    Not 1, which broadcasts. A convolution without padding, for one, needs its kernel's size.
    """
    sizes = {size for p in graph.priced for t in p.op.outputs for size in t.shape if not isinstance(size, int)}
    for power in range(1, 13):
        at = evaluator(dict.fromkeys(graph.dims, 2**power))
        if all(at(size) >= 1 for size in sizes):
            break
    return at


def _map_graph(graph: Graph, at: Callable[[Size], Size], given: Mapping[str, int]) -> Graph:
    tensors: dict[TensorSpec, TensorSpec] = {}
    costs: dict[int, Cost] = {}  # by identity: equal blocks share their costs, before and after

    def tensor(spec: TensorSpec) -> TensorSpec:
        if spec not in tensors:
            stride = None if spec.stride is None else tuple(map(at, spec.stride))
            tensors[spec] = replace(spec, shape=tuple(map(at, spec.shape)), stride=stride)
        return tensors[spec]

    def value(attr: Any) -> Any:
        if isinstance(attr, TensorSpec):
            return tensor(attr)
        if isinstance(attr, sympy.Expr):
            return at(attr)
        if isinstance(attr, list | tuple):
            return type(attr)(map(value, attr))
        return attr

    def cost(old: Cost) -> Cost:
        if id(old) not in costs:
            costs[id(old)] = old.map(at)
        return costs[id(old)]

    def op(old: Op) -> Op:
        return replace(
            old,
            inputs=tuple(map(tensor, old.inputs)),
            outputs=tuple(map(tensor, old.outputs)),
            attrs=MappingProxyType({name: value(attr) for name, attr in old.attrs.items()}),
        )

    return replace(
        graph,
        inputs=tuple(map(tensor, graph.inputs)),
        outputs=tuple(map(tensor, graph.outputs)),
        gradients=tuple(map(tensor, graph.gradients)),
        priced=tuple(PricedOp(op=op(p.op), costs=tuple(map(cost, p.costs)), basis=p.basis) for p in graph.priced),
        dims=tuple(name for name in graph.dims if name not in given),
        sizes=MappingProxyType({**graph.sizes, **given}),
    )
