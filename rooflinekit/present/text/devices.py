"""One device in a terminal: its numbers, its checks and its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooflinekit.hardware.catalog import Row
from rooflinekit.hardware.checks import Check
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import device_rows
from rooflinekit.hardware.host import Host
from rooflinekit.present.text import device_table
from rooflinekit.present.text.form import FORM
from rooflinekit.present.text.tables import Cell, flat, print_table, say, table, table_of
from rooflinekit.timing.collectives import CollectiveTiming
from rooflinekit.units import format_quantity, said


def print_device(row: Row, checks: Sequence[Check]) -> None:
    """One device: numbers, physics checks, sources; its line of the table, where tables alone are asked for."""
    if FORM.get() != "text":
        device_table.print_devices([row])
        return
    device = row.device
    _say(f"{device.name}: {device.title} ({device.vendor}, {device.architecture})")
    if device.draft:
        _say(f"draft: {device.draft_reason}")
    quotients = [
        (f"{row.math} per {unit}", format_quantity(quotient, "flop/s"), "")
        for unit, quotient in (("watt", row.per_watt), ("dollar", row.per_dollar))
        if quotient is not None
    ]
    print_table(table(("", "datasheet", "ridge"), (*device_rows(device), *quotients)))
    _say(*(f"{one.status}: {one.name}{f': {one.note}' if one.note else ''}" for one in checks))
    _say(*(f"source of {group}: {source}" for group, source in device.sources.items()))
    further = {
        "scope": device.device_scope, "note": device.caution, "notes": device.notes,
        "also called": ", ".join(device.aliases),
    }  # fmt: skip
    _say(*(f"{word}: {text}" for word, text in further.items() if text))


def _say(*lines: str) -> None:
    """Paragraphs, each on one line."""
    say(*(" ".join(line.split()) for line in lines))


_TIMES = {
    "module": "calling a module",
    "launch": "each further kernel of an op",
    "launch_latency": "from the launch to the first instruction",
    "sync": "a synchronization",
    "step": "the loop around a step",
    "compiled_launch": "a kernel of a compiled step",
    "guards": "entering a compiled step",
    "guard": "each weight and input of a compiled step",
    "graph_launch": "launching a CUDA graph",
    "graph_entry": "entering a CUDA graph of torch.compile",
}


def print_hosts(hosts: Sequence[Host]) -> None:
    """Prints a line for each host."""
    columns: dict[str, Cell] = {
        "host": ("name", ""), "an op": lambda host: said(host.dispatch_s("default"), "s"), "launch": ("launch", "s"),
        "a step": ("step", "s"), "copies, pageable": ("copy_bandwidth_pageable", "byte/s"),
        "pinned": ("copy_bandwidth_pinned", "byte/s"),
        "what it is": lambda host: " ".join(host.description.split()),
    }  # fmt: skip
    print_table(table_of(columns, hosts), lambda: flat(map(vars, hosts)))


def print_host(host: Host) -> None:
    """Prints one host: its times, its memory, its sources."""
    if FORM.get() != "text":
        print_hosts([host])
        return
    lines = [f"{host.name}: {host.description}"]
    lines += [f"issuing an op, {family}: {format_quantity(host.dispatch[family], 's')}" for family in host.dispatch]
    lines += [f"{meaning}: {format_quantity(getattr(host, name), 's')}" for name, meaning in _TIMES.items()]
    lines += [
        f"an op that autograd issues: {host.backward_factor:g} times as long",
        f"memory: {format_quantity(host.dram_bandwidth, 'byte/s')}",
        f"copies to the GPU: {format_quantity(host.copy_bandwidth_pageable, 'byte/s')}, "
        f"from page-locked memory {format_quantity(host.copy_bandwidth_pinned, 'byte/s')}",
        f"other hosts of this sort: {host.spread:g} of the logarithm above or below",
    ]
    for source in dict.fromkeys(host.sources.values()):
        groups = ", ".join(group for group, text in host.sources.items() if text == source)
        lines.append(f"source of {groups}: {source}")
    _say(*lines)


_TERMS = (
    ("start_s", "start", "of the kernel or the call"),
    ("latency_s", "latency", "steps of the algorithm, without bytes"),
    ("transfer_s", "transfer", "bytes on the slowest link"),
    ("pipeline_s", "pipeline", "cutting into pieces and filling the links with them"),
    ("copy_s", "copy", "a rank's own part, from buffer to buffer"),
)


def print_clusters(clusters: Sequence[Cluster]) -> None:
    """Prints a line for each cluster."""
    columns: dict[str, Cell] = {
        "cluster": ("name", ""), "nodes": ("nodes", ""), "devices of a node": _devices,
        "inside, one direction": _inside, "between nodes, one direction": _between,
    }  # fmt: skip
    print_table(table_of(columns, clusters), lambda: flat(map(_numbers, clusters)))


def _numbers(cluster: Cluster) -> Mapping[str, object]:
    rates = {
        "nvlink": cluster.nvlink and cluster.nvlink.one_way,
        "pcie": cluster.pcie and cluster.pcie.bandwidth_per_direction,
        "network": cluster.network and cluster.network.one_way,
    }  # fmt: skip
    return {
        "name": cluster.name, "nodes": cluster.nodes, "devices": _devices(cluster), "host": cluster.host,
        **{f"{link}_bytes_per_s": rate for link, rate in rates.items()},
    }  # fmt: skip


def print_cluster(cluster: Cluster) -> None:
    """Prints one cluster: its devices, links, sources."""
    if FORM.get() != "text":
        print_clusters([cluster])
        return
    lines = [
        f"{cluster.name}: {cluster.display_name or cluster.name}",
        f"nodes: {cluster.nodes}, each {_devices(cluster)}, host {cluster.host}",
        f"inside, one direction: {_inside(cluster)}",
    ]
    if cluster.nvlink is not None and cluster.nvlink.mesh:
        pairs = ", ".join(f"{pair} ×{count}" for pair, count in cluster.nvlink.mesh.items())
        lines.append(f"NVLink between: {pairs}")
    for name in ("switches", "sockets"):
        counts = getattr(cluster.pcie, name, ())
        if counts:
            lines.append(f"PCIe {name} with so many devices: {', '.join(map(str, counts))}")
    if cluster.network is not None:
        latency = format_quantity(cluster.network.latency, "s")
        lines.append(f"between nodes, one direction: {_between(cluster)}, latency {latency}")
    lines += [f"source of {group}: {source}" for group, source in cluster.sources.items()]
    lines += [f"notes: {cluster.notes}"] if cluster.notes else []
    _say(*lines)


def print_timing(timing: CollectiveTiming, document: Mapping[str, Any]) -> None:
    """One collective: time, interval, algorithm, what it is made of. document: the same in base units."""
    low, high = (format_quantity(value, "s") for value in timing.interval())
    size = format_quantity(timing.size_bytes, "byte")
    say(f"{timing.collective} of {size} on {timing.ranks} of {document['cluster']}")
    if timing.ranks == 1:
        say("0 s: one device has nothing to send")
    else:
        total, links = format_quantity(timing.total_s, "s"), timing.route.links
        over = " and ".join(f"{link.name} at {format_quantity(link.bandwidth, 'byte/s')}" for link in links)
        say(
            f"{total}, 90 % between {low} and {high}; {timing.algorithm} over {over}",
            f"bus bandwidth {format_quantity(timing.bus_bandwidth, 'byte/s')}, "
            f"size over time {format_quantity(timing.algorithm_bandwidth, 'byte/s')}",
        )
    rows = ((name, said(getattr(timing, field), "s"), meaning) for field, name, meaning in _TERMS)
    print_table(table(("", "time", "of what"), rows), lambda: flat([document]))


def _devices(cluster: Cluster) -> str:
    return " + ".join(f"{members.count}× {members.name}" for members in cluster.devices)


def _inside(cluster: Cluster) -> str:
    found = []
    if cluster.nvlink is not None:
        nvlink = cluster.nvlink
        found.append(f"NVLink {nvlink.generation} {nvlink.topology} {format_quantity(nvlink.one_way, 'byte/s')}")
    if cluster.pcie is not None:
        pcie = cluster.pcie
        peer = "" if pcie.peer_access else " without peer access"
        rate = format_quantity(pcie.bandwidth_per_direction, "byte/s")
        if pcie.peer_access and pcie.between_sockets:
            peer = f", {format_quantity(pcie.between_sockets, 'byte/s')} between sockets"
        found.append(f"PCIe {pcie.generation} x{pcie.lanes} {rate}{peer}")
    return ", ".join(found) or "memory of the host"


def _between(cluster: Cluster) -> str:
    if cluster.network is None:
        return "-"
    network = cluster.network
    ports = f"{network.ports}× " if network.ports > 1 else ""
    rate, total = format_quantity(network.port_rate, "bit/s"), format_quantity(network.one_way, "byte/s")
    return f"{ports}{rate} {network.kind}, {total}"
