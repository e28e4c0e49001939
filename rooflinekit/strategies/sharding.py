"""Weights, gradients and the optimizer's state shared out among devices: ZeRO's stages, FSDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import ceil_div
from rooflinekit.strategies.blocks import block_of
from rooflinekit.strategies.records import FSDP
from rooflinekit.strategies.rewriting import (
    Gradient,
    Insertions,
    begin_of,
    buckets_of,
    bytes_of,
    collective,
    end_of_backward,
    gradients_of,
    renamed,
    wait,
    with_ops,
)


def sharded(graph: Graph, way: FSDP, ranks: int, *, kept: bool = False) -> Graph:
    """What each of several processes runs. A graph without gradients, or for one process, stays as it is.

    Gradients are reduced and scattered as they come; each device steps its part of the weights. Stages 1 and 2 gather
    the new weights at the end. Stage 3 gathers each block's before its forward and again before its backward, and
    frees them after it; or, where they are `kept`, once for all pieces of a pipeline, and reduces after the last one.
    """
    if ranks == 1 or not graph.gradients:
        return graph
    gradients, end = gradients_of(graph), end_of_backward(graph)
    put = Insertions()
    parts = {g.spec.memory: _part(g.spec, f"{g.spec.name} part", ranks) for g in gradients}
    groups = buckets_of(gradients, way.bucket_bytes) if way.stage < 3 else _by_block(graph, gradients)
    for k, group in enumerate(groups):
        send = collective(
            f"reduce {k}", "reduce-scatter", bytes_of(group), phase=Phase.BACKWARD, inputs=[g.spec for g in group],
            outputs=[parts[g.spec.memory] for g in group],
        )  # fmt: skip
        if kept and way.stage == 3:
            put.before[end].append(send)
        else:
            put.after[max(gradient.place for gradient in group)].append(send)
    put.before[end].append(wait([f"reduce {k}" for k in range(len(groups))], Phase.BACKWARD))
    weights = [spec for spec in graph.weights if spec.role is Role.WEIGHT]
    shares = {spec.memory: _part(spec, spec.name, ranks) for spec in weights}
    if way.stage == 3:
        found = _gathered_by_block(graph, way, put, kept=kept)
    else:
        size = sum(int(spec.bytes) for spec in weights)
        gather = collective("new weights", "all-gather", size, phase=Phase.OPTIMIZER, blocking=True)
        put.before[len(graph.priced)].append(gather)
        found = with_ops(graph, put)
    found = replace(
        found,
        priced=tuple(_stepped(p, parts if way.stage > 1 else {}, ranks) for p in found.priced),
        weights=tuple(shares.get(spec.memory, spec) for spec in graph.weights) if way.stage == 3 else graph.weights,
    )
    if way.stage == 1:
        return found
    return replace(found, gradients=tuple(parts[spec.memory] for spec in graph.gradients))


def _part(spec: TensorSpec, name: str, ranks: int) -> TensorSpec:
    return replace(spec, name=name, storage="", shape=(ceil_div(int(spec.numel), ranks),), stride=None)


def _stepped(priced: PricedOp, gradients: Mapping[str, TensorSpec], ranks: int) -> PricedOp:
    """An op of the optimizer on a device's part; other ops as they are."""
    op = priced.op
    if op.phase is not Phase.OPTIMIZER or not priced.costs:
        return priced

    def part(spec: TensorSpec) -> TensorSpec:
        known = gradients.get(spec.memory)
        if known is not None:
            return known
        return replace(spec, shape=(ceil_div(int(spec.numel), ranks),) if spec.shape else (), stride=None)

    def parts(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return part(value)
        return type(value)(map(parts, value)) if isinstance(value, list | tuple) else value

    changed = replace(
        op, inputs=tuple(map(part, op.inputs)), outputs=tuple(map(part, op.outputs)),
        attrs={name: parts(value) for name, value in op.attrs.items()},
    )  # fmt: skip
    costs = tuple(cost.map(lambda size: ceil_div(size, ranks)) for cost in priced.costs)
    return replace(priced, op=changed, costs=costs)


def _by_block(graph: Graph, gradients: Sequence[Gradient]) -> list[list[Gradient]]:
    """Gradients of a block together, in the order in which the last of them is there."""
    owners = {spec.memory: block_of(module) for spec, module in zip(graph.gradients, _owners(graph), strict=True)}
    found: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        found.setdefault(owners[gradient.spec.memory], []).append(gradient)
    return sorted(found.values(), key=lambda group: max(gradient.place for gradient in group))


def _owners(graph: Graph) -> list[str]:
    """The module of each gradient: that of the op after which it is there."""
    ready = {gradient.spec.memory: gradient.place for gradient in gradients_of(graph)}
    modules = []
    for spec in graph.gradients:
        makers = [
            p.op.module
            for p in graph.priced[: ready[spec.memory] + 1]
            if p.op.phase is Phase.BACKWARD and p.op.module and any(o.memory == spec.memory for o in p.op.outputs)
        ]
        modules.append(makers[-1] if makers else "")
    return modules


def _gathered_by_block(graph: Graph, way: FSDP, put: Insertions, *, kept: bool) -> Graph:
    """Each block's weights gathered before its first op of forward, and unless kept of backward, that reads them."""
    priced = list(graph.priced)
    blocks = {spec.memory: block_of(spec.name) for spec in graph.weights if spec.role is Role.WEIGHT}
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
            ahead = first[order[k - 1]] if way.prefetch and k else first[block]
            size = sum(int(spec.bytes) for spec in members)
            send = collective(key, "all-gather", size, phase=phase, inputs=members, outputs=list(whole.values()))
            put.before[ahead].append(send)
            put.before[first[block]].append(wait([key], phase))
            for i, p in enumerate(priced):
                if p.op.phase is phase or (kept and p.op.phase is Phase.BACKWARD):
                    priced[i] = renamed(p, whole)
    return with_ops(replace(graph, priced=tuple(priced)), put)
