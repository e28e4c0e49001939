"""What one device of a group runs, ready for the queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from rooflinekit.calibrate.fitting.files import constants_for, load_links
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_cluster, load_host, members_of
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.sizes import shown, whole
from rooflinekit.model.collectives import LinkConstants, Route, route_of, time_collective, time_copy
from rooflinekit.model.machine import Machine
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import (
    copy_rate,
    entry_of,
    input_pipeline_of,
    is_captured,
    issue_cost_s,
    issues_for,
    reads_a_number,
)
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.strategies.prediction import TERMS, Share
from rooflinekit.strategies.queues import Barrier, DeviceRun, HostCopy, HostWait, Item, Pace, Transmission, Work
from rooflinekit.strategies.rewriting import HOST_COPY, is_ours

#: Of an op that a module calls, Python's part beyond calling the module, in issues of a plain op: 2.0 µs were measured
#: for both (torch 2.13, Python 3.11, an activation of one number on a CPU, whose arithmetic is less than 0.3), of which
#: 1.5 are generic-server's `module`; the rest is 0.05 of its 10 for an op. Hosts whose ops have the module's call in
#: them have 0.2 in all. Uncertain to a factor of 1.5.
_PYTHON_ISSUES = 0.05
_PYTHON_ISSUES_WITH_MODULE = 0.2
#: From one thread's letting go of Python's lock until a waiting one runs: a wake-up by the operating system. Stated
#: default of a server; 15 µs on a busy virtual machine.
_HANDOVER_S = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The links of each group that a device belongs to, and what is known of such links."""

    routes: Mapping[str, Route]  # by group: "data", "tensor"
    constants: LinkConstants
    copy_rate: float = float("inf")  # byte/s between a device and its host, for what is sent from there

    def item(self, op: Op, cpu_s: float) -> Transmission:
        """A collective op with its time."""
        facts = op.attrs
        size, staged, route = facts["bytes"], facts.get("staged", False), self.routes[facts["group"]]
        by_engine = facts.get("by_engine", False)
        timing = (
            time_copy(size, route, self.constants, self.copy_rate)
            if by_engine
            else time_collective(facts["collective"], size, route, self.constants)
        )
        if staged:  # down to the host's memory, and up again
            timing = replace(timing, copy_s=timing.copy_s + 2 * size / self.copy_rate)
        return Transmission(
            key=facts["key"], timing=timing, group=facts["group"], blocking=facts["blocking"],
            on_host=staged or by_engine, cpu_s=cpu_s + facts.get("cpu_s", 0.0),
        )  # fmt: skip


def program_of(p: Prediction, wiring: Wiring, threads: int = 1, stretch: float = 1.0) -> tuple[list[Item], Pace]:
    """The program of a device whose step, without waiting for others, is predicted.

    threads: how many issue their forward ops, and copy their inputs, in turns with this one. stretch: what all takes
    longer than predicted, as measured.

    Eager and compiled steps are issued anew, so that a device that has waited finds its kernels launched. Steps that
    are one CUDA graph, steps in a loop and those of a CPU keep the gaps between their kernels.
    """
    plain = is_issued_anew(p)
    items: list[Item] = [Work(what="step and inputs", cpu_s=_before_the_first_op(p, threads))] if plain else []
    return items + [item for _, item in items_of(p, wiring, threads)], replace(pace_of(p), stretch=stretch)


def pace_of(p: Prediction) -> Pace:
    """How CPU and GPU of the device meet."""
    plain = is_issued_anew(p)
    return Pace(
        device=p.machine.device, latency_s=p.host.launch_latency, sync_s=p.host.sync,
        tail_s=None if plain else p.timeline.tail_s, steady=not plain,
    )  # fmt: skip


def is_issued_anew(p: Prediction) -> bool:
    """Whether kernels start when they are launched, and not at fixed gaps."""
    way = p.execution
    whole = way.backend in ("cuda-graph", "cudagraphs") or way.sync != "step" or way.non_blocking
    return not whole and p.machine.device.kind != "cpu"


def copied_s(p: Prediction, threads: int = 1) -> float:
    """How long the step's inputs are on their way, those of all threads together."""
    return threads * sum(one.transfer.seconds for one in p.timeline.copies)


