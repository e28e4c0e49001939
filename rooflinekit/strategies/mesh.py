"""A step on a mesh: tensor groups in pipeline stages, and copies of all that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase
from rooflinekit.ir.origin import resized
from rooflinekit.model.collectives import time_collective
from rooflinekit.step.memory import USABLE_SHARE, MemoryUse
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.experts import agreed
from rooflinekit.strategies.groups import within_groups
from rooflinekit.strategies.pipeline import Slot, Stage, orders, pieces_under_way, run_pipeline
from rooflinekit.strategies.prediction import TERMS, Share
from rooflinekit.strategies.program import program_of
from rooflinekit.strategies.queues import DeviceRun, Message, covered, run_devices
from rooflinekit.strategies.records import FSDP, Mesh, Savers
from rooflinekit.strategies.rewriting import bytes_of, gradients_of
from rooflinekit.strategies.saving import saving
from rooflinekit.strategies.setting import BATCH, Setting, batch_of, share_of
from rooflinekit.strategies.sharding import sharded
from rooflinekit.strategies.stages import crossing_bytes, saved_bytes, stage_of_blocks, stages_of


def on_mesh(
    graph: Graph, setting: Setting, mesh: Mesh, savers: Savers
) -> tuple[tuple[Share, ...], tuple[Message, ...], float]:
    """Each stage's share, what is sent, and how long the links are busy.

    Raises InputError for sizes that do not divide, and for unequal devices.
    """
    count, inner = len(setting.numbers), mesh.tensor * mesh.pipeline
    if count % inner:
        raise InputError(
            f"mesh of {mesh.tensor} × {mesh.pipeline}: expected a multiple of {inner} devices; got {count}"
        )
    if len({setting.machine(number).name for number in setting.numbers}) > 1:
        raise InputError(f"{setting.cluster.name}: a mesh needs equal devices")
    copies, batch = count // inner, batch_of(graph)
    pieces = copies * mesh.pieces * savers.accumulate
    if batch % pieces:
        raise InputError(f"batch={batch} cannot be cut into {copies} copies × {pieces // copies} microbatches")
    machine = setting.machine(setting.numbers[0])
    piece = resized(graph, **{BATCH: batch // pieces})
    if mesh.pipeline == 1:
        own = within_groups(piece, mesh, copies)
        saved = saving(own.graph, savers, machine.device, setting.host)
        agree = (
            sharded(saved, mesh.data, copies) if isinstance(mesh.data, FSDP)
            else agreed(saved, mesh.data, copies, mesh.expert, own.gradients)
        )  # fmt: skip
        p = setting.predict(agree, machine)
        run = run_devices([program_of(p, setting.wiring(**_groups(setting, mesh, copies)))])
        share = share_of(setting.numbers, batch // copies, p, run.devices[0])
        return (share,), run.messages, run.communication_s
    if isinstance(mesh.data, FSDP) or savers.accumulate > 1:
        raise InputError("a pipeline takes DDP between copies, and microbatches in the place of accumulate")
    return _piped(within_groups(piece, mesh, copies).graph, setting, mesh, savers, copies)


def _groups(setting: Setting, mesh: Mesh, copies: int) -> dict[str, Sequence[int]]:
    """The first device's groups. Those of a tensor group are neighbours, then come copies, then stages."""
    numbers, plane = setting.numbers, mesh.tensor * copies
    found: dict[str, Sequence[int]] = {
        "tensor": numbers[: mesh.tensor], "data": numbers[: plane : mesh.tensor], "pipe": (numbers[0], numbers[0]),
        "expert": numbers[: mesh.tensor * mesh.expert : mesh.tensor],
        "expert data": numbers[: plane : mesh.tensor * mesh.expert],
    }  # fmt: skip
    if mesh.pipeline > 1:
        found["pipe"] = (numbers[0], numbers[plane])
    return {name: members for name, members in found.items() if len(set(members)) > 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A stage of one piece."""

    prediction: Prediction
    run: DeviceRun
    messages: tuple[Message, ...]  # of its tensor group
    forward_s: float
    backward_s: float
    optimizer_s: float


def _timed(graph: Graph, setting: Setting, mesh: Mesh, copies: int) -> _Timed:
    p = setting.predict(graph, setting.machine(setting.numbers[0]))
    whole = run_devices([program_of(p, setting.wiring(**_groups(setting, mesh, copies)))])
    (run,) = whole.devices
    ends = {phase: max((s.end_s for s in run.spans if s.timing.kernel.phase is phase), default=0.0) for phase in Phase}
    forward = ends[Phase.FORWARD]
    backward = max(forward, ends[Phase.BACKWARD])
    optimizer = max(0.0, ends[Phase.OPTIMIZER] - backward)
    return _Timed(
        prediction=p, run=run, messages=whole.messages, forward_s=forward, backward_s=backward - forward,
        optimizer_s=optimizer,
    )  # fmt: skip


def _piped(
    piece: Graph, setting: Setting, mesh: Mesh, savers: Savers, copies: int
) -> tuple[tuple[Share, ...], tuple[Message, ...], float]:
    machine = setting.machine(setting.numbers[0])
    chunks = mesh.chunks if mesh.schedule == "interleaved" else 1
    parts = mesh.pipeline * chunks
    blocks = stage_of_blocks(setting.predict(piece, machine), parts)
    graphs = stages_of(piece, blocks, parts)
    saved = [saving(graph, savers, machine.device, setting.host) for graph in graphs]
    timed = [_timed(graph, setting, mesh, copies) for graph in saved]
    wiring = setting.wiring(**_groups(setting, mesh, copies))
    sends = [
        time_collective("send-recv", size, wiring.routes["pipe"], setting.links) for size in crossing_bytes(graphs)
    ]
    onward = [*(send.total_s for send in sends), 0.0]
    queues = orders(mesh.schedule, mesh.pipeline, mesh.pieces, chunks)
    laid, free = (
        run_pipeline(
            [
                Stage(forward_s=t.forward_s, backward_s=t.backward_s, onward_s=on)
                for t, on in zip(timed, delays, strict=True)
            ],
            queues,
        )
        for delays in (onward, [0.0] * parts)
    )
    messages = [
        Message(key=f"{'back ' if s.task.backward else ''}{s.task.piece}", group=f"pipe {k}", timing=sends[k],
                start_s=s.end_s, end_s=s.end_s + onward[k])
        for slots in laid for s in slots
        if 0 <= (k := s.task.stage - s.task.backward) < parts - 1
    ]  # fmt: skip
    messages += [_shifted(m, slot, timed[slot.task.stage]) for slots in laid for slot in slots
                 for m in timed[slot.task.stage].messages
                 if (m.start_s >= timed[slot.task.stage].forward_s) == slot.task.backward]  # fmt: skip
    shares = []
    for device in range(mesh.pipeline):
        own = [timed[k] for k in range(device, parts, mesh.pipeline)]
        reduced = [
            Message(key=f"gradients {k}", group="data", timing=timing, start_s=0.0, end_s=timing.total_s)
            for k, stage in enumerate(own) if copies > 1
            for timing in [
                time_collective("all-reduce", bytes_of(gradients_of(stage.prediction.graph)), wiring.routes["data"],
                                setting.links)
            ]
        ]  # fmt: skip
        end = laid[device][-1].end_s
        for message in reduced:
            messages.append(replace(message, start_s=end, end_s=end + message.timing.total_s))
            end = messages[-1].end_s
        shares.append(_share(setting, mesh, device, own, laid, free, end - laid[device][-1].end_s, copies))
    busy = covered([(m.start_s, m.end_s) for m in messages])
    return tuple(shares), tuple(sorted(messages, key=lambda m: m.start_s)), busy


def _shifted(message: Message, slot: Slot, stage: _Timed) -> Message:
    """A collective inside a stage at the time of one of its tasks."""
    start = slot.start_s - (stage.forward_s if slot.task.backward else 0.0)
    return replace(
        message, key=f"{message.key}, {slot.task.piece}", group=f"tensor, stage {slot.task.stage}",
        start_s=start + message.start_s, end_s=start + message.end_s,
    )  # fmt: skip


def _share(
    setting: Setting, mesh: Mesh, device: int, own: Sequence[_Timed], laid: list[list[Slot]], free: list[list[Slot]],
    reduced_s: float, copies: int,
) -> Share:  # fmt: skip
    """A device's share. A pipeline's idle time without links is its bubble; what links add to it is communication."""
    slots, pieces = laid[device], mesh.pieces
    busy = sum(slot.end_s - slot.start_s for slot in slots)
    ideal_end = free[device][-1].end_s
    sync = setting.host.sync
    optimizer = sum(stage.optimizer_s for stage in own)
    exposed = pieces * sum(stage.run.exposed_s for stage in own)
    contention = pieces * sum(stage.run.contention_s for stage in own)
    terms = dict.fromkeys(TERMS, 0.0)
    for stage in own:
        for timing in stage.prediction.timings:
            times = 1 if timing.kernel.phase is Phase.OPTIMIZER else pieces
            for name, seconds in timing.terms().items():
                terms[name] += times * seconds
    working = sum(terms.values())
    terms |= {
        "contention": contention,
        "communication": exposed + reduced_s + slots[-1].end_s - ideal_end,
        "bubble": ideal_end - busy,
        "overhead": busy + optimizer - working - exposed - contention + sync,
    }
    plane = mesh.tensor * copies
    memory = _memory(own, slots)
    run = replace(own[0].run, spans=(), slots=tuple((_name(slot), slot.start_s, slot.end_s) for slot in slots))
    return Share(
        numbers=tuple(setting.numbers[device * plane : (device + 1) * plane]), prediction=own[0].prediction, run=run,
        batch=pieces * own[0].prediction.sizes[BATCH], terms=MappingProxyType(terms), memory=memory,
    )  # fmt: skip


def _name(slot: Slot) -> str:
    return f"{'backward' if slot.task.backward else 'forward'} {slot.task.piece}, stage {slot.task.stage}"


def _memory(own: Sequence[_Timed], slots: Sequence[Slot]) -> MemoryUse:
    """All chunks' weights, and what each piece under way keeps beside the one that computes."""
    uses = [stage.prediction.memory for stage in own]
    kept = max(saved_bytes(stage.prediction.graph) for stage in own) * (pieces_under_way(slots) - 1)
    standing = [use.weight_bytes + use.gradient_bytes + use.state_bytes for use in uses]
    further = sum(standing) - standing[0] + kept
    peak, reserved = uses[0].peak_bytes + further, uses[0].reserved_bytes + further
    return replace(
        uses[0], peak_bytes=peak, reserved_bytes=reserved,
        weight_bytes=sum(use.weight_bytes for use in uses), gradient_bytes=sum(use.gradient_bytes for use in uses),
        state_bytes=sum(use.state_bytes for use in uses),
        fits=reserved + uses[0].context_bytes <= uses[0].capacity * USABLE_SHARE,
    )  # fmt: skip
