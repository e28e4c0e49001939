"""How long a collective takes: bytes and links to seconds.

    T = start + steps·hop + W + 2·√(chunk·W) + copy,        W = wire bytes / min(bandwidth · share, ceiling)

The root is what a pipeline costs that cuts a message into pieces of the best size; wire bytes and steps are those of
the algorithm, and the fastest one is taken, as NCCL's tuner means to (docs/clusters.md derives both). Constants belong
to link technologies and GPU generations, never to machines.

Across nodes a tree takes fewer steps than a ring and sends no less, as in NCCL's tuner (src/graph/tuning.cc). The
ceiling is there where data goes through the host's memory: the few thread blocks of a collective have so many bytes of
reads under way, and a read takes as long on a fast link as on a slow one. So it is a rate, not a share.

Sizes are those of nccl-tests: of all-reduce, broadcast and send-recv the buffer; of all-gather the gathered result; of
reduce-scatter what each rank puts in; of all-to-all what each rank sends, its own part included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import stdev

from rooflinekit.errors import InputError, check_word
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.published.stated import Constant
from rooflinekit.timing.estimate import Estimate
from rooflinekit.timing.machine import Spread

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv")
UNSEEN = "unseen"

_SHARP_GENERATION = 4  # of NVLink, from which on switches add numbers up
#: GB/s that NCCL takes what passes between sockets for: Intel's Skylake, AMD, Sapphire Rapids (src/graph/topo.h,
#: SKL_QPI_BW, AMD_BW, SRP_QPI_BW). Which a server has is seldom known, so they are how far it may be off.
_SOCKETS = (10, 16, 22)
_BETWEEN_SOCKETS = stdev(map(math.log, _SOCKETS))
_SHARP_LEAST = 3  # ranks; NCCL does not use it for two


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """Constants by "NAME OF-WHAT": "share nvlink-4", "start 9.0"; the plain "share" is that of any kind of link."""

    constants: Mapping[str, Constant]
    spreads: Mapping[str, Spread]  # by kind of link, or technology for generations unmeasured; UNSEEN for the others

    def link(self, name: str, link: Link) -> float:
        """The constant of a link, or of the nearest generation that was measured."""
        return self._nearest(name, link.technology, link.generation)

    def rate(self, link: Link, share: str = "share") -> float:
        """Byte/s that long messages reach."""
        of_link = min(link.bandwidth * self.link(share, link), link.most)
        return min(of_link, self.link("ceiling", link)) if link.technology in THROUGH_HOST else of_link

    def device(self, name: str, device: Device) -> float:
        """The constant of a device, or of the nearest compute capability that was measured."""
        if device.kind == "cpu":
            return self.constants.get(f"{name} cpu", self.constants[name]).value
        try:
            capability = float(device.compute_capability or "")
        except ValueError:
            return self.constants[name].value
        return self._nearest(name, "", capability)

    def spread(self, link: Link) -> Spread:
        """How far predictions over such a link are off."""
        names = (link.name, link.technology, UNSEEN)
        found = next(self.spreads[name] for name in names if name in self.spreads)
        if link.most == math.inf:
            return found
        return Spread(random=found.random, systematic=math.hypot(found.systematic, _BETWEEN_SOCKETS))

    def _nearest(self, name: str, technology: str, number: float) -> float:
        return self.constants[_nearest_key(tuple(self.constants), name, technology, number)].value


@lru_cache(maxsize=1024)
def _nearest_key(keys: tuple[str, ...], name: str, technology: str, number: float) -> str:
    """The constant of a numbered kind: its own, that of the nearest number, of all numbers, or of any kind."""
    prefix = f"{name} {technology}-" if technology else f"{name} "
    numbers = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    known = [text for text in numbers if text.replace(".", "", 1).isdigit()]
    if number and known:
        # Of two equally near the newer.
        return prefix + min(known, key=lambda text: (abs(float(text) - number), -float(text)))
    plain = f"{name} {technology}".strip()
    return plain if plain in keys else name


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTiming:
    """One collective's seconds, in parts that add up to the whole."""

    collective: str
    algorithm: str  # "ring", "tree", "nvls", "direct", "hierarchical"; "none" for one device
    size_bytes: float
    route: Route
    start_s: float = 0.0  # of the kernel or the call
    latency_s: float = 0.0  # of the steps that an empty message takes
    transfer_s: float = 0.0  # of the bytes on the slowest link
    pipeline_s: float = 0.0  # of filling and feeding the pipeline
    copy_s: float = 0.0  # of a rank's own part, from buffer to buffer
    wire_bytes: float = 0.0  # that a device sends over the slowest link
    spread: float = 0.0  # standard deviation of ln(measured / predicted)

    @property
    def ranks(self) -> int:
        """Devices that take part."""
        return self.route.ranks

    @property
    def total_s(self) -> float:
        """Seconds from the call's start on the device until all ranks have the result."""
        return self.start_s + self.latency_s + self.transfer_s + self.pipeline_s + self.copy_s

    @property
    def algorithm_bandwidth(self) -> float:
        """Byte/s, the size over the time; 0 for one device."""
        return self.size_bytes / self.total_s if self.total_s else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """Byte/s as nccl-tests prints it, which a perfect ring would have at its links' rate."""
        return self.algorithm_bandwidth * _ring_factor(self.collective, self.ranks)

    @property
    def estimate(self) -> Estimate:
        """Its seconds; all collectives over one kind of link are off together."""
        return Estimate(seconds=self.total_s, shared={"links": self.spread * self.total_s})

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Seconds between which a share `level` of measurements should lie."""
        return self.estimate.interval(level)


def time_collective(
    collective: str, size_bytes: float, route: Route, constants: LinkConstants, *, algorithm: str | None = None,
    sums_in_switch: bool = True,
) -> CollectiveTiming:  # fmt: skip
    """The time of one collective over a route, by the fastest algorithm or the one that is named.

    sums_in_switch: whether the number format is one that switches add up: fp32, fp16 and bf16 are, integers are not.
    Raises InputError for an unknown collective, a negative size and an algorithm that the route does not have.
    """
    check_word("collective", collective, COLLECTIVES)
    if not 0 <= size_bytes < math.inf:
        raise InputError(f"{collective}: expected a size of 0 bytes or more; got {size_bytes:g}")
    if collective == "send-recv" and route.ranks > 2:
        raise InputError(f"send-recv is between 2 devices; got {route.ranks}")
    if route.ranks == 1:
        return CollectiveTiming(collective=collective, algorithm="none", size_bytes=size_bytes, route=route)
    algorithms = algorithms_of(collective, route, sums_in_switch=sums_in_switch)
    if algorithm is not None and algorithm not in (*algorithms, "hierarchical"):
        raise InputError(f"{collective}: expected algorithm {', '.join(algorithms)} here; got {algorithm!r}")
    timings = [
        ALGORITHMS[one](collective, size_bytes, route, constants) for one in ([algorithm] if algorithm else algorithms)
    ]
    return min(timings, key=lambda timing: timing.total_s)


def algorithms_of(collective: str, route: Route, *, sums_in_switch: bool = True) -> tuple[str, ...]:
    """Algorithms among which the library chooses; "hierarchical" is written by programs and taken only when named."""
    if collective in ("all-to-all", "send-recv"):
        return ("direct",)
    inside = route.inside
    if collective == "broadcast" and inside is not None and inside.technology == "loopback":
        return ("tree",)  # gloo has no other
    found = ["ring"]
    if collective == "all-reduce" and route.nodes > 1:
        found.append("tree")
    sharp = inside is not None and inside.switched and inside.generation >= _SHARP_GENERATION
    if collective == "all-reduce" and sharp and sums_in_switch and route.nodes == 1 and route.ranks >= _SHARP_LEAST:
        found.append("nvls")
    return tuple(found)


def _ring_factor(collective: str, ranks: int) -> float:
    """Wire bytes of each device in a ring, over the size."""
    if collective in ("broadcast", "send-recv"):
        return 1.0
    return (2 if collective == "all-reduce" else 1) * (ranks - 1) / ranks


def _ring(collective: str, size: float, route: Route, constants: LinkConstants) -> CollectiveTiming:
    """Each device passes on to the next one; of the ring's ways as many as there are nodes cross the network."""
    rounds = 2 if collective == "all-reduce" else 1
    wire = _ring_factor(collective, route.ranks) * size
    hops = (route.ranks - route.nodes) * _hop(route.inside, constants)
    hops += (route.nodes - 1) * _hop(route.between, constants)
    return _timing(collective, "ring", size, route, constants, latency_s=rounds * hops, inside=wire, between=wire)


