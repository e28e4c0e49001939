"""Steps that need less memory: accumulation, an optimizer in 8 bits or on the CPU, and all savers together."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, DType, Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.step.input_pipeline import copy_rate
from rooflinekit.strategies.checkpointing import checkpointed
from rooflinekit.strategies.host_memory import activations_on_host
from rooflinekit.strategies.records import Savers
from rooflinekit.strategies.rewriting import PART, gradients_of, moved, work

#: Elements of a state that share one scale of 4 bytes (bitsandbytes: blockwise, 256).
_SCALED_TOGETHER = 256

#: Share of the host's DRAM bandwidth that an optimizer on its cores gets. Stated default.
_CPU_OPTIMIZER_SHARE = 0.7


def saving(graph: Graph, savers: Savers, device: Device, host: Host) -> Graph:
    """The step with all of these. `graph` is one part of the batch, where it is accumulated.

    Raises InputError for modules that are not there, and for an optimizer to save at where the step has none.
    """
    if (savers.eight_bit or savers.offload) and not any(p.op.phase is Phase.OPTIMIZER for p in graph.priced):
        raise InputError(f"{graph.name}: the step has no optimizer to keep in 8 bits or on the CPU")
    if savers.checkpoint:
        graph = checkpointed(graph, savers.checkpoint, savers.save)
    if savers.offload_activations:
        graph = activations_on_host(graph, savers.offload_activations, device, host)
    if savers.accumulate > 1:
        graph = accumulated(graph, savers.accumulate)
    if savers.eight_bit:
        graph = in_eight_bits(graph)
    return offloaded(graph, device, host) if savers.offload else graph


# --- the batch in parts ------------------------------------------------------------------------------------------


def accumulated(graph: Graph, parts: int) -> Graph:
    """Forward and backward so many times, each on inputs of its own, then the optimizer. Later parts add gradients."""
    gradients = {gradient.spec.memory: gradient for gradient in gradients_of(graph)}
    once = [p for p in graph.priced if p.op.phase is not Phase.OPTIMIZER]
    kept = {spec.memory for spec in graph.weights}
    inputs, held, autograd = list(graph.inputs), dict(graph.held), dict(graph.saved)
    found: list[PricedOp] = list(once)
    for k in range(1, parts):
        suffix = f"{PART}{k}"
        own = {spec.memory for p in once for spec in (*p.op.inputs, *p.op.outputs)} - kept
        names = {memory: memory + suffix for memory in own}
        inputs += [replace(spec, name=spec.name + suffix, storage=names.get(spec.memory, "")) for spec in graph.inputs]
        for given, found_of in ((graph.held, held), (graph.saved, autograd)):
            found_of |= {names[memory]: op + suffix for memory, op in given.items() if memory in names}
        ready: dict[int, list[str]] = {}
        for memory, gradient in gradients.items():
            ready.setdefault(gradient.place, []).append(memory)
        for i, p in enumerate(graph.priced):
            if p.op.phase is Phase.OPTIMIZER:
                continue
            found.append(moved(p, names, suffix))
            found += [_added(gradients[memory].spec, names[memory], suffix) for memory in ready.get(i, ())]
    last = [p for p in graph.priced if p.op.phase is Phase.OPTIMIZER]
    return replace(
        graph, priced=(*found, *last), inputs=tuple(inputs), held=MappingProxyType(held),
        saved=MappingProxyType(autograd),
    )  # fmt: skip


def _added(gradient: TensorSpec, memory: str, suffix: str) -> PricedOp:
    """A part's gradient added to those before it."""
    size, numel = int(gradient.bytes), int(gradient.numel)
    part = replace(gradient, name=gradient.name + suffix, storage=memory)
    op = Op(
        name=f"{gradient.name} added{suffix}", kind="aten.add_", phase=Phase.BACKWARD, inputs=(gradient, part),
        outputs=(gradient,),
    )  # fmt: skip
    cost = Cost(vector_flop=numel, read_bytes=2 * size, write_bytes=size)
    return PricedOp(op=op, costs=(cost,), basis=Basis.RULE)


# --- the optimizer -----------------------------------------------------------------------------------------------


def in_eight_bits(graph: Graph) -> Graph:
    """The optimizer's state as a byte an element, and a scale for each 256; traffic of the state falls with it."""
    return replace(graph, priced=tuple(_in_bytes(p) if p.op.phase is Phase.OPTIMIZER else p for p in graph.priced))


def _in_bytes(priced: PricedOp) -> PricedOp:
    op = priced.op
    inputs, outputs = tuple(map(_as_byte, op.inputs)), tuple(map(_as_byte, op.outputs))
    saved = [
        sum(int(a.bytes) - int(b.bytes) for a, b in zip(*pair, strict=True))
        for pair in ((op.inputs, inputs), (op.outputs, outputs))
    ]
    total = [max(1, sum(int(getattr(cost, part)) for cost in priced.costs)) for part in ("read_bytes", "write_bytes")]
    left = [max(0.0, 1 - one / whole) for one, whole in zip(saved, total, strict=True)]
    costs = tuple(
        replace(cost, read_bytes=int(int(cost.read_bytes) * left[0]), write_bytes=int(int(cost.write_bytes) * left[1]))
        for cost in priced.costs
    )
    return replace(priced, op=replace(op, inputs=inputs, outputs=outputs), costs=costs)


def _as_byte(spec: TensorSpec) -> TensorSpec:
    numel = int(spec.numel)
    if spec.role is not Role.STATE or numel < _SCALED_TOGETHER:
        return spec
    return replace(spec, shape=(numel + 4 * math.ceil(numel / _SCALED_TOGETHER),), stride=None, dtype=DType.UINT8)


def offloaded(graph: Graph, device: Device, host: Host) -> Graph:
    """State and step of the optimizer on the CPU: gradients go there, weights come back, nothing else meanwhile.

    The CPU reads and writes weights and state and reads gradients, at a share of its DRAM bandwidth; each parameter
    takes it three calls, two of them copies.
    """
    sizes = dict.fromkeys((Role.WEIGHT, Role.STATE), 0)
    seen: set[str] = set()
    for p in graph.priced:
        if p.op.phase is Phase.OPTIMIZER:
            for spec in (*p.op.inputs, *p.op.outputs):
                if spec.role in sizes and spec.memory not in seen:
                    seen.add(spec.memory)
                    sizes[spec.role] += int(spec.bytes)
    ready = gradients_of(graph)
    gradients = sum(int(gradient.spec.bytes) for gradient in ready)
    calls = 3 * len(ready) * host.dispatch_s("default")
    moved = (gradients + sizes[Role.WEIGHT]) / copy_rate(device, host, pinned=True)
    traffic = 2 * sizes[Role.WEIGHT] + 2 * sizes[Role.STATE] + gradients
    seconds = calls + moved + traffic / (host.dram_bandwidth * _CPU_OPTIMIZER_SHARE)
    kept = tuple(p for p in graph.priced if p.op.phase is not Phase.OPTIMIZER)
    return replace(graph, priced=(*kept, work("optimizer on the CPU", seconds, Phase.OPTIMIZER, waits=True)))
