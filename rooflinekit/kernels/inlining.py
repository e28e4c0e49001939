"""Loops → buffers: which intermediate results are stored, and which each reader computes again.

Inductor's rule (torch 2.13: torch/_inductor/config.py, ir.py StorageBox, graph.py run_node): pointwise work is written
into its readers, again in each, until it is *realized* as a buffer of its own:
- a library, a gather, another phase of the step, another graph or the caller wants it in memory;
- it has several readers and reads more than 4 tensors (realize_reads_threshold) or does more than 30 operations an
  element (realize_opcount_threshold);
- it reads more than 8 tensors (realize_acc_reads_threshold), or does more than 100 operations, however many readers;
and, beside inductor's rule, where computing it again in each reader would move more than eager mode does.
Reductions are always realized; whether they are stored is the scheduler's business (fusion.py). Before that, what the
backward phase computes again becomes loops of its own (`_Recomputing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rooflinekit.cost.rules.elementwise import RANDOM
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.op import ADDED, DType, Family, Phase, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.kernels.layout import Layouts
from rooflinekit.kernels.loops import LABEL, Access, Loop, Part, extern
from rooflinekit.kernels.lowering import BIAS, is_biased_product, parts_of, takes_twice


@dataclass(slots=True, eq=False)
class Step:
    """A loop nest with the values that it reads and writes: every write to a memory makes a new value."""

    part: Part
    reads: list[tuple[str, Access]]
    writes: list[tuple[str, TensorSpec]]


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The loops of a graph whose results are read, in the order of execution."""

    steps: list[Step]
    numel: dict[str, int]  # of each value
    users: dict[str, list[Step]]  # that read a value, each once
    kept: set[str]  # values that outlive the step


def _parts(graph: Graph, layouts: Layouts) -> Iterator[Part]:
    """All loops in order, each with its region: ops that a strategy has added separate regions."""
    region = 0
    for priced in graph.priced:
        region += priced.op.kind.startswith(ADDED)
        for part in parts_of(priced, graph.like):
            if part.loop is Loop.REDUCTION:
                part = replace(part, walk=layouts.walk(priced.op, part.walk))
            yield replace(part, region=region) if region else part


def _dataflow(graph: Graph, layouts: Layouts) -> Dataflow:
    numel = {spec.memory: integer(spec.numel) for spec in (*graph.weights, *graph.inputs)}
    current: dict[str, str] = {}  # the value that a memory has
    standing, made, steps = set(numel), set[str](), []
    for i, part in enumerate(_parts(graph, layouts)):
        reads = [(current.get(access.spec.memory, access.spec.memory), access) for access in part.reads]
        writes = []
        for spec in part.writes:
            memory, value = spec.memory, f"{spec.memory}#{i}"
            before = current.get(memory, memory)
            if numel.get(before, 0) > integer(spec.numel):  # into a part of it: the rest stays
                reads.append((before, Access(spec=spec, bytes=0, gathered=True)))
            numel[value] = max(integer(spec.numel), numel.get(before, 0))
            writes.append((value, spec))
        for value, access in reads:
            if access.spec.memory not in made:
                standing.add(access.spec.memory)
                numel[value] = max(access.elements, numel.get(value, 0))
            if part.op.kind.startswith(ADDED):  # a whole bucket, of which each copy has written a part
                numel[value] = max(access.elements, numel[value])
        for value, spec in writes:
            current[spec.memory] = value
            made.add(spec.memory)
        steps.append(Step(part, reads, writes))
    lasting = standing | {spec.memory for spec in (*graph.outputs, *graph.gradients, *_loss(graph))}
    kept = {value for memory, value in current.items() if memory in lasting}
    steps = _Recomputing(numel, frozenset(standing | kept)).steps(steps)
    return _without_dead(steps, numel, kept)


_SMALL = 4  # what is smaller by this factor is kept beside what is computed from it (partitioners.py, of reductions)
_POINTWISE = 2 / 1.1  # bytes that are kept for one of a pointwise result: it weighs 2, each op farther back 1.1 (there)
_LONGEST = 30  # loops one after another that are run again; what comes behind them is kept


