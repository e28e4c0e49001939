"""Where a step on several devices runs, and what a device has of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.calibrate.links.fits import load_links
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_cluster, load_host, members_of
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.sizes import shown, whole
from rooflinekit.model.collectives import LinkConstants, route_of
from rooflinekit.model.machine import Machine
from rooflinekit.step.energy_together import drawn_by
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.input_pipeline import copy_rate, input_pipeline_of
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.strategies.prediction import TERMS, Share
from rooflinekit.strategies.program import Wiring, copied_s, is_issued_anew
from rooflinekit.strategies.queues import DeviceRun

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
