"""A device as lines of a table: what its datasheet says, and where its ridges are."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.hardware.device import FORMATS, Device
from rooflinekit.ir import notebook
from rooflinekit.units import format_quantity


def device_rows(device: Device) -> Iterator[tuple[str, str, str]]:
    """Name, value and ridge (FLOP/byte; "" where there is none) of every number."""
    yield from _peaks(device)
    yield from _units(device)
    yield from _links(device)


def notebook_table(device: Device) -> str:
    """The same as HTML."""
    title = f"{device.name}: {device.display_name or device.name} ({device.vendor}, {device.architecture})"
    draft = [f"draft: {device.draft_reason}"] if device.draft else []
    return notebook.block(
        title, notebook.paragraphs(draft), notebook.table(["", "datasheet", "ridge"], device_rows(device))
    )


def _peaks(device: Device) -> Iterator[tuple[str, str, str]]:
    for math in FORMATS:
        for accumulate, peak in device.accumulations(math).items():
            yield _peak(device, f"{math} matrix, accumulates in {accumulate}", peak)
        if math in device.vector_peak:
            yield _peak(device, f"{math} vector", device.vector_peak[math])
        if device.support(math) in ("unpublished", "emulated", "absent"):
            yield math, device.support(math), ""


def _peak(device: Device, label: str, peak: float) -> tuple[str, str, str]:
    return label, format_quantity(peak, "flop/s"), format_quantity(peak / device.dram.bandwidth, "flop/byte")


def _units(device: Device) -> Iterator[tuple[str, str, str]]:
    dram = device.dram
    yield f"memory {dram.type or ''}", format_quantity(dram.bandwidth, "byte/s"), ""
    yield "  capacity", format_quantity(dram.capacity, "byte", binary=True), ""
    yield "L2", format_quantity(device.l2_capacity, "byte", binary=True), ""
    unit = "SM" if device.kind == "gpu" else "core"
    optional = (
        ("last-level cache", device.last_level_cache),
        (f"L1 per {unit}", device.l1_capacity_per_sm),
        (f"shared memory per {unit}", device.shared_memory_per_sm),
        ("  of one block", device.shared_memory_per_block),
    )
    for label, capacity in optional:
        if capacity is not None:
            yield label, format_quantity(capacity, "byte", binary=True), ""
    yield f"{unit}s", f"{device.sm_count} × {device.lanes_per_sm} lanes", ""
    clocks = (
        ("base", device.clock.base),
        ("boost", device.clock.boost),
        ("matrix", device.clock.tensor),
        ("vector", device.clock.vector),
    )
    for label, clock in clocks:
        if clock is not None:
            yield f"  {label} clock", format_quantity(clock, "Hz"), ""


def _links(device: Device) -> Iterator[tuple[str, str, str]]:
    if device.pcie is not None:
        pcie = format_quantity(device.pcie.bandwidth_per_direction, "byte/s")
        yield f"PCIe {device.pcie.generation} x{device.pcie.lanes}, one direction", pcie, ""
    link = device.interconnect
    if link is not None:
        speed = link.bandwidth_per_direction
        yield f"{link.kind}, one direction", "–" if speed is None else format_quantity(speed, "byte/s"), ""
    shared = f", shared by {device.devices_per_board} devices" if device.devices_per_board > 1 else ""
    if device.board_power is not None:
        yield f"board power{shared}", format_quantity(device.board_power, "W"), ""
    if device.launch_price_usd is not None:
        yield f"launch price{shared}", f"${device.launch_price_usd}", ""
    if device.launch_date is not None:
        yield "launched", device.launch_date.isoformat(), ""
    if device.process_node is not None:
        yield "process", device.process_node, ""
