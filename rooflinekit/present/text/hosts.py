"""Hosts in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.errors import printable
from rooflinekit.hardware.host import Host
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.units import format_quantity

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
    """A line each."""
    rows = table("host", "an op", "launch", "a step", "copies, pageable", "pinned", "what it is")
    for host in hosts:
        times = (host.dispatch_s("default"), host.launch, host.step)
        copies = (host.copy_bandwidth_pageable, host.copy_bandwidth_pinned)
        rows.add_row(
            host.name,
            *(format_quantity(seconds, "s") for seconds in times),
            *(format_quantity(rate, "byte/s") for rate in copies),
            printable(" ".join(host.description.split())),
        )
    print_table(rows)


def print_host(host: Host) -> None:
    """One host: its times, its memory, sources."""
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
    for line in lines:
        console().print(printable(" ".join(line.split())), markup=False)
