"""What each GPU costs: one price for all, or a table's, with what is the same for all beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from statistics import mean

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.prices import PriceTable
from rooflinekit.ir.arguments import checked
from rooflinekit.study.compare.cost import Price

#: An amount and its currency.
Amount = tuple[float, str]


@checked
@dataclass(frozen=True, kw_only=True)
class Pricing:
    """Prices of any GPU. There is none by default: `hour`, `table` or `purchase` says it.

    hour: of one GPU, whichever; or table: by GPU. purchase: of one that is bought; other fields as of `Price`. Raises
    InputError for none of them, for both of the first two, and for amounts in several currencies.
    """

    hour: Amount | None = None
    table: PriceTable | None = None
    purchase: Amount | None = None
    kwh: Amount | None = None
    years: float = 4.0
    utilization: float = 1.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        if self.hour is not None and self.table is not None:
            raise InputError(
                "a price for all (--price-per-hour) and prices by GPU (--price, --prices): give one of the two"
            )
        if self.hour is None and self.table is None and self.purchase is None:
            raise InputError(
                "a price is missing: --price h100=2.99 (dollars an hour), --price-per-hour '0.80 USD', --prices with "
                "the name or file of a table, or --purchase-price"
            )
        if len(currencies := self._currencies()) > 1:
            raise InputError(f"prices: expected one currency; got {', '.join(currencies)}")
        if self.table is None:
            self._price(self.hour)  # whose numbers are looked at before anything else is done

    def of(self, device: Device) -> Price:
        """What one such GPU costs. Raises InputError where the table has no price of it."""
        if self.table is None:
            return self._price(self.hour)
        found = self.table.of(device)
        return self._price((found.hour, found.currency))

    def hour_of(self, device: Device) -> float | None:
        """What an hour of one such GPU costs; None where that is not known."""
        try:
            return self.of(device).hour
        except InputError:
            return None

    def of_all(self, devices: Iterable[Device]) -> Price:
        """What one of these GPUs costs on average."""
        each = [self.of(device) for device in devices]
        if each[0].hour is None:
            return each[0]
        return replace(each[0], hour=mean(price.hour or 0.0 for price in each))

    def notes(self, devices: Iterable[Device], today: date | None = None) -> tuple[str, ...]:
        """What has to be said of the prices of these: that they are old, or examples."""
        if self.table is None:
            return ()
        day = date.today() if today is None else today
        return tuple(dict.fromkeys(note for device in devices for note in self.table.notes(device, day)))

    @property
    def currency(self) -> str:
        """Of all amounts."""
        return self._currencies()[0]

    def _currencies(self) -> list[str]:
        given = [amount[1] for amount in (self.hour, self.purchase, self.kwh) if amount is not None]
        listed = [] if self.table is None else [price.currency for price in self.table.prices]
        return sorted({*given, *listed})

    def _price(self, hour: Amount | None) -> Price:
        return Price(
            currency=self.currency, hour=None if hour is None else hour[0],
            purchase=None if self.purchase is None else self.purchase[0], years=self.years,
            utilization=self.utilization, kwh=0.0 if self.kwh is None else self.kwh[0], pue=self.pue,
        )  # fmt: skip