def _tree(collective: str, size: float, route: Route, constants: LinkConstants) -> CollectiveTiming:
    """A chain in each node, and two binary trees over the nodes that each carry half (NCCL's double binary tree).

    What is busiest tells the bytes: a device in the middle of a chain passes everything up and down once, and so does a
    node, which is a leaf of one tree and has two children in the other.
    """
    rounds = 2 if collective == "all-reduce" else 1
    if route.between is None:  # processes of one machine: gloo's broadcast
        levels = math.ceil(math.log2(route.ranks))
        hops, wire = levels * _hop(route.inside, constants), levels * size
    else:
        hops = (route.per_node - 1) * _hop(route.inside, constants)
        hops += math.ceil(math.log2(route.nodes)) * _hop(route.between, constants)
        wire = rounds * size
    return _timing(collective, "tree", size, route, constants, latency_s=rounds * hops, inside=wire, between=wire)


def _nvls(collective: str, size: float, route: Route, constants: LinkConstants) -> CollectiveTiming:
    """The switch adds up: each device sends its buffer once, and its share of the result."""
    wire = (1 + 1 / route.ranks) * size
    assert route.inside is not None
    ahead = constants.link("nvls_start", route.inside)
    return _timing(collective, "nvls", size, route, constants, latency_s=ahead, inside=wire, share="nvls_share")


