"""Copies of a model on several devices that agree on their gradients: DDP, ZeRO, FSDP, DataParallel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

from rooflinekit.distributed.records import DDP, FSDP, DataParallel, Strategy
from rooflinekit.distributed.rewriting import (
    BEGIN,
    Gradient,
    Insertions,
    begin_of,
    block_of,
    buckets_of,
    bytes_of,
    collective,
    copied,
    end_of_backward,
    flat,
    flattened,
    gradients_of,
    is_ours,
    joined,
    on_tensors,
    packed,
    renamed,
    scaled,
    wait,
    work,
)
from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import ceil_div
from rooflinekit.published.stated import PROGRAMS
from rooflinekit.step.entry import entry_of
from rooflinekit.step.execution import Execution


def replicated(graph: Graph, ddp: DDP, ranks: int, group: str = "data") -> Graph:
    """What each of several processes runs. A graph without gradients, or for one process, stays as it is.

    Buckets are there before the first step, when DDP is constructed, and stay; before the second one they are made
    anew in the order in which gradients came, the old ones freed first, so as many bytes (torch 2.13, reducer.cpp:
    `initialize_buckets`, `rebuild_buckets`; a profile of both steps says the same). Unless gradients are views of
    them, they lie beside the gradients.

    group: the processes whose gradients are the same ones; buffers are those of "data".
    """
    if ranks == 1 or not graph.gradients:
        return graph
    put = Insertions()
    staged = ddp.backend == "gloo"
    buffers = [spec for spec in graph.weights if spec.role is Role.BUFFER]
    if group == "data" and buffers:  # before each forward the first process sends its own, such as batch statistics
        send = collective(
            "buffers", "broadcast", bytes_of(buffers), phase=Phase.FORWARD, blocking=True, staged=staged
        )  # fmt: skip
        put.before[0].append(send)
    named = "bucket" if group == "data" else f"{group} bucket"
    gradients, end = gradients_of(graph), end_of_backward(graph)
    buckets = buckets_of(gradients, ddp.bucket_bytes, ddp.first_bucket_bytes)
    views: dict[str, TensorSpec] = {}
    whole = [flat(f"{named} {k}", [gradient.spec for gradient in bucket]) for k, bucket in enumerate(buckets)]
    for k, (bucket, memory) in enumerate(zip(buckets, whole, strict=True)):
        for gradient in bucket:
            part = replace(gradient.spec, name=f"{gradient.spec.name} in {named} {k}", storage=memory.name)
            views[gradient.spec.memory] = part
            put.after[gradient.place].append(joined(f"to {part.name}", [gradient.spec], part, Phase.BACKWARD))
        send = collective(
            f"{named} {k}", "all-reduce", phase=Phase.BACKWARD, group=group, inputs=[memory], staged=staged
        )
        (put.after[max(one.place for one in bucket)] if ddp.overlap else put.before[end]).append(send)
    for k, bucket in enumerate(buckets):
        put.before[end].append(wait([f"{named} {k}"], Phase.BACKWARD))
        if not ddp.gradient_as_bucket_view:
            for gradient in bucket:
                part = views[gradient.spec.memory]
                put.before[end].append(joined(f"from {part.name}", [part], gradient.spec, Phase.BACKWARD))
    found = put.into(replace(graph, weights=(*graph.weights, *whole)))  # they stand, as weights do
    if not ddp.gradient_as_bucket_view:
        return found
    changed = (renamed(p, views) if p.op.phase is Phase.OPTIMIZER else p for p in found.priced)
    return replace(found, priced=tuple(changed), gradients=tuple(whole))


def sharded(graph: Graph, fsdp: FSDP, ranks: int, *, kept: bool = False) -> Graph:
    """What each of several processes runs. One process, or whole weights that nothing learns, leave a graph as it is.

    Gradients are reduced and scattered as they come; each device steps its part of the weights. Stages 1 and 2 gather
    the new weights at the end. Stage 3 gathers each block's before its forward and again before its backward, and
    frees them after it; or, where they are `kept`, once for all pieces of a pipeline, and reduces after the last one.
    """
    if ranks == 1 or not (graph.gradients or fsdp.stage == 3):
        return graph
    gradients, end = gradients_of(graph), end_of_backward(graph)
    put = Insertions()
    parts = {g.spec.memory: _part(g.spec, f"{g.spec.name} part", ranks) for g in gradients}
    groups = buckets_of(gradients, fsdp.bucket_bytes) if fsdp.stage < 3 else _by_block(graph, gradients)
    for k, group in enumerate(groups):
        specs = [gradient.spec for gradient in group]
        kept_parts = [parts[spec.memory] for spec in specs]
        send = collective(f"reduce {k}", "reduce-scatter", phase=Phase.BACKWARD, inputs=specs, outputs=kept_parts)
        late = kept and fsdp.stage == 3
        (put.before[end] if late else put.after[max(gradient.place for gradient in group)]).append(send)
    if groups:
        put.before[end].append(wait([f"reduce {k}" for k in range(len(groups))], Phase.BACKWARD))
    weights = graph.learned
    shares = {spec.memory: _part(spec, spec.name, ranks) for spec in weights}
    if fsdp.stage == 3:
        found = _gathered_by_block(graph, fsdp, put, kept=kept)
    else:
        gather = collective("new weights", "all-gather", bytes_of(weights), phase=Phase.OPTIMIZER, blocking=True)
        put.before[len(graph.priced)].append(gather)
        found = put.into(graph)
    found = replace(
        found,
        priced=tuple(_stepped(p, parts if fsdp.stage > 1 else {}, ranks) for p in found.priced),
        weights=tuple(shares.get(spec.memory, spec) for spec in graph.weights) if fsdp.stage == 3 else graph.weights,
    )
    if fsdp.stage == 1:
        return found
    return replace(found, gradients=tuple(parts[spec.memory] for spec in graph.gradients))


def _part(spec: TensorSpec, name: str, ranks: int) -> TensorSpec:
    return flattened(spec, ceil_div(int(spec.numel), ranks), name)


def _stepped(p: PricedOp, gradients: Mapping[str, TensorSpec], ranks: int) -> PricedOp:
    """An op of the optimizer on a device's part; other ops as they are."""
    if p.op.phase is not Phase.OPTIMIZER or not p.costs:
        return p

    def part(spec: TensorSpec) -> TensorSpec:
        shape = (ceil_div(int(spec.numel), ranks),) if spec.shape else ()
        return gradients.get(spec.memory, replace(spec, shape=shape, stride=None))

    return on_tensors(p, part, scaled(p.costs, Fraction(1, ranks)), in_attrs=True)


