"""The options that say what GPUs cost, shared by subcommands, and what they mean."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.study.compare.pricing import Pricing


def _table_names(incomplete: str) -> list[str]:
    """Shipped tables whose name begins so."""
    from rooflinekit.hardware.prices import price_tables

    return [name for name in price_tables() if name.startswith(incomplete)]


HourOption = Annotated[
    str | None, typer.Option("--price-per-hour", metavar="MONEY", help="of one GPU, with its currency: '0.80 USD'")
]
PricesOption = Annotated[
    str | None,
    typer.Option(
        "--prices", metavar="NAME|FILE.yaml", autocompletion=_table_names,
        help="prices by GPU, each with currency, day and source; none is taken by default",
    ),
]  # fmt: skip
PurchaseOption = Annotated[
    str | None, typer.Option("--purchase-price", metavar="MONEY", help="of one GPU that is bought")
]
YearsOption = Annotated[float, typer.Option(help="over which the purchase is spread")]
UtilizationOption = Annotated[float, typer.Option(help="share of these years in which it works")]
KwhOption = Annotated[str | None, typer.Option(metavar="MONEY", help="of electricity, such as '0.25 USD'")]
PueOption = Annotated[float, typer.Option(help="what host, fans and cooling draw too, by what the GPU draws")]
CarbonOption = Annotated[float | None, typer.Option(metavar="KG", help="CO2 of a kWh, in kg")]
WattsOption = Annotated[str | None, typer.Option(metavar="WATTS", help="leave out what draws more on average")]
CostOption = Annotated[
    float | None, typer.Option(help="leave out that of which the run, or else a million samples, costs more")
]

_MONEY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Z]{3})\s*")


def pricing_of(
    price_per_hour: str | None,
    prices: str | None,
    purchase_price: str | None = None,
    kwh_price: str | None = None,
    *,
    years: float = 4.0,
    utilization: float = 1.0,
    pue: float = 1.0,
) -> Pricing:
    """What the options say. Raises InputError where they name no price, and SpecError for a table that is none."""
    from rooflinekit.hardware.prices import load_prices
    from rooflinekit.study.compare.pricing import Pricing

    hour, purchase, kwh = (
        None if text is None else money_of(option, text)
        for option, text in (
            ("--price-per-hour", price_per_hour), ("--purchase-price", purchase_price), ("--kwh-price", kwh_price)
        )
    )  # fmt: skip
    return Pricing(
        hour=hour, purchase=purchase, kwh=kwh, table=None if prices is None else load_prices(prices), years=years,
        utilization=utilization, pue=pue,
    )  # fmt: skip


def say_notes(pricing: Pricing, devices: Sequence[Device]) -> None:
    """Old prices and examples say so on standard error."""
    for note in pricing.notes(devices):
        print(f"rooflinekit: {note}", file=sys.stderr)


def money_of(option: str, text: str) -> tuple[float, str]:
    """An amount and its currency. Raises InputError for one without.

    >>> money_of("--kwh-price", "0.25 USD")
    (0.25, 'USD')
    """
    found = _MONEY.fullmatch(text)
    if found is None:
        raise InputError(f"{option} {text!r}: expected an amount and its currency, such as '0.80 USD'")
    return float(found[1]), found[2]
