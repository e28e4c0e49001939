"""Where a step on several devices runs: the devices, their groups, and how long these send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rooflinekit.calibrate.fitting.files import constants_for, load_links
from rooflinekit.distributed.records import Layout, Mesh
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import cluster_of, host_of, members_of
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.sizes import shown, whole
from rooflinekit.step.entry import copy_rate
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.variants import BATCH
from rooflinekit.timing.collectives import CollectiveTiming, LinkConstants, Route, route_of, time_collective
from rooflinekit.timing.energy import limited
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.memory_system import buffers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The cluster, devices, host and execution that a step runs with."""

    cluster: Cluster
    machines: tuple[Machine, ...]  # of one node, in the order of their numbers
    numbers: tuple[int, ...]  # the devices that take part
    host: Host
    execution: Execution
    links: LinkConstants
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # what has been worked out there

    @property
    def gpus(self) -> int:
        """How many devices take part."""
        return len(self.numbers)

    def machine(self, number: int) -> Machine:
        """The device of this number."""
        return self.machines[number % self.cluster.per_node]

    def with_memory(self, capacity: float) -> Setting:
        """The same devices, each with no more memory than `capacity` bytes."""

        def sized(machine: Machine) -> Machine:
            dram = machine.device.dram
            less = dram.model_copy(update={"capacity": min(capacity, dram.capacity)})
            return replace(machine, device=machine.device.model_copy(update={"dram": less}))

        return replace(self, machines=tuple(map(sized, self.machines)), known={})

    def predict(self, graph: Graph, machine: Machine, nccl_bytes: int = 0) -> Prediction:
        """The step alone on a device, beside so many bytes of NCCL's buffers."""
        return predict_graph(graph, machine, self.host, self.execution, nccl_bytes)

    def groups(self, mesh: Mesh | Layout) -> Groups:
        """The groups of the first device: a tensor group are neighbours, then come contexts, copies, stages.

        Raises InputError where copies do not come out even.
        """
        numbers, per_node, tensor = self.numbers, self.cluster.per_node, mesh.tensor
        inner, parts = tensor * mesh.context, mesh.expert_tensor
        plane, sequence = inner * mesh.copies(self.gpus), numbers[:inner:tensor]
        members = {
            "tensor": numbers[:tensor], "context": sequence,
            "ring": (sequence[0], sequence[-1]),  # the longest way: what closes the ring
            "data": numbers[:plane:tensor],  # copies, and the parts of a sequence, have the same weights
            "expert": numbers[: mesh.expert * parts : parts], "expert tensor": numbers[:parts],
            "expert data": numbers[: plane : mesh.expert * parts],
            "pipe": numbers[::plane][:2], "node": numbers[: min(plane, per_node) : tensor],
            "across": numbers[:plane:per_node], "pair": numbers[:2],
        }  # fmt: skip
        return Groups(setting=self, members=members, crowded=mesh.crowded)

    @property
    def copy_rate(self) -> float:
        """Byte/s between a device and its host, the least of all."""
        devices = [machine.device for machine in self.machines if machine.device.kind == "gpu"]
        return min((copy_rate(device, self.host, pinned=True) for device in devices), default=float("inf"))


def setting_of(
    cluster: str | Path | Cluster, gpus: int | Sequence[int] | None, host: str | Path | Host | None,
    execution: Execution | Backend, links: Path | None, *, power_w: float | None = None, clock: float | None = None,
) -> Setting:  # fmt: skip
    """Devices of a cluster, by names or files where they are no records; `gpus` says how many, or which.

    power_w, clock: limits of each in W and Hz.

    Raises what `load_cluster` and `load_host` raise, and InputError for devices that the cluster does not have.
    """
    found = cluster_of(cluster)
    machines = tuple(
        limited(Machine.of(device, constants_for(device)), power_w=power_w, clock=clock) for device in members_of(found)
    )
    numbers = _numbers_of(found, found.size if gpus is None else gpus)
    own = found.host if host is None else host
    return Setting(
        cluster=found, machines=machines, numbers=numbers, links=load_links(links),
        host=host_of(own),
        execution=execution_of(execution),
    )  # fmt: skip


def _numbers_of(cluster: Cluster, gpus: object) -> tuple[int, ...]:
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


def check_trains(graph: Graph, why: str) -> None:
    """Raises InputError for a graph that is no training step, which the reason asks for."""
    if graph.mode != "training":
        raise InputError(f"{graph.name}: {why}: trace with mode='training'; got mode={graph.mode!r}")


def batch_of(graph: Graph) -> int:
    """The size named batch. Raises InputError where there is none."""
    if BATCH not in graph.sizes:
        has = ", ".join(graph.sizes) or "none"
        raise InputError(f"{graph.name}: a step on several devices is cut along a size named 'batch'; it has {has}")
    return graph.sizes[BATCH]


@dataclass(slots=True, kw_only=True)
class Groups:
    """What the groups of a device send; each route and each collective is worked out once."""

    setting: Setting
    members: Mapping[str, Sequence[int]]  # see `Setting.groups`
    crowded: bool = False  # see `Layout`
    _routes: dict[str, Route] = field(default_factory=dict)
    _known: dict[tuple[str, str, float], CollectiveTiming] = field(default_factory=dict)

    def route(self, group: str) -> Route:
        """The links that a group uses."""
        if group not in self._routes:
            cluster, numbers, sharing = self.setting.cluster, self.members[group], 1
            first = numbers[0] // cluster.per_node
            if self.crowded and numbers[-1] // cluster.per_node != first:
                here = sum(number // cluster.per_node == first for number in numbers)
                sharing = max(1, min(cluster.per_node, self.setting.gpus) // here)
            devices = [machine.device for machine in self.setting.machines]
            self._routes[group] = route_of(cluster, devices, numbers, sharing=sharing)
        return self._routes[group]

    def timing(self, group: str, what: str, size_bytes: float) -> CollectiveTiming:
        """The time of one collective among the members of a group."""
        key = (group, what, size_bytes)
        if key not in self._known:
            self._known[key] = time_collective(what, size_bytes, self.route(group), self.setting.links)
        return self._known[key]

    def nccl_bytes(self, names: Iterable[str]) -> int:
        """Bytes of NCCL's buffers on a device that sends to the groups of these names."""
        return buffers_of(self.route(name) for name in dict.fromkeys(names) if len(self.members[name]) > 1)

    @property
    def spread(self) -> float:
        """The largest of all collectives so far, see `CollectiveTiming`."""
        return max((timing.spread for timing in self._known.values()), default=0.0)

    def sent(self, what: str, sizes: Iterable[tuple[str, float]]) -> tuple[CollectiveTiming, ...]:
        """A collective of groups, each with its bytes, where there is something to send."""
        return tuple(self.timing(g, what, size) for g, size in sizes if len(self.members[g]) > 1 and size > 0)
