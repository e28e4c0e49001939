"""`torch.nn.DataParallel`: one process that copies the model to all devices at every step, and gathers on the first.

All replicas' forward ops are issued by threads of one Python, of which one at a time runs; what PyTorch's C++ does for
an op runs beside the others. Backward is issued by a thread of autograd's own for each device. Gradients go to the
first device when all of them are there, because the copies of all parameters were made by one function. Parameters and
gradients are sent by NCCL, inputs and outputs by copies. The loss is computed on the first device; here it counts as a
replica's.
"""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, PricedOp, Role
from rooflinekit.strategies.records import DataParallel
from rooflinekit.strategies.rewriting import (
    Insertions,
    bytes_of,
    collective,
    copy,
    end_of_backward,
    flat,
    gradients_of,
    joined,
    packed,
    with_ops,
    work,
)

#: CPU time of copying a module, parameter or buffer for one more device, in issues of a plain op. Python's work in
#: torch.nn.parallel.replicate (torch 2.13, Python 3.11, broadcast left out): 7 to 8 µs each, where a module that
#: calls a small op takes 2.4 µs and a GPU op of a current server 7 µs.
_ISSUES_A_COPY = 1.0
#: Likewise of a thread that is started and joined: 47 µs.
_ISSUES_A_THREAD = 7.0
#: CPU time of a gradient in torch.nn.parallel.comm.reduce_add_coalesced, likewise, and for each device that has one:
#: lists of pieces, views of the sum, and the order put back. 5 µs and 1.5 µs (the reduction left out).
_ISSUES_A_SUM, _ISSUES_A_PART = 0.7, 0.2


def with_threads(graph: Graph, way: DataParallel, replicas: int, host: Host, *, first: bool) -> Graph:
    """What one device runs for the only process. first: whether it is the one that gathers."""
    if replicas == 1:
        return graph
    put = Insertions()
    sent, returned = (sum(int(spec.bytes) for spec in specs) for specs in (graph.inputs, graph.outputs))
    for k in range(1, replicas):
        put.before[0].append(_sent(f"scatter {k}", sent))
    _copies(graph, way, replicas, host, put, first=first)
    loss = 1 + max((i for i, p in enumerate(graph.priced) if p.op.phase is Phase.FORWARD), default=-1)
    for k in range(1, replicas):
        put.before[loss].append(_sent(f"gather {k}", returned))
    _sums(graph, way, replicas, host, put)
    found = with_ops(graph, put)
    kept = found.priced if first else tuple(p for p in found.priced if p.op.phase is not Phase.OPTIMIZER)
    return replace(found, priced=kept)


def _sent(key: str, size_bytes: int) -> PricedOp:
    """From the first device to another, or back: `tensor.to`, for which NCCL is not used."""
    return collective(key, "send-recv", size_bytes, phase=Phase.FORWARD, group="pair", blocking=True, by_engine=True)


def _sums(graph: Graph, way: DataParallel, replicas: int, host: Host, put: Insertions) -> None:
    """Gradients in pieces, each flattened by one kernel; and Python's work on them, which one thread does for all."""
    end, issue_s = end_of_backward(graph), host.dispatch_s("default")
    # Python's own packing, while parameters are packed by C++.
    pieces = packed(gradients_of(graph), lambda one: int(one.spec.bytes), way.copy_bytes, full_above=False)
    for k, bucket in enumerate(pieces):
        size = bytes_of(bucket)
        target = flat(f"gradients {k}", size)
        issues = len(bucket) * (_ISSUES_A_SUM + _ISSUES_A_PART * replicas)
        put.before[end].append(work(f"lists of gradients {k}", issues * issue_s, Phase.BACKWARD))
        put.before[end].append(joined(f"to gradients {k}", [one.spec for one in bucket], target, Phase.BACKWARD))
        reduce = collective(
            f"reduce {k}", "broadcast", size, phase=Phase.BACKWARD, blocking=True, inputs=[target], reduces=True
        )
        put.before[end].append(reduce)


def _copies(graph: Graph, way: DataParallel, replicas: int, host: Host, put: Insertions, *, first: bool) -> None:
    """Parameters, then buffers, each in pieces; and meanwhile Python's copies of all modules, and a thread for each."""
    modules = {p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD}
    for role in (Role.WEIGHT, Role.BUFFER):
        specs = [spec for spec in graph.weights if spec.role is role]
        for k, piece in enumerate(packed(specs, lambda one: int(one.bytes), way.copy_bytes)):
            size = sum(int(spec.bytes) for spec in piece)
            whole = flat(f"{role}s {k}", size)
            if first:
                put.before[0].append(copy(f"to {whole.name}", flat(f"all {whole.name}", size), whole, Phase.FORWARD))
            put.before[0].append(
                collective(f"{role}s {k}", "broadcast", size, phase=Phase.FORWARD, blocking=True, inputs=[whole])
            )
    issues = ((len(modules) + len(graph.weights)) * _ISSUES_A_COPY + _ISSUES_A_THREAD) * replicas
    put.before[0].append(work("copies of modules", issues * host.dispatch_s("default"), Phase.FORWARD))
