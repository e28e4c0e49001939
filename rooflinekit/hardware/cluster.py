"""Several devices and the links between them: nodes of GPUs, NVLink and PCIe inside a node, a network between nodes.

Every bandwidth is of one direction in code. A file says which it means: `bandwidth_per_direction`, or
`bandwidth_both_directions`, the total that vendors print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from rooflinekit.hardware.device import SCHEMA_VERSION, Bandwidth, Identifier, Pcie
from rooflinekit.hardware.fields import Choice, Count, Frozen, FrozenMapping, Line, Quantity, Record, Text

#: Byte/s in one direction of one link, by NVLink generation; two where product lines differ.
NVLINK_RATES: Mapping[int, tuple[float, ...]] = FrozenMapping(
    {1: (20e9,), 2: (25e9,), 3: (25e9, 14.0625e9), 4: (25e9,), 5: (50e9,)}
)

TOPOLOGIES = ("switch", "pairs", "mesh")
NETWORKS = ("ethernet", "infiniband")
CLUSTER_SOURCE_GROUPS = ("devices", "nvlink", "pcie", "network")

#: Of a cluster, and of a node: every device is followed by itself.
_MOST_DEVICES, _MOST_OF_NODE = 2**14, 2**10

Counts = Annotated[tuple[Count, ...], Field(strict=False)]


class Members(Record):
    """A number of devices of one kind."""

    name: Identifier  # of a specification
    count: Annotated[int, Field(ge=1, le=_MOST_DEVICES)]


class Nvlink(Record):
    """NVLink inside a node. `links` and bandwidth are those of one device, all its links together."""

    generation: Annotated[int, Field(ge=1, le=max(NVLINK_RATES))]
    links: Annotated[int, Field(ge=1, le=1024)]
    bandwidth_per_direction: Bandwidth | None = None
    bandwidth_both_directions: Bandwidth | None = None
    # switch: any two devices at full rate; pairs: bridges 0-1, 2-3, …; mesh: as `mesh` says.
    topology: Annotated[str, Choice(TOPOLOGIES)]
    mesh: Annotated[Mapping[Text, Count], Frozen()] = FrozenMapping()  # "0-3": how many links join devices 0 and 3

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.bandwidth_per_direction is None) == (self.bandwidth_both_directions is None):
            raise ValueError("expected one of bandwidth_per_direction and bandwidth_both_directions")
        if (self.topology == "mesh") != bool(self.mesh):
            raise ValueError("mesh: expected with topology: mesh, and only there")
        for pair in self.mesh:
            if not re.fullmatch(r"\d+-\d+", pair) or len(set(pair.split("-"))) != 2:
                raise ValueError(f"mesh: expected two devices, such as '0-3'; got {pair!r}")
        return self

    @property
    def one_way(self) -> float:
        """Byte/s of one device in one direction, all links together."""
        return self.bandwidth_per_direction or (self.bandwidth_both_directions or 0.0) / 2

    def links_between(self, a: int, b: int) -> int:
        """How many links join two devices of a node."""
        if a == b:
            return 0
        if self.topology == "switch":
            return self.links
        if self.topology == "pairs":
            return self.links if a // 2 == b // 2 else 0
        return self.mesh.get(f"{a}-{b}", 0) + self.mesh.get(f"{b}-{a}", 0)


class PcieLinks(Pcie):
    """PCIe between the devices of a node: the slots, and how data crosses from one to another."""

    peer_access: bool  # whether a device may write into another's memory, or all goes through the host's
    switches: Counts = ()  # devices below each PCIe switch, which share its uplink; empty: none
    sockets: Counts = ()  # devices at each CPU socket, in their order; empty: all at one
    # Of a device into the memory of one at another socket; None: that does not go, all is through the host's memory.
    between_sockets: Bandwidth | None = None


class Network(Record):
    """The network between nodes. Each port carries its rate in either direction at once."""

    kind: Annotated[str, Choice(NETWORKS)]
    port_rate: Annotated[float, Quantity("bit/s", low=1e6, high=1e15)]
    ports: Annotated[int, Field(ge=1, le=256)] = 1  # of a node
    # From one node's memory to another's, of an empty message.
    latency: Annotated[float, Quantity("s", zero=True, high=10.0)]

    @property
    def one_way(self) -> float:
        """Byte/s of one node in one direction, all ports together."""
        return self.port_rate / 8 * self.ports


class Cluster(Record):
    """Equal nodes, each with the same devices and links."""

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    name: Identifier  # the file name without ending
    display_name: Line | None = None
    # Of one node, in the order of their numbers.
    devices: Annotated[tuple[Members, ...], Field(strict=False, min_length=1)]
    nodes: Annotated[int, Field(ge=1, le=_MOST_DEVICES)] = 1
    nvlink: Nvlink | None = None
    pcie: PcieLinks | None = None
    network: Network | None = None
    host: Identifier  # name of the specification of each node's host

    sources: Annotated[Mapping[Annotated[str, Choice(CLUSTER_SOURCE_GROUPS)], Text], Frozen()] = FrozenMapping()
    explained: Annotated[Mapping[Text, Text], Frozen()] = FrozenMapping()  # name of a failing check: why it is right
    notes: Text | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_node > _MOST_OF_NODE or self.size > _MOST_DEVICES:
            raise ValueError(
                f"devices, nodes: expected at most {_MOST_OF_NODE} devices a node and {_MOST_DEVICES} in all; got "
                f"{self.per_node} and {self.size}"
            )
        if self.nodes > 1 and self.network is None:
            raise ValueError(f"network: expected one, for there are {self.nodes} nodes")
        for name in ("switches", "sockets"):
            counts = getattr(self.pcie, name, ())
            if counts and sum(counts) != self.per_node:
                raise ValueError(f"pcie: {name}: expected {self.per_node} devices in all; got {sum(counts)}")
        numbers = [int(number) for pair in (self.nvlink.mesh if self.nvlink else ()) for number in pair.split("-")]
        if numbers and max(numbers) >= self.per_node:
            raise ValueError(f"nvlink: mesh: expected devices 0 to {self.per_node - 1}; got {max(numbers)}")
        return self

    @property
    def per_node(self) -> int:
        """Devices of one node."""
        return sum(members.count for members in self.devices)

    @property
    def size(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.per_node

    @property
    def device_names(self) -> tuple[str, ...]:
        """The specification of each device of a node, in the order of their numbers.

        >>> two = Cluster(name="two", devices=[Members(name="nvidia-l4", count=2)], host="generic-server")
        >>> two.device_names
        ('nvidia-l4', 'nvidia-l4')
        """
        return tuple(members.name for members in self.devices for _ in range(members.count))
