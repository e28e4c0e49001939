"""Physics checks of a cluster: links times their rate, and what the devices in it can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooflinekit.errors import SpecError, nearest
from rooflinekit.hardware.checks import Check
from rooflinekit.hardware.cluster import NVLINK_RATES, Cluster, Nvlink
from rooflinekit.hardware.device import Device
from rooflinekit.units import format_quantity

_TOLERANCE = 0.02
_NETWORK_RANGE = (1e9, 800e9)  # bit/s of one port, sold between 1999 and 2026


def run(cluster: Cluster, devices: tuple[Device, ...]) -> tuple[Check, ...]:
    """All checks of a cluster with its kinds of devices; deviations named in `cluster.explained` do not fail."""
    found = [*_nvlink_checks(cluster, devices), *_pcie_checks(cluster, devices), *_network_checks(cluster)]
    found.append(_reached(cluster, devices))
    names = [check.name for check in found]
    for name in cluster.explained:
        if name not in names:
            note = f"expected the name of a check{nearest(name, names)}; they are {', '.join(names)}"
            found.append(_made(f"explained.{name}", None, None, "", False, note))
    return tuple(
        check if check.ok or check.name not in cluster.explained
        else replace(check, status="explained", note=cluster.explained[check.name])
        for check in found
    )  # fmt: skip


def verify(cluster: Cluster, devices: tuple[Device, ...], label: str) -> None:
    """Raise SpecError with the first failed check, and the number of others; `label` names the file."""
    failed = [check for check in run(cluster, devices) if not check.ok]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise SpecError(f"{label}: {failed[0].name.replace('.', ': ', 1)}: {failed[0].note}{more}")


def _nvlink_checks(cluster: Cluster, devices: tuple[Device, ...]) -> Iterator[Check]:
    nvlink = cluster.nvlink
    if nvlink is None:
        return
    rates = NVLINK_RATES[nvlink.generation]
    rate = min(rates, key=lambda one: abs(nvlink.links * one - nvlink.one_way))
    formula = f"{nvlink.links} links x {_rate(rate)} of generation {nvlink.generation}"
    yield _compare("nvlink.bandwidth", nvlink.links * rate, nvlink.one_way, formula)
    for device in devices:
        stated = device.interconnect.bandwidth_per_direction if device.interconnect else None
        name = f"nvlink.{device.name}"
        if stated is None:
            yield _made(name, None, nvlink.one_way, "byte/s", False, f"expected no nvlink: {device.name} has none")
        else:
            yield _compare(name, stated, nvlink.one_way, f"the interconnect of {device.name}")
    if nvlink.mesh:
        yield _mesh_check(nvlink, cluster.per_node)


def _mesh_check(nvlink: Nvlink, count: int) -> Check:
    used = [sum(nvlink.links_between(a, b) for b in range(count)) for a in range(count)]
    worst = max(range(count), key=lambda a: used[a])
    note = f"device {worst} uses {used[worst]} of {nvlink.links} links"
    return _made("nvlink.mesh", nvlink.links, used[worst], "", used[worst] <= nvlink.links, note)


def _pcie_checks(cluster: Cluster, devices: tuple[Device, ...]) -> Iterator[Check]:
    slots = cluster.pcie
    for device in devices if slots is not None else ():
        name = f"pcie.{device.name}"
        if slots is None or device.pcie is None:
            yield Check(name=name, expected=None, actual=None, unit="", status="skipped",
                        note=f"{device.name} does not say what PCIe it has")  # fmt: skip
            continue
        own, slot = device.pcie, slots.bandwidth_per_direction
        formula = f"PCIe {own.generation} x{own.lanes} of {device.name}: {_rate(own.bandwidth_per_direction)}"
        fits = slot <= own.bandwidth_per_direction * (1 + _TOLERANCE)
        note = formula if fits else f"expected at most {formula}; got {_rate(slot)}"
        yield _made(name, own.bandwidth_per_direction, slot, "byte/s", fits, note)


def _network_checks(cluster: Cluster) -> Iterator[Check]:
    if cluster.network is None:
        return
    low, high = _NETWORK_RANGE
    rate = cluster.network.port_rate
    note = f"plausible: {format_quantity(low, 'bit/s')} to {format_quantity(high, 'bit/s')} a port"
    fits = low <= rate <= high
    text = note if fits else f"expected a {note}; got {format_quantity(rate, 'bit/s')}"
    yield _made("network.port_rate", None, rate, "bit/s", fits, text)


def _reached(cluster: Cluster, devices: tuple[Device, ...]) -> Check:
    """Whether any two devices of a node are joined by something."""
    processes = all(device.kind == "cpu" for device in devices)
    switched = cluster.nvlink is not None and cluster.nvlink.topology == "switch"
    joined = processes or switched or cluster.pcie is not None or cluster.per_node == 1
    note = "each two devices of a node are joined" if joined else "expected pcie, for NVLink does not join all devices"
    return _made("links", None, None, "", joined, note)


def _compare(name: str, expected: float, actual: float, formula: str) -> Check:
    if abs(actual / expected - 1) <= _TOLERANCE:
        return _made(name, expected, actual, "byte/s", True, formula)
    twice = "; twice the rate looks like both directions together" if abs(actual / expected - 2) < 0.06 else ""
    note = f"expected {_rate(expected)} in one direction ({formula}); got {_rate(actual)}{twice}"
    return _made(name, expected, actual, "byte/s", False, note)


def _made(name: str, expected: float | None, actual: float | None, unit: str, fits: bool, note: str) -> Check:
    status = "passed" if fits else "failed"
    return Check(name=name, expected=expected, actual=actual, unit=unit, status=status, note=note)  # type: ignore[arg-type]


def _rate(value: float) -> str:
    return format_quantity(value, "byte/s", digits=4)