@dataclass(slots=True)
class _Recomputing:
    """What the backward phase computes again, as it costs no memory, in place of keeping it.

    AOTAutograd keeps for the backward phase what is least in all (torch/_functorch/partitioners.py,
    min_cut_rematerialization_partition). Of that: pointwise results that no library reads in the backward phase, and
    that follow by pointwise work from what is kept anyway, is small, or has less than twice the bytes, as logits have
    for their log-softmax.
    """

    numel: dict[str, int]
    there: frozenset[str]  # values that the backward phase has in any case
    makers: dict[str, Step] = field(default_factory=dict)  # in the forward phase
    readers: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))  # in the backward phase
    chains: dict[str, int] = field(default_factory=dict)  # by the forward phase's values
    made: dict[str, TensorSpec] = field(default_factory=dict)
    instead: set[str] = field(default_factory=set)  # values kept in place of what is computed from them
    held: set[str] = field(default_factory=set)  # values of which an input would be kept past a library's call for them

    def steps(self, steps: list[Step]) -> list[Step]:
        """The steps, with those that are run again before their first reader."""
        for step in steps:
            if step.part.op.phase is Phase.FORWARD:
                self.makers |= dict.fromkeys((value for value, _ in step.writes), step)
            elif step.part.op.phase is Phase.BACKWARD:
                for value, _ in step.reads:
                    self.readers[value].append(step)
        self._hold([step for step in steps if step.part.op.phase is Phase.FORWARD])
        for value, maker in self.makers.items() if self.readers else ():
            self.chains[value] = self._chain_to(value, maker)
        found: list[Step] = []
        for step in steps:
            if step.part.op.phase is Phase.BACKWARD:
                step.reads = [self._taken(value, access, step, found) for value, access in step.reads]
            found.append(step)
        return found

    def _hold(self, forward: list[Step]) -> None:
        """Finds them: results of what reads a value, no library's, that has led to a library's call before, as residual
        sums do (partitioners.py, `ban_if_used_far_apart`).
        """
        called: dict[str, int] = {}  # the first call of a library to which a value leads
        own = {value for step in forward if step.part.loop is not Loop.EXTERN for value, _ in step.writes}
        for i in reversed(range(len(forward))):
            later = [called[value] for value, _ in forward[i].writes if value in called]
            first = i if forward[i].part.loop is Loop.EXTERN else min(later, default=len(forward))
            for value, _ in forward[i].reads:
                called[value] = min(first, called.get(value, first))
        for i, step in enumerate(forward):
            if any(called[value] < i for value, _ in step.reads if value in own):
                self.held.update(value for value, _ in step.writes)

    def _chain_to(self, value: str, maker: Step) -> int:
        """How many loops compute a forward value again from what is kept; 0 where it is to be kept itself."""
        kind = maker.part.op.kind
        if not _is_pointwise(maker.part) or len(maker.writes) != 1 or {kind, kind.removesuffix("_")} & RANDOM:
            return 0
        if value in self.there or value in self.held or maker.part.label == BIAS:  # a bias is a part of its product
            return 0
        if any(_gathers(value, user) for user in self.readers.get(value, ())):
            return 0
        ((_, made),) = maker.writes
        missing = {
            read: self.numel[read] * access.spec.dtype.itemsize
            for read, access in maker.reads
            if not self.chains.get(read) and not self._is_at_hand(read, value)
        }
        if sum(missing.values()) > _POINTWISE * self.numel[value] * made.dtype.itemsize:
            return 0
        if value in self.readers:
            self.instead |= missing.keys()
        length = 1 + max((self.chains.get(read, 0) for read, _ in maker.reads), default=0)
        return length if length <= _LONGEST else 0

    def _is_at_hand(self, read: str, value: str) -> bool:
        there = read in self.there or read in self.readers or read in self.instead
        return there or _SMALL * self.numel[read] <= self.numel[value]

    def _taken(self, value: str, access: Access, reader: Step, found: list[Step]) -> tuple[str, Access]:
        if not self.chains.get(value):
            return value, access
        copy = f"{value} again"
        if value not in self.made:
            maker = self.makers[value]
            ((_, spec),) = maker.writes
            spec = self.made[value] = replace(spec, name=f"{spec.name} again", storage=f"{spec.memory} again")
            self.numel[copy] = self.numel[value]
            priced = replace(maker.part.priced, op=replace(maker.part.op, phase=Phase.BACKWARD))
            step = Step(replace(maker.part, priced=priced, region=reader.part.region), [], [(copy, spec)])
            step.reads = [self._taken(read, one, step, found) for read, one in maker.reads]
            found.append(step)
        spec = replace(access.spec, name=self.made[value].name, storage=self.made[value].memory)
        return copy, replace(access, spec=spec)


