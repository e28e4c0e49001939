"""A step on a mesh: tensor and context groups in pipeline stages, and copies of all that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph, resized
from rooflinekit.model.collectives import time_collective
from rooflinekit.model.machine import Machine
from rooflinekit.strategies.compiling import in_graphs
from rooflinekit.strategies.context import cut_by_context
from rooflinekit.strategies.mixtures import Spread, agreed, spread
from rooflinekit.strategies.pipeline import crossing_bytes, orders, stage_of_blocks, stages_of
from rooflinekit.strategies.prediction import Share
from rooflinekit.strategies.program import BATCH, Setting, Wiring, batch_of, program_of, share_of
from rooflinekit.strategies.queues import Message, run_devices
from rooflinekit.strategies.records import FSDP, Mesh, Savers
from rooflinekit.strategies.replicas import sharded
from rooflinekit.strategies.saving import saving
from rooflinekit.strategies.sequence import cut_by_tokens
from rooflinekit.strategies.staged import Chunk, Plan, run_stages, tasks_of
from rooflinekit.strategies.tensor import cut


def within_groups(graph: Graph, mesh: Mesh, copies: int, batch: int) -> Spread:
    """The device's part of a copy's step of so many samples.

    Raises InputError for combinations that are not modelled.
    """
    if copies % mesh.expert:
        raise InputError(
            f"Mesh expert: groups are taken out of the copies: expected a divisor of {copies}; got {mesh.expert}"
        )
    if mesh.expert > 1 and isinstance(mesh.data, FSDP):
        raise InputError("Mesh expert: experts that are shared out take DDP between copies; got data=FSDP")
    if mesh.pipeline > 1 and (mesh.expert > 1 or mesh.sequence):
        raise InputError(
            "a pipeline's stages take tensor and context groups: not sequence=True, nor expert of 2 or more"
        )
    if mesh.context > 1 and mesh.expert > 1:
        raise InputError("Mesh context: sequences are cut of models without shared experts; got expert of 2 or more")
    own = spread(cut_by_context(graph, mesh.context, mesh.context_way, batch), mesh.expert, mesh.imbalance)
    cut_graph = cut_by_tokens(own.graph, mesh.tensor) if mesh.sequence else cut(own.graph, mesh.tensor)
    return replace(own, graph=cut_graph)


def on_mesh(
    graph: Graph, setting: Setting, mesh: Mesh, savers: Savers
) -> tuple[tuple[Share, ...], tuple[Message, ...], float]:
    """Each stage's share, what is sent, and how long the links are busy.

    Raises InputError for sizes that do not divide.
    """
    count, inner = len(setting.numbers), mesh.tensor * mesh.context * mesh.pipeline
    if count % inner:
        sizes = (mesh.tensor, *([mesh.context] if mesh.context > 1 else []), mesh.pipeline)
        product = " × ".join(map(str, sizes))
        raise InputError(f"mesh of {product}: expected a multiple of {inner} devices; got {count}")
    copies, batch = count // inner, batch_of(graph)
    pieces = copies * mesh.pieces * savers.accumulate
    if batch % pieces:
        raise InputError(f"batch={batch} cannot be cut into {copies} copies × {pieces // copies} microbatches")
    piece = resized(graph, **{BATCH: batch // pieces})
    own = within_groups(piece, mesh, copies, batch // pieces)
    if mesh.pipeline > 1:
        if savers.accumulate > 1:
            raise InputError("a pipeline cuts its batch into microbatches; give these in the place of accumulate")
        return run_stages(_in_stages(own.graph, setting, mesh, savers, copies))
    wiring, predicted = setting.wiring(**_groups(setting, mesh, copies)), []
    kinds = _kinds(setting, setting.numbers)
    several = copies * mesh.context > 1
    marked = in_graphs(own.graph, mesh.data, setting.host, setting.execution) if several else own.graph
    for machine in kinds.values():
        saved = saving(marked, savers, machine.device, setting.host)
        predicted.append(setting.predict(_agreeing(saved, mesh, copies, own.gradients), machine))
    run = run_devices([program_of(p, wiring) for p in predicted])
    shares = tuple(
        share_of(numbers, batch // copies, p, device)
        for numbers, p, device in zip(kinds, predicted, run.devices, strict=True)
    )
    return shares, run.messages, run.communication_s


def _kinds(setting: Setting, numbers: Sequence[int]) -> dict[tuple[int, ...], Machine]:
    """Devices of one kind together."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(setting.machine(number).name, []).append(number)
    return {tuple(members): setting.machine(members[0]) for members in found.values()}


