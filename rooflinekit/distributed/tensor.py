"""Tensor parallelism as Megatron-LM does it: pairs of linear layers, the first cut by columns, the second by rows.

Recognised by data, not by names: within a block, linear layers that read the same tensor (q, k and v; or gate and up)
are cut by columns, up to the next one that reads another tensor and gives back the width that the first ones read.
Everything between them, such as attention by heads, works on its part. After the second one outputs are reduced, after
the first one's backward gradients of its input: twice a pair, four times a transformer's block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

from rooflinekit.distributed.rewriting import (
    Insertions,
    block_of,
    bytes_of,
    collective,
    copied,
    copies_of,
    end_of_backward,
    is_ours,
    is_tokenwise,
    on_tensors,
    owners_of,
    renamed,
    scaled,
    sent_by,
    times,
    wait,
)
from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec, memories
from rooflinekit.ir.sizes import ceil_div

_PRODUCTS = ("aten.addmm", "aten.mm", "aten.linear")
_CAST = "aten._to_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer's forward op."""

    place: int
    weight: str  # memory
    bias: str  # likewise; "" for none
    source: str  # memory of what it reads
    read: int  # elements of a row of that
    written: int  # of a row of its output
    rows: int
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Layers cut by columns, and the one cut by rows that takes what they give."""

    columns: tuple[Linear, ...]
    row: Linear


def cut(graph: Graph, parts: int, *, reduces: bool = True) -> Graph:
    """What each of so many devices runs; without the reductions, each op in its place, where they are not asked for.

    Raises InputError without pairs of layers and for odd widths.
    """
    if parts == 1:
        return graph
    pairs = pairs_of(graph)
    if not pairs:
        raise InputError(f"{graph.name}: no pair of linear layers, such as attention or a feed-forward, to cut")
    for pair in pairs:
        if wrong := next((c for c in pair.columns if c.written % parts), None):
            raise InputError(f"{wrong.module}: {wrong.written} columns cannot be cut for {parts} devices")
        for p in graph.priced[pair.columns[0].place : pair.row.place]:
            heads = int(p.op.inputs[0].shape[1]) if "scaled_dot_product" in p.op.kind else parts
            if heads % parts:
                raise InputError(f"{p.op.module}: {heads} heads cannot be cut for {parts} devices")
    return _Cut(graph=graph, pairs=pairs, parts=parts).result(reduces=reduces)


@dataclass(slots=True, kw_only=True)
class _Cut:
    """What each device of a tensor group runs. Memory is named as in the graph."""

    graph: Graph
    pairs: Sequence[Pair]
    parts: int
    casts: Mapping[str, str] = field(init=False)
    columns: set[str] = field(init=False)  # modules
    rows: set[str] = field(init=False)
    inner: set[str] = field(init=False)  # whose ops all lie between the layers of a pair: their backward is cut too
    whole: set[str] = field(init=False)  # memory of the layers' parameters
    shrunk: set[str] = field(init=False)  # memory of which each device holds its part

    def __post_init__(self) -> None:
        graph, pairs = self.graph, self.pairs
        self.casts = casts_of(graph)
        self.columns = {linear.module for pair in pairs for linear in pair.columns}
        self.rows = {pair.row.module for pair in pairs}
        self.whole = {linear.weight for pair in pairs for linear in (*pair.columns, pair.row)}
        self.whole |= {linear.bias for pair in pairs for linear in pair.columns if linear.bias}
        forward = [(self.between(i), p.op.module) for i, p in enumerate(graph.priced) if p.op.phase is Phase.FORWARD]
        self.inner = {module for inside, module in forward if inside}
        self.inner -= {module for inside, module in forward if not inside}
        self.shrunk = self._shrunk()

    def between(self, place: int, *, columns: bool = False) -> bool:
        return any(p.columns[0].place - columns < place < p.row.place for p in self.pairs)

    def _shrunk(self) -> set[str]:
        parameters, rows = (_with_casts(own, self.casts) for own in (self.whole, {p.row.weight for p in self.pairs}))
        found = set(parameters)
        for i, p in enumerate(self.graph.priced):
            op, made = p.op, p.op.made
            if op.phase is Phase.FORWARD:
                # Views would name what the columns read, which is whole.
                found |= made if p.costs and self.between(i, columns=True) else set()
            elif op.phase is Phase.BACKWARD and (op.module in self.inner - self.columns - self.rows or op.read & rows):
                found |= made
        standing = memories((*self.graph.inputs, *self.graph.weights)) | set(self.casts)
        return (found - standing) | parameters | owners_of(self.graph, self.whole).keys()

    def result(self, *, reduces: bool) -> Graph:
        graph, parts, whole = self.graph, self.parts, self.whole
        all_of = bytes_of(graph.learned)
        kept = all_of - bytes_of(w for w in graph.weights if w.memory in whole) * (parts - 1) / parts
        step = Fraction(round(kept), max(1, all_of))
        priced = [self._part(i, p, step) for i, p in enumerate(graph.priced)]
        put = Insertions()
        for k, pair in enumerate(self.pairs if reduces else ()):
            self._reduce(pair, k, put)
        weights = tuple(_thin(w, parts) if w.memory in whole else w for w in graph.weights)
        gradients = tuple(_thin(g, parts) if g.memory in self.shrunk else g for g in graph.gradients)
        return put.into(replace(graph, weights=weights, gradients=gradients), priced)

    def _part(self, i: int, p: PricedOp, step: Fraction) -> PricedOp:
        """An op as each device runs it. step: share of the optimizer's work."""
        op, costs, shrunk, parts = p.op, p.costs, self.shrunk, self.parts
        of_column = op.module in self.columns
        if op.phase is Phase.OPTIMIZER:
            costs = scaled(costs, step)
        elif op.kind == _CAST and op.outputs[0].memory in self.casts:
            costs = divided(costs, parts) if op.outputs[0].memory in shrunk else costs
        elif (of_column or op.module in self.rows) and any(cost.gemms for cost in costs):
            costs = tuple(self._product(cost, op, by_column=of_column) for cost in costs)
        elif (op.phase is Phase.FORWARD and self.between(i)) or (
            op.phase is Phase.BACKWARD and (op.module in self.inner or (of_column and op.made <= shrunk))
        ):
            costs = divided(costs, parts)
        changed: dict[str, Any] = {}
        if op.attrs.get("group") in ("context", "ring") and "bytes" in op.attrs:  # keys of a device's heads
            changed["attrs"] = {**op.attrs, "bytes": ceil_div(op.attrs["bytes"], parts)}
        return on_tensors(p, lambda spec: _thin(spec, parts) if spec.memory in shrunk else spec, costs, **changed)

    def _product(self, cost: Cost, op: Op, *, by_column: bool) -> Cost:
        """A layer's product. Forward cuts the columns that it writes, or the rows that it reads; backward the same."""
        parts, gemm = self.parts, cost.gemms[0]
        m, n, k = int(gemm.m), int(gemm.n), int(gemm.k)
        # A weight's gradient contracts over samples, and its first factor is the transposed gradient of the output.
        reads_weight = any(spec.role is Role.WEIGHT or spec.memory in self.casts for spec in op.inputs)
        of_weight = op.phase is Phase.BACKWARD and not reads_weight and op.inputs[0].stride
        if op.phase is Phase.FORWARD:
            m, n, k = (m, n // parts, k) if by_column else (m, n, k // parts)
        elif of_weight and tuple(op.outputs[0].shape) == (m, n) and k not in (m, n):
            m, n = (m // parts, n) if by_column else (m, n // parts)
        else:
            m, n, k = (m, n, k // parts) if by_column else (m, n // parts, k)
        moved = int(gemm.batch) * op.outputs[0].dtype.itemsize
        return replace(
            cost, gemms=(Gemm(batch=gemm.batch, m=m, n=n, k=max(1, k)),),
            vector_flop=int(cost.vector_flop) // (parts if by_column else 1),
            read_bytes=moved * (m * k + k * n), write_bytes=moved * m * n,
        )  # fmt: skip

    def _reduce(self, pair: Pair, k: int, put: Insertions) -> None:
        """Once after the row's forward, once after the columns' backward."""
        priced, first = self.graph.priced, pair.columns[0]
        row = priced[pair.row.place].op
        out = row.outputs[0]
        put.after[pair.row.place].append(sent_by(row, f"pair {k}", "all-reduce", "tensor", size_bytes=int(out.bytes)))
        modules = {linear.module for linear in pair.columns}
        backward = [
            i for i, p in enumerate(priced) if p.op.phase is Phase.BACKWARD and p.op.module in modules and p.costs
        ]
        if backward:
            op = replace(priced[backward[-1]].op, module=first.module)
            size = first.rows * first.read * out.dtype.itemsize
            put.after[backward[-1]].append(sent_by(op, f"pair {k} back", "all-reduce", "tensor", size_bytes=size))


def pairs_of(graph: Graph) -> list[Pair]:
    """The pairs of linear layers in the order of their forward ops."""
    weights = {spec.memory: spec.memory for spec in graph.learned} | casts_of(graph)
    origins = _origins(graph)
    found: list[Pair] = []
    open_columns: list[Linear] = []
    for i, priced in enumerate(graph.priced):
        linear = linear_of(i, priced.op, weights)
        if linear is None:
            continue
        linear = replace(linear, source=origins.get(linear.source, linear.source))
        if open_columns and block_of(open_columns[0].module) != block_of(linear.module):
            open_columns = []
        if not open_columns or open_columns[0].source == linear.source:
            open_columns.append(linear)
        elif linear.written == open_columns[0].read:
            found.append(Pair(columns=tuple(open_columns), row=linear))
            open_columns = []
        else:
            open_columns = [linear]
    return found


def casts_of(graph: Graph) -> dict[str, str]:
    """Memory of what autocast makes of parameters in forward, for each layer that reads one, with the parameter's."""
    weights = memories(graph.learned)
    return {memory: origin for memory, origin in _origins(graph).items() if origin in weights and memory not in weights}


def _with_casts(weights: set[str], casts: Mapping[str, str]) -> set[str]:
    return weights | {memory for memory, weight in casts.items() if weight in weights}


def _origins(graph: Graph) -> dict[str, str]:
    """Memory of what forward casts, and of the casts, with the memory that is cast."""
    casts = [p.op for p in graph.priced if _is_cast(p)]
    made = {op.outputs[0].memory for op in casts}
    return copies_of(graph, {op.inputs[0].memory for op in casts} - made, _is_cast)


def _is_cast(priced: PricedOp) -> bool:
    return priced.op.phase is Phase.FORWARD and priced.op.kind == _CAST


def linear_of(place: int, op: Op, weights: Mapping[str, str]) -> Linear | None:
    """What is known of an op that is a linear layer's forward; None for another one.

    weights: memory of parameters and of their casts, with the parameter's.
    """
    if op.phase is not Phase.FORWARD or op.kind not in _PRODUCTS:
        return None
    matrices = [spec for spec in op.inputs if len(spec.shape) == 2]
    weight = next((spec for spec in matrices if spec.memory in weights), None)
    source = next((spec for spec in op.inputs if len(spec.shape) >= 2 and spec.memory not in weights), None)
    bias = next((spec for spec in op.inputs if len(spec.shape) == 1 and spec.memory in weights), None)
    if weight is None or source is None:
        return None
    return Linear(
        place=place, weight=weights[weight.memory], bias="" if bias is None else weights[bias.memory],
        source=source.memory,
        read=int(source.shape[-1]), module=op.module,
        written=int(op.outputs[0].shape[-1]), rows=int(op.outputs[0].numel) // int(op.outputs[0].shape[-1]),
    )  # fmt: skip


def divided(costs: Sequence[Cost], parts: int) -> tuple[Cost, ...]:
    """Work between the layers: a part of the heads, or of the columns."""

    def part(g: Gemm) -> Gemm:
        needed = None if g.needed is None else int(g.needed) // parts
        if int(g.batch) % parts == 0:
            return replace(g, batch=int(g.batch) // parts, needed=needed)
        return replace(g, n=-(-int(g.n) // parts), needed=needed)

    return tuple(
        replace(thin, gemms=tuple(map(part, cost.gemms)))
        for cost, thin in zip(costs, scaled(costs, Fraction(1, parts)), strict=True)
    )


def _thin(spec: TensorSpec, parts: int) -> TensorSpec:
    """A tensor's part: along heads or columns, or where else it divides."""
    order = [1, *range(len(spec.shape) - 1, -1, -1)] if len(spec.shape) > 2 else range(len(spec.shape) - 1, -1, -1)
    axis = next((axis for axis in order if int(spec.shape[axis]) % parts == 0), None)
    return spec if axis is None else divided_along(spec, axis, parts)


def divided_along(spec: TensorSpec, axis: int, parts: int) -> TensorSpec:
    """A tensor's part along an axis, rounded up."""
    shape = tuple(ceil_div(int(size), parts) if k == axis else size for k, size in enumerate(spec.shape))
    return replace(spec, shape=shape)


# Sequence parallelism as in Megatron-LM: between the pairs of a tensor group each device works on its tokens.
#
# V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.2. A pair's
# all-reduce falls apart into the reduce-scatter after it and the all-gather before the next one, forward and backward:
# as many bytes. Normalization, dropout and residual additions between them hold and compute 1/t. Gradients of what they
# multiply with, and of the rows' biases, are sums over a device's tokens, and are added up at the end. What the columns
# read is kept in parts and gathered once more for their weights' gradients, beside the backward of what follows them.
#
# Recognised by data: ops that compute each token on its own (`tokenwise`), on the way from a pair or to one. Other ops,
# such as an embedding, a head or a loss, run whole on every device, on what is gathered for them.


#: What has no tokens.
STANDING = (Role.WEIGHT, Role.BUFFER, Role.STATE)


def cut_by_tokens(graph: Graph, parts: int) -> Graph:
    """What each device of a tensor group runs, with what lies between its pairs cut by tokens.

    Raises InputError where `tensor.cut` does, for nothing between the pairs, and for lengths that do not divide.
    """
    pairs = pairs_of(graph)
    region = _region_of(cut(graph, parts, reduces=False), pairs, parts)
    if not region.members:
        raise InputError(
            f"{graph.name}: nothing between its pairs of linear layers computes each token on its own; leave out "
            "sequence=True"
        )
    return region.rewritten()


@dataclass(slots=True)
class _Region:
    graph: Graph
    parts: int
    rows: frozenset[int]  # of pairs: how many tokens there are
    places: dict[str, int] = field(default_factory=dict)  # of the last op that makes a memory
    members: set[int] = field(default_factory=set)  # places of ops that work on a part
    cut: set[str] = field(default_factory=set)  # memory that members make
    partial: set[str] = field(default_factory=set)  # of which every device has a summand, all tokens
    adders: set[int] = field(default_factory=set)  # places of ops that add up such summands
    summed: set[str] = field(default_factory=set)  # of which every device has a summand, of its tokens: small

    def axis(self, spec: TensorSpec) -> int | None:
        """The axis before the last up to which a tensor's sizes multiply to the number of tokens; None without one."""
        found = (k for k in range(len(spec.shape) - 1) if prod(map(int, spec.shape[: k + 1])) in self.rows)
        return None if spec.role in STANDING else next(found, None)

    def thin(self, spec: TensorSpec, module: str) -> TensorSpec:
        """A device's part of a tensor. Raises InputError for a length that does not divide."""
        axis = self.axis(spec)
        if axis is None:
            return spec
        if int(spec.shape[axis]) % self.parts:
            where = module or self.graph.name
            raise InputError(
                f"{where}: a sequence of {spec.shape[axis]} tokens cannot be cut for {self.parts} devices; choose "
                "another length, or leave out sequence=True"
            )
        return divided_along(spec, axis, self.parts)

    def sweep(self, phase: Phase) -> None:
        """Takes in what follows from what is cut or waits to be summed."""
        for i, p in enumerate(self.graph.priced):
            if p.op.phase is not phase or not p.costs or is_ours(p.op) or i in self.members | self.adders:
                continue
            read = [spec.memory for spec in p.op.inputs if self.axis(spec) is not None]
            if self.partial.issuperset(read) and len(read) > 1 and p.op.kind.startswith("aten.add"):
                self.partial |= p.op.made
                self.adders.add(i)
            elif not self.cut.isdisjoint(read) or not self.partial.isdisjoint(read):
                self.take(i, p)

    def take(self, i: int, p: PricedOp) -> bool:
        small = [spec for spec in p.op.outputs if self.axis(spec) is None]
        # a weight that is no vector, such as learned positions
        table = any(s.role is Role.WEIGHT and sum(int(size) > 1 for size in s.shape) > 1 for s in p.op.inputs)
        if _sums_tokens(p, small) and p.op.read & self.cut:
            self.members.add(i)
            self.summed |= memories(small)
        elif is_tokenwise(p) and len(small) < len(p.op.outputs) and not table:
            self.members.add(i)
            self.cut |= p.op.made - memories(small)
            if p.op.phase is Phase.BACKWARD:
                self.summed |= memories(small)
        return i in self.members

    def reach_back(self, wanted: set[str]) -> None:
        """Takes in what leads from one tensor to memory that a pair or a member reads."""
        for i in reversed(range(len(self.graph.priced))):
            p = self.graph.priced[i]
            if p.op.phase is not Phase.FORWARD or not p.costs:
                continue
            read = [spec for spec in p.op.inputs if self.axis(spec) is not None]
            one = len(read) == 1 and int(read[0].numel) <= int(p.op.outputs[0].numel)
            if one and i not in self.members and p.op.made & wanted:
                self.take(i, p)
            if i in self.members:
                wanted |= memories(read)

    def rewritten(self) -> Graph:
        put = Insertions()
        inside: dict[str, TensorSpec] = {}  # memory as members know it
        outside: dict[Phase, dict[str, TensorSpec]] = {phase: {} for phase in Phase}  # and as others do
        since: dict[str, int] = {}  # from which place on what is gathered is there
        self._enter(put, inside)
        self._leave(put, outside, since)
        priced = tuple(
            self._part(p, inside) if i in self.members
            else self._other(p, inside, {m: s for m, s in outside[p.op.phase].items() if since[s.name] <= i})
            for i, p in enumerate(self.graph.priced)
        )  # fmt: skip
        self._sum(put)
        outputs = tuple(self.thin(spec, "") if spec.memory in self.cut else spec for spec in self.graph.outputs)
        return put.into(replace(self.graph, outputs=outputs), priced)

    def _other(self, p: PricedOp, inside: Mapping[str, TensorSpec], outside: Mapping[str, TensorSpec]) -> PricedOp:
        """An op outside, on what is gathered; a view of what is not is one of a part."""
        if p.costs:
            return renamed(p, outside)

        def other(spec: TensorSpec) -> TensorSpec:
            scattered = spec.memory in self.partial and spec.memory in inside
            if spec.memory in outside or not (scattered or spec.memory in self.cut):
                return spec
            flat = replace(spec, shape=(times(spec.numel, Fraction(1, self.parts)),), stride=None)
            part = flat if self.axis(spec) is None else self.thin(spec, p.op.module)
            return replace(part, storage=inside[spec.memory].memory) if scattered else part

        return renamed(on_tensors(p, other), outside)

    def _part(self, p: PricedOp, inside: dict[str, TensorSpec]) -> PricedOp:
        costs = divided(p.costs, self.parts)
        return renamed(on_tensors(p, lambda spec: self.thin(spec, p.op.module), costs), inside)

    def _readers(self, *, members: bool) -> Iterator[tuple[int, TensorSpec]]:
        """The tensors that members, or the other ops, read, with their places; without views."""
        for i, p in enumerate(self.graph.priced):
            if p.costs and (i in self.members) is members and p.op.phase is not Phase.OPTIMIZER:
                yield from ((i, spec) for spec in p.op.inputs)

    def _enter(self, put: Insertions, inside: dict[str, TensorSpec]) -> None:
        """What comes from outside: sums are scattered, what all have whole is split."""
        others = {spec.memory for i, spec in self._readers(members=False) if i not in self.adders}
        others |= memories(self.graph.outputs)
        for i, spec in self._readers(members=True):
            memory, module = spec.memory, self.graph.priced[i].op.module
            if memory in self.cut or memory in inside or self.axis(spec) is None:
                continue
            part = self.thin(replace(spec, name=f"{memory} part", storage=""), module)
            inside[memory] = part
            if memory in self.partial and memory not in others:
                made = self.places[memory]
                op, key = self.graph.priced[made].op, f"{memory} scattered"
                put.after[made].append(sent_by(op, key, "reduce-scatter", "tensor", [spec], [part]))
            else:
                phase = self.graph.priced[i].op.phase
                put.before[i].append(copied(f"split of {memory}", [self.thin(spec, module)], [part], phase, module))
        for memory in sorted(self.partial & others, key=self.places.__getitem__):
            made, size = self.places[memory], int(self._whole(memory).bytes)
            op, key = self.graph.priced[made].op, f"{memory} summed"
            put.after[made].append(sent_by(op, key, "all-reduce", "tensor", size_bytes=size))

    def _whole(self, memory: str) -> TensorSpec:
        return next(spec for spec in self.graph.priced[self.places[memory]].op.outputs if spec.memory == memory)

    def _leave(self, put: Insertions, outside: dict[Phase, dict[str, TensorSpec]], since: dict[str, int]) -> None:
        """What others read: gathered before the first of them; in backward again, beside what runs until then."""
        backward = next((i for i, p in enumerate(self.graph.priced) if p.op.phase is Phase.BACKWARD), 0)
        ahead = backward  # place after the last gradient that was gathered
        for i, spec in self._readers(members=False):
            op, memory = self.graph.priced[i].op, spec.memory
            if memory not in self.cut or memory in outside[op.phase]:
                continue
            again = self.graph.priced[self.places[memory]].op.phase is not op.phase
            name, made = f"{memory} gathered{' again' if again else ''}", self._whole(memory)
            whole = outside[op.phase][memory] = replace(made, name=name, storage="")
            part = self.thin(made, op.module)
            since[name] = max(ahead, self.places[memory] + 1) if again else i
            gather = sent_by(op, name, "all-gather", "tensor", [part], [whole], blocking=not again)
            put.before[since[name]].append(gather)
            if again:
                put.before[i].append(wait([name], op.phase, "tensor", op.module))
            elif op.phase is Phase.BACKWARD:
                ahead = i

    def _sum(self, put: Insertions) -> None:
        """Gradients that rest on a device's tokens, all in one."""
        small = set(self.summed)
        for i, p in enumerate(self.graph.priced):
            if p.op.read & small and p.op.phase is Phase.BACKWARD and i not in self.members:
                small |= p.op.made
        found = {spec.memory: spec for spec in self.graph.gradients if spec.memory in small}
        if found:
            reduce = collective(
                "gradients of tokens", "all-reduce", phase=Phase.BACKWARD, group="tensor", blocking=True,
                inputs=list(found.values()),
            )  # fmt: skip
            put.before[end_of_backward(self.graph)].append(reduce)


def _region_of(graph: Graph, pairs: Sequence[Pair], parts: int) -> _Region:
    """`graph`: with its pairs cut, every op in its place."""
    region = _Region(graph=graph, parts=parts, rows=frozenset(pair.row.rows for pair in pairs))
    region.places = {spec.memory: i for i, p in enumerate(graph.priced) if p.costs for spec in p.op.outputs}
    weights = _with_casts({linear.weight for pair in pairs for linear in pair.columns}, casts_of(graph))
    region.partial = {graph.priced[pair.row.place].op.outputs[0].memory for pair in pairs}
    for p in graph.priced:
        if p.op.phase is Phase.BACKWARD and p.op.read & weights and any(cost.gemms for cost in p.costs):
            region.partial |= p.op.made
    sources = {linear.source for pair in pairs for linear in pair.columns}
    known = -1
    while known < len(region.members):
        known = len(region.members)
        region.sweep(Phase.FORWARD)
        region.reach_back(set(sources))
    region.sweep(Phase.BACKWARD)
    return region


def _sums_tokens(p: PricedOp, small: Sequence[TensorSpec]) -> bool:
    """Whether an op of backward adds up all tokens: a gradient of what each of them is multiplied with, or added to."""
    op = p.op
    if op.phase is not Phase.BACKWARD or op.kind != "aten.sum" or len(small) != 1:
        return False
    return int(small[0].numel) == int(op.inputs[0].shape[-1])
