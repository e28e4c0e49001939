"""Steps that need less memory: accumulation, an optimizer in 8 bits or on the CPU, and all savers together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

from rooflinekit.distributed.records import Savers
from rooflinekit.distributed.rewriting import (
    HOST_COPY,
    PART,
    Insertions,
    bytes_of,
    gradients_of,
    host_copy,
    kept_for_backward,
    known_modules,
    moved,
    on_tensors,
    segments_of,
    used_by,
    wait,
    within,
    work,
)
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, DType, Op, Phase, PricedOp, Role, TensorSpec, memories
from rooflinekit.published.stated import PROGRAMS
from rooflinekit.step.entry import copy_rate
from rooflinekit.step.execution import Execution
from rooflinekit.step.utilization import AGAIN
from rooflinekit.units import format_bytes

#: Elements of a state that share one scale of 4 bytes (bitsandbytes: blockwise, 256).
_SCALED_TOGETHER = 256

_CPU_OPTIMIZER_SHARE = PROGRAMS["optimizer on the CPU"].value


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


def accumulated(graph: Graph, parts: int) -> Graph:
    """Forward and backward so many times, each on inputs of its own, then the optimizer. Later parts add gradients."""
    ready = {place: list(own) for place, own in groupby(gradients_of(graph), lambda gradient: gradient.place)}
    once = [p for p in graph.priced if p.op.phase is not Phase.OPTIMIZER]
    kept = memories(graph.weights)
    inputs, held, autograd = list(graph.inputs), dict(graph.held), dict(graph.saved)
    found: list[PricedOp] = list(once)
    for k in range(1, parts):
        suffix = f"{PART}{k}"
        own = used_by(once) - kept
        names = {memory: memory + suffix for memory in own}
        inputs += [replace(spec, name=spec.name + suffix, storage=names.get(spec.memory, "")) for spec in graph.inputs]
        for given, found_of in ((graph.held, held), (graph.saved, autograd)):
            found_of |= {names[memory]: op + suffix for memory, op in given.items() if memory in names}
        for i, p in enumerate(graph.priced):
            if p.op.phase is not Phase.OPTIMIZER:
                found.append(moved(p, names, suffix))
                found += [_added(g.spec, names[g.spec.memory], suffix) for g in ready.get(i, ())]
    last = [p for p in graph.priced if p.op.phase is Phase.OPTIMIZER]
    return replace(
        graph, priced=(*found, *last), inputs=tuple(inputs), held=MappingProxyType(held),
        saved=MappingProxyType(autograd),
    )  # fmt: skip


def _added(gradient: TensorSpec, memory: str, suffix: str) -> PricedOp:
    size, numel = int(gradient.bytes), int(gradient.numel)
    part = replace(gradient, name=gradient.name + suffix, storage=memory)
    op = Op(
        name=f"{gradient.name} added{suffix}", kind="aten.add_", phase=Phase.BACKWARD, inputs=(gradient, part),
        outputs=(gradient,),
    )  # fmt: skip
    cost = Cost(vector_flop=numel, read_bytes=2 * size, write_bytes=size)
    return PricedOp(op=op, costs=(cost,), basis=Basis.RULE)


def in_eight_bits(graph: Graph) -> Graph:
    """The optimizer's state as a byte an element, and a scale for each 256; traffic of the state falls with it."""
    return replace(graph, priced=tuple(_in_bytes(p) if p.op.phase is Phase.OPTIMIZER else p for p in graph.priced))


def _in_bytes(p: PricedOp) -> PricedOp:
    found = on_tensors(p, _as_byte)
    left = []
    for part, specs, others in (
        ("read_bytes", p.op.inputs, found.op.inputs), ("write_bytes", p.op.outputs, found.op.outputs),
    ):  # fmt: skip
        saved = bytes_of(specs) - bytes_of(others)
        left.append(max(0.0, 1 - saved / max(1, sum(int(getattr(cost, part)) for cost in p.costs))))
    costs = tuple(
        replace(cost, read_bytes=int(int(cost.read_bytes) * left[0]), write_bytes=int(int(cost.write_bytes) * left[1]))
        for cost in p.costs
    )
    return replace(found, costs=costs)


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
    stepped = [s for op in graph.ops if op.phase is Phase.OPTIMIZER for s in (*op.inputs, *op.outputs)]
    weights, states = (
        bytes_of({spec.memory: spec for spec in reversed(stepped) if spec.role is role}.values())
        for role in (Role.WEIGHT, Role.STATE)
    )
    ready = gradients_of(graph)
    gradients = bytes_of(gradient.spec for gradient in ready)
    calls = 3 * len(ready) * host.dispatch_s("default")
    moved = (gradients + weights) / copy_rate(device, host, pinned=True)
    traffic = 2 * weights + 2 * states + gradients
    seconds = calls + moved + traffic / (host.dram_bandwidth * _CPU_OPTIMIZER_SHARE)
    kept = tuple(p for p in graph.priced if p.op.phase is not Phase.OPTIMIZER)
    return replace(graph, priced=(*kept, work("optimizer on the CPU", seconds, Phase.OPTIMIZER, waits=True)))


