"""A workload: the operators that one step asks a device to run, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError, SizeError, TraceError
from rooflinekit.ir import notebook
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.coverage import Assumption, Coverage, coverage_of
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Op, PricedOp, Role, TensorSpec, nothing
from rooflinekit.ir.sizes import (
    Condition,
    ForcedSize,
    Size,
    check_at_all,
    check_conditions,
    check_dims,
    check_names,
    evaluator,
    formula,
    is_formula,
    may_hold,
    numbers_of,
    product,
    symbol,
    total,
)
from rooflinekit.ir.tables import COUNTS, op_row, plain, shown, tree

if TYPE_CHECKING:
    import pandas as pd
    import sympy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """How a graph came about.

    `trace` takes options of `rooflinekit.trace` and traces the model again with all others as they were; None for a
    graph that no model is known of. `whole` is the graph before its sizes became numbers. `optimizer` builds the
    optimizer of a training step.
    """

    trace: Callable[..., Graph] | None = None
    whole: Graph | None = None
    optimizer: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        # In a file or another process a graph stands for itself: the model behind it may hold anything.
        return Origin, ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Graph:
    """The priced operators of one step, with sizes that may be symbolic.

    Counts (`flop`, `bytes` …) are sympy expressions in the named sizes, or integers of sympy where no size is open.
    See `rooflinekit.ir.cost` for what is counted.
    """

    name: str
    mode: str  # "inference", "training", or "forward": without gradients, but with modules in training mode
    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]  # parameters and buffers, each once; and what else stands, such as DDP's buckets
    outputs: tuple[TensorSpec, ...]
    gradients: tuple[TensorSpec, ...] = ()  # of the parameters, once backward is over
    priced: tuple[PricedOp, ...]  # in the order of execution
    held: Mapping[str, str] = field(default_factory=nothing)  # memory → the last op during which Python keeps it
    saved: Mapping[str, str] = field(default_factory=nothing)  # memory → the last op during which autograd keeps it
    dims: tuple[str, ...] = ()  # names of the sizes still open
    sizes: Mapping[str, int] = field(default_factory=nothing)  # sizes already given
    conditions: tuple[Condition, ...] = ()
    apart: tuple[sympy.Basic, ...] = ()  # relations; where one does not hold, the model is traced by itself
    examples: Mapping[str, int] = field(default_factory=nothing)  # numbers that were asked for to trace at
    traced: dict[Numbers, Graph] = field(default_factory=dict, compare=False)  # the graphs at sizes apart
    forced: tuple[ForcedSize, ...] = ()
    assumptions: tuple[Assumption, ...] = ()  # what data decide
    tf32: bool | None = None  # whether fp32 products may run as tf32; None for PyTorch's defaults
    autocast: DType | None = None  # lower precision of an autocast region around forward and loss
    channels_last: bool = False  # whether model and inputs were put into that layout
    like: Release | None = None  # the release of PyTorch that it was traced as; None for the present one
    inference_mode: bool = False  # within torch.inference_mode, instead of torch.no_grad
    trains_with: str = ""  # the loss and the optimizer of a training step, in words
    fx: Any = field(default=None, compare=False)  # torch.fx.Graph
    origin: Origin = field(default=Origin(), compare=False)
    #: What was worked out of this very graph and holds on many devices; a changed copy begins anew.
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operators, in the order of execution."""
        return tuple(priced.op for priced in self.priced)

    def summed(self, part: Callable[[Cost], Size]) -> Size:
        """The sum of a part of all costs; an integer where no size is open."""
        # Equal blocks share their Cost objects: add each once, times how often it stands.
        counted = Counter(id(cost) for priced in self.priced for cost in priced.costs)
        costs = {id(cost): cost for priced in self.priced for cost in priced.costs}
        terms = [product((count, part(costs[key]))) for key, count in counted.items()]
        return total(terms)

    @property
    def matrix_flop(self) -> sympy.Expr:
        """FLOP of matrix products: 2 a multiply-add."""
        return formula(self.summed(lambda cost: cost.matrix_flop))

    @property
    def dense_matrix_flop(self) -> sympy.Expr:
        """FLOP of matrix products by kernels that do masked work all the same (causal attention without skipping)."""
        return formula(self.summed(lambda cost: cost.dense_matrix_flop))

    @property
    def vector_flop(self) -> sympy.Expr:
        """FLOP of element-wise work, reductions and normalization."""
        return formula(self.summed(lambda cost: cost.vector_flop))

    @property
    def special_flop(self) -> sympy.Expr:
        """Evaluations of special functions (exp, tanh, rsqrt …), each counted as 1."""
        return formula(self.summed(lambda cost: cost.special_flop))

    @property
    def flop(self) -> sympy.Expr:
        """Matrix, vector and special FLOP together."""
        return formula(self.summed(lambda cost: cost.flop))

    @property
    def read_bytes(self) -> sympy.Expr:
        """Compulsory bytes read, summed over kernels."""
        return formula(self.summed(lambda cost: cost.read_bytes))

    @property
    def write_bytes(self) -> sympy.Expr:
        """Compulsory bytes written, summed over kernels."""
        return formula(self.summed(lambda cost: cost.write_bytes))

    @property
    def bytes(self) -> sympy.Expr:
        """Compulsory bytes read and written, summed over kernels."""
        return formula(self.summed(lambda cost: cost.bytes))

    @property
    def parameters(self) -> Size:
        """Number of trainable and frozen parameters, tied ones once."""
        return sum(int(weight.numel) for weight in self.learned)

    @property
    def learned(self) -> tuple[TensorSpec, ...]:
        """The parameters among its weights, without buffers."""
        return tuple(weight for weight in self.weights if weight.role is Role.WEIGHT)

    @property
    def coverage(self) -> Coverage:
        """How much of the counts comes from exact rules."""
        return coverage_of(self.priced, self.dims, self.assumptions)

    def at(self, **dims: int) -> Graph:
        """The same graph with numbers for some or all of its named sizes.

        At sizes that the trace does not speak for, such as 1, the model is traced again. Raises SizeError for an
        unknown name, a value below 1, or sizes for which the model would have taken another path than the one that was
        traced.
        """
        if not dims and not self.dims:
            return self
        given = check_dims(dims, (*self.dims, *(forced.name for forced in self.forced)))
        last: tuple[Mapping[str, int], Graph] | None = self.memo.get("at")
        if last is None or last[0] != given:  # the last one is kept: a step is predicted on one GPU after another
            last = self.memo["at"] = given, self._at(dict(given))
        return last[1]

    def _at(self, given: dict[str, int]) -> Graph:
        for forced in self.forced:
            if (value := given.pop(forced.name, forced.value)) != forced.value:
                raise SizeError(f"{forced}; trace again with {forced.name}={value}")
        numbers = numbers_apart(self, given)
        if numbers:
            whole = whole_of(self)
            own = traced_at(whole, numbers)
            if own is not whole:
                rest = {name: value for name, value in {**self.sizes, **given}.items() if name in own.dims}
                return replace(own.at(**rest), origin=at_numbers(self))
        check_conditions(self.conditions, {**self.sizes, **given})
        return replace(map_graph(self, evaluator(given), given), origin=at_numbers(self))

    def counts(self, **dims: Any) -> pd.DataFrame:
        """FLOP and bytes at many sizes at once: one row each, exact integers.

        dims: for every open size a positive integer or a sequence of them, sequences of equal length. Raises SizeError
        as `at` does; conditions of the trace are checked at every row.

        A thousand batches take a millisecond, where `at` would take one each.
        """
        import pandas as pd

        from rooflinekit.ir.points import evaluated

        check_names(dims, self.dims)
        columns = evaluated({}, dims)
        tables = []
        for graph, rows in parts(self, columns):
            given = {name: columns[name][rows] for name in graph.dims}
            for condition in graph.conditions:
                check_at_all(condition, [given], {})
            found = evaluated({part: getattr(graph, part) for part in COUNTS}, given)
            sizes = {name: columns[name][rows] for name in dims}
            tables.append(pd.DataFrame({**sizes, **{part: found[part] for part in COUNTS}}, index=rows))
        table = tables[0] if len(tables) == 1 else pd.concat(tables).sort_index()
        table["flop"] = table["matrix_flop"] + table["vector_flop"] + table["special_flop"]
        table["bytes"] = table["read_bytes"] + table["write_bytes"]
        return table

    def with_forced(self, forced: tuple[ForcedSize, ...]) -> Graph:
        """The same graph with the sizes that the model forces to constants put in and noted."""
        if not forced:
            return self
        given = {size.name: size.value for size in forced}
        return replace(map_graph(self, evaluator(given), given), forced=(*self.forced, *forced))

    def __reduce__(self) -> tuple[Any, ...]:
        # In a file or another process a graph stands for itself: the model behind it may hold anything.
        # What it keeps for itself (`memo`) is made again.
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name not in ("fx", "origin")}
        return partial(Graph, **kept), ()

    def __copy__(self) -> Graph:
        return self  # nothing of it can change

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self

    def __repr__(self) -> str:
        sizes = [*(f"{name}={value}" for name, value in self.sizes.items()), *(f"{name} open" for name in self.dims)]
        described = f" ({', '.join(sizes)})" if sizes else ""
        return f"<Graph {self.name} {self.mode}{described}: {len(self.priced)} ops, {self.matrix_flop} matrix FLOP>"

    def _repr_html_(self) -> str:
        facts = [(name, shown(value)) for name, value in self.to_dict().items() if name in _SHOWN]
        modules = [
            (str(name) or "(root)", *(shown(plain(row[column])) for column in _COLUMNS))
            for name, row in self.tree(1).head(_MODULES).iterrows()
        ]
        return notebook.block(
            f"{self.name} {self.mode}, {len(self.priced)} ops",
            notebook.table(["", "count"], facts),
            notebook.table(["module", *_COLUMNS], modules),
            notebook.paragraphs([f"counts: {self.coverage}"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Totals, coverage and one record an op, ready for JSON; numbers where known, formulas as text."""
        return {
            "name": self.name,
            "mode": self.mode,
            "dims": list(self.dims),
            "sizes": dict(self.sizes),
            "forced": [str(size) for size in self.forced],
            "assumptions": list(map(str, self.assumptions)),
            "conditions": [f"{condition.holds} ({condition.where})" for condition in self.conditions],
            "parameters": self.parameters,
            **{name: plain(getattr(self, name)) for name in ("flop", "bytes", *COUNTS)},
            "coverage": self.coverage.to_dict(),
            "ops": [{name: plain(value) for name, value in op_row(priced).items()} for priced in self.priced],
        }

    def tree(self, depth: int | None = None) -> pd.DataFrame:
        """A row a module, down to `depth` parts, children included: parameters, output, activations, FLOP, bytes."""
        return tree(self.priced, self.weights, depth)

    def to_dataframe(self) -> pd.DataFrame:
        """One row an op: module, phase, kind, shapes, FLOP, bytes and arithmetic intensity (FLOP/byte)."""
        import pandas as pd

        return pd.DataFrame([op_row(priced) for priced in self.priced])


_SHOWN = ("dims", "sizes", "forced", "parameters", "flop", "matrix_flop", "bytes")
_COLUMNS = ("parameters", "matrix_flop", "read_bytes", "write_bytes")
_MODULES = 10  # in a notebook


def map_graph(graph: Graph, at: Callable[[Size], Size], given: Mapping[str, int]) -> Graph:
    """The graph with `at` applied to each of its sizes, those of `given` being no longer open."""
    tensors: dict[TensorSpec, TensorSpec] = {}
    costs: dict[int, Cost] = {}  # by identity: equal blocks share their costs, before and after

    def tensor(spec: TensorSpec) -> TensorSpec:
        if spec not in tensors:
            shape = tuple(map(at, spec.shape))
            stride = None if spec.stride is None else tuple(map(at, spec.stride))
            tensors[spec] = replace(spec, shape=shape, stride=None if _row_by_row(shape, stride) else stride)
        return tensors[spec]

    def value(attr: Any) -> Any:
        if isinstance(attr, TensorSpec):
            return tensor(attr)
        if is_formula(attr):
            return at(attr)
        if isinstance(attr, list | tuple):
            return type(attr)(map(value, attr))
        return attr

    def assumption(old: Assumption) -> Assumption:
        return old if old.most is None else replace(old, value=at(old.value), most=at(old.most))

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
        priced=tuple(replace(p, op=op(p.op), costs=tuple(map(cost, p.costs))) for p in graph.priced),
        assumptions=tuple(map(assumption, graph.assumptions)),
        dims=tuple(name for name in graph.dims if name not in given),
        sizes=MappingProxyType({**graph.sizes, **given}),
    )


def _row_by_row(shape: Sequence[Size], stride: Sequence[Size] | None) -> bool:
    """Whether these numbers are those of a contiguous tensor, which formulas may not show."""
    step = 1
    for size, apart in zip(reversed(shape), reversed(stride or ()), strict=False):
        if not (isinstance(size, int) and isinstance(apart, int)) or (size != 1 and apart != step):
            return False
        step *= size
    return True


# Sizes that an open trace does not speak for.
#
# Operators treat a size of 1 apart: it broadcasts, and lies contiguous in every layout, so that copies are made or not.
# An open size stands for 2 and more. At such sizes the model is traced again, with them as numbers, once.


_COPY = "aten.clone"  # what makes the difference wherever one was found
#: Named sizes with their numbers, in order.
Numbers = tuple[tuple[str, int], ...]


def numbers_apart(graph: Graph, given: Mapping[str, int]) -> Numbers:
    """Which of the given sizes the trace does not speak for, with their numbers; none where it does."""
    known = {**graph.sizes, **given}
    numbers = numbers_of(known) if graph.apart else {}
    found: set[str] = set()
    for relation in graph.apart:
        names = {free.name for free in relation.free_symbols}
        if names <= known.keys() and not names.isdisjoint(given) and not may_hold(relation, numbers):
            found |= names
    return tuple((name, known[name]) for name in sorted(found))


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
    """The graph traced with these numbers, remembered; itself if no model is known. Raises SizeError if that fails."""
    found = graph.traced.get(numbers)
    if found is None:
        trace = graph.origin.trace
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
    answers = [not may_hold(relation, numbers_of(dict(zip(names, row, strict=True)))) for row in values.tolist()]
    return np.array(answers, dtype=bool)[which.reshape(-1)]


# Where a graph comes from, so that it can be had at other sizes, or traced again with other options.


def autocast_format(given: object) -> DType | None:
    """The lower precision of an autocast region, by any name of it; raises InputError for one that CUDA has not."""
    try:
        found = None if given is None else DType(str(given))
    except ValueError:
        found = DType.BOOL
    if found in (None, DType.FLOAT16, DType.BFLOAT16):
        return found
    raise InputError(f"autocast: expected 'float16' ('fp16'), 'bfloat16' ('bf16') or None; got {str(given)!r}")


def whole_of(graph: Graph) -> Graph:
    """The graph before sizes became numbers."""
    return graph.origin.whole or graph


def at_numbers(graph: Graph) -> Origin:
    """The origin of a graph that is this one with numbers for sizes."""
    return replace(graph.origin, whole=whole_of(graph))


def traced_with(graph: Graph, **options: Any) -> Graph:
    """The whole graph with other options of `trace` that it keeps: `autocast`, `channels_last`, `like`, `tf32`.

    Raises InputError where one differs and no model is known, and what `trace` raises.
    """
    changed = {name: value for name, value in options.items() if value != getattr(graph, name)}
    return _traced_anew(graph, changed) if changed else whole_of(graph)


def resized(graph: Graph, **sizes: int) -> Graph:
    """The same graph with other numbers for its named sizes; those not given stay as they are.

    Where sizes were traced as numbers, or the trace does not hold at others, the model is traced again. Raises
    SizeError for an unknown name or no positive integer, InputError where no model is known.
    """
    whole = whole_of(graph)
    known = (*whole.sizes, *whole.dims, *(forced.name for forced in whole.forced))
    wanted = check_dims({**graph.sizes, **sizes}, known)
    changed = {name: value for name, value in wanted.items() if whole.sizes.get(name) != value}
    if changed.keys() <= set(whole.dims):
        try:
            return whole.at(**changed)
        except SizeError:
            if graph.origin.trace is None:
                raise
    return _traced_anew(graph, {"sizes": wanted, "fixed": True})


def opened(graph: Graph, size: str) -> tuple[Graph, dict[str, int]]:
    """The whole graph with this named size open, traced again where it was traced as a number; and its other sizes.

    Raises SizeError for an unknown name or a size that the model forces to a number, InputError where no model is
    known.
    """
    whole = whole_of(graph)
    check_names((size,), (*whole.dims, *whole.sizes), complete=False)
    if size not in whole.dims:
        whole = _traced_anew(graph, {"fixed": None})
    for forced in whole.forced:
        if forced.name == size:
            raise SizeError(f"{forced}: it cannot be varied")
    return whole, {name: value for name, value in graph.sizes.items() if name in whole.dims and name != size}


def _traced_anew(graph: Graph, changed: Mapping[str, Any]) -> Graph:
    trace = graph.origin.trace
    if trace is None:
        words = ", ".join(f"{name}={value!r}" for name, value in changed.items() if name != "fixed")
        raise InputError(
            f"{graph.name}: {words} takes tracing again, and this graph does not know its model (it was not made by "
            "trace, or came from a file or another process); trace the model with these options"
        )
    return trace(**changed)