def _before_the_first_op(p: Prediction, threads: int) -> float:
    """Of the CPU: the step's start, and inputs that it copies and waits for."""
    copies = p.timeline.copies
    waits = copies[-1].end_s + p.host.sync - p.host.step if copies else 0.0
    return p.host.step + waits + copied_s(p, threads - 1) + entry_s(p)


def entry_s(p: Prediction) -> float:
    """CPU time of entering a compiled step; of one that is replayed also of launching its first CUDA graph."""
    entry = entry_of(p.host, p.execution, p.graph)
    return entry.enter_s + entry.replay_s


def items_of(p: Prediction, wiring: Wiring, threads: int = 1) -> Iterator[tuple[Op, Item]]:
    """What the device does for each op in order, see `program_of`."""
    spans, plain = iter(p.spans), is_issued_anew(p)
    for issue in issues_for(p.graph, p.machine.device, p.execution):
        op = issue.op
        if is_ours(op):
            # A collective is one more kernel to launch; waiting for one is an event in a queue. A CUDA graph of what is
            # compiled holds all but those of the copies, which DDP's and FSDP's hooks send.
            outside = not p.execution.as_graph or op.attrs.get("group") == "data"
            cost_s = p.host.dispatch_s("default") if plain and outside else 0.0
            if op.kind == HOST_COPY:
                yield op, _host_item(op, cost_s)
            elif "keys" in op.attrs:
                yield op, Barrier(keys=op.attrs["keys"])
            elif "collective" in op.attrs:
                yield op, wiring.item(op, cost_s)
            else:
                waits = op.attrs.get("waits", False)
                yield op, Work(what=op.name, cpu_s=op.attrs["cpu_s"] if plain or waits else 0.0, waits=waits)
            continue
        own = [next(spans) for _ in issue.kernels]
        timings = tuple(span.timing for span in own)
        if not plain:
            yield op, Work(what=op.name, kernels=timings, gaps_s=tuple(span.waited_s for span in own))
            continue
        if is_captured(op, p.execution):
            yield op, Work(what=op.name, kernels=timings)
            continue
        if any(kernel.chain for kernel in issue.kernels):  # beside whose links the CPU launches the next: as on one GPU
            gaps = tuple(span.waited_s for span in own)
            yield op, Work(what=op.name, kernels=timings, cpu_s=issue_cost_s(issue, p.host, p.execution), gaps_s=gaps)
            continue
        further_s = max(0, len(timings) - 1) * p.host.launch
        cost_s = issue_cost_s(issue, p.host, p.execution) - further_s
        if op.phase is Phase.FORWARD and timings:
            cost_s = max(cost_s, turns_s(p.host, threads))
        yield op, Work(what=op.name, kernels=timings, cpu_s=cost_s, between_s=p.host.launch, syncs=reads_a_number(op))


def _host_item(op: Op, cpu_s: float) -> HostCopy | HostWait:
    facts = op.attrs
    if "until" in facts:
        return HostWait(key=facts["until"])
    calls = max(len(op.inputs), len(op.outputs))  # a copy for each tensor
    return HostCopy(key=facts["key"], seconds=facts["seconds"], inward=facts["inward"], cpu_s=calls * cpu_s)


def turns_s(host: Host, threads: int) -> float:
    """From one op of a thread to its next, where so many threads of one Python issue ops and nothing else limits them.

    One at a time holds Python's lock; PyTorch lets go of it while an op is dispatched and launched. So each op of each
    thread takes the lock once: the bottleneck law of closed queues.
    """
    issues = _PYTHON_ISSUES if host.module else _PYTHON_ISSUES_WITH_MODULE
    python_s = host.module + issues * host.dispatch_s("default")
    return 0.0 if threads == 1 else threads * (python_s + _HANDOVER_S)


# Where a step on several devices runs, and what a device has of it.


BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a step runs."""

    cluster: Cluster
    machines: tuple[Machine, ...]  # of one node, in the order of their numbers
    numbers: tuple[int, ...]  # the devices that take part
    host: Host
    execution: Execution
    links: LinkConstants

    def machine(self, number: int) -> Machine:
        """The device of this number."""
        return self.machines[number % self.cluster.per_node]

    def predict(self, graph: Graph, machine: Machine) -> Prediction:
        """The step alone on a device."""
        return predict_graph(graph, machine, self.host, self.execution)

    def wiring(self, **groups: Sequence[int]) -> Wiring:
        """The links of groups of devices, by their numbers."""
        devices = [machine.device for machine in self.machines]
        routes = {name: route_of(self.cluster, devices, numbers) for name, numbers in groups.items()}
        rates = [copy_rate(device, self.host, pinned=True) for device in devices if device.kind == "gpu"]
        return Wiring(routes=routes, constants=self.links, copy_rate=min(rates, default=float("inf")))


def setting_of(
    cluster: str | Path | Cluster, gpus: int | Sequence[int] | None, host: str | Path | Host | None,
    execution: Execution | Backend, links: Path | None,
) -> Setting:  # fmt: skip
    """Devices of a cluster, by names or files where they are no records; `gpus` says how many, or which.

    Raises what `load_cluster` and `load_host` raise, and InputError for devices that the cluster does not have.
    """
    found = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    machines = tuple(Machine.of(device, constants_for(device)) for device in members_of(found))
    numbers = _numbers_of(found, found.size if gpus is None else gpus)
    own = found.host if host is None else host
    return Setting(
        cluster=found, machines=machines, numbers=numbers, links=load_links(links),
        host=own if isinstance(own, Host) else load_host(own),
        execution=execution_of(execution),
    )  # fmt: skip


def _numbers_of(cluster: Cluster, gpus: object) -> tuple[int, ...]:
    """So many devices from the first, or these."""
    count = whole(gpus)
    listed = isinstance(gpus, Iterable) and not isinstance(gpus, str) and getattr(gpus, "shape", None) != ()
    given = gpus if isinstance(gpus, Iterable) and listed else ()
    numbers = [whole(one) for one in islice(given, cluster.size + 1)] if count is None else [*range(min(count, 10**6))]
    found = tuple(number for number in numbers if number is not None)
    if not found or len(found) != len(numbers) or len(set(found)) < len(found) or max(found) >= cluster.size:
        raise InputError(f"{cluster.name} has {cluster.size} devices; got gpus={shown(gpus)}")
    if min(found) < 0:
        raise InputError(f"{cluster.name}: devices are counted from 0; got gpus={shown(gpus)}")
    return found


def batch_of(graph: Graph) -> int:
    """The size named batch. Raises InputError where there is none."""
    if BATCH not in graph.sizes:
        has = ", ".join(graph.sizes) or "none"
        raise InputError(f"{graph.name}: a step on several devices is cut along a size named 'batch'; it has {has}")
    return graph.sizes[BATCH]


def share_of(
    numbers: tuple[int, ...], batch: int, p: Prediction, run: DeviceRun, threads: int = 1, stretch: float = 1.0
) -> Share:  # fmt: skip
    """The terms of a device that has run beside others, `stretch` times as slowly as predicted."""
    terms = dict.fromkeys(TERMS, 0.0) | p.terms()
    if run.communicates or run.offload_s:
        copied = copied_s(p, threads)
        # Where ops are issued anew, the device has stood idle for the copies; else they come before what has run.
        idle = run.idle_s - (copied if is_issued_anew(p) else 0.0) - run.offload_s
        terms |= {
            "input": copied, "overhead": idle, "contention": run.contention_s, "communication": run.exposed_s,
            "straggling": run.straggling_s, "offload": run.offload_s,
        }  # fmt: skip
        supply_s = input_pipeline_of(p.graph, p.machine.device, p.host, p.execution).supply_s
        terms["input"] += max(0.0, supply_s - sum(terms.values()))
    if stretch != 1:
        own = sum(span.timing.total_s for span in run.spans) if run.communicates or run.offload_s else p.total_s
        terms["correction"] = (stretch - 1) * own
    return Share(
        numbers=numbers, batch=batch, prediction=p, run=run, terms=MappingProxyType(terms), memory=p.memory,
        kernels_j=drawn_by((span.timing for span in run.spans), p.machine),
    )  # fmt: skip
