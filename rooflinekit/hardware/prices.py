"""What GPUs cost by the hour, from tables: each price with its currency, its day and its source."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from rooflinekit.errors import AmbiguousDeviceError, DeviceNotFoundError, InputError, SpecError, nearest
from rooflinekit.files import read_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.fields import Record
from rooflinekit.hardware.specs import is_path, resolve, shipped_files
from rooflinekit.hardware.yaml_file import read_mapping

SCHEMA_VERSION = 1
STALE_DAYS = 180  # prices of clouds change by tens of percent within a year

_Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class HourPrice(Record):
    """What one GPU costs for an hour."""

    gpu: str
    hour: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    currency: _Currency
    day: date
    source: Annotated[str, Field(min_length=1)]

    def note(self, today: date) -> str:
        """What to say of an old price, and of one of a day to come; "" for one that is neither."""
        age = (today - self.day).days
        if 0 <= age <= STALE_DAYS:
            return ""
        what = f"{self.gpu}: the price of {self.hour:g} {self.currency} an hour"
        when = f"is {age} days old" if age > 0 else f"is of a day to come, {self.day}"
        return f"{what} {when} ({self.source})"


class PriceTable(Record):
    """Prices by GPU. `example`: its numbers are nobody's offer."""

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    example: bool = False
    prices: Annotated[list[HourPrice], Field(min_length=1)]

    def of(self, device: Device) -> HourPrice:
        """The newest price of a device, by its own name, else by any that can mean it. Raises InputError for none."""
        names = {name.lower() for name in (device.name, device.name.split("-", 1)[-1], *device.aliases)}
        by_name = [price for price in self.prices if price.gpu.lower() in names]
        found = by_name or [price for price in self.prices if _means(price.gpu, device)]
        if not found:
            known = sorted({price.gpu for price in self.prices})
            raise InputError(f"{device.name}: no price is given; there are prices of {', '.join(known)}")
        return max(found, key=lambda price: price.day)

    def notes(self, device: Device, today: date) -> tuple[str, ...]:
        """What has to be said where the table's price of a device is taken; nothing where it has none."""
        try:
            old = self.of(device).note(today)
        except InputError:
            return ()
        example = ("prices are examples, nobody's offer: name a table of your own",) if self.example else ()
        return (*example, *((old,) if old else ()))

    def unused(self, devices: Sequence[Device]) -> tuple[str, ...]:
        """Names in the table that mean none of these devices."""
        return tuple(price.gpu for price in self.prices if not any(_means(price.gpu, device) for device in devices))


def price_tables() -> tuple[str, ...]:
    """The names of all tables, sorted; each is the stem of a file in gpu_specs/prices/, here or in another package.

    >>> price_tables()
    ('example',)
    """
    return tuple(shipped_files("prices"))


def load_prices(name_or_path: str | Path) -> PriceTable:
    """The table of this name or file.

    A file that ends in .csv has two columns: a GPU by any of its names, and the dollars of an hour. Its day is that of
    its last change. Raises DeviceNotFoundError for an unknown name, SpecError for a file of another form: above all,
    for a price in YAML without currency or day.

    >>> load_prices("example").example
    True
    """
    text = str(name_or_path)
    if text.endswith(".csv"):
        return _two_columns(Path(name_or_path))
    if is_path(name_or_path):
        return _table(read_mapping(Path(name_or_path), text), text)
    known = shipped_files("prices")
    if text not in known:
        raise DeviceNotFoundError(
            f"unknown prices {text!r}: expected a file such as prices.yaml, or one of {', '.join(known)}"
            f"{nearest(text, known)}"
        )
    return _table(read_mapping(*known[text]), text)


def price_table(hours: Iterable[tuple[str, float]], source: str, day: date) -> PriceTable:
    """A table of pairs: a GPU by any of its names, and the dollars of an hour."""
    prices = [{"gpu": gpu, "hour": hour, "currency": "USD", "day": day, "source": source} for gpu, hour in hours]
    return _table({"schema": SCHEMA_VERSION, "prices": prices}, source)


def _table(mapping: dict[str, object], label: str) -> PriceTable:
    try:
        return PriceTable.model_validate(mapping)
    except ValidationError as error:
        first = error.errors()[0]
        where = ": ".join(map(str, first["loc"]))
        raise SpecError(
            f"{label}: {where}: {first['msg']}; a price has gpu, hour (a number), currency (USD), day (2026-01-31) and "
            "source"
        ) from error


def _means(name: str, device: Device) -> bool:
    try:
        return resolve(name, [device]) is device
    except (AmbiguousDeviceError, DeviceNotFoundError):
        return False


def _two_columns(path: Path) -> PriceTable:
    """A file with a line `GPU,dollars an hour` for each; a first line without a number is its heading."""
    hours = []
    lines = list(csv.reader(read_text(path, SpecError).splitlines()))
    for number, cells in enumerate(lines, 1):
        if not any(cells) or cells[0].lstrip().startswith("#"):
            continue
        try:
            gpu, text = cells
            hour = float(text.strip().removeprefix("$"))
        except ValueError:
            if number == 1 and len(cells) == 2:
                continue
            raise SpecError(
                f"{path}: line {number}: expected a GPU and the dollars of an hour, such as 'h100,2.99'; got "
                f"{','.join(cells)!r:.60}"
            ) from None
        hours.append((gpu.strip(), hour if math.isfinite(hour) else math.nan))
    return price_table(hours, str(path), date.fromtimestamp(path.stat().st_mtime))


def price_word(currency: str | None) -> str:
    """What a GPU's price is called: that of an hour, where there is a currency of it."""
    return "launch price" if currency is None else "price of an hour"


def some_of(gpus: Sequence[str]) -> str:
    """The names of a few GPUs, or the number of many with the first.

    >>> some_of(["a", "b"]), some_of("abcdefg")
    ('a, b', '7 GPUs, such as a')
    """
    return ", ".join(gpus) if len(gpus) <= 5 else f"{len(gpus)} GPUs, such as {gpus[0]}"


def price_hint(gpus: Sequence[str], currency: str | None) -> str:
    """A sentence that names the GPUs without a price, and the option that gives one."""
    return f"{price_word(currency)}: {some_of(gpus)}; to rank: --price {gpus[0]}=2.99 (an hour) or --prices"