def _direct(collective: str, size: float, route: Route, constants: LinkConstants) -> CollectiveTiming:
    """The time of an exchange in which every device sends to every other one at once."""
    n, here = route.ranks, route.per_node
    hop = max(_hop(route.inside, constants), _hop(route.between, constants))
    ahead = max(constants.device("peer_start", device) for device in route.devices)
    inside = size * (here - 1) / n if collective == "all-to-all" else size * (route.nodes == 1)
    between = size * here * (n - here) / n if collective == "all-to-all" else size
    return _timing(collective, "direct", size, route, constants, latency_s=ahead + hop, inside=inside, between=between)


def _hierarchical(collective: str, size: float, route: Route, constants: LinkConstants) -> CollectiveTiming:
    """Reduce-scatter in each node, all-reduce of the parts across nodes, all-gather in each node."""
    if collective != "all-reduce" or route.nodes == 1 or route.per_node == 1:
        raise InputError("hierarchical is an all-reduce of several devices on each of several nodes")
    inner = Route(devices=route.devices[: route.per_node], nodes=1, inside=route.inside, between=None)
    outer = Route(devices=route.devices[:: route.per_node], nodes=route.nodes, inside=None, between=route.between)
    parts = [
        _ring("reduce-scatter", size, inner, constants),
        _ring("all-reduce", size, outer, constants),  # of all devices of a node together
        _ring("all-gather", size, inner, constants),
    ]
    names = ("start_s", "latency_s", "transfer_s", "pipeline_s", "copy_s")
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return CollectiveTiming(
        collective=collective, algorithm="hierarchical", size_bytes=size, route=route,
        wire_bytes=parts[1].wire_bytes, spread=max(part.spread for part in parts), **sums,
    )  # fmt: skip


#: Each gives the time by one algorithm; sizes may be arrays where a route has one kind of link.
ALGORITHMS: Mapping[str, Callable[[str, float, Route, LinkConstants], CollectiveTiming]] = {
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "direct": _direct,
    "hierarchical": _hierarchical,
}


