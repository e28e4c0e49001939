"""Devices side by side: what a table of them shows, sorts and filters by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError, UnitError, check_word, nearest
from rooflinekit.hardware import specs
from rooflinekit.hardware.device import FORMATS, KINDS, Device
from rooflinekit.hardware.specs import squash
from rooflinekit.ir.arguments import checked
from rooflinekit.units import parse_quantity

if TYPE_CHECKING:
    import pandas as pd

# Formats that libraries compute in fp32 where that is faster: Pascal cards have fp16 at 1/64 of fp32.
_WIDENED = ("tf32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One device, and what follows from its numbers for one arithmetic. None where the file does not say."""

    device: Device
    math: str  # the arithmetic that `reached` and what is made of it are for
    reached: float | None  # FLOP/s, dense, of the fastest way to compute in `math`
    ridge: float | None  # FLOP/byte
    per_watt: float | None  # FLOP/s/W, of the board where several devices share one
    per_dollar: float | None  # FLOP/s/$, at the launch price

    def peak(self, math: str) -> float | None:
        """FLOP/s, dense, of the faster units in `math`; None without."""
        return self.device.peak(math) if math in self.device.formats else None


#: What a table can be sorted by; numbers go from the largest down, words from A.
KEYS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.device.name,
    "vendor": lambda row: row.device.vendor.casefold(),
    "architecture": lambda row: row.device.architecture.casefold(),
    "date": lambda row: row.device.launch_date and row.device.launch_date.toordinal(),
    "memory": lambda row: row.device.dram.capacity,
    "bandwidth": lambda row: row.device.dram.bandwidth,
    "ridge": lambda row: row.ridge,
    "power": lambda row: row.device.board_power,
    "price": lambda row: row.device.launch_price_usd,
    "per-watt": lambda row: row.per_watt,
    "per-dollar": lambda row: row.per_dollar,
    **{math: lambda row, math=math: row.peak(math) for math in FORMATS},  # type: ignore[misc]
}


def list_rows(
    *,
    math: str = "fp16",
    sort: str = "name",
    reverse: bool = False,
    vendor: str | None = None,
    architecture: str | None = None,
    memory_min: str | None = None,
    kind: str | None = None,
) -> tuple[Row, ...]:
    """A row for every shipped device that the filters leave, drafts among them, sorted.

    math: the arithmetic of ridge point, FLOP/s per watt and per dollar. sort: one of KEYS; devices without the number
    come last. vendor and architecture (or compute capability): in any case. memory_min: "40 GB". kind: "gpu", "cpu".
    Raises InputError for a word that no device has, UnitError for a size without a unit.
    """
    check_word("sort", sort, KEYS)
    check_word("format", math, FORMATS)
    devices = specs.devices(allow_draft=True)
    if kind is not None:
        check_word("kind", kind, KINDS)
        devices = tuple(device for device in devices if device.kind == kind)
    devices = _filter(devices, "vendor", vendor, lambda device: (device.vendor,))
    devices = _filter(
        devices, "architecture", architecture, lambda one: (one.architecture, *filter(None, (one.compute_capability,)))
    )
    if memory_min is not None:
        try:
            least = parse_quantity(memory_min, "byte")
        except UnitError as error:
            raise UnitError(f"least memory: {error}") from error
        devices = tuple(device for device in devices if device.dram.capacity >= least)
    return _sorted([make_row(device, math) for device in devices], sort, reverse)


def offered_gpus(
    *, vendor: str | None = None, architecture: str | None = None, memory_min: str | None = None
) -> tuple[str, ...]:
    """The names of the GPUs to choose from where nobody names any: those that the filters of `list_rows` leave."""
    rows = list_rows(kind="gpu", vendor=vendor, architecture=architecture, memory_min=memory_min)
    return tuple(row.device.name for row in rows if row.device.offered)


def make_row(device: Device, math: str = "fp16") -> Row:
    """The row of one device for one arithmetic. Raises InputError for one that is unknown."""
    check_word("format", math, FORMATS)
    peaks = [device.peak(math)] if math in device.formats else []
    if math in _WIDENED:
        peaks.append(device.vector_peak["fp32"])
    reached = max(peaks, default=None)
    together = None if reached is None else reached * device.devices_per_board
    return Row(
        device=device,
        math=math,
        reached=reached,
        ridge=_quotient(reached, device.dram.bandwidth),
        per_watt=_quotient(together, device.board_power),
        per_dollar=_quotient(together, device.launch_price_usd),
    )


@checked
def devices(
    *, math: str = "fp16", sort: str = "name", reverse: bool = False, vendor: str | None = None,
    architecture: str | None = None, memory_min: str | None = None, kind: str | None = None,
) -> pd.DataFrame:  # fmt: skip
    """All shipped devices as a DataFrame, a row each, indexed by name; numbers in base units, NaN where unknown.

    The arguments are those of `list_rows`: `vendor="NVIDIA"`, `memory_min="40 GB"`, `sort="bandwidth"`, `math="bf16"`.
    """
    import pandas as pd

    rows = list_rows(math=math, sort=sort, reverse=reverse, vendor=vendor, architecture=architecture,
                     memory_min=memory_min, kind=kind)  # fmt: skip
    columns = [*record(make_row(specs.devices()[0]))]
    return pd.DataFrame([record(row) for row in rows], columns=columns).set_index("name")


def record(row: Row) -> dict[str, Any]:
    """The row as plain values in base units, under the names that a DataFrame and JSON use."""
    device = row.device
    return {
        "name": device.name,
        "kind": device.kind,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "launch_date": None if device.launch_date is None else device.launch_date.isoformat(),
        **{f"{math}_flop_per_s": row.peak(math) for math in FORMATS},
        "memory_bytes": device.dram.capacity,
        "bandwidth_bytes_per_s": device.dram.bandwidth,
        "ridge_flop_per_byte": row.ridge,
        "board_power_w": device.board_power,
        "launch_price_usd": device.launch_price_usd,
        "flop_per_s_per_w": row.per_watt,
        "flop_per_s_per_usd": row.per_dollar,
        "draft": device.draft,
    }


def _sorted(rows: Sequence[Row], sort: str, reverse: bool) -> tuple[Row, ...]:
    value = KEYS[sort]
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    numeric = bool(known) and not isinstance(value(known[0]), str)
    return (*sorted(known, key=value, reverse=numeric != reverse), *unknown)


def _filter(
    devices: tuple[Device, ...], word: str, wanted: str | None, spellings: Callable[[Device], Iterable[str]]
) -> tuple[Device, ...]:
    """The `devices` of which a spelling is `wanted`; InputError where no shipped device has it."""
    if wanted is None:
        return devices
    known = {squash(name): name for device in specs.devices(allow_draft=True) for name in spellings(device)}
    if squash(wanted) not in known:
        names = sorted({next(iter(spellings(device))) for device in specs.devices(allow_draft=True)})
        raise InputError(f"{word} {wanted!r}: no device has it{nearest(wanted, names)}; they are {', '.join(names)}")
    return tuple(device for device in devices if squash(wanted) in map(squash, spellings(device)))


def _quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below