def _by_block(graph: Graph, gradients: Sequence[Gradient]) -> list[list[Gradient]]:
    """Gradients by the block of the last op that makes each, in the order in which the last of a block is there."""
    found: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        makers = [
            p.op.module for p in graph.priced[: gradient.place + 1]
            if p.op.phase is Phase.BACKWARD and p.op.module
            and gradient.spec.memory in p.op.made
        ]  # fmt: skip
        found.setdefault(block_of(makers[-1] if makers else ""), []).append(gradient)
    return sorted(found.values(), key=lambda group: max(gradient.place for gradient in group))


def _gathered_by_block(graph: Graph, fsdp: FSDP, put: Insertions, *, kept: bool) -> Graph:
    """Each block's weights gathered before its first op of forward, and unless kept of backward, that reads them."""
    priced = list(graph.priced)
    blocks = {spec.memory: block_of(spec.name) for spec in graph.learned}
    for phase in (Phase.FORWARD,) if kept else (Phase.FORWARD, Phase.BACKWARD):
        first: dict[str, int] = {}
        for i, p in enumerate(priced):
            if p.op.phase is phase:
                for spec in p.op.inputs:
                    if spec.memory in blocks:
                        first.setdefault(blocks[spec.memory], begin_of(priced, i))
        order = sorted(first, key=first.__getitem__)
        for k, block in enumerate(order):
            key = f"gather {block or 'the root'} for {phase}"
            members = [spec for spec in graph.weights if blocks.get(spec.memory) == block]
            whole = {
                spec.memory: replace(spec, name=f"{spec.name} for {phase}", storage="", role=Role.ACTIVATION)
                for spec in members
            }
            # One block ahead: its gathering starts when the block before begins.
            ahead = first[order[k - 1]] if fsdp.prefetch and k else first[block]
            send = collective(key, "all-gather", phase=phase, inputs=members, outputs=list(whole.values()))
            put.before[ahead].append(send)
            put.before[first[block]].append(wait([key], phase))
            for i, p in enumerate(priced):
                if p.op.phase is phase or (kept and p.op.phase is Phase.BACKWARD):
                    priced[i] = renamed(p, whole)
    return put.into(graph, priced)


# `torch.nn.DataParallel`: one process that copies the model to all devices at every step, and gathers on the first.
#
# All replicas' forward ops are issued by threads of one Python, of which one at a time runs; what PyTorch's C++ does
# for an op runs beside the others. Backward is issued by a thread of autograd's own for each device. Gradients go to
# the first device when all of them are there, because the copies of all parameters were made by one function.
# Parameters and gradients are sent by NCCL, inputs and outputs by copies. The loss is computed on the first device;
# here it counts as a replica's.