def checkpointed(
    graph: Graph,
    chosen: bool | tuple[str, ...],
    save: Collection[str] | Callable[[Sequence[PricedOp]], list[PricedOp]] = (),
    *,
    whole: bool = False,
) -> Graph:
    """Each block's forward ops once more before its backward, which then reads what they give.

    As `torch.utils.checkpoint` without reentry does it: nothing is computed again behind the last op whose result this
    backward reads. What the first forward made in the block dies with its last use there; what the block was given
    stays, and so does what the ops of `save` made, which are not run again (`create_selective_checkpoint_contexts`):
    names of ops, or which of a block's forward ops. whole: all of a block is run again, as before torch 2.1, with
    reentry, and by Megatron.

    Raises InputError for modules that are not there, and for an entry of `save` that is no op of any block.
    """
    paths = segments_of(graph) if chosen is True else [(path,) for path in known_modules(graph, chosen or ())]
    put = Insertions()
    priced, held, kept = list(graph.priced), dict(graph.held), dict(graph.saved)
    met: set[str] = set()
    for path in paths:
        inside = _inside(graph, path)
        forward = [priced[i] for i in inside if priced[i].op.phase is Phase.FORWARD]
        backward = [i for i in inside if priced[i].op.phase is Phase.BACKWARD]
        if not forward or not backward:
            continue
        if callable(save):
            saved = save(forward)
        else:
            saved = [p for p in forward if p.costs and not {*save}.isdisjoint(names_of(p.op, path))]
        met |= {name for p in saved for name in names_of(p.op, path)}
        repeated = forward if whole else _needed(forward, saved, [priced[i] for i in backward])
        # ops before the last that is run again; what others have saved is never fetched, and goes last
        last = next((i for i, p in enumerate(forward) if repeated and p is repeated[-1]), 0)
        fetched = {id(p) for p in forward[:last]}
        for p in saved:
            until = priced[backward[0 if id(p) in fetched else -1]].op.name
            held |= {spec.memory: until for spec in p.op.outputs}
        suffix = f"{AGAIN}{path[0]}"
        again = _again(repeated, suffix)
        kept = {again.get(memory, memory): op for memory, op in kept.items()}
        put.before[backward[0]] += [moved(p, again, suffix, Phase.BACKWARD) for p in repeated]
        for i in backward:
            priced[i] = moved(priced[i], again)
    if missing := [] if callable(save) else sorted(set(save) - met):
        known = dict.fromkeys(
            kind_and_place(p.op, path)[1] for path in paths for p in repeated_of(graph, path) if p.costs
        )
        raise InputError(f"save: {', '.join(missing)}: expected ops of these blocks: {', '.join(known)}")
    return put.into(replace(graph, held=MappingProxyType(held), saved=MappingProxyType(kept)), priced)


def repeated_of(graph: Graph, path: tuple[str, ...]) -> list[PricedOp]:
    """What a block of these modules computes again as a checkpoint that saves nothing."""
    inside = [graph.priced[i] for i in _inside(graph, path)]
    forward, backward = ([p for p in inside if p.op.phase is phase] for phase in (Phase.FORWARD, Phase.BACKWARD))
    return _needed(forward, (), backward)


def _inside(graph: Graph, path: tuple[str, ...]) -> list[int]:
    return [i for i, p in enumerate(graph.priced) if any(within(p.op.module, block) for block in path)]


def names_of(op: Op, block: Sequence[str]) -> tuple[str, str, str]:
    """What `save` may call an op of a block, which has these modules: its kind, and with its place in the block."""
    kind, place = kind_and_place(op, block)
    return kind, place, kind.removeprefix("aten.")


def kind_and_place(op: Op, block: Sequence[str]) -> tuple[str, str]:
    """An op's kind, and that behind the path of its module inside the block.

    >>> kind_and_place(Op(name="x", kind="aten.mm", module="h.3.attn.proj"), ["h.3"])
    ('aten.mm', 'attn.proj:aten.mm')
    """
    path = next(one for one in block if within(op.module, one))
    return op.kind, f"{op.module[len(path) + 1 :]}:{op.kind}"


def _needed(forward: Sequence[PricedOp], saved: Sequence[PricedOp], backward: Iterable[PricedOp]) -> list[PricedOp]:
    """What is run again: up to the last op whose result backward reads, without those that are saved."""
    read = {memory for p in backward for memory in p.op.read}
    last = max((i for i, p in enumerate(forward) if p.op.made & read), default=-1)
    kept = {id(p) for p in saved}
    return [p for p in forward[: last + 1] if id(p) not in kept]


