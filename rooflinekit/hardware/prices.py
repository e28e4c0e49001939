"""What GPUs cost by the hour, from files: each price with its currency, its day and its source."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rooflinekit.errors import InputError, SpecError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.yaml_file import read_mapping

SCHEMA_VERSION = 1
STALE_DAYS = 180  # prices of clouds change by tens of percent within a year

_Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class HourPrice(BaseModel):
    """What one GPU costs for an hour."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    gpu: str
    hour: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    currency: _Currency
    day: date
    source: Annotated[str, Field(min_length=1)]

    def note(self, today: date) -> str:
        """What to say of an old price; "" for one that is not."""
        age = (today - self.day).days
        if age <= STALE_DAYS:
            return ""
        return f"{self.gpu}: the price of {self.hour:g} {self.currency} an hour is {age} days old ({self.source})"


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    prices: Annotated[list[HourPrice], Field(min_length=1)]


def read_prices(file: Path) -> tuple[HourPrice, ...]:
    """The prices of a file. Raises SpecError for one of another form: above all, one without currency or day."""
    try:
        return tuple(_File.model_validate(read_mapping(file, str(file))).prices)
    except ValidationError as error:
        first = error.errors()[0]
        where = ": ".join(map(str, first["loc"]))
        raise SpecError(
            f"{file}: {where}: {first['msg']}; a price has gpu, hour (a number), currency (USD), day (2026-01-31) and "
            "source"
        ) from error


def price_of(device: Device, prices: Sequence[HourPrice]) -> HourPrice:
    """The newest price of a device, by any of its names. Raises InputError where there is none."""
    names = {name.lower() for name in (device.name, device.name.split("-", 1)[-1], *device.aliases)}
    found = [price for price in prices if price.gpu.lower() in names]
    if not found:
        known = sorted({price.gpu for price in prices})
        raise InputError(f"{device.name}: no price is given; there are prices of {', '.join(known)}")
    return max(found, key=lambda price: price.day)
