"""Sequence parallelism as in Megatron-LM: between the pairs of a tensor group each device works on its tokens.

V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.2. A pair's
all-reduce falls apart into the reduce-scatter after it and the all-gather before the next one, forward and backward:
as many bytes. Normalization, dropout and residual additions between them hold and compute 1/t. Gradients of what they
multiply with, and of the rows' biases, are sums over a device's tokens, and are added up at the end. What the columns
read is kept in parts and gathered once more for their weights' gradients, beside the backward of what follows them.

Recognised by data: ops that compute each token on its own (`tokenwise`), on the way from a pair or to one. Other ops,
such as an embedding, a head or a loss, run whole on every device, on what is gathered for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.strategies.rewriting import (
    Insertions,
    collective,
    copied,
    end_of_backward,
    is_ours,
    is_tokenwise,
    on_tensors,
    renamed,
    times,
    wait,
    with_ops,
)
from rooflinekit.strategies.tensor import Pair, casts_of, cut, divided, divided_along, pairs_of

_STANDING = (Role.WEIGHT, Role.BUFFER, Role.STATE)


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
    """What is cut by tokens. Memory is named as in the graph."""

    graph: Graph
    parts: int
    rows: frozenset[int]  # of pairs: how many tokens there are
    places: dict[str, int] = field(default_factory=dict)  # of the last op that makes a memory
    members: set[int] = field(default_factory=set)  # places of ops that work on a part
    cut: set[str] = field(default_factory=set)  # memory that members make
    partial: set[str] = field(default_factory=set)  # of which every device has a summand, all tokens
    adders: set[int] = field(default_factory=set)  # places of ops that add up such summands
    summed: set[str] = field(default_factory=set)  # of which every device has a summand, of its tokens: small

    # --- tokens of a tensor ----------------------------------------------------------------------------------

    def axis(self, spec: TensorSpec) -> int | None:
        """The axis before the last up to which a tensor's sizes multiply to the number of tokens; None without one."""
        found = (k for k in range(len(spec.shape) - 1) if prod(map(int, spec.shape[: k + 1])) in self.rows)
        return None if spec.role in _STANDING else next(found, None)

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

    # --- what is cut -----------------------------------------------------------------------------------------

    def sweep(self, phase: Phase) -> None:
        """Takes in what follows from what is cut or waits to be summed."""
        for i, p in enumerate(self.graph.priced):
            if p.op.phase is not phase or not p.costs or is_ours(p.op) or i in self.members | self.adders:
                continue
            read = [spec.memory for spec in p.op.inputs if self.axis(spec) is not None]
            if self.partial.issuperset(read) and len(read) > 1 and p.op.kind.startswith("aten.add"):
                self.partial |= {spec.memory for spec in p.op.outputs}
                self.adders.add(i)
            elif not self.cut.isdisjoint(read) or not self.partial.isdisjoint(read):
                self.take(i, p)

    def take(self, i: int, p: PricedOp) -> bool:
        """The op as a member, if it can be one."""
        small = [spec for spec in p.op.outputs if self.axis(spec) is None]
        if _sums_tokens(p, small) and any(spec.memory in self.cut for spec in p.op.inputs):
            self.members.add(i)
            self.summed |= {spec.memory for spec in small}
        elif is_tokenwise(p) and len(small) < len(p.op.outputs) and not _reads_a_table(p):
            self.members.add(i)
            self.cut |= {spec.memory for spec in p.op.outputs} - {spec.memory for spec in small}
            if p.op.phase is Phase.BACKWARD:
                self.summed |= {spec.memory for spec in small}
        return i in self.members

    def reach_back(self, wanted: set[str]) -> None:
        """Takes in what leads from one tensor to memory that a pair or a member reads."""
        for i in reversed(range(len(self.graph.priced))):
            p = self.graph.priced[i]
            if p.op.phase is not Phase.FORWARD or not p.costs:
                continue
            read = [spec for spec in p.op.inputs if self.axis(spec) is not None]
            one = len(read) == 1 and int(read[0].numel) <= int(p.op.outputs[0].numel)
            if one and i not in self.members and any(spec.memory in wanted for spec in p.op.outputs):
                self.take(i, p)
            if i in self.members:
                wanted |= {spec.memory for spec in read}

    # --- what each device runs -------------------------------------------------------------------------------

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
        return with_ops(replace(self.graph, priced=priced, outputs=outputs), put)

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
        costs = tuple(divided(cost, self.parts) for cost in p.costs)
        return renamed(on_tensors(p, lambda spec: self.thin(spec, p.op.module), costs), inside)

    def _send(
        self, key: str, what: str, size: int, op: Op, given: Sequence[TensorSpec] = (),
        made: Sequence[TensorSpec] = (), *, blocking: bool = True,
    ) -> PricedOp:  # fmt: skip
        """A collective of the tensor group, beside an op."""
        return collective(
            key, what, size, phase=op.phase, group="tensor", blocking=blocking, inputs=given, outputs=made,
            module=op.module,
        )  # fmt: skip

    def _readers(self, *, members: bool) -> Iterator[tuple[int, TensorSpec]]:
        """What members, or others, read, with the place; not views."""
        for i, p in enumerate(self.graph.priced):
            if p.costs and (i in self.members) is members and p.op.phase is not Phase.OPTIMIZER:
                yield from ((i, spec) for spec in p.op.inputs)

    def _enter(self, put: Insertions, inside: dict[str, TensorSpec]) -> None:
        """What comes from outside: sums are scattered, what all have whole is split."""
        others = {spec.memory for i, spec in self._readers(members=False) if i not in self.adders}
        others |= {spec.memory for spec in self.graph.outputs}
        for i, spec in self._readers(members=True):
            memory, module = spec.memory, self.graph.priced[i].op.module
            if memory in self.cut or memory in inside or self.axis(spec) is None:
                continue
            part = self.thin(replace(spec, name=f"{memory} part", storage=""), module)
            inside[memory] = part
            if memory in self.partial and memory not in others:
                made = self.places[memory]
                scatter = self._send(
                    f"{memory} scattered", "reduce-scatter", int(spec.bytes), self.graph.priced[made].op, [spec], [part]
                )
                put.after[made].append(scatter)
            else:
                phase = self.graph.priced[i].op.phase
                put.before[i].append(copied(f"split of {memory}", [self.thin(spec, module)], [part], phase, module))
        for memory in sorted(self.partial & others, key=self.places.__getitem__):
            made, size = self.places[memory], int(self._whole(memory).bytes)
            put.after[made].append(self._send(f"{memory} summed", "all-reduce", size, self.graph.priced[made].op))

    def _whole(self, memory: str) -> TensorSpec:
        """What an op of the graph makes."""
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
            gather = self._send(name, "all-gather", int(made.bytes), op, [part], [whole], blocking=not again)
            put.before[since[name]].append(gather)
            if again:
                put.before[i].append(wait([name], op.phase, "tensor", op.module))
            elif op.phase is Phase.BACKWARD:
                ahead = i

    def _sum(self, put: Insertions) -> None:
        """Gradients that rest on a device's tokens, all in one."""
        small = set(self.summed)
        for i, p in enumerate(self.graph.priced):
            follows = any(spec.memory in small for spec in p.op.inputs)
            if follows and p.op.phase is Phase.BACKWARD and i not in self.members:
                small |= {spec.memory for spec in p.op.outputs}
        found = {spec.memory: spec for spec in self.graph.gradients if spec.memory in small}
        if found:
            size = sum(int(spec.bytes) for spec in found.values())
            put.before[end_of_backward(self.graph)].append(
                collective("gradients of tokens", "all-reduce", size, phase=Phase.BACKWARD, group="tensor",
                           blocking=True, inputs=list(found.values()))
            )  # fmt: skip


def _region_of(graph: Graph, pairs: Sequence[Pair], parts: int) -> _Region:
    """`graph`: with its pairs cut, every op in its place."""
    region = _Region(graph=graph, parts=parts, rows=frozenset(pair.row.rows for pair in pairs))
    region.places = {spec.memory: i for i, p in enumerate(graph.priced) if p.costs for spec in p.op.outputs}
    weights = {linear.weight for pair in pairs for linear in pair.columns}
    weights |= {memory for memory, weight in casts_of(graph).items() if weight in weights}
    region.partial = {graph.priced[pair.row.place].op.outputs[0].memory for pair in pairs}
    for p in graph.priced:
        multiplies = any(spec.memory in weights for spec in p.op.inputs) and any(cost.gemms for cost in p.costs)
        if multiplies and p.op.phase is Phase.BACKWARD:
            region.partial |= {spec.memory for spec in p.op.outputs}
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


def _reads_a_table(p: PricedOp) -> bool:
    """Whether it reads a weight that is no vector, such as learned positions."""
    return any(spec.role is Role.WEIGHT and sum(int(size) > 1 for size in spec.shape) > 1 for spec in p.op.inputs)
