"""The options that say what GPUs cost, shared by subcommands, and what they mean."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.study.compare.cost import Pricing


def _table_names(incomplete: str) -> list[str]:
    """Shipped tables whose name begins so."""
    from rooflinekit.hardware.prices import price_tables

    return [name for name in price_tables() if name.startswith(incomplete)]


PriceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="GPU=DOLLARS", help="dollars for an hour of one GPU, such as h100=2.99; repeatable"
    ),
]
HourOption = Annotated[
    str | None,
    typer.Option(
        "--price-per-hour", metavar="MONEY", help="price of an hour of each GPU, with its currency: '0.80 USD'"
    ),
]
PricesOption = Annotated[
    str | None,
    typer.Option(
        "--prices", metavar="NAME|FILE", autocompletion=_table_names,
        help="a table of prices: two columns (.csv: h100,2.99), or .yaml with currency, day and source",
    ),
]  # fmt: skip
PurchaseOption = Annotated[
    str | None, typer.Option("--purchase-price", metavar="MONEY", help="the price of one GPU that is bought")
]
YearsOption = Annotated[float, typer.Option(help="years over which the purchase is spread")]
UtilizationOption = Annotated[float, typer.Option(help="share of these years in which it works")]
KwhOption = Annotated[str | None, typer.Option(metavar="MONEY", help="the price of electricity, such as '0.25 USD'")]
PueOption = Annotated[float, typer.Option(help="total power by that of the GPU: host, fans and cooling draw too")]
CarbonOption = Annotated[float | None, typer.Option(metavar="KG", help="kg of CO2 for each kWh")]
WattsOption = Annotated[str | None, typer.Option(metavar="WATTS", help="leave out GPUs that draw more on average")]
CostOption = Annotated[
    float | None, typer.Option(help="leave out GPUs on which the run, or else a million samples, costs more")
]

_MONEY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Z]{3})\s*")


def pricing_of(
    price_per_hour: str | None,
    prices: str | None,
    purchase_price: str | None = None,
    kwh_price: str | None = None,
    *,
    price: Sequence[str] | None = None,
    years: float = 4.0,
    utilization: float = 1.0,
    pue: float = 1.0,
) -> Pricing:
    """What the options say. Raises InputError where they name no price, and SpecError for a table that is none."""
    from rooflinekit.hardware.prices import load_prices, price_table
    from rooflinekit.study.compare.cost import Pricing

    hour, purchase, kwh = (
        None if text is None else money_of(option, text)
        for option, text in (
            ("--price-per-hour", price_per_hour), ("--purchase-price", purchase_price), ("--kwh-price", kwh_price)
        )
    )  # fmt: skip
    if price and prices is not None:
        raise InputError("--price, --prices: give one of the two")
    table = None if prices is None else load_prices(prices)
    if price:
        table = price_table(map(_named, price), "--price", date.today())
    return Pricing(
        hour=hour, purchase=purchase, kwh=kwh, table=table, years=years, utilization=utilization, pue=pue
    )  # fmt: skip


# What may stand about the number: "$0.80/h" and "0.80 USD/hour" are 0.80.
_DOLLARS_OF_AN_HOUR = re.compile(r"^\s*\$|\s*(USD|\$)?\s*(/\s*(h|hr|hour))?\s*$", re.I)


def _named(text: str) -> tuple[str, float]:
    """A GPU and the dollars of an hour."""
    name, _, dollars = text.partition("=")
    try:
        hour = float(_DOLLARS_OF_AN_HOUR.sub("", dollars))
    except ValueError:
        hour = 0.0
    if not (name and 0 < hour < float("inf")):
        raise InputError(f"--price {text!r}: expected a GPU and the dollars of an hour, such as h100=2.99")
    return name.strip(), hour


def say_notes(pricing: Pricing, devices: Sequence[Device]) -> None:
    """Old prices and examples say so on standard error.

    Raises InputError where --price names a GPU that is not looked at.
    """
    if pricing.table is not None and pricing.table.prices[0].source == "--price":
        for name in pricing.table.unused(devices):
            listed = ", ".join(dict.fromkeys(device.name for device in devices))
            raise InputError(f"--price {name}=…: no such GPU is looked at: {listed}")
    for note in pricing.notes(devices):
        print(printable(f"rooflinekit: {note}"), file=sys.stderr)


def money_of(option: str, text: str) -> tuple[float, str]:
    """An amount and its currency. Raises InputError for one without.

    >>> money_of("--kwh-price", "0.25 USD")
    (0.25, 'USD')
    """
    found = _MONEY.fullmatch(text)
    if found is None:
        raise InputError(f"{option} {text!r}: expected an amount and its currency, such as '0.80 USD'")
    return float(found[1]), found[2]