def _loss(graph: Graph) -> tuple[TensorSpec, ...]:
    """The results of a training step's last forward op: the caller gets them, though no op reads them."""
    last = [op for op in graph.ops if op.phase is Phase.FORWARD][-1:] if graph.mode == "training" else []
    return tuple(spec for op in last for spec in op.outputs)


def _without_dead(steps: list[Step], numel: dict[str, int], kept: set[str]) -> Dataflow:
    """Drops results that nobody reads, and loops without any other result; calls of libraries stay."""
    alive: list[Step] = []
    users: dict[str, list[Step]] = defaultdict(list)
    biases: dict[str, Step] = {}  # by the product that they stay with
    for step in reversed(steps):
        library = step.part.loop is Loop.EXTERN
        if step.part.label == BIAS and is_biased_product(step.part.op) and not _goes_to_readers(step, users, kept):
            biases[step.reads[0][0]] = step
            continue
        if bias := biases.get(step.writes[0][0] if step.writes else ""):
            step = Step(extern(bias.part.priced), [*bias.reads[1:], *step.reads], bias.writes)
        step.writes = [(value, spec) for value, spec in step.writes if value in kept or users[value] or library]
        if step.writes or library:
            alive.append(step)
            for value in dict.fromkeys(value for value, _ in step.reads):
                users[value].append(step)
    return Dataflow(alive[::-1], numel, users, kept)


def _goes_to_readers(bias: Step, users: Mapping[str, list[Step]], kept: set[str]) -> bool:
    """Whether all readers of a product with its bias are pointwise: they add it then."""
    ((value, _),) = bias.writes
    return value not in kept and all(
        _is_pointwise(user.part) and user.part.label != LABEL and user.part.op.phase is bias.part.op.phase
        for user in users[value]
    )


