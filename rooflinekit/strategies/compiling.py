"""Where torch.compile cuts a step on several devices, so that gradients can be sent while backward goes on.

A compiled backward hands over all its gradients when it ends. So DDP's forward is cut at the borders of buckets,
counted from its end (torch 2.13: torch/_dynamo/backends/distributed.py, DDPOptimizer), and `fully_shard`'s hooks cut it
at each module that they gather. AOTAutograd makes a forward and a backward graph of each piece; nothing fuses across.
The first forward and the first backward graph count to the step as on one device; each further one costs the CPU its
entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, Role
from rooflinekit.step.entry import entry_of
from rooflinekit.step.execution import Execution
from rooflinekit.strategies.records import DDP, FSDP, DataParallel, Strategy
from rooflinekit.strategies.rewriting import Insertions, begin, block_of, is_begin, is_ours, with_ops

#: CPU time of entering one more compiled graph, in guards of the host (30 µs for those of a step: dynamo's guards, the
#: wrapper's checks of its inputs). benchmarks/graph_entry.py, torch 2.13 on a CPU with other work: modules compiled one
#: by one 27 to 29 µs forward, taken as one guards, and 15 to 16 µs backward; pieces of DDPOptimizer, called through
#: modules, 39 to 82 µs and 34 to 70 µs, the least with nothing else to do. Uncertain to a factor of 1.5.
_MODULE = {Phase.FORWARD: 1.0, Phase.BACKWARD: 0.6}
_PIECE = {Phase.FORWARD: 2.0, Phase.BACKWARD: 1.6}


def check_execution(strategy: Strategy, ranks: int, execution: Execution) -> None:
    """Raises InputError for a strategy that PyTorch does not run in this way on several devices."""
    if ranks == 1:
        return
    if isinstance(strategy, DataParallel) and (execution.fused or execution.as_graph):
        raise InputError(
            f"execution {execution.backend!r}: DataParallel makes new copies of all modules at every step, for which "
            "torch.compile would compile again and which no CUDA graph holds; choose 'eager', or strategy 'ddp'"
        )
    ways = (strategy, getattr(strategy, "data", None))
    if execution.backend in ("cuda-graph", "cudagraphs") and any(
        isinstance(way, DDP) and way.backend == "gloo" for way in ways
    ):
        raise InputError(
            f"execution {execution.backend!r}: gloo takes gradients through the host's memory, which no CUDA graph "
            "holds; choose DDP(backend='nccl'), or another execution"
        )


def in_graphs(graph: Graph, way: DDP | FSDP | None, host: Host, execution: Execution) -> Graph:
    """The step with a mark where each compiled graph begins; as it is where nothing is compiled.

    way: how copies agree; None where there is one, whose forward and backward are a graph each.
    """
    if not execution.fused or not graph.gradients:
        return graph
    if way is None:
        begins = {phase: [_ops(graph, phase)[0][0]] for phase in (Phase.FORWARD, Phase.BACKWARD)}
        entry = _PIECE
    elif isinstance(way, FSDP) and way.stage == 3:
        begins, entry = _at_blocks(graph), _MODULE
    else:
        begins, entry = _at_buckets(graph, way), _PIECE
    put = Insertions()
    replayed_s = entry_of(host, execution).replay_s
    for phase, places in begins.items():
        for k, place in enumerate(places):
            entry_s = entry[phase] * host.guards + replayed_s if k else 0.0
            put.before[place].append(begin(f"{phase} graph {k}", entry_s, phase))
    return with_ops(graph, put)


def graphs_of(graph: Graph) -> tuple[str, ...]:
    """What to tell of a step that is cut: into how many graphs, each piece of the batch; nothing where it is not."""
    begun = [phase for phase, _ in {(op.phase, op.name.partition(" of part ")[0]) for op in graph.ops if is_begin(op)}]
    forward, backward = (begun.count(phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    if forward + backward <= 2:
        return ()
    return (
        f"compiled: forward as {forward} graphs and backward as {backward}, cut where gradients are sent or weights "
        "gathered",
    )


def _ops(graph: Graph, phase: Phase) -> list[tuple[int, Op]]:
    return [(i, p.op) for i, p in enumerate(graph.priced) if p.op.phase is phase and not is_ours(p.op)]


# --- at the modules that are gathered --------------------------------------------------------------------------------


def _at_blocks(graph: Graph) -> dict[Phase, list[int]]:
    """Where a block with weights begins or ends; what lies between two of them is a graph of its own."""
    owners = {block_of(spec.name) for spec in graph.weights if spec.role is Role.WEIGHT}
    found: dict[Phase, list[int]] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        ops = _ops(graph, phase)
        found[phase] = [ops[0][0]]
        now = None
        for i, op in ops:
            if not graph.priced[i].costs:  # a view
                continue
            block = block_of(op.module)
            block = block if block in owners else ""
            if now is not None and block != now:
                found[phase].append(i)
            now = block
    return found


# --- at the borders of buckets ---------------------------------------------------------------------------------------


def _at_buckets(graph: Graph, way: DDP | FSDP) -> dict[Phase, list[int]]:
    forward, backward = _ops(graph, Phase.FORWARD), _ops(graph, Phase.BACKWARD)
    sizes = {spec.memory: int(spec.bytes) for spec in graph.weights if spec.role is Role.WEIGHT}
    first = min(way.first_bucket_bytes, way.bucket_bytes) if isinstance(way, DDP) else way.bucket_bytes
    whole = isinstance(way, DDP) and not way.overlap
    cuts = [] if whole else list(_cuts(forward, sizes, first, way.bucket_bytes))[::-1]
    pieces = _pieces(forward, cuts, sizes)
    back, now = [backward[0][0]], len(cuts)
    for i, op in backward:
        own = _piece_of(op, pieces, now)
        back += [i] * (own < now)
        now = min(now, own)
    return {Phase.FORWARD: [forward[0][0], *cuts], Phase.BACKWARD: back}


def _cuts(ops: Sequence[tuple[int, Op]], sizes: Mapping[str, int], first: int, limit: int) -> Iterator[int]:
    """Places of the ops with which pieces begin, from the end of forward on, where a bucket is full.

    Casts and views of a layer's weights belong to its call, and all ops of a module that reads its child's weights by
    itself, as MultiheadAttention does. A piece at the start without weights goes to the next one.
    """
    held, cap, call, whole, counted = 0, first, "", False, set[tuple[str, str]]()
    end: int | None = None
    for i, op in reversed(ops):
        if held >= cap and not (op.module == call and (whole or _prepares(op))):
            if end is not None:
                yield end
            end, held, cap = _following(ops, i), 0, limit
        for spec in op.inputs:
            key = (spec.memory, op.module)
            if spec.memory in sizes and key not in counted:
                counted.add(key)
                held += sizes[spec.memory]
                owner = spec.memory.rpartition(".")[0]
                call, whole = op.module, bool(op.module) and owner.startswith(f"{op.module}.")
    if end is not None and held:
        yield end


def _following(ops: Sequence[tuple[int, Op]], place: int) -> int:
    return next(i for i, _ in ops if i > place)


def _prepares(op: Op) -> bool:
    """Whether it only casts, or gives another view."""
    return op.kind == "aten._to_copy" or (
        len(op.inputs) == 1 and all(out.memory == op.inputs[0].memory for out in op.outputs)
    )


def _pieces(ops: Sequence[tuple[int, Op]], cuts: Sequence[int], sizes: Mapping[str, int]) -> dict[str, set[int]]:
    """The pieces in which forward comes to a module, or to a weight."""
    found: dict[str, set[int]] = defaultdict(set)
    for i, op in ops:
        piece = sum(cut <= i for cut in cuts)
        found[f"module {op.module}"].add(piece)
        for spec in op.inputs:
            if spec.memory in sizes:
                found[f"weight {spec.memory}"].add(piece)
    return found


def _piece_of(op: Op, pieces: Mapping[str, set[int]], now: int) -> int:
    """To which piece an op of backward belongs: that of its module, or of the weight that it reads, or the last one."""
    names = [f"module {op.module}"] if op.module else []
    for name in (*names, *(f"weight {spec.memory}" for spec in op.inputs)):
        known = pieces.get(name, ())
        if len(known) == 1:
            return next(iter(known))
    return now