def _again(repeated: Sequence[PricedOp], suffix: str) -> Mapping[str, str]:
    """New names for memory that the repeated ops make, by the old ones."""
    made: dict[str, str] = {}
    given: set[str] = set()
    for p in repeated:
        given |= p.op.read - made.keys()
        made |= {spec.memory: spec.memory + suffix for spec in p.op.outputs if spec.memory not in given}
    return made


#: Smaller tensors stay where they are, as in torchtune's `OffloadActivations`.
_LEAST_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """What a block leaves for backward; the places behind which it leaves and is gone, and before which it is used."""

    name: str
    kept: tuple[TensorSpec, ...]
    end: int
    gone: int
    use: int


def activations_on_host(graph: Graph, chosen: bool | tuple[str, ...], device: Device, host: Host) -> Graph:
    """What these blocks' forward makes and backward reads is copied to page-locked memory, and back when it is needed.

    A block's tensors leave by a copy engine while the next one computes, and are free when both are done; they come
    back one block ahead. Those of the last block stay: their backward comes at once. So do torchtune and Megatron
    with streams of their own; PyTorch's `save_on_cpu` waits for each copy.

    Raises InputError for what is no block.
    """
    stays = _stays(graph, chosen)
    if not stays:
        return graph
    rate, put = copy_rate(device, host, pinned=True), Insertions()
    names = {spec.memory: f"{spec.memory} back" for stay in stays for spec in stay.kept}
    begin = min(stay.use for stay in stays)
    for k, stay in enumerate(stays):
        seconds = bytes_of(stay.kept) / rate
        out, back = f"{stay.name} to the host", f"{stay.name} from the host"
        there = tuple(replace(spec, name=names[spec.memory], storage=names[spec.memory]) for spec in stay.kept)
        put.after[stay.end].append(host_copy(out, seconds, Phase.FORWARD, inward=False, inputs=stay.kept))
        put.after[stay.gone].insert(0, wait([out], Phase.FORWARD, "host", inputs=stay.kept))
        ahead = stays[k + 1].use if k + 1 < len(stays) else begin
        put.before[min(ahead, stay.use)].append(host_copy(back, seconds, Phase.BACKWARD, inward=True, outputs=there))
        put.before[stay.use].append(wait([back], Phase.BACKWARD, "host"))
    priced = [moved(p, names) if p.op.phase is Phase.BACKWARD else p for p in graph.priced]
    kept = MappingProxyType({names.get(memory, memory): op for memory, op in graph.saved.items()})
    return put.into(replace(graph, saved=kept), priced)


def check_savers(savers: Savers, execution: Execution) -> None:
    """Raises InputError for activations on the host of a step that is not eager."""
    if savers.offload_activations and execution.backend != "eager":
        raise InputError(
            f"execution {execution.backend!r}: activations go to the host between the ops of an eager step; choose "
            "'eager', or checkpoints"
        )


def host_bytes(graph: Graph) -> tuple[str, ...]:
    """What lies in the host's memory of one microbatch, as a note; none where nothing does."""
    copies = [p.op for p in graph.priced if p.op.kind == HOST_COPY and not p.op.attrs["inward"]]
    size = bytes_of(spec for op in copies if PART not in op.name for spec in op.inputs)
    shown = format_bytes(size)
    return (f"activations on the CPU: {shown} of its page-locked memory for each GPU and microbatch",) if size else ()


def _stays(graph: Graph, chosen: bool | tuple[str, ...]) -> list[_Stay]:
    segments, outputs = segments_of(graph), memories(graph.outputs)
    begins = [next(i for i in _inside(graph, s) if graph.priced[i].op.phase is Phase.FORWARD) for s in segments]
    last = max((i for i, p in enumerate(graph.priced) if p.op.phase is Phase.FORWARD), default=0)
    ends = [*(begin - 1 for begin in begins[1:]), last]
    every = [
        kept for memory, kept in kept_for_backward(graph).items()
        if memory not in outputs and int(kept.spec.bytes) >= _LEAST_BYTES
    ]  # fmt: skip
    found = []
    for k in _numbers(graph, segments, chosen):
        if own := [kept for kept in every if begins[k] <= kept.made <= ends[k]]:
            specs, use = tuple(kept.spec for kept in own), min(kept.uses[0][0] for kept in own)
            gone = ends[min(k + 1, len(ends) - 1)]
            found.append(_Stay(name=segments[k][0], kept=specs, end=ends[k], gone=gone, use=use))
    return found


def _numbers(graph: Graph, segments: list[tuple[str, ...]], chosen: bool | tuple[str, ...]) -> list[int]:
    if isinstance(chosen, bool):
        return list(range(len(segments) - 1)) if chosen else []
    for path in chosen:
        if not any(within(block, path) for segment in segments for block in segment):
            known = ", ".join(segment[0] for segment in segments)
            raise InputError(f"{graph.name}: offload_activations: {path!r} is no block: expected some of {known}")
    return [k for k, s in enumerate(segments) if any(within(block, path) for block in s for path in chosen)]