def _agreeing(graph: Graph, mesh: Mesh, copies: int, experts: frozenset[str] = frozenset()) -> Graph:
    """The step of one of so many copies; those that share sequences agree with them.

    experts: memory of gradients that only some copies have.
    """
    copies *= mesh.context
    if isinstance(mesh.data, FSDP):
        return sharded(graph, mesh.data, copies, kept=mesh.pipeline > 1)
    return agreed(graph, mesh.data, copies, mesh.expert, experts)


def _groups(setting: Setting, mesh: Mesh, copies: int) -> dict[str, Sequence[int]]:
    """The first device's groups. Those of a tensor group are neighbours, then come contexts, copies, stages."""
    numbers, inner = setting.numbers, mesh.tensor * mesh.context
    plane, context = inner * copies, numbers[: inner : mesh.tensor]
    found: dict[str, Sequence[int]] = {
        "tensor": numbers[: mesh.tensor], "context": context,
        "ring": (context[0], context[-1]),  # the longest way: what closes the ring
        "data": numbers[: plane : mesh.tensor],
        "expert": numbers[: mesh.tensor * mesh.expert : mesh.tensor],
        "expert data": numbers[: plane : mesh.tensor * mesh.expert],
    }  # fmt: skip
    if mesh.pipeline > 1:
        found["pipe"] = (numbers[0], numbers[plane])
    return {name: members for name, members in found.items() if len(set(members)) > 1}


def _in_stages(graph: Graph, setting: Setting, mesh: Mesh, savers: Savers, copies: int) -> Plan:
    """What each stage runs of a piece. The model is cut by what the slowest device of each stage takes."""
    plane, chunks = mesh.tensor * mesh.context * copies, mesh.chunks if mesh.schedule == "interleaved" else 1
    parts = mesh.pipeline * chunks
    wiring = setting.wiring(**_groups(setting, mesh, copies))
    queues = orders(mesh.schedule, mesh.pipeline, mesh.pieces, chunks)
    kinds = [_kinds(setting, setting.numbers[k * plane : (k + 1) * plane]) for k in range(mesh.pipeline)]
    alone = {m.name: setting.predict(graph, m) for found in kinds for m in found.values()}
    slowest = [max((alone[m.name] for m in found.values()), key=lambda p: p.gpu_s) for found in kinds]
    graphs = stages_of(graph, stage_of_blocks([slowest[k % mesh.pipeline] for k in range(parts)]), parts)
    sends = [
        time_collective("send-recv", size, wiring.routes["pipe"], setting.links) for size in crossing_bytes(graphs)
    ]
    made: dict[tuple[int, str], Chunk] = {}
    for k, stage in enumerate(graphs):
        for machine in kinds[k % mesh.pipeline].values():
            ends = {"first": k == 0, "last": k == parts - 1}
            made[k, machine.name] = _chunk(stage, setting, mesh, savers, copies, machine, wiring, **ends)
    return Plan(
        kinds=[
            {numbers: [made[k, m.name] for k in range(device, parts, mesh.pipeline)] for numbers, m in found.items()}
            for device, found in enumerate(kinds)
        ],
        queues=queues, pieces=mesh.pieces, hops=sends,
    )  # fmt: skip


def _chunk(
    stage: Graph, setting: Setting, mesh: Mesh, savers: Savers, copies: int, machine: Machine, wiring: Wiring,
    *, first: bool, last: bool,
) -> Chunk:  # fmt: skip
    """A stage on a device: a step of two pieces, where there are more than one."""
    parts = min(2, mesh.pieces)
    marked = in_graphs(stage, mesh.data if copies * mesh.context > 1 else None, setting.host, setting.execution)
    step = saving(marked, replace(savers, accumulate=parts), machine.device, setting.host)
    p = setting.predict(_agreeing(step, mesh, copies), machine)
    tasks = tasks_of(p, wiring, first=first, last=last)
    return Chunk(prediction=p, parts=parts, piece=saving(stage, savers, machine.device, setting.host), tasks=tasks)
