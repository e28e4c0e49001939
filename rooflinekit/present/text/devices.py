"""One device in a terminal: its numbers, its checks and its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from rooflinekit.errors import printable
from rooflinekit.hardware.catalog import Row
from rooflinekit.hardware.checks import Check
from rooflinekit.hardware.device import device_rows
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.units import format_quantity


def print_device(row: Row, checks: Sequence[Check]) -> None:
    """One device: numbers, physics checks, sources."""
    device = row.device
    _say(f"{device.name}: {device.display_name or device.name} ({device.vendor}, {device.architecture})")
    if device.draft:
        _say(f"draft: {device.draft_reason}")
    rows = table("", "datasheet", "ridge")
    for cells in (*device_rows(device), *_value(row)):
        rows.add_row(*(Text(printable(cell)) for cell in cells))
    print_table(rows)
    for one in checks:
        _say(f"{one.status}: {one.name}{f': {one.note}' if one.note else ''}")
    for group, source in device.sources.items():
        _say(f"source of {group}: {source}")
    if device.device_scope:
        _say(f"scope: {device.device_scope}")
    if device.caution:
        _say(f"note: {device.caution}")
    if device.notes:
        _say(f"notes: {device.notes}")
    if device.aliases:
        _say(f"also called: {', '.join(device.aliases)}")


def _say(line: str) -> None:
    """A paragraph as it is: brackets in somebody's notes are no markup, and escapes are not acted upon."""
    console().print(printable(" ".join(line.split())), markup=False)


def _value(row: Row) -> Iterator[tuple[str, str, str]]:
    for unit, quotient in (("watt", row.per_watt), ("dollar", row.per_dollar)):
        if quotient is not None:
            yield f"{row.math} per {unit}", format_quantity(quotient, "flop/s"), ""
