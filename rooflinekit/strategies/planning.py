"""A graph, a cluster and a strategy → the prediction of a step on several devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph, resized
from rooflinekit.ir.sizes import whole
from rooflinekit.model.machine import Machine
from rooflinekit.step.capacity import fits_on
from rooflinekit.step.entry import as_run
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.compiling import check_execution, graphs_of, in_graphs
from rooflinekit.strategies.mesh import on_mesh
from rooflinekit.strategies.prediction import ParallelPrediction, Share
from rooflinekit.strategies.program import BATCH, Setting, Wiring, batch_of, program_of, share_of
from rooflinekit.strategies.queues import Run, run_devices
from rooflinekit.strategies.records import DDP, FSDP, DataParallel, Mesh, Savers, Strategy
from rooflinekit.strategies.replicas import replicated, sharded, with_threads
from rooflinekit.strategies.saving import check_savers, host_bytes, saving


def split_evenly(batch: int, parts: int) -> list[int]:
    """As `torch.chunk` and samplers do it, the larger parts first. Raises InputError for fewer samples than parts.

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
    check_execution(strategy, len(setting.numbers), setting.execution)
    check_savers(savers, setting.execution)
    batch, machines = batch_of(graph), [setting.machine(number) for number in setting.numbers]

    alone = _Alone(graph=graph, setting=setting, machines=tuple(machines))
    stretch = 1.0 if measured is None else _stretch(graph, setting, strategy, *measured)
    if isinstance(strategy, Mesh):
        shares, messages, busy = on_mesh(graph, setting, strategy, savers)
        step = shares[0].prediction.graph
        assumptions = (*strategy.assumptions, *graphs_of(step), *host_bytes(step))
        return ParallelPrediction(
            cluster=setting.cluster, strategy=strategy, savers=savers, batch=batch, shares=shares, messages=messages,
            communication_s=busy, alone=alone, assumptions=assumptions,
        )  # fmt: skip
    parts = (
        split_by_rate(batch, [1 / alone.each[machine.name].total_s for machine in machines])
        if proportional
        else split_evenly(batch, len(machines))
    )
    planned = [
        _Part(number=number, machine=machine, batch=part, first=number == setting.numbers[0])
        for number, machine, part in zip(setting.numbers, machines, parts, strict=True)
    ]
    found = _replicas(graph, setting, strategy, planned, savers, stretch)
    step = found[0][0].prediction.graph
    return ParallelPrediction(
        cluster=setting.cluster, strategy=strategy, savers=savers, batch=batch, shares=found[0],
        messages=found[1].messages, communication_s=found[1].communication_s, alone=alone,
        assumptions=(*graphs_of(step), *host_bytes(step)), stretch=stretch,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Alone:
    """The same step on one device, predicted when it is asked for; a record, so that it can go to other processes."""

    graph: Graph
    setting: Setting
    machines: tuple[Machine, ...]

    @cached_property
    def each(self) -> dict[str, Prediction]:
        """On each kind of device, by name."""
        return {machine.name: self.setting.predict(self.graph, machine) for machine in self.machines}

    def __call__(self) -> Prediction:
        return min(self.each.values(), key=lambda p: p.total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    number: int
    machine: Machine
    batch: int
    first: bool


def _replicas(
    graph: Graph, setting: Setting, strategy: Strategy, parts: Sequence[_Part], savers: Savers, stretch: float
) -> tuple[tuple[Share, ...], Run]:
    """Whole models, each with a part of the batch. Devices of one kind with as many samples are predicted once."""
    ranks = len(parts)
    kinds: dict[tuple[str, int, bool], list[_Part]] = {}
    for part in parts:
        kinds.setdefault((part.machine.name, part.batch, part.first and isinstance(strategy, DataParallel)), []).append(
            part
        )
    groups = {"data": setting.numbers, "pair": setting.numbers[:2]}
    wiring = setting.wiring(**groups) if ranks > 1 else Wiring(routes={}, constants=setting.links)
    threads = ranks if isinstance(strategy, DataParallel) else 1
    sized = {size: _sized(graph, size, setting, strategy, savers) for size in {part.batch for part in parts}}
    predictions = []
    for (_, size, first), members in kinds.items():
        machine = members[0].machine
        own = saving(sized[size], savers, machine.device, setting.host)
        predictions.append(setting.predict(rewritten(own, strategy, ranks, setting.host, first=first), machine))
    run = run_devices([program_of(p, wiring, threads, stretch) for p in predictions])
    shares = tuple(
        share_of(tuple(part.number for part in members), members[0].batch, p, device, threads, stretch)
        for members, p, device in zip(kinds.values(), predictions, run.devices, strict=True)
    )
    return shares, run


def _sized(graph: Graph, samples: int, setting: Setting, strategy: Strategy, savers: Savers) -> Graph:
    """A device's step of so many samples, before savers and strategy."""
    own = resized(graph, **{BATCH: _piece(samples, savers)})
    if isinstance(strategy, DDP | FSDP) and len(setting.numbers) > 1:
        return in_graphs(own, strategy, setting.host, setting.execution)
    return own


def fits(graph: Graph, setting: Setting, strategy: Strategy, savers: Savers) -> bool:
    """Whether each device has room for its whole model and its even part of the batch; nothing is timed.

    Raises InputError for a batch that cannot be cut so, and what `resized` raises.
    """
    ranks = len(setting.numbers)
    parts = zip(setting.numbers, split_evenly(batch_of(graph), ranks), strict=True)
    for device, samples in {(setting.machine(number).device, samples) for number, samples in parts}:
        own = saving(_sized(graph, samples, setting, strategy, savers), savers, device, setting.host)
        step = rewritten(own, strategy, ranks, setting.host)
        if not fits_on(step, device, as_run(step, setting.execution)):
            return False
    return True


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


def _piece(batch: int, savers: Savers) -> int:
    """Samples of each accumulated part. Raises InputError where they are not whole."""
    if batch % savers.accumulate:
        raise InputError(
            f"accumulate={savers.accumulate}: {batch} samples of a device cannot be cut into so many parts"
        )
    return batch // savers.accumulate


def rewritten(graph: Graph, strategy: Strategy, ranks: int, host: Host, *, first: bool = True) -> Graph:
    """What one of so many devices runs."""
    if isinstance(strategy, DataParallel):
        return with_threads(graph, strategy, ranks, host, first=first)
    if isinstance(strategy, DDP):
        return replicated(graph, strategy, ranks)
    if isinstance(strategy, FSDP):
        return sharded(graph, strategy, ranks)
    raise InputError(f"{type(strategy).__name__} is not supported here")