_ISSUES_A_COPY, _ISSUES_A_THREAD, _ISSUES_A_SUM, _ISSUES_A_PART = (
    PROGRAMS[name].value for name in ("copy of a module", "thread", "sum of a gradient", "part of a gradient")
)


def with_threads(graph: Graph, threads: DataParallel, replicas: int, host: Host, *, first: bool) -> Graph:
    """What one device runs for the only process. first: whether it is the one that gathers."""
    if replicas == 1:
        return graph
    put = Insertions()
    # From the first device to another, or back: `tensor.to`, for which NCCL is not used.
    moved = partial(collective, phase=Phase.FORWARD, group="pair", blocking=True, by_engine=True)
    for k in range(1, replicas):
        put.before[0].append(moved(f"scatter {k}", "send-recv", bytes_of(graph.inputs)))
    _copies(graph, threads, replicas, host, put, first=first)
    loss = 1 + max((i for i, p in enumerate(graph.priced) if p.op.phase is Phase.FORWARD), default=-1)
    for k in range(1, replicas):
        put.before[loss].append(moved(f"gather {k}", "send-recv", bytes_of(graph.outputs)))
    _sums(graph, threads, replicas, host, put)
    found = put.into(graph)
    kept = found.priced if first else tuple(p for p in found.priced if p.op.phase is not Phase.OPTIMIZER)
    return replace(found, priced=kept)


def _sums(graph: Graph, threads: DataParallel, replicas: int, host: Host, put: Insertions) -> None:
    """Gradients in pieces, each flattened by one kernel; and Python's work on them, which one thread does for all."""
    end, issue_s = end_of_backward(graph), host.dispatch_s("default")
    # Python's own packing, while parameters are packed by C++.
    pieces = packed(gradients_of(graph), lambda one: int(one.spec.bytes), threads.copy_bytes, full_above=False)
    for k, bucket in enumerate(pieces):
        specs = [gradient.spec for gradient in bucket]
        target = flat(f"gradients {k}", specs)
        issues = len(bucket) * (_ISSUES_A_SUM + _ISSUES_A_PART * replicas)
        reduce = collective(
            f"reduce {k}", "broadcast", phase=Phase.BACKWARD, blocking=True, inputs=[target], reduces=True
        )
        put.before[end] += [
            work(f"lists of gradients {k}", issues * issue_s, Phase.BACKWARD),
            copied(f"to gradients {k}", specs, [target], Phase.BACKWARD), reduce,
        ]  # fmt: skip


def _copies(graph: Graph, threads: DataParallel, replicas: int, host: Host, put: Insertions, *, first: bool) -> None:
    """Parameters, then buffers, each in pieces; and meanwhile Python's copies of all modules, and a thread for each.

    The first device has a piece until it is sent; what comes to another one are its weights (`broadcast_coalesced`).
    """
    modules = {p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD}
    for role in (Role.WEIGHT, Role.BUFFER):
        specs = [spec for spec in graph.weights if spec.role is role]
        for k, piece in enumerate(packed(specs, lambda one: int(one.bytes), threads.copy_bytes)):
            whole, name = flat(f"{role}s {k}", piece), f"{role}s {k}"
            if first:
                put.before[0].append(copied(f"to {name}", piece, [whole], Phase.FORWARD))
            send = collective(
                name, "broadcast", int(whole.bytes), phase=Phase.FORWARD, blocking=True, inputs=[whole] * first
            )  # fmt: skip
            put.before[0].append(send)
    issues = ((len(modules) + len(graph.weights)) * _ISSUES_A_COPY + _ISSUES_A_THREAD) * replicas
    put.before[0].append(work("copies of modules", issues * host.dispatch_s("default"), Phase.FORWARD))


# Where torch.compile cuts a step on several devices, so that gradients can be sent while backward goes on.
#
# A compiled backward hands over all its gradients when it ends. So DDP's forward is cut at the borders of buckets,
# counted from its end (torch 2.13: torch/_dynamo/backends/distributed.py, DDPOptimizer), and `fully_shard`'s hooks cut
# it at each module that they gather. AOTAutograd makes a forward and a backward graph of each piece; nothing fuses
# across. The first graph of each counts to the step as on one device; each further one costs the CPU its entry.


#: CPU time of entering one more compiled graph, in guards of the host: dynamo's, and the checks of a graph's inputs.
_MODULE, _PIECE = (
    {phase: PROGRAMS[f"{phase} graph of a {what}"].value for phase in (Phase.FORWARD, Phase.BACKWARD)}
    for what in ("module", "piece")
)


