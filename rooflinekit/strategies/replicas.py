"""Copies of a model on several devices that agree on their gradients: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, Role, TensorSpec
from rooflinekit.strategies.records import DDP
from rooflinekit.strategies.rewriting import (
    Insertions,
    buckets_of,
    bytes_of,
    collective,
    copy,
    end_of_backward,
    flat,
    gradients_of,
    renamed,
    wait,
    with_ops,
)


def replicated(graph: Graph, ddp: DDP, ranks: int, group: str = "data") -> Graph:
    """What each of several processes runs. A graph without gradients, or for one process, stays as it is.

    group: the processes whose gradients are the same ones; buffers are those of "data".
    """
    if ranks == 1 or not graph.gradients:
        return graph
    put = Insertions()
    staged = ddp.backend == "gloo"
    if group == "data":
        _buffers(graph, put, staged=staged)
    named = "bucket" if group == "data" else f"{group} bucket"
    gradients, end = gradients_of(graph), end_of_backward(graph)
    # The first backward tells the reducer in which order gradients come; from then on its buckets follow it.
    buckets = buckets_of(gradients, ddp.bucket_bytes, ddp.first_bucket_bytes)
    views: dict[str, TensorSpec] = {}
    for k, bucket in enumerate(buckets):
        memory = flat(f"{named} {k}", bytes_of(bucket))
        for gradient in bucket:
            part = replace(gradient.spec, name=f"{gradient.spec.name} in {named} {k}", storage=memory.name)
            views[gradient.spec.memory] = part
            put.after[gradient.place].append(copy(f"to {part.name}", gradient.spec, part, Phase.BACKWARD))
        send = collective(
            f"{named} {k}", "all-reduce", bytes_of(bucket), phase=Phase.BACKWARD, group=group, inputs=[memory],
            staged=staged,
        )  # fmt: skip
        if ddp.overlap:
            put.after[max(gradient.place for gradient in bucket)].append(send)
        else:
            put.before[end].append(send)
    for k, bucket in enumerate(buckets):
        put.before[end].append(wait([f"{named} {k}"], Phase.BACKWARD))
        if not ddp.gradient_as_bucket_view:
            for gradient in bucket:
                part = views[gradient.spec.memory]
                put.before[end].append(copy(f"from {part.name}", part, gradient.spec, Phase.BACKWARD))
    found = with_ops(graph, put)
    return _in_buckets(found, views) if ddp.gradient_as_bucket_view else found


def _in_buckets(graph: Graph, views: Mapping[str, TensorSpec]) -> Graph:
    """Gradients that are views of their buckets from when they were copied there."""
    changed = (renamed(p, views) if p.op.phase is Phase.OPTIMIZER else p for p in graph.priced)
    return replace(graph, priced=tuple(changed), gradients=tuple(views[spec.memory] for spec in graph.gradients))


def _buffers(graph: Graph, put: Insertions, *, staged: bool) -> None:
    """Before each forward the first process sends its buffers, such as the statistics of batch normalization."""
    size = sum(int(spec.bytes) for spec in graph.weights if spec.role is Role.BUFFER)
    if size:
        send = collective("buffers", "broadcast", size, phase=Phase.FORWARD, blocking=True, staged=staged)
        put.before[0].append(send)
