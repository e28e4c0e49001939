"""Devices in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.hardware.checks import Check
from rooflinekit.hardware.device import FORMATS, Device
from rooflinekit.present.tables import console, table
from rooflinekit.units import format_quantity


def print_devices(devices: Sequence[Device]) -> None:
    """One line a device."""
    rows = table("device", "fp32", "tf32", "fp16", "bf16", "fp8", "memory", "bandwidth", "ridge fp16", "power")
    for device in devices:
        peaks = []
        for math in ("fp32", "tf32", "fp16", "bf16", "fp8"):
            peak = device.matrix_peak.get(math) or device.vector_peak.get(math)
            peaks.append("–" if peak is None else format_quantity(peak, "flop/s"))
        half = device.matrix_peak.get("fp16") or device.vector_peak["fp32"]
        rows.add_row(
            device.name,
            *peaks,
            format_quantity(device.dram.capacity, "byte", binary=True),
            format_quantity(device.dram.bandwidth, "byte/s"),
            f"{half / device.dram.bandwidth:.0f}",
            "–" if device.board_power is None else format_quantity(device.board_power, "W"),
        )
    console(wide=True).print(rows)


def print_device(device: Device, checks: Sequence[Check]) -> None:
    """One device: numbers, physics checks, sources."""
    out = console()
    out.print(f"{device.name}: {device.display_name or device.name} ({device.vendor}, {device.architecture})")
    rows = table("", "datasheet", "ridge")
    for math in FORMATS:
        for kind, peaks in (("matrix", device.matrix_peak), ("vector", device.vector_peak)):
            if math in peaks:
                peak = peaks[math]
                ridge = format_quantity(peak / device.dram.bandwidth, "flop/byte")
                rows.add_row(f"{math} {kind}", format_quantity(peak, "flop/s"), ridge)
    rows.add_row(f"memory {device.dram.type or ''}", format_quantity(device.dram.bandwidth, "byte/s"), "")
    rows.add_row("  capacity", format_quantity(device.dram.capacity, "byte", binary=True), "")
    rows.add_row("processors", f"{device.sm_count} × {device.lanes_per_sm} lanes", "")
    rows.add_row("  boost clock", format_quantity(device.clock.boost, "Hz"), "")
    if device.board_power is not None:
        rows.add_row("board power", format_quantity(device.board_power, "W"), "")
    console(wide=True).print(rows)
    for one in checks:
        out.print(f"{one.status}: {one.name}{f': {one.note}' if one.note else ''}")
    for group, source in device.sources.items():
        out.print(f"source of {group}: {source}")
    if device.aliases:
        out.print(f"also called: {', '.join(device.aliases)}")
