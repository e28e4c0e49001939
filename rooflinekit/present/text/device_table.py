"""Devices side by side, as lines of text, CSV or Markdown. No rich: it takes as long as reading every device."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rooflinekit.hardware.catalog import Row, record
from rooflinekit.hardware.device import FORMATS
from rooflinekit.ir.notebook import aligned
from rooflinekit.present.text.form import FORM, beyond_a_pipe, markdown
from rooflinekit.units import number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    head: str
    unit: str
    text: Callable[[Row], str]
    rank: int = 0  # the highest leave first where a terminal is too narrow


def device_lines(rows: Sequence[Row], width: int | None = None) -> list[str]:
    """A line a device under two lines of heading; columns that `width` letters cannot hold are left out, and named."""
    columns, left_out = _columns(rows[0].math if rows else "fp16"), list[str]()
    while True:
        cells = [[column.unit for column in columns], *([column.text(row) for column in columns] for row in rows)]
        lines = aligned([column.head for column in columns], cells)
        last = max(columns, key=lambda column: column.rank)
        if width is None or max(map(len, lines)) <= width or not last.rank:
            break
        columns.remove(last)
        left_out.append(last.head)
    lines += [f"note: {row.device.caution}" for row in rows if row.device.caution]
    if left_out:
        lines.append(f"left out, as the terminal is narrow: {', '.join(reversed(left_out))}; --json has them all")
    return lines


def markdown_lines(rows: Sequence[Row]) -> list[str]:
    """The table in Markdown, with every column."""
    columns = _columns(rows[0].math if rows else "fp16")
    heads = [column.head + (f" ({column.unit})" if column.unit else "") for column in columns]
    body = [[column.text(row) for column in columns] for row in rows]
    return markdown(heads, body, [column is columns[0] for column in columns])


def print_devices(rows: Sequence[Row]) -> None:
    """The table on standard output, as wide as the terminal, also behind a pipe, or as it needs where that is none."""
    if FORM.get() == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        records = [record(row) for row in rows]
        out.writerows([[*records[0]], *(one.values() for one in records)] if records else [])
    elif FORM.get() == "markdown":
        print("\n".join(markdown_lines(rows)))
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else beyond_a_pipe()
        print("\n".join(device_lines(rows, width)))
    else:
        print("no device passes all filters")


def _columns(math: str) -> list[_Column]:
    leaves = {"fp4": 11, "int8": 10, "tf32": 9, "fp64": 8, "fp8": 7, "bf16": 6, "fp16": 0, "fp32": 0}
    peaks = [
        _Column(head=name, unit="TFLOP/s", text=lambda row, name=name: number(row.peak(name), 1e12), rank=leaves[name])  # type: ignore[misc]
        for name in FORMATS
    ]
    return [
        _Column(head="device", unit="", text=lambda row: row.device.name + (" (draft)" if row.device.draft else "")),
        *peaks,
        _Column(head="memory", unit="GiB", text=lambda row: number(row.device.dram.capacity, 2**30)),
        _Column(head="bandwidth", unit="GB/s", text=lambda row: number(row.device.dram.bandwidth, 1e9)),
        _Column(head=f"ridge {math}", unit="FLOP/B", text=lambda row: number(row.ridge, 1), rank=1),
        _Column(head="power", unit="W", text=lambda row: number(row.device.board_power, 1), rank=2),
        _Column(head="price", unit="$", text=lambda row: number(row.device.launch_price_usd, 1), rank=4),
        _Column(head=f"{math}/W", unit="GFLOP/s", text=lambda row: number(row.per_watt, 1e9), rank=3),
        _Column(head=f"{math}/$", unit="GFLOP/s", text=lambda row: number(row.per_dollar, 1e9), rank=5),
    ]
