"""Activations that wait for backward in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, TensorSpec
from rooflinekit.step.execution import Execution
from rooflinekit.step.input_pipeline import copy_rate
from rooflinekit.strategies.blocks import segments_of, within
from rooflinekit.strategies.records import Savers
from rooflinekit.strategies.rewriting import HOST_COPY, PART, Insertions, host_copy, host_wait, moved, with_ops
from rooflinekit.units import format_quantity

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
        seconds = sum(int(spec.bytes) for spec in stay.kept) / rate
        out, back = f"{stay.name} to the host", f"{stay.name} from the host"
        there = tuple(replace(spec, name=names[spec.memory], storage=names[spec.memory]) for spec in stay.kept)
        put.after[stay.end].append(host_copy(out, seconds, Phase.FORWARD, inward=False, inputs=stay.kept))
        put.after[stay.gone].insert(0, host_wait(out, Phase.FORWARD, stay.kept))
        ahead = stays[k + 1].use if k + 1 < len(stays) else begin
        put.before[min(ahead, stay.use)].append(host_copy(back, seconds, Phase.BACKWARD, inward=True, outputs=there))
        put.before[stay.use].append(host_wait(back, Phase.BACKWARD))
    priced = tuple(moved(p, names) if p.op.phase is Phase.BACKWARD else p for p in graph.priced)
    kept = MappingProxyType({names.get(memory, memory): op for memory, op in graph.saved.items()})
    return with_ops(replace(graph, priced=priced, saved=kept), put)


def check_savers(savers: Savers, execution: Execution) -> None:
    """Raises InputError for activations on the host of a step that is not eager."""
    if savers.offload_activations and execution.backend != "eager":
        raise InputError(
            f"execution {execution.backend!r}: activations go to the host between the ops of an eager step; choose "
            "'eager', or checkpoints"
        )


def host_bytes(graph: Graph) -> tuple[str, ...]:
    """What lies in the host's memory of one microbatch, as a note; none where nothing does."""
    copies = [p.op for p in graph.priced if p.op.kind == HOST_COPY and not p.op.attrs.get("inward", True)]
    size = sum(int(spec.bytes) for op in copies if PART not in op.name for spec in op.inputs)
    shown = format_quantity(size, "byte", binary=True)
    return (f"activations on the CPU: {shown} of its page-locked memory for each GPU and microbatch",) if size else ()


def _stays(graph: Graph, chosen: bool | tuple[str, ...]) -> list[_Stay]:
    """Of each block that is chosen, in the order of forward."""
    segments = segments_of(graph)
    begins = [_begin(graph, path) for path in segments]
    last = max((i for i, p in enumerate(graph.priced) if p.op.phase is Phase.FORWARD), default=0)
    ends = [*(begin - 1 for begin in begins[1:]), last]
    found = []
    for k in _numbers(graph, segments, chosen):
        kept, use = _kept(graph, begins[k], ends[k])
        if kept:
            gone = ends[min(k + 1, len(ends) - 1)]
            found.append(_Stay(name=segments[k][0], kept=kept, end=ends[k], gone=gone, use=use))
    return found


def _numbers(graph: Graph, segments: list[tuple[str, ...]], chosen: bool | tuple[str, ...]) -> list[int]:
    if isinstance(chosen, bool):
        return list(range(len(segments) - 1)) if chosen else []
    for path in chosen:
        if not any(within(block, path) for segment in segments for block in segment):
            known = ", ".join(segment[0] for segment in segments)
            raise InputError(f"{graph.name}: offload_activations: {path!r} is no block: expected some of {known}")
    return [k for k, s in enumerate(segments) if any(within(block, path) for block in s for path in chosen)]


def _begin(graph: Graph, path: tuple[str, ...]) -> int:
    """The place of a segment's first op in forward."""
    return next(
        i for i, p in enumerate(graph.priced)
        if p.op.phase is Phase.FORWARD and any(within(p.op.module, block) for block in path)
    )  # fmt: skip


def _kept(graph: Graph, begin: int, end: int) -> tuple[tuple[TensorSpec, ...], int]:
    """What forward ops from one place to another make and backward reads, and where that is first."""
    stay = {spec.memory for spec in (*graph.weights, *graph.inputs, *graph.outputs)}
    made: dict[str, TensorSpec] = {}
    for p in graph.priced[begin : end + 1]:
        for spec in p.op.outputs if p.op.phase is Phase.FORWARD else ():
            if spec.memory not in stay and (spec.memory not in made or int(spec.bytes) > int(made[spec.memory].bytes)):
                made[spec.memory] = spec
        stay |= {spec.memory for spec in p.op.inputs if spec.memory not in made}
    uses: dict[str, int] = {}
    for i, p in enumerate(graph.priced):
        for spec in p.op.inputs if p.op.phase is Phase.BACKWARD else ():
            uses.setdefault(spec.memory, i)
    kept = tuple(spec for memory, spec in made.items() if memory in uses and int(spec.bytes) >= _LEAST_BYTES)
    return kept, min((uses[spec.memory] for spec in kept), default=0)
