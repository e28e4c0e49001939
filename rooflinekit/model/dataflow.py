"""A graph's loops with what each reads and writes: values, of which every write to a memory makes a new one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import ADDED, Phase
from rooflinekit.ir.points import integer
from rooflinekit.ir.tensor import TensorSpec
from rooflinekit.model.layout import Layouts
from rooflinekit.model.loops import Access, Loop, Part
from rooflinekit.model.lowering import parts_of


@dataclass(slots=True, kw_only=True)
class Dataflow:
    """Parts with versioned values: every write to a memory makes a new one."""

    parts: list[Part]
    reads: list[list[tuple[str, Access]]]
    writes: list[list[tuple[str, TensorSpec]]]
    numel: dict[str, int] = field(default_factory=dict)
    users: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    kept: set[str] = field(default_factory=set)  # values that outlive the step


def dataflow_of(graph: Graph, layouts: Layouts) -> Dataflow:
    """The loops of a graph whose results are read."""
    return _without_dead(_dataflow(graph, layouts))


def _parts(graph: Graph, layouts: Layouts) -> Iterator[Part]:
    """All loops in order, each in the region between what a strategy has put in."""
    region, reorders = 0, graph.like is None or graph.like.reorders_loops
    for priced in graph.priced:
        region += priced.op.kind.startswith(ADDED)
        for part in parts_of(priced, graph.like):
            if part.loop is Loop.REDUCTION and not reorders:
                part = replace(part, columns=layouts.goes_down_columns(priced.op, part.columns))
            yield replace(part, region=region) if region else part


def _dataflow(graph: Graph, layouts: Layouts) -> Dataflow:
    parts = list(_parts(graph, layouts))
    flow = Dataflow(parts=parts, reads=[], writes=[])
    current: dict[str, str] = {}
    flow.numel.update({spec.memory: integer(spec.numel) for spec in (*graph.weights, *graph.inputs)})
    standing, made = set(flow.numel), set[str]()
    for i, part in enumerate(parts):
        reads = [(current.get(access.spec.memory, access.spec.memory), access) for access in part.reads]
        writes = []
        for spec in part.writes:
            memory, value = spec.memory, f"{spec.memory}#{i}"
            before = current.get(memory, memory)
            if flow.numel.get(before, 0) > integer(spec.numel):  # into a part of it: the rest stays
                reads.append((before, Access(spec=spec, bytes=0, gathered=True)))
            flow.numel[value] = max(integer(spec.numel), flow.numel.get(before, 0))
            writes.append((value, spec))
        for value, access in reads:
            flow.users[value].append(i)
            if access.spec.memory not in made:
                standing.add(access.spec.memory)
                flow.numel[value] = max(access.elements, flow.numel.get(value, 0))
            if part.op.kind.startswith(ADDED):  # a whole bucket, of which each copy has written a part
                flow.numel[value] = max(access.elements, flow.numel[value])
        for value, spec in writes:
            current[spec.memory] = value
            made.add(spec.memory)
        flow.reads.append(reads)
        flow.writes.append(writes)
    lasting = standing | {spec.memory for spec in (*graph.outputs, *graph.gradients, *_loss(graph))}
    flow.kept = {value for memory, value in current.items() if memory in lasting}
    return flow


def _loss(graph: Graph) -> tuple[TensorSpec, ...]:
    """What the forward phase of a training step ends with: the caller gets it, though no op reads it."""
    last = [op for op in graph.ops if op.phase is Phase.FORWARD][-1:] if graph.mode == "training" else []
    return tuple(spec for op in last for spec in op.outputs)


def _without_dead(flow: Dataflow) -> Dataflow:
    """Without results that nobody reads, and loops that have no others; what libraries are called for stays."""
    alive: list[int] = []
    users: dict[str, list[int]] = defaultdict(list)
    for i in reversed(range(len(flow.parts))):
        part = flow.parts[i]
        flow.writes[i] = [w for w in flow.writes[i] if w[0] in flow.kept or users[w[0]] or part.loop is Loop.EXTERN]
        if flow.writes[i] or part.loop is Loop.EXTERN:
            alive.append(i)
            for value, _ in flow.reads[i]:
                users[value].append(i)
    alive.reverse()
    renumbered = {old: new for new, old in enumerate(alive)}
    return Dataflow(
        parts=[flow.parts[i] for i in alive],
        reads=[flow.reads[i] for i in alive],
        writes=[flow.writes[i] for i in alive],
        numel=flow.numel,
        users=defaultdict(list, {v: sorted({renumbered[i] for i in found}) for v, found in users.items()}),
        kept=flow.kept,
    )
