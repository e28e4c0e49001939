"""Where the workloads of a sweep run: GPUs, or clusters; and the plan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rooflinekit.api.predict import host_of, in_base, machines_of
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_cluster, members_of
from rooflinekit.ir.graph import Graph
from rooflinekit.model.energy import limited
from rooflinekit.model.machine import Machine
from rooflinekit.step.execution import Backend, Execution, check_release, execution_of
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.distributed.records import Savers, Strategy
    from rooflinekit.ir.inputs import Mode
    from rooflinekit.study.sweep.plan import Axis, Plan
    from rooflinekit.study.sweep.points import Memory, Together

#: Those of which rows are predictions; beside clusters how many devices take part.
Gpus: TypeAlias = Sequence[str | Path | Device] | Sequence[int]


@dataclass(frozen=True)
class Places:
    """Where a workload runs: GPUs, or clusters."""

    gpus: Gpus | None
    clusters: Sequence[str | Path | Cluster] | None
    strategies: Sequence[str | Strategy] | None
    savers: Savers | Sequence[Savers] | None
    split: str
    host: str | Path | Host | None
    execution: Execution | Backend | Sequence[Execution | Backend]
    power_limits: Sequence[str | float] | None = None

    def check(self) -> None:
        """Raises InputError for what does not go together, before the slow part."""
        if isinstance(self.power_limits, str | float | int) or (
            self.power_limits is not None and not self.power_limits
        ):
            raise InputError(f"power_limits: expected a list, such as ['200 W', '250 W']; got {self.power_limits!r}")
        if self.clusters is not None and self.power_limits is not None:
            raise InputError("power_limits: belong to gpus=[…]; leave clusters out")
        if self.clusters is not None:
            from rooflinekit.study.sweep.plan import check_on_clusters

            check_on_clusters(self._axes, self.host, self.executions)
            return
        if self.gpus is None:
            raise InputError("expected gpus=[…], or clusters=[…] for training steps on several devices")
        given = {"strategies": self.strategies, "savers": self.savers, "split": self.split != "even" or None}
        if extra := [name for name, value in given.items() if value is not None]:
            raise InputError(f"{', '.join(extra)}: of training steps on several devices: give clusters=[…] too")
        _ = self.machines, self.executions  # names that nobody knows

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The GPUs, where they are these and no clusters; each under each limit of power, with that in its name."""
        gpus: Any = self.gpus
        found = machines_of(gpus)
        if self.power_limits is None:
            return found
        return tuple(_held(machine, in_base(watts, "W")) for machine in found for watts in self.power_limits)

    @property
    def executions(self) -> list[Execution]:
        """The ways in which it runs."""
        return _executions(self.execution)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All that may take part."""
        if self.clusters is None:
            return tuple(machine.device for machine in self.machines)
        found = [one if isinstance(one, Cluster) else load_cluster(one) for one in self.clusters]
        return tuple({device.name: device for cluster in found for device in members_of(cluster)}.values())

    def mode(self, given: Mode | None) -> Mode:
        """In which mode a model is traced."""
        return given or ("inference" if self.clusters is None else "training")

    def plan(
        self, graphs: Graph | Mapping[str, Graph], sizes: Mapping[str, Any], *, memory: Memory = True,
        together: Together = None,
    ) -> Plan:  # fmt: skip
        """The sweep."""
        if self.clusters is None:
            host = host_of(DEFAULT_HOST if self.host is None else self.host)
            return swept(graphs, self.machines, host, self.execution, sizes, memory=memory, together=together)
        from rooflinekit.study.sweep.plan import plan_on_clusters

        axes = (*_common_axes(graphs, self.execution), *self._axes)
        return plan_on_clusters(
            _named(graphs), axes, sizes, split=self.split, host=self.host, memory=memory, together=together
        )

    @cached_property
    def _axes(self) -> tuple[Axis, ...]:
        from rooflinekit.study.sweep.plan import cluster_axes

        return cluster_axes(
            self.clusters or (), gpus=self.gpus, strategies=self.strategies, savers=self.savers, split=self.split
        )


def _held(machine: Machine, watts: float | None) -> Machine:
    held = limited(machine, power_w=watts)
    return replace(held, name=f"{machine.name} at {format_quantity(watts or 0.0, 'W')}")


def swept(
    graphs: Graph | Mapping[str, Graph],
    machines: Sequence[Machine],
    host: Host,
    execution: Execution | Backend | Sequence[Execution | Backend],
    sizes: Mapping[str, Any],
    *,
    memory: Memory = True,
    together: Together = None,
) -> Plan:
    """The plan of a sweep: its axes are the models, the GPUs and the executions."""
    from rooflinekit.study.sweep.plan import Axis, plan_of

    model, ways = _common_axes(graphs, execution)
    gpu = Axis(name="gpu", choices={machine.name: {"machine": machine} for machine in machines})
    return plan_of((model, gpu, ways), {"host": host}, sizes, memory=memory, together=together)


def _named(graphs: Graph | Mapping[str, Graph]) -> Mapping[str, Graph]:
    return graphs if isinstance(graphs, Mapping) else {graphs.name: graphs}


def _executions(given: Execution | Backend | Sequence[Execution | Backend]) -> list[Execution]:
    return [execution_of(one) for one in ([given] if isinstance(given, str | Execution) else given)]


def _common_axes(
    graphs: Graph | Mapping[str, Graph], execution: Execution | Backend | Sequence[Execution | Backend]
) -> tuple[Axis, Axis]:
    """Those of models and of executions."""
    from rooflinekit.study.sweep.plan import Axis

    named, single = _named(graphs), isinstance(execution, str | Execution)
    executions = _executions(execution)
    if not named or not executions:
        raise InputError(f"{'execution' if named else 'models'}: expected one or more; got none")
    for one, graph in product(executions, named.values()):
        check_release(graph.like, one)
    models = {name: {"graph": graph} for name, graph in named.items()}
    return (
        Axis(name="model", choices=models, shown=isinstance(graphs, Mapping)),
        Axis(name="execution", choices={str(one): {"execution": one} for one in executions}, shown=not single),
    )
