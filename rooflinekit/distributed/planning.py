"""A graph, a cluster and a strategy → the prediction of a step on several devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from rooflinekit.distributed.context import cut_by_context
from rooflinekit.distributed.groups import Groups, Setting, batch_of, check_trains
from rooflinekit.distributed.mixtures import Spread, agreed, spread
from rooflinekit.distributed.pipeline import orders
from rooflinekit.distributed.prediction import TERMS, ParallelPrediction, Share
from rooflinekit.distributed.queues import DeviceRun, Message, copied_s, program_of, run_devices, waits_of
from rooflinekit.distributed.records import DDP, FSDP, DataParallel, Mesh, Savers, Strategy
from rooflinekit.distributed.replicas import check_execution, graphs_of, in_graphs, sharded, with_threads
from rooflinekit.distributed.rewriting import bytes_of, sent_in
from rooflinekit.distributed.saving import check_savers, host_bytes, saving
from rooflinekit.distributed.staged import Chunk, Plan, crossing_bytes, run_stages, stage_of_blocks, stages_of, tasks_of
from rooflinekit.distributed.tensor import cut, cut_by_tokens
from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph, resized
from rooflinekit.ir.sizes import whole
from rooflinekit.step.capacity import memory_on
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import as_run, input_pipeline_of
from rooflinekit.step.prediction import Prediction, launched_by
from rooflinekit.step.variants import BATCH
from rooflinekit.timing.machine import Machine


def split_evenly(batch: int, parts: int) -> list[int]:
    """Parts as `torch.chunk` and samplers cut them, the larger first. Raises InputError for fewer samples than parts.

    >>> split_evenly(128, 3)
    [43, 43, 42]
    """
    if batch < parts:
        raise InputError(f"batch={batch} cannot be cut for {parts} devices: expected {parts} or more")
    return [batch // parts + (i < batch % parts) for i in range(parts)]


def split_by_rate(batch: int, rates: Sequence[float]) -> list[int]:
    """Samples in proportion to rates, at least one each, the largest remainders rounded up."""
    split_evenly(batch, len(rates))
    wanted = [batch * rate / sum(rates) for rate in rates]
    parts = [max(1, int(one)) for one in wanted]
    by_rest = sorted(range(len(rates)), key=lambda i: int(wanted[i]) - wanted[i])
    for turn in range(batch - sum(parts)):
        parts[by_rest[turn % len(parts)]] += 1
    while sum(parts) > batch:
        parts[parts.index(max(parts))] -= 1
    return parts


def plan(
    graph: Graph, setting: Setting, strategy: Strategy, *, savers: Savers, proportional: bool = False,
    measured: tuple[int, float] | None = None,
) -> ParallelPrediction:  # fmt: skip
    """The prediction of a step on the setting's devices; the graph's batch is that of all of them.

    measured: samples and seconds of a step on one of these devices.
    """
    check_execution(strategy, setting.gpus, setting.execution)
    check_savers(savers, setting.execution)
    batch, alone = batch_of(graph), _Alone(graph=graph, setting=setting)
    stretch = 1.0 if measured is None else _stretch(graph, setting, strategy, *measured)
    parts = _even_parts(batch, setting, strategy, savers)
    if proportional:
        if isinstance(strategy, Mesh):
            raise InputError("split: 'proportional' is of devices that run whole models; a mesh has even parts")
        parts = split_by_rate(batch, [1 / alone.each[setting.machine(n).name].total_s for n in setting.numbers])
    mesh, _ = _mesh_and_data(strategy)
    if mesh.pipeline > 1:
        check_trains(graph, "a pipeline is of training steps")
        shares, messages, busy_s = run_stages(_in_stages(graph, setting, mesh, savers, parts[0]))
    else:
        steps = _steps(graph, setting, strategy, parts, savers)
        threads = setting.gpus if isinstance(strategy, DataParallel) else 1
        shares, messages, busy_s = _together(steps, setting.groups(mesh), setting, threads, stretch)
    step = shares[0].prediction.graph
    assumptions = strategy.assumptions if isinstance(strategy, Mesh) else ()
    return ParallelPrediction(
        cluster=setting.cluster, gpus=setting.gpus, strategy=strategy, savers=savers, batch=batch, shares=shares,
        messages=messages, communication_s=busy_s, alone=alone, stretch=stretch,
        assumptions=(*assumptions, *graphs_of(step), *host_bytes(step)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Alone:
    """The same step on one device, predicted when it is asked for; a record, so that it can go to other processes."""

    graph: Graph
    setting: Setting

    @cached_property
    def each(self) -> dict[str, Prediction]:
        machines = _kinds(self.setting, self.setting.numbers).values()
        return {machine.name: self.setting.predict(self.graph, machine) for machine in machines}

    def __call__(self) -> Prediction:
        return min(self.each.values(), key=lambda p: p.total_s)


def _even_parts(batch: int, setting: Setting, strategy: Strategy, savers: Savers) -> list[int]:
    """Samples of the copy that each device belongs to. Raises InputError for a batch that cannot be cut so."""
    if not isinstance(strategy, Mesh):
        return split_evenly(batch, setting.gpus)
    copies, pieces = strategy.copies(setting.gpus), strategy.pieces * savers.accumulate
    if batch % (copies * pieces):
        raise InputError(f"batch={batch} cannot be cut into {copies} copies × {pieces} microbatches")
    return [batch // copies] * setting.gpus


def _kinds(setting: Setting, numbers: Sequence[int], *facts: Sequence[object]) -> dict[tuple[int, ...], Machine]:
    """Devices of one kind together, which are also alike in further facts of each."""
    found: dict[tuple[object, ...], list[int]] = {}
    for number, *alike in zip(numbers, *facts, strict=True):
        found.setdefault((setting.machine(number).name, *alike), []).append(number)
    return {tuple(members): setting.machine(members[0]) for members in found.values()}


#: A kind of device: numbers, samples of each, and the step that it runs.
_Kind: TypeAlias = tuple[tuple[int, ...], int, Machine, Graph]


def _together(
    kinds: Iterable[_Kind], groups: Groups, setting: Setting, threads: int, stretch: float
) -> tuple[tuple[Share, ...], tuple[Message, ...], float]:
    """Devices beside each other, each kind predicted once: their shares, what is sent, how long the links are busy."""
    predicted = [
        (numbers, samples, setting.predict(step, machine, _nccl_bytes(step, groups)))
        for numbers, samples, machine, step in kinds
    ]
    run = run_devices([program_of(p, groups, threads, stretch) for _, _, p in predicted])
    shares = (share_of(*kind, device, threads, stretch) for kind, device in zip(predicted, run.devices, strict=True))
    return tuple(shares), run.messages, run.communication_s


def _nccl_bytes(graph: Graph, groups: Groups, *others: str) -> int:
    """Bytes of NCCL's buffers for what a device's step sends by it, also to other groups."""
    on_nccl = (facts["group"] for facts in sent_in(graph) if not (facts.get("staged") or facts.get("by_engine")))
    return groups.nccl_bytes((*on_nccl, *others))


def share_of(
    numbers: tuple[int, ...], batch: int, p: Prediction, run: DeviceRun, threads: int = 1, stretch: float = 1.0
) -> Share:  # fmt: skip
    """The terms of a device that has run beside others, `stretch` times as slowly as predicted."""
    terms = dict.fromkeys(TERMS, 0.0) | p.terms()
    if run.communicates or run.offload_s:
        terms |= waits_of(p, run, copied_s(p, threads))
        supply_s = input_pipeline_of(p.graph, p.machine.device, p.host, p.execution).supply_s
        terms["input"] += max(0.0, supply_s - sum(terms.values()))
    if stretch != 1:
        own = sum(span.timing.total_s for span in run.spans) if run.communicates or run.offload_s else p.total_s
        terms["correction"] = (stretch - 1) * own
    return Share(
        numbers=numbers, batch=batch, prediction=p, run=run, terms=MappingProxyType(terms), memory=p.memory,
        kernels_j=drawn_by((span.timing for span in run.spans), launched_by(p.execution, p.machine)),
    )  # fmt: skip


def fits(graph: Graph, setting: Setting, strategy: Strategy, savers: Savers) -> bool:
    """Whether each device has room for its part of the step, which is no pipeline's; nothing is timed.

    Raises InputError for a batch that cannot be cut so, and what `resized` raises.
    """
    parts = _even_parts(batch_of(graph), setting, strategy, savers)
    groups, every = setting.groups(_mesh_and_data(strategy)[0]), savers.accumulate
    few = min(2, every)  # parts are followed: further ones only have inputs that stand beside
    some, own = [samples * few // every for samples in parts], replace(savers, accumulate=few)

    def beside(step: Graph) -> int:
        return _nccl_bytes(step, groups) + bytes_of(step.inputs) * (every - few) // few

    return all(
        memory_on(step, machine.device, as_run(step, setting.execution), beside(step)).fits
        for _, _, machine, step in _steps(graph, setting, strategy, some, own)
    )


def _stretch(graph: Graph, setting: Setting, strategy: Strategy, batch: object, seconds: object) -> float:
    """A measured step of so many samples on the first device, over its prediction.

    Raises InputError for what is no batch and no time, and for a mesh, whose devices do not run whole models.
    """
    if isinstance(strategy, Mesh):
        raise InputError("measured: a step on one device tells nothing of a mesh, whose devices run parts of the model")
    samples = whole(batch)
    if samples is None or samples < 1 or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InputError(
            f"measured: expected samples and seconds of a step, as (32, 0.18); got ({batch!r}, {seconds!r})"
        )
    p = setting.predict(resized(graph, **{BATCH: samples}), setting.machine(setting.numbers[0]))
    return seconds / p.total_s


def _steps(graph: Graph, setting: Setting, strategy: Strategy, parts: Sequence[int], savers: Savers) -> Iterator[_Kind]:
    """Each kind of device with as many samples; parts: those of each. Raises InputError for what cannot be cut."""
    mesh, _ = _mesh_and_data(strategy)
    cut_graphs = {samples: _cut(graph, setting, mesh, savers, samples) for samples in set(parts)}
    firsts = [not i and isinstance(strategy, DataParallel) for i in range(setting.gpus)]
    for numbers, machine in _kinds(setting, setting.numbers, parts, firsts).items():
        place = setting.numbers.index(numbers[0])
        own, samples = cut_graphs[parts[place]], parts[place]
        yield numbers, samples, machine, _agreeing(own, setting, machine, strategy, savers, first=firsts[place])


def _mesh_and_data(strategy: Strategy) -> tuple[Mesh, DDP | FSDP | DataParallel]:
    """How devices share a copy of the model, and how copies agree. Raises InputError for what is no strategy."""
    if not isinstance(strategy, Strategy):
        raise InputError(f"{type(strategy).__name__} is not supported here")
    return (strategy, strategy.data) if isinstance(strategy, Mesh) else (Mesh(), strategy)


def _cut(graph: Graph, setting: Setting, mesh: Mesh, savers: Savers, samples: int) -> Spread:
    """The device's part of a copy's step, of one piece of so many samples. Raises InputError for what cannot be."""
    copies, pieces = mesh.copies(setting.gpus), mesh.pieces * savers.accumulate
    if samples % pieces:
        raise InputError(
            f"accumulate={savers.accumulate}: {samples} samples of a device cannot be cut into so many parts"
        )
    if copies % mesh.expert:
        raise InputError(f"Mesh expert: expected a divisor of the {copies} copies; got {mesh.expert}")
    if mesh.expert > 1 and isinstance(mesh.data, FSDP):
        raise InputError("Mesh expert: shared-out experts need DDP between copies; got data=FSDP")
    if mesh.pipeline > 1 and (mesh.expert > 1 or mesh.sequence):
        raise InputError(
            "Mesh pipeline: goes with tensor and context, but not with sequence=True or expert of 2 or more"
        )
    if mesh.context > 1 and mesh.expert > 1:
        raise InputError("Mesh context: does not go with expert of 2 or more; leave out one of the two")
    piece = resized(graph, **{BATCH: samples // pieces})
    in_context = cut_by_context(piece, mesh.context, mesh.context_way, samples // pieces)
    own = spread(in_context, mesh.expert, mesh.imbalance)
    return replace(own, graph=(cut_by_tokens if mesh.sequence else cut)(own.graph, mesh.tensor))


def _agreeing(
    own: Spread, setting: Setting, machine: Machine, strategy: Strategy, savers: Savers, *, first: bool = False
) -> Graph:
    """The step of a copy, or of a stage of it, on a device; those that share sequences agree as copies do.

    first: whether it gathers what threads of one process have.
    """
    mesh, data = _mesh_and_data(strategy)
    graph, copies = own.graph, mesh.copies(setting.gpus) * mesh.context
    if isinstance(data, DataParallel):
        step = saving(graph, savers, machine.device, setting.host)
        return with_threads(step, data, copies, setting.host, first=first)
    if copies > 1 or mesh.pipeline > 1:
        graph = in_graphs(graph, data if copies > 1 else None, setting.host, setting.execution)
    step = saving(graph, savers, machine.device, setting.host)
    if isinstance(data, FSDP):
        return sharded(step, data, copies, kept=mesh.pipeline > 1)
    return agreed(step, data, copies, mesh.expert, own.gradients)


def _in_stages(graph: Graph, setting: Setting, mesh: Mesh, savers: Savers, samples: int) -> Plan:
    """What each stage runs of a piece of a copy's samples, cut by what the slowest device of each stage takes."""
    graph = _cut(graph, setting, mesh, savers, samples).graph
    if savers.accumulate > 1:
        raise InputError("a pipeline splits its batch into microbatches; give microbatches instead of accumulate")
    plane, chunks = setting.gpus // mesh.pipeline, mesh.chunks if mesh.schedule == "interleaved" else 1
    parts, groups = mesh.pipeline * chunks, setting.groups(mesh)
    kinds = [_kinds(setting, setting.numbers[k * plane : (k + 1) * plane]) for k in range(mesh.pipeline)]
    alone = {m.name: setting.predict(graph, m) for found in kinds for m in found.values()}
    slowest = [max((alone[m.name] for m in found.values()), key=lambda p: p.gpu_s) for found in kinds]
    graphs = stages_of(graph, stage_of_blocks([slowest[k % mesh.pipeline] for k in range(parts)]), parts)

    def chunk(k: int, machine: Machine) -> Chunk:
        """A stage on a device: a step of two pieces, where there are more than one."""
        own, pieces = Spread(graph=graphs[k], gradients=frozenset()), min(2, mesh.pieces)
        step = _agreeing(own, setting, machine, mesh, replace(savers, accumulate=pieces))
        p = setting.predict(step, machine, _nccl_bytes(step, groups, "pipe"))
        return Chunk(
            prediction=p, parts=pieces, piece=saving(graphs[k], savers, machine.device, setting.host),
            tasks=tasks_of(p, groups, first=k == 0, last=k == parts - 1),
        )  # fmt: skip

    return Plan(
        kinds=[
            {numbers: [chunk(k, m) for k in range(device, parts, mesh.pipeline)] for numbers, m in found.items()}
            for device, found in enumerate(kinds)
        ],
        queues=orders(mesh.schedule, mesh.pipeline, mesh.pieces, chunks), pieces=mesh.pieces,
        hops=[groups.timing("pipe", "send-recv", size) for size in crossing_bytes(graphs)],
    )  # fmt: skip
