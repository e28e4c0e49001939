"""A graph with what a strategy adds to it: collectives, waits for them, and copies around them.

A collective is an op without kernels whose `attrs` say what is sent: {"collective", "bytes", "group", "key"}. With
"blocking" the device computes nothing until it is over; without, until a wait for its key. "cpu_s" is time of the CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar

from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import ADDED, EAGER, Basis, DType, Family, Op, Phase, PricedOp, Role, TensorSpec, memories

T = TypeVar("T")

COLLECTIVE, WAIT, WORK, BEGIN, HOST_COPY = (
    f"{ADDED}{what}" for what in ("collective", "wait", "work", "graph", "host-copy")
)

#: In the name of what a later part of an accumulated batch runs.
PART = " of part "


def is_ours(op: Op) -> bool:
    """Whether a strategy has added the op."""
    return op.kind.startswith(ADDED)


def sent_in(graph: Graph) -> Iterator[Mapping[str, Any]]:
    """What a step sends: the `attrs` of its collectives, in their order."""
    return (op.attrs for op in graph.ops if is_ours(op) and "collective" in op.attrs)


def collective(
    key: str, what: str, size_bytes: int | None = None, *, phase: Phase, group: str = "data", blocking: bool = False,
    inputs: Sequence[TensorSpec] = (), outputs: Sequence[TensorSpec] = (), module: str = "", **attrs: Any,
) -> PricedOp:  # fmt: skip
    """A collective of the devices of a group; its size is as `timing.collectives` counts it, by default all that it is
    given or all that it makes, whichever is more.

    module: whose op it is: with it the collective is computed again, and put on a stage.
    """
    size = max(bytes_of(inputs), bytes_of(outputs)) if size_bytes is None else size_bytes
    facts = {"collective": what, "bytes": size, "group": group, "key": key, "blocking": blocking, **attrs}
    return _ours(COLLECTIVE, key, phase, facts, inputs, outputs, module)


def sent_by(
    op: Op, key: str, what: str, group: str, given: Sequence[TensorSpec] = (), made: Sequence[TensorSpec] = (), *,
    size_bytes: int | None = None, blocking: bool = True,
) -> PricedOp:  # fmt: skip
    """A collective beside an op, in its module and phase."""
    return collective(
        key, what, size_bytes, phase=op.phase, group=group, blocking=blocking, inputs=given, outputs=made,
        module=op.module,
    )  # fmt: skip


def wait(
    keys: Iterable[str], phase: Phase, group: str = "data", module: str = "", inputs: Sequence[TensorSpec] = ()
) -> PricedOp:
    """Computing goes on when these collectives of a group, or copies to the host, are over; what a copy has read is
    free then.
    """
    listed = tuple(keys)
    return _ours(WAIT, f"wait for {listed[-1]}", phase, {"keys": listed, "group": group}, inputs, module=module)


def work(name: str, seconds: float, phase: Phase, kind: str = WORK, **attrs: Any) -> PricedOp:
    """The CPU is busy with something that is no op; BEGIN: a compiled graph begins."""
    return _ours(kind, name, phase, {"cpu_s": seconds, **attrs})


def host_copy(
    key: str, seconds: float, phase: Phase, *, inward: bool, inputs: Sequence[TensorSpec] = (),
    outputs: Sequence[TensorSpec] = (),
) -> PricedOp:  # fmt: skip
    """Tensors on their way to the host's memory, or back, by a copy engine beside what the device computes.

    It starts when all before it has been computed.
    """
    return _ours(HOST_COPY, key, phase, {"key": key, "seconds": seconds, "inward": inward}, inputs, outputs)


def joined(name: str, specs: Sequence[TensorSpec], target: TensorSpec, phase: Phase) -> PricedOp:
    """A kernel that copies tensors one behind the other, which DDP's reducer runs and no compiler."""
    moves = bytes_of(specs), bytes_of(specs)
    return _ours("aten.copy_", name, phase, {EAGER: True}, (*specs, target), (target,), moves=moves)


def copied(
    name: str, given: Sequence[TensorSpec], made: Sequence[TensorSpec], phase: Phase, module: str = ""
) -> PricedOp:
    """A kernel that copies tensors into new ones, in another order."""
    return _ours("aten.clone", name, phase, {}, given, made, module, (bytes_of(given), bytes_of(made)))


def _ours(
    what: str, name: str, phase: Phase, attrs: Mapping[str, Any], inputs: Sequence[TensorSpec] = (),
    outputs: Sequence[TensorSpec] = (), module: str = "", moves: tuple[int, int] | None = None,
) -> PricedOp:  # fmt: skip
    """moves: bytes that a kernel reads and writes; None for an op without kernels."""
    op = Op(
        name=name, kind=what, module=module, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs),
        attrs=MappingProxyType(dict(attrs)),
    )  # fmt: skip
    if moves is None:
        return PricedOp(op=op, costs=(), basis=Basis.FREE)
    cost = Cost(read_bytes=moves[0], write_bytes=moves[1])
    return PricedOp(op=op, costs=(cost,), basis=Basis.RULE, timed_as=Family.MOVEMENT)