def check_execution(strategy: Strategy, ranks: int, execution: Execution) -> None:
    """Raises InputError for a strategy that PyTorch does not run in this way on several devices."""
    if ranks == 1:
        return
    if isinstance(strategy, DataParallel) and (execution.fused or execution.as_graph):
        raise InputError(
            f"execution {execution.backend!r}: DataParallel makes new copies of all modules at every step, for which "
            "torch.compile would compile again and which no CUDA graph holds; choose 'eager', or strategy 'ddp'"
        )
    kinds = (strategy, getattr(strategy, "data", None))
    if execution.backend in ("cuda-graph", "cudagraphs") and any(
        isinstance(kind, DDP) and kind.backend == "gloo" for kind in kinds
    ):
        raise InputError(
            f"execution {execution.backend!r}: gloo takes gradients through the host's memory, which no CUDA graph "
            "holds; choose DDP(backend='nccl'), or another execution"
        )


def in_graphs(graph: Graph, data: DDP | FSDP | None, host: Host, execution: Execution) -> Graph:
    """The step with a mark where each compiled graph begins; as it is where nothing is compiled.

    data: how copies agree; None where there is one, whose forward and backward are a graph each.
    """
    if not execution.fused or not graph.gradients:
        return graph
    if data is None:
        begins = {phase: [_ops(graph, phase)[0][0]] for phase in (Phase.FORWARD, Phase.BACKWARD)}
        entry = _PIECE
    elif isinstance(data, FSDP) and data.stage == 3:
        begins, entry = _at_blocks(graph), _MODULE
    else:
        begins, entry = _at_buckets(graph, data), _PIECE
    put = Insertions()
    replayed_s = entry_of(host, execution).replay_s
    for phase, places in begins.items():
        for k, place in enumerate(places):
            entry_s = entry[phase] * host.guards + replayed_s if k else 0.0
            put.before[place].append(work(f"{phase} graph {k}", entry_s, phase, BEGIN))
    return put.into(graph)


def graphs_of(graph: Graph) -> tuple[str, ...]:
    """What to tell of a step that is cut: into how many graphs, each piece of the batch; nothing where it is not."""
    begun = [
        phase for phase, _ in {(op.phase, op.name.partition(" of part ")[0]) for op in graph.ops if op.kind == BEGIN}
    ]
    forward, backward = (begun.count(phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    if forward + backward <= 2:
        return ()
    return (
        f"compiled: forward as {forward} graphs and backward as {backward}, cut where gradients are sent or weights "
        "gathered",
    )


def _ops(graph: Graph, phase: Phase) -> list[tuple[int, Op]]:
    return [(i, p.op) for i, p in enumerate(graph.priced) if p.op.phase is phase and not is_ours(p.op)]


def _at_blocks(graph: Graph) -> dict[Phase, list[int]]:
    """Where a block with weights begins or ends; what lies between two of them is a graph of its own."""
    owners = {block_of(spec.name) for spec in graph.learned}
    found: dict[Phase, list[int]] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        ops = _ops(graph, phase)
        blocks = [(i, block_of(op.module)) for i, op in ops if graph.priced[i].costs]  # without views
        owned = [(i, block if block in owners else "") for i, block in blocks]
        found[phase] = [ops[0][0], *(i for (_, before), (i, block) in pairwise(owned) if block != before)]
    return found


def _at_buckets(graph: Graph, data: DDP | FSDP) -> dict[Phase, list[int]]:
    forward, backward = _ops(graph, Phase.FORWARD), _ops(graph, Phase.BACKWARD)
    sizes = {spec.memory: int(spec.bytes) for spec in graph.learned}
    first = min(data.first_bucket_bytes, data.bucket_bytes) if isinstance(data, DDP) else data.bucket_bytes
    whole = isinstance(data, DDP) and not data.overlap
    cuts = [] if whole else list(_cuts(forward, sizes, first, data.bucket_bytes))[::-1]
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
    after = -1
    for i, op in reversed(ops):
        prepares = op.kind == "aten._to_copy" or (len(op.inputs) == 1 and op.made <= op.read)  # casts, another view
        if held >= cap and not (op.module == call and (whole or prepares)):
            if end is not None:
                yield end
            end, held, cap = after, 0, limit
        for spec in op.inputs:
            key = (spec.memory, op.module)
            if spec.memory in sizes and key not in counted:
                counted.add(key)
                held += sizes[spec.memory]
                owner = spec.memory.rpartition(".")[0]
                call, whole = op.module, bool(op.module) and owner.startswith(f"{op.module}.")
        after = i
    if end is not None and held:
        yield end


def _pieces(ops: Sequence[tuple[int, Op]], cuts: Sequence[int], sizes: Mapping[str, int]) -> dict[str, set[int]]:
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