MOST_READS = 4
MOST_OPERATIONS = 30
MOST_ACCUMULATED_READS = 8
MOST_ACCUMULATED_OPERATIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One reading of a value by a loop."""

    value: str
    spec: TensorSpec
    bytes: int
    whole: bool  # each element once, at the place where the loop writes its own


@dataclass(slots=True, kw_only=True)
class Expression:
    """Pointwise work with everything that was not stored written into it, and what it therefore reads."""

    part: Part
    reads: dict[tuple[str, str], Read]
    labels: list[str]
    work: dict[int, tuple[int, int]]  # loop → its arithmetic and special functions, as often as it runs here
    operations: float  # an element
    eager_bytes: int  # that the ops in it move one after another


@dataclass(slots=True, kw_only=True)
class Buffer:
    """A loop nest with a result in memory, or the call of a library."""

    order: int
    expression: Expression
    writes: dict[str, TensorSpec]
    outer: int  # results of its loop nest
    partial: bool = False  # writes a part of its value only: one input of a concatenation

    @property
    def part(self) -> Part:
        """The last loop in it."""
        return self.expression.part

    @property
    def numel(self) -> int:
        """Elements that it goes through."""
        return self.outer * self.part.inner


def buffers_of(graph: Graph, layouts: Layouts) -> tuple[list[Buffer], Dataflow]:
    """The buffers of a graph in the order of execution, and the values that they read and write."""
    flow = _dataflow(graph, layouts)
    return _Inlining(flow, graph.like).run(), flow


class _Inlining:
    """One pass over the loops, in the order of execution."""

    def __init__(self, flow: Dataflow, like: Release | None) -> None:
        self._flow, self._like = flow, like
        self._made: dict[str, Buffer] = {}  # by the values in memory
        self._pending: dict[str, tuple[Expression, TensorSpec]] = {}
        self._wide: set[str] = set()  # values of 16 bits that are stored in fp32
        self._buffers: list[Buffer] = []

    def run(self) -> list[Buffer]:
        """The buffers."""
        for step in self._flow.steps:
            if step.part.loop is not Loop.POINTWISE:
                self._store(self._expression(step), dict(step.writes))
            elif step.part.label == LABEL:
                self._concatenate(step)
            else:
                for k, (value, spec) in enumerate(step.writes):
                    self._keep_or_store(value, spec, self._expression(step, counted=k == 0))
        return self._buffers

    def _store(self, expression: Expression, writes: dict[str, TensorSpec], share: int = 0) -> None:
        """`share`: elements of the result, where it is a part only."""
        outer = share or expression.part.outer
        buffer = Buffer(order=len(self._buffers), expression=expression, writes=writes, outer=outer, partial=share > 0)
        self._buffers.append(buffer)
        self._made.update(dict.fromkeys(writes, buffer))

    def _keep_or_store(self, value: str, spec: TensorSpec, expression: Expression) -> None:
        if self._is_stored(value, spec, expression):
            if spec.dtype.sixteen_bits and self._is_widened(value, expression.part):
                self._wide.add(value)
                spec = replace(spec, dtype=DType.FLOAT32)
            self._store(expression, {value: spec})
        else:
            self._pending[value] = (expression, spec)

    def _is_stored(self, value: str, spec: TensorSpec, expression: Expression) -> bool:
        users, reads = self._flow.users[value], len(expression.reads)
        if self._is_wanted(value, expression.part):
            return True
        if reads > MOST_ACCUMULATED_READS or expression.operations > MOST_ACCUMULATED_OPERATIONS:
            return True
        places = ([read for read, _ in user.reads].index(value) for user in users)
        if sum(1 + takes_twice(user.part.op, place) for user, place in zip(users, places, strict=True)) <= 1:
            return False
        if reads > MOST_READS or expression.operations > MOST_OPERATIONS:
            return True
        eager = expression.eager_bytes + len(users) * integer(spec.bytes)
        return len(users) * sum(read.bytes for read in expression.reads.values()) > eager

    def _is_widened(self, value: str, producer: Part) -> bool:
        """Whether one op alone takes it, in fp32 and more than once: then its conversion to fp32 is what is stored."""
        ops = {id(user.part.op): user.part.op for user in self._flow.users[value]}
        return len(ops) == 1 and all(map(takes_twice, ops.values())) and not self._is_wanted(value, producer)

    def _is_wanted(self, value: str, producer: Part) -> bool:
        """Whether the caller gets it, or a reader can take it from memory only."""
        users = self._flow.users[value]
        return value in self._flow.kept or any(
            user.part.place != producer.place or _gathers(value, user) for user in users
        )

    def _expression(
        self, step: Step, accesses: Iterable[tuple[str, Access]] | None = None, *, counted: bool = True
    ) -> Expression:
        """The loop with all that is not stored written into it; `counted`: no other result has its arithmetic."""
        part = step.part
        numel = part.outer * part.inner
        own = sum(integer(cost.bytes) for cost in part.priced.costs)
        arithmetic = (part.vector + part.special) / max(1, numel)
        work = {id(step): (part.vector, part.special)} if counted else {}
        found = Expression(part=part, reads={}, labels=[], work=work, operations=2 * arithmetic, eager_bytes=own)
        for value, access in step.reads if accesses is None else accesses:
            if value in self._pending and not access.gathered:
                self._inline(found, value, access, numel)
            else:
                if value in self._pending:
                    expression, spec = self._pending.pop(value)
                    self._store(expression, {value: spec})
                whole = not access.gathered and access.elements == self._flow.numel[value]
                key = (value, "" if whole else access.spec.name)
                wide = value in self._wide
                spec = replace(access.spec, dtype=DType.FLOAT32) if wide else access.spec
                found.reads[key] = Read(value=value, spec=spec, bytes=access.bytes * (2 if wide else 1), whole=whole)
        found.operations += len(found.reads)
        found.labels.append(part.label)
        return found

    def _inline(self, into: Expression, value: str, access: Access, numel: int) -> None:
        inner, _ = self._pending[value]
        size = max(1, self._flow.numel[value])
        share = access.elements / size  # of it that is read: a slice, or all
        same = access.elements == size
        for key, read in inner.reads.items():
            part = integer(read.bytes * min(1, share))
            taken = read if same else replace(read, bytes=part, whole=False)
            old = into.reads.get(key)
            if old is None or old.bytes < taken.bytes:
                into.reads[key] = taken
        again = share if into.part.label == LABEL else max(1, numel // size) if same else share
        for loop, work in inner.work.items():
            repeated = (integer(work[0] * again), integer(work[1] * again))
            into.work[loop] = max(into.work.get(loop, repeated), repeated)
        into.operations += inner.operations
        into.eager_bytes += inner.eager_bytes
        into.labels.extend(label for label in inner.labels if label not in into.labels)

    def _concatenate(self, step: Step) -> None:
        """A concatenation as one loop, or with each input written to its place, computed there if not stored yet."""
        ((value, spec),) = step.writes
        inputs = tuple(self._concatenated(read, step) for read, _ in step.reads)
        readers = tuple(user.part for user in self._flow.users[value])
        if _is_one_loop(inputs, readers, kept=value in self._flow.kept, like=self._like):
            self._keep_or_store(value, spec, self._expression(step))
            return
        for (name, access), each in zip(step.reads, inputs, strict=True):
            if each.movable and len(self._made[name].writes) == 1:
                self._made[name].writes[value] = spec
            else:
                self._store(self._expression(step, [(name, access)]), {value: spec}, share=integer(access.spec.numel))

    def _concatenated(self, value: str, step: Step) -> _Input:
        pending, made = self._pending.get(value), self._made.get(value)
        sources = [self._made.get(key) for key, _ in pending[0].reads] if pending else [made]
        library = made is not None and made.part.loop is Loop.EXTERN
        return _Input(
            pending=pending is not None,
            placed=library or (made is None and not pending),
            movable=library and made is not None and made.part.priced.timed_as is Family.MATMUL,
            reduced=any(source is not None and source.part.loop is Loop.REDUCTION for source in sources),
            others=tuple(user.part for user in self._flow.users[value] if user is not step),
        )


def _gathers(value: str, user: Step) -> bool:
    """Whether a reader goes through a value in an order of its own, as libraries do."""
    library = user.part.loop in (Loop.EXTERN, Loop.LIST)
    return library or any(access.gathered for read, access in user.reads if read == value)


# What becomes of a concatenation: written into its readers, one kernel of its own, or each input put to its place.
#
# Inductor's rule (torch 2.5 and 2.13: torch/_inductor/lowering.py, `cat`). Up to 8 inputs are one pointwise loop, which
# loads each input where its part of the result is, under a mask,
# - where all readers are pointwise, and an input at least has to be copied anyway: what a library or the caller has put
#   into memory, or what is not in memory yet;
# - whoever reads it, where all inputs have to be copied, and none hangs on a reduction.
# Like any other pointwise loop it then goes into its readers or is stored. Else each input is put to its
# place in the result: by the loop or the product that computes it, or by a copy. So it is from 2.12 on as well where an
# input has other pointwise readers.


MOST_POINTWISE = 8  # inputs of a concatenation that is one loop (max_pointwise_cat_inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """An input of a concatenation."""

    pending: bool  # a pointwise loop that is not in memory yet
    placed: bool  # where a library or the caller has put it
    movable: bool  # by a product of a library, which writes it wherever it is told to
    reduced: bool  # hangs on a reduction, without more than pointwise work between
    others: tuple[Part, ...]  # that read it, beside this concatenation

    @property
    def copied(self) -> bool:
        """Whether a kernel must bring it to its place in any case."""
        return self.pending or (self.placed and not self.movable)


def _is_one_loop(inputs: tuple[_Input, ...], readers: tuple[Part, ...], *, kept: bool, like: Release | None) -> bool:
    """Whether a concatenation is one pointwise loop. `kept`: the caller gets it."""
    if len(inputs) > MOST_POINTWISE:
        return False
    if (like or PRESENT).shares_concatenated:
        for one in inputs:
            others = [part for part in one.others if part.label != LABEL]
            if any(map(_is_pointwise, others)) or (one.pending and one.others):
                return False
    if not kept and all(map(_is_pointwise, readers)) and any(each.copied for each in inputs):
        return True
    return all(each.copied for each in inputs) and not any(each.reduced for each in inputs)


def _is_pointwise(reader: Part) -> bool:
    return reader.loop is Loop.POINTWISE and not any(access.gathered for access in reader.reads)
