"""What groups of GPUs send in a step, and how long it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.model.collectives import CollectiveTiming, LinkConstants, Route, route_of, time_collective
from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import slowdown_of
from rooflinekit.training.layout import Layout


@dataclass(slots=True, kw_only=True)
class Groups:
    """The groups of one layout on a cluster; each collective is worked out once."""

    cluster: Cluster
    machine: Machine
    links: LinkConstants
    layout: Layout
    gpus: int
    spreads: dict[str, float] = field(default_factory=dict)  # of each group's collectives
    _routes: dict[str, Route] = field(default_factory=dict)
    _known: dict[tuple[str, str, float], CollectiveTiming] = field(default_factory=dict)

    def members(self, group: str) -> Sequence[int]:
        """The first GPU's group, by numbers: tensor groups are neighbours, then context, copies, stages."""
        lay = self.layout
        inner, copies = lay.tensor * lay.context, lay.copies(self.gpus)
        plane = inner * copies
        own = {
            "tensor": range(lay.tensor),
            "context": range(0, inner, lay.tensor),
            # copies and the parts of a sequence have the same weights
            "data": range(0, plane, lay.tensor),
            "expert": range(0, lay.expert * lay.expert_tensor, lay.expert_tensor),
            "expert data": range(0, plane, lay.expert * lay.expert_tensor),
            "pipe": (0, plane) if lay.pipeline > 1 else (0,),
            "node": range(0, min(plane, self.cluster.per_node), lay.tensor),
            "across": range(0, plane, self.cluster.per_node),
        }  # fmt: skip
        if lay.expert * lay.expert_tensor > plane:
            raise InputError(f"layout expert {lay.expert}: expected a divisor of {plane} GPUs of a stage")
        return own[group]

    def route(self, group: str) -> Route:
        """The links that a group uses, with as many groups beside it as share a node's network."""
        if group not in self._routes:
            numbers = self.members(group)
            per_node = self.cluster.per_node
            here = sum(1 for number in numbers if number // per_node == numbers[0] // per_node)
            crosses = numbers[-1] // per_node != numbers[0] // per_node
            sharing = max(1, min(per_node, self.gpus) // here) if crosses else 1
            devices = [self.machine.device] * per_node
            self._routes[group] = route_of(self.cluster, devices, numbers, sharing=sharing)
        return self._routes[group]

    def timing(self, group: str, what: str, size_bytes: float) -> CollectiveTiming:
        """One collective of a group."""
        key = (group, what, size_bytes)
        if key not in self._known:
            found = time_collective(what, size_bytes, self.route(group), self.links)
            self.spreads[group] = max(self.spreads.get(group, 0.0), found.spread)
            self._known[key] = found
        return self._known[key]

    def seconds(self, group: str, what: str, size_bytes: float) -> float:
        """Likewise; 0 for a group of one, and for nothing to send."""
        if len(self.members(group)) == 1 or size_bytes <= 0:
            return 0.0
        return self.timing(group, what, size_bytes).total_s

    def slowdown(self, group: str, what: str, size_bytes: float) -> float:
        """How many times as long products take beside such a collective."""
        if len(self.members(group)) == 1 or size_bytes <= 0:
            return 1.0
        return slowdown_of(self.timing(group, what, size_bytes), self.machine.device).compute