@dataclass(slots=True)
class Insertions:
    """Ops to be put before and after the ops of a graph."""

    before: dict[int, list[PricedOp]] = field(default_factory=lambda: defaultdict(list))
    after: dict[int, list[PricedOp]] = field(default_factory=lambda: defaultdict(list))

    def into(self, graph: Graph, priced: Sequence[PricedOp | None] | None = None) -> Graph:
        """The graph with them; what stands before the place behind the last op comes last.

        priced: ops instead of the graph's, None for one that falls away.
        """
        found: list[PricedOp] = []
        own = graph.priced if priced is None else priced
        for i, op in enumerate(own):
            found += [*self.before.get(i, ()), *(() if op is None else (op,)), *self.after.get(i, ())]
        return replace(graph, priced=(*found, *self.before.get(len(own), ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A parameter's gradient, and the place of the op after which it is there."""

    spec: TensorSpec
    place: int


def gradients_of(graph: Graph) -> list[Gradient]:
    """The gradients, each memory once, in the order in which backward has them ready.

    A compiled graph hands over all of its own when it ends, in the order of forward (observed with torch 2.13: that of
    the graph's inputs).
    """
    wanted = {spec.memory: spec for spec in graph.gradients}
    places: dict[str, int] = {}
    for i, priced in enumerate(graph.priced):
        if priced.op.phase is Phase.BACKWARD:
            places |= {spec.memory: i for spec in priced.op.outputs if spec.memory in wanted}
    found = [Gradient(spec=wanted[memory], place=place) for memory, place in places.items()]
    found.sort(key=lambda gradient: gradient.place)
    begins = [i for i, p in enumerate(graph.priced) if p.op.kind == BEGIN]
    if not begins:
        return found
    ends = [*(i - 1 for i in begins), end_of_backward(graph) - 1]
    handed = [replace(g, place=next(end for end in ends if end >= g.place)) for g in reversed(found)]
    return sorted(handed, key=lambda gradient: gradient.place)


def begin_of(priced: Sequence[PricedOp], place: int) -> int:
    """Where the compiled graph begins in which an op stands; the op's own place where nothing is compiled."""
    phase = priced[place].op.phase
    begins = (i for i in range(place, -1, -1) if priced[i].op.kind == BEGIN and priced[i].op.phase is phase)
    return next(begins, place)


def end_of_backward(graph: Graph) -> int:
    """The place before which everything of backward has run."""
    return 1 + max((i for i, p in enumerate(graph.priced) if p.op.phase is Phase.BACKWARD), default=-1)


def buckets_of(gradients: Sequence[Gradient], limit: int, first: int | None = None) -> list[list[Gradient]]:
    """Gradients in the order in which they are ready, as DDP's reducer packs them."""
    return packed(gradients, lambda gradient: int(gradient.spec.bytes), limit, first=first)


def packed(
    items: Iterable[T], bytes_of: Callable[[T], int], limit: int, *, first: int | None = None, full_above: bool = True
) -> list[list[T]]:
    """Items in pieces, in their order. first: the first piece's own limit.

    full_above: a piece is full when it holds its limit or more (DDP's reducer, `take_tensors` of PyTorch's C++);
    otherwise it holds no more than that, or one item (`torch._utils._take_tensors`).
    """
    found: list[list[T]] = []
    held = 0
    for item in items:
        size = int(bytes_of(item))
        most = limit if first is None or len(found) > 1 else first
        if not found or (held >= most if full_above else held + size > most):
            found.append([])
            held = 0
        found[-1].append(item)
        held += size
    return found


def made_by(ops: Iterable[PricedOp]) -> set[str]:
    """Memory that any of these ops writes."""
    return {memory for p in ops for memory in p.op.made}


def used_by(ops: Iterable[PricedOp]) -> set[str]:
    """Memory that any of these ops reads or writes."""
    return {memory for p in ops for memory in p.op.read | p.op.made}


def bytes_of(specs: Iterable[TensorSpec]) -> int:
    """Bytes of all tensors together."""
    return sum(int(spec.bytes) for spec in specs)


def flat(name: str, specs: Iterable[TensorSpec]) -> TensorSpec:
    """A piece of memory for all of these tensors."""
    return TensorSpec(name=name, shape=(bytes_of(specs),), dtype=DType.UINT8, role=Role.GRADIENT)


def on_tensors(
    p: PricedOp, tensor: Callable[[TensorSpec], TensorSpec | None], costs: tuple[Cost, ...] | None = None,
    *, in_attrs: bool = False, **changed: Any,
) -> PricedOp:  # fmt: skip
    """The op on other tensors, without those for which `tensor` gives None; at other costs, where these are given.

    in_attrs: also those among its attributes, alone or in lists. changed: its other fields.
    """

    def each(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(other for spec in specs if (other := tensor(spec)) is not None)

    def within(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return tensor(value) or value
        if isinstance(value, list | tuple) and any(isinstance(one, TensorSpec) for one in value):
            return type(value)(each(value))
        return value

    op = p.op
    if in_attrs:
        changed["attrs"] = {name: within(value) for name, value in op.attrs.items()}
    op = replace(op, inputs=each(op.inputs), outputs=each(op.outputs), **changed)
    return replace(p, op=op, costs=p.costs if costs is None else costs)


def renamed(p: PricedOp, names: Mapping[str, TensorSpec]) -> PricedOp:
    """The op on other memory: tensors by the name of theirs, with the tensor whose memory takes its place."""

    def other(spec: TensorSpec) -> TensorSpec:
        place = names.get(spec.memory)
        return spec if place is None else replace(spec, storage=place.memory, role=place.role)

    return on_tensors(p, other) if used_by([p]) & names.keys() else p


def moved(p: PricedOp, names: Mapping[str, str], suffix: str = "", phase: Phase | None = None) -> PricedOp:
    """The op on other memory, under another name."""

    def other(spec: TensorSpec) -> TensorSpec:
        if spec.memory not in names:
            return spec
        return replace(spec, name=names.get(spec.name, spec.name), storage=names[spec.memory])

    return on_tensors(p, other, name=p.op.name + suffix, phase=phase or p.op.phase)


def times(size: Any, share: Fraction | int) -> int:
    """A share of a size, rounded up."""
    return -(-int(size) * share.numerator // share.denominator)


def scaled(costs: Iterable[Cost], share: Fraction | int) -> tuple[Cost, ...]:
    """A share of each cost, with every size rounded up."""
    return tuple(cost.map(lambda size: times(size, share)) for cost in costs)


def flattened(spec: TensorSpec, numel: int, name: str = "") -> TensorSpec:
    """Memory of its own for so many elements like those of a tensor."""
    return replace(spec, name=name or spec.name, storage="", shape=(numel,), stride=None)


@dataclass(slots=True)
class Kept:
    """Memory that forward makes and backward reads: by its largest tensor, and where."""

    spec: TensorSpec
    made: int  # the place of the op that has it first
    uses: list[tuple[int, TensorSpec]] = field(default_factory=list)  # of backward, as it reads it


def kept_for_backward(graph: Graph, *, given: bool = False) -> dict[str, Kept]:
    """By memory, weights and inputs apart. given: also what others have made, as the stages before a stage."""
    standing = memories((*graph.weights, *graph.inputs))
    found: dict[str, Kept] = {}
    for i, op in enumerate(graph.ops):
        if op.phase is Phase.FORWARD:
            for spec in (*op.inputs, *op.outputs) if given else op.outputs:
                kept = found.setdefault(spec.memory, Kept(spec, i))
                kept.spec = max(kept.spec, spec, key=lambda one: int(one.bytes))
        for spec in op.inputs if op.phase is Phase.BACKWARD else ():
            if spec.memory in found:
                found[spec.memory].uses.append((i, spec))
    return {memory: kept for memory, kept in found.items() if kept.uses and memory not in standing}


# The blocks of a model, which checkpointing, sharding and pipelines take as a whole.


def block_of(module: str) -> str:
    """The block that a module or parameter belongs to: up to the first number in its path, else its first part.

    >>> block_of("layer1.0.conv1"), block_of("transformer.h.11.attn"), block_of("head"), block_of("")
    ('layer1.0', 'transformer.h.11', 'head', '')
    """
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def within(module: str, path: str) -> bool:
    """Whether a module is this one or below it."""
    return module == path or module.startswith(f"{path}.")


def blocks_of(graph: Graph) -> list[str]:
    """The blocks in the order in which forward comes to them; ops of the root itself belong to none."""
    forward = (p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD)
    return [block for block in dict.fromkeys(map(block_of, forward)) if block]


def repeated_blocks(graph: Graph) -> list[str]:
    """The blocks with a number in their path, such as the layers of a stack; all, where there are none."""
    found = blocks_of(graph)
    numbered = [block for block in found if block.rpartition(".")[2].isdigit()]
    return numbered or found


def segments_of(graph: Graph) -> list[tuple[str, ...]]:
    """The repeated blocks, those without parameters, such as activations and pools, with the one before them."""
    owners = {block_of(spec.name.rpartition(".")[0]) for spec in graph.learned}
    found: list[tuple[str, ...]] = []
    for block in repeated_blocks(graph):
        if block in owners or not found:
            found.append((block,))
        else:
            found[-1] = (*found[-1], block)
    return found


def known_modules(graph: Graph, paths: Iterable[str]) -> list[str]:
    """The paths. Raises InputError for one in which forward has no op."""
    modules = {p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD}
    listed = list(paths)
    for path in listed:
        if not any(within(module, path) for module in modules):
            raise InputError(f"{graph.name}: no op of forward is in module {path!r}: blocks are {blocks_of(graph)}")
    return listed


def owners_of(graph: Graph, weights: set[str]) -> dict[str, str]:
    """Memory of these parameters, their gradients and what the optimizer has for them, with the parameter's memory.

    Gradients stand in the order of their parameters. State stands at a parameter's place in the lists that the
    optimizer's ops take.
    """
    found = {memory: memory for memory in weights}
    gradients = list(graph.gradients)
    for spec in graph.weights:
        if gradients and spec.role is Role.WEIGHT and tuple(spec.shape) == tuple(gradients[0].shape):
            gradient = gradients.pop(0)
            found |= {gradient.memory: spec.memory} if spec.memory in weights else {}
    _copies_into(graph, found)
    known = -1
    while known < len(found):
        known = len(found)
        for p in graph.priced:
            if p.op.phase is Phase.OPTIMIZER:
                for place in _places(p.op):
                    owned = next((spec for spec in place if spec.memory in found), None)
                    if owned is not None:
                        alike = [spec.memory for spec in place if int(spec.numel) == int(owned.numel)]
                        found |= dict.fromkeys(alike, found[owned.memory])
    return found


def copies_of(graph: Graph, memories: set[str], through: Callable[[PricedOp], bool]) -> dict[str, str]:
    """Memory of these tensors and of what ops that pass `through` make of them, with the tensor's memory.

    Such an op has one input and one output of its shape: a cast, a layout copy.
    """
    found = {memory: memory for memory in memories}
    for p in graph.priced:
        if len(p.op.inputs) == 1 and p.op.inputs[0].memory in found and through(p):
            source, made = p.op.inputs[0], p.op.outputs[0]
            if tuple(source.shape) == tuple(made.shape):
                found.setdefault(made.memory, found[source.memory])
    return found


def _copies_into(graph: Graph, found: dict[str, str]) -> None:
    """Takes in what backward copies into these gradients, or adds to them."""
    standing = memories((*graph.weights, *graph.inputs))
    for p in reversed(graph.priced):
        made = next((spec for spec in p.op.outputs if spec.memory in found), None)
        if p.op.phase is Phase.BACKWARD and made is not None and made.memory not in standing and is_elementwise(p):
            for spec in p.op.inputs:
                if int(spec.numel) == int(made.numel) and spec.memory not in standing:
                    found[spec.memory] = found[made.memory]


def _places(op: Op) -> Iterator[list[TensorSpec]]:
    """The tensors of an optimizer's op that stand at the same place of its lists; of one without lists all."""
    lists: list[Sequence[TensorSpec]] = [
        value for value in op.attrs.values()
        if isinstance(value, list | tuple) and value and all(isinstance(spec, TensorSpec) for spec in value)
    ]  # fmt: skip
    if not lists:
        yield [*op.inputs, *op.outputs]
        return
    length = max(map(len, lists))
    whole = [one for one in (*lists, op.outputs) if len(one) == length]
    yield from ([one[i] for one in whole] for i in range(length))


#: Of the element-wise family by name, yet not element by element.
_ACROSS = ("cum", "fft", "linalg", "tri", "cross", "renorm")
_COPIES = ("_to_copy", "clone", "copy")
_NORMS = ("layer_norm", "rms_norm")


def is_elementwise(p: PricedOp) -> bool:
    """Whether each element of the result rests on those at its own place: arithmetic, activations, dropout, copies."""
    name = p.op.kind.rpartition(".")[2].rstrip("_")
    if p.basis is not Basis.RULE or any(cost.gemms for cost in p.costs):
        return False
    if name in _COPIES:
        return True
    return p.timed_as is Family.ELEMENTWISE and not any(name.startswith(word) for word in _ACROSS)


def is_tokenwise(p: PricedOp) -> bool:
    """Whether each row along the last axis is computed on its own: also normalization and sums along that axis."""
    name = p.op.kind.rpartition(".")[2]
    if is_elementwise(p) or any(word in name for word in _NORMS):
        return True
    dim, last = p.op.attrs.get("dim"), len(p.op.inputs[0].shape) - 1 if p.op.inputs else 0
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return p.timed_as is Family.REDUCTION and dims in ((-1,), (last,))
