"""Rows of a sweep or a search as texts: times with their units, intervals, memory and whether it suffices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_Row = dict[str, Any]
_Read = tuple[tuple[str, tuple[str, ...], Callable[[_Row], str]], ...]

#: Columns that people read: the head, the columns that it takes, and how a row fills it.
_READ: _Read = (
    ("step", ("total_s",), lambda row: _seconds(row["total_s"])),
    ("90 % interval", ("low_s", "high_s"), lambda row: f"{_seconds(row['low_s'])} to {_seconds(row['high_s'])}"),
    ("GPU busy", ("gpu_s",), lambda row: _seconds(row["gpu_s"])),
    ("CPU issuing", ("cpu_s",), lambda row: _seconds(row["cpu_s"])),
    (
        "power",
        ("power_w",),
        lambda row: "–" if row["power_w"] != row["power_w"] else format_quantity(row["power_w"], "W"),
    ),
    ("J/step", ("energy_j",), lambda row: _number(row["energy_j"])),
    ("J/sample", ("joules",), lambda row: _number(row["joules"])),
    ("regime", ("regime",), lambda row: _text(row["regime"])),
    ("samples/s", ("throughput",), lambda row: _number(row["throughput"])),
    ("memory", ("peak_bytes",), lambda row: _memory(row)),
)
#: Money, where prices are those at launch, and where they are those of an hour: `dollars` is the price by samples/s.
_LAUNCH: _Read = (
    ("$ at launch", ("price",), lambda row: _number(row["price"])),
    ("$ at launch by samples/s", ("dollars",), lambda row: _number(row["dollars"])),
)
_HOURLY: _Read = (
    ("an hour", ("price",), lambda row: _number(row["price"])),
    ("a million samples", ("dollars",), lambda row: _number(row["dollars"] * 1e6 / 3600)),
)
_HIDDEN = ("fits", "misses by")


def cells_of(frame: pd.DataFrame, currency: str | None = None) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of a table, as texts: what names a row first, then what was found.

    Columns that no row fills are left out. currency: of the prices of an hour; without it prices are those at launch.
    """
    rows: list[_Row] = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    columns = [str(name) for name in frame.columns]
    money = _LAUNCH if currency is None else tuple((f"{currency} {head}", n, fill) for head, n, fill in _HOURLY)
    known = (*_READ, *money)
    taken = {name for _, names, _ in known for name in names} | {*_HIDDEN}
    empty = {name for name in columns if frame[name].isna().all()}
    first = [name for name in columns if name not in taken and name not in ("misses", "problem")]
    last = [name for name in ("misses", "problem") if name in columns and name not in empty]
    read = [(head, fill) for head, names, fill in known if all(n in columns and n not in empty for n in names)]
    if "batch" not in columns and "throughput" in columns:
        read = [(head.replace("samples", "steps"), fill) for head, fill in read]
    heads = [*first, *(head for head, _ in read), *last]
    body = [
        [*(str(row[name]) for name in first), *(fill(row) for _, fill in read), *(_text(row[name]) for name in last)]
        for row in rows
    ]
    return heads, body


def _seconds(value: float) -> str:
    return "–" if value != value else format_quantity(value, "s")


def _number(value: float | None) -> str:
    """Four digits.

    >>> _number(12345.6), _number(0.012345), _number(None)
    ('12346', '0.01235', '–')
    """
    if value is None or value != value:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _memory(row: _Row) -> str:
    if row["peak_bytes"] != row["peak_bytes"]:
        return "–"
    need = format_quantity(row["peak_bytes"], "byte", binary=True)
    return f"{need}{'' if row.get('fits', True) else ' does not fit'}"


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)
