"""What a group of devices is joined by: the slowest link on the way around, inside a node and between nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device

#: Kinds of links with constants of their own, those of NVLink by generation.
#: pcie-peer: a GPU writes into another's memory; pcie-host: through memory of the host; pcie-sockets: of two sockets.
TECHNOLOGIES = ("nvlink", "pcie-peer", "pcie-host", "pcie-sockets", "ethernet", "infiniband", "loopback")
#: Those on which a collective's kernels write to the host's memory and read there.
THROUGH_HOST = ("pcie-host", "pcie-sockets")
#: Of a packet on PCIe: 256 bytes, the payload that hosts commonly settle on, beside 24 of header, sequence number,
#: checksum and framing (PCI Express base specification).
PAYLOAD_SHARE = 256 / (256 + 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as each member of a group has it."""

    technology: str
    bandwidth: float  # byte/s in one direction by the datasheet: of a device, or between nodes of a node
    generation: int = 0  # of NVLink
    switched: bool = False  # whether a switch joins all devices
    latency_s: float = 0.0  # by the datasheet, of an empty message; 0 where only measurements tell
    turns: float = 1.0  # how many members share what moves the data: processes that are more than the cores
    most: float = math.inf  # byte/s that pass whatever the link's own rate: between sockets

    @property
    def name(self) -> str:
        """As constants call it."""
        return f"{self.technology}-{self.generation}" if self.generation else self.technology


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A group of devices and the links of its collectives. Of unequal parts the largest sets the pace in a node."""

    devices: tuple[Device, ...]  # one for each rank
    nodes: int
    inside: Link | None  # None with one member a node
    between: Link | None  # None with one node
    largest: int = 0  # members on the node that has most of them; 0 where all have as many

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return len(self.devices)

    @property
    def per_node(self) -> int:
        """Members on each node, or on the one that has most."""
        return self.largest or self.ranks // self.nodes

    @property
    def links(self) -> tuple[Link, ...]:
        """Those that are used."""
        return tuple(link for link in (self.inside, self.between) if link is not None)


def route_of(
    cluster: Cluster, devices: Sequence[Device], ranks: int | Sequence[int] | None = None, *, sharing: int = 1
) -> Route:
    """The route of a group. devices: of one node, as `hardware.specs.members_of` gives them.

    ranks: how many of the cluster's devices, from the first; or their numbers, node after node; by default all.
    sharing: groups that use a node's network at once, such as a data-parallel group for each tensor-parallel rank.

    Raises InputError for devices that the cluster does not have.
    """
    numbers = _numbers(cluster, ranks)
    parts = Counter(number // cluster.per_node for number in numbers)
    fullest = max(sorted(parts), key=parts.__getitem__)
    members = [number % cluster.per_node for number in numbers if number // cluster.per_node == fullest]
    between = None
    if len(parts) > 1 and cluster.network is not None:
        network = cluster.network
        own = math.inf if cluster.nvlink is None else len(members) * cluster.nvlink.one_way  # what the members can feed
        rate = min(network.one_way / sharing, own)
        between = Link(technology=network.kind, bandwidth=rate, latency_s=network.latency)
    return Route(
        devices=tuple(devices[number % cluster.per_node] for number in numbers),
        nodes=len(parts),
        inside=_inside(cluster, devices, members) if len(members) > 1 else None,
        between=between,
        largest=len(members) if len(set(parts.values())) > 1 else 0,
    )


def _numbers(cluster: Cluster, ranks: int | Sequence[int] | None) -> tuple[int, ...]:
    count = cluster.size if ranks is None else ranks
    if isinstance(count, int):
        if not 1 <= count <= cluster.size:
            raise InputError(f"{cluster.name} has {cluster.size} devices; got {count}")
        if count > cluster.per_node and count % cluster.per_node:
            expected = f"{cluster.per_node} devices a node: expected a multiple of that, or fewer"
            raise InputError(f"{cluster.name} has {expected}; got {count}")
        return tuple(range(count))
    numbers = tuple(count)
    wrong = [number for number in numbers if not 0 <= number < cluster.size]
    if wrong or not numbers or len(set(numbers)) < len(numbers):
        got = wrong[0] if wrong else list(numbers)
        raise InputError(f"{cluster.name}: expected different devices of 0 to {cluster.size - 1}; got {got}")
    return numbers


def _inside(cluster: Cluster, devices: Sequence[Device], members: Sequence[int]) -> Link:
    """The link between devices of one node: NVLink where it joins them all, else PCIe; processes share the memory."""
    kinds = [devices[member] for member in members]
    if all(device.kind == "cpu" for device in kinds):
        # Sending and receiving takes a process all its time: those that are more than the cores take turns.
        turns = max(1.0, len(members) / min(device.sm_count for device in kinds))
        rate = min(device.dram.bandwidth for device in kinds) / turns
        return Link(technology="loopback", bandwidth=rate, turns=turns)
    nvlink = cluster.nvlink
    if nvlink is not None and _joined(cluster, members):
        switched = nvlink.topology == "switch"
        used = min(sum(nvlink.links_between(a, b) for b in members) for a in members)
        share = 1.0 if switched else min(1.0, used / nvlink.links)
        return Link(
            technology="nvlink", generation=nvlink.generation, bandwidth=nvlink.one_way * share, switched=switched
        )
    return _pcie(cluster, kinds, members)


def _joined(cluster: Cluster, members: Sequence[int]) -> bool:
    """Whether NVLink leads from each member to each other one, by way of members."""
    assert cluster.nvlink is not None
    reached, waiting = {members[0]}, [members[0]]
    while waiting:
        here = waiting.pop()
        found = {b for b in members if b not in reached and cluster.nvlink.links_between(here, b)}
        reached |= found
        waiting += found
    return len(reached) == len(members)


def _pcie(cluster: Cluster, kinds: Sequence[Device], members: Sequence[int]) -> Link:
    slots = cluster.pcie
    if slots is None:
        raise InputError(f"{cluster.name}: NVLink does not join devices {list(members)}, and it has no pcie")
    rates = [device.pcie.bandwidth_per_direction for device in kinds if device.pcie is not None]
    rate = min([slots.bandwidth_per_direction, *rates])
    crosses = len({_part(member, slots.sockets) for member in members}) > 1
    if slots.peer_access and (slots.between_sockets or not crosses):
        # A ring crosses from socket to socket once in either direction: one flow has what passes between them.
        most = slots.between_sockets if crosses and slots.between_sockets else math.inf
        return Link(technology="pcie-peer", bandwidth=rate, most=most)
    # Through the host all devices below a switch use its one link upwards.
    sharers = max(Counter(_part(member, slots.switches) for member in members).values()) if slots.switches else 1
    return Link(technology="pcie-sockets" if crosses else "pcie-host", bandwidth=rate / sharers)


def _part(member: int, counts: Sequence[int]) -> int:
    """In which part a member is, of parts with so many."""
    end = 0
    for part, count in enumerate(counts):
        end += count
        if member < end:
            return part
    return 0