def _timing(
    collective: str, algorithm: str, size: float, route: Route, constants: LinkConstants, *, latency_s: float,
    inside: float, between: float = 0.0, share: str = "share",
) -> CollectiveTiming:  # fmt: skip
    """The formula. inside, between: bytes that a device, or a node, sends over each kind of link."""
    sent = [(link, wire) for link, wire in ((route.inside, inside), (route.between, between)) if link is not None]
    transfers = [wire / constants.rate(link, share) for link, wire in sent]
    feeding = [2 * (constants.link("chunk", link) * t) ** 0.5 for (link, _), t in zip(sent, transfers, strict=True)]
    slowest = max(range(len(sent)), key=lambda i: transfers[i] + feeding[i])
    # bytes of a rank's own part that the collective's few SMs copy, for results that lie in another buffer
    copied = size / route.ranks if collective in ("all-gather", "reduce-scatter", "all-to-all") else 0.0
    return CollectiveTiming(
        collective=collective,
        algorithm=algorithm,
        size_bytes=size,
        route=route,
        start_s=max(constants.device("start", device) for device in route.devices),
        latency_s=latency_s,
        transfer_s=transfers[slowest],
        pipeline_s=feeding[slowest],
        copy_s=copied * max(1 / (d.dram.bandwidth * constants.device("copy_share", d)) for d in route.devices),
        wire_bytes=sent[slowest][1],
        spread=constants.spread(sent[slowest][0]).whole,
    )


def _hop(link: Link | None, constants: LinkConstants) -> float:
    return 0.0 if link is None else link.latency_s + link.turns * constants.link("hop", link)


def time_copy(
    size_bytes: float, route: Route, constants: LinkConstants, host_rate: float = math.inf
) -> CollectiveTiming:
    """The time of one copy between the two devices of a route. host_rate: byte/s to page-locked host memory."""
    link = route.links[-1]
    if link.technology.startswith("pcie"):
        rate = min(link.bandwidth * PAYLOAD_SHARE, link.most)
        if link.technology in THROUGH_HOST:
            rate = min(rate, host_rate)
    else:
        rate = constants.rate(link)
    return CollectiveTiming(
        collective="send-recv", algorithm="copy", size_bytes=size_bytes, route=route,
        start_s=max(constants.device("start", device) for device in route.devices),
        transfer_s=size_bytes / rate, wire_bytes=size_bytes, spread=constants.spread(link).whole,
    )  # fmt: skip


# What a group of devices is joined by: the slowest link on the way around, inside a node and between nodes.


#: Kinds of links with constants of their own are nvlink (by generation), ethernet, infiniband, loopback, and of PCIe
#: pcie-peer: a GPU writes into another's memory; pcie-host: through memory of the host; pcie-sockets: of two sockets.

#: Those on which a collective's kernels write to the host's memory and read there.
THROUGH_HOST = ("pcie-host", "pcie-sockets")
#: Of a packet on PCIe: 256 bytes, the payload that hosts commonly settle on, beside 24 of header, sequence number,
#: checksum and framing (PCI Express base specification).
PAYLOAD_SHARE = 256 / (256 + 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link of one member of a group."""

    technology: str
    bandwidth: float  # byte/s in one direction by the datasheet: of a device, or between nodes of a node
    generation: int = 0  # of NVLink
    switched: bool = False  # whether a switch joins all devices
    latency_s: float = 0.0  # by the datasheet, of an empty message; 0 where only measurements tell
    turns: float = 1.0  # how many members share what moves the data: processes that are more than the cores
    most: float = math.inf  # byte/s that pass whatever the link's own rate: between sockets

    @property
    def name(self) -> str:
        """Its name in the table of constants."""
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
        """The links in use."""
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
    """Whether NVLink connects all members, directly or through other members."""
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
    """Index of the part that a member is in, of consecutive parts of these sizes."""
    end = 0
    for part, count in enumerate(counts):
        end += count
        if member < end:
            return part
    return 0
