"""The subcommand that says what a step, an epoch or a run costs."""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.study.compare.cost import Price

_MONEY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Z]{3})\s*")


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command, context_settings=OPEN)(cost)


@describes_workload
def cost(
    workload: Workload,
    target: TargetArgument,
    price_per_hour: Annotated[
        str | None, typer.Option(metavar="MONEY", help="of one GPU, with its currency: '0.80 USD'")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="prices by GPU, each with currency, day and source")
    ] = None,
    purchase_price: Annotated[str | None, typer.Option(metavar="MONEY", help="of one GPU that is bought")] = None,
    years: Annotated[float, typer.Option(help="over which the purchase is spread")] = 4.0,
    utilization: Annotated[float, typer.Option(help="share of these years in which it works")] = 1.0,
    kwh_price: Annotated[str | None, typer.Option(metavar="MONEY", help="of electricity, such as '0.25 USD'")] = None,
    pue: Annotated[float, typer.Option(help="what host, fans and cooling draw too, by what the GPU draws")] = 1.0,
    samples: Annotated[float | None, typer.Option(help="of an epoch or a run, such as 1281167 or 3e9")] = None,
    carbon: Annotated[float | None, typer.Option(metavar="KG", help="CO2 of a kWh, in kg")] = None,
    max_watts: Annotated[str | None, typer.Option(metavar="WATTS", help="leave out GPUs that draw more")] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="leave out GPUs on which the run, or a million samples, costs more")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a step, a million samples or a run costs, cheapest GPU first.

    Example: rooflinekit cost timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --gpu nvidia-t4
    --prices examples/prices.yaml --samples 1281167
    """
    from rooflinekit.hardware.prices import price_of, read_prices
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.study.compare.cost import Price, costs_of

    listed = read_prices(prices) if prices is not None else ()
    if price_per_hour is not None and prices is not None:
        raise InputError("--price-per-hour, --prices: give one of the two")
    said = {
        name: money_of(option, text)
        for name, option, text in (
            ("hour", "--price-per-hour", price_per_hour),
            ("purchase", "--purchase-price", purchase_price),
            ("kwh", "--kwh-price", kwh_price),
        )
        if text is not None
    }
    if "hour" not in said and "purchase" not in said and not listed:
        raise InputError("a price is missing: --price-per-hour '0.80 USD', --prices FILE.yaml or --purchase-price")
    shared = {"years": years, "utilization": utilization, "pue": pue}

    def price(device: Device) -> Price:
        mine = dict(said)
        if listed:
            found = price_of(device, listed)
            mine["hour"] = found.hour, found.currency
            if note := found.note(date.today()):
                print(f"rooflinekit: {note}", file=sys.stderr)
        currencies = sorted({currency for _, currency in mine.values()})
        if len(currencies) > 1:
            raise InputError(f"prices: expected one currency; got {', '.join(currencies)}")
        return Price(currency=currencies[0], **{name: value for name, (value, _) in mine.items()}, **shared)

    each = [price(load_device(gpu, allow_draft=workload.allow_draft)) for gpu in workload.gpus]
    most_w = None if max_watts is None else quantity_of("--max-watts", max_watts, "W")
    (predictions,) = workload.predict(target)
    found = costs_of(predictions, each, samples=samples, carbon=carbon, max_watts=most_w, max_cost=max_cost)
    if as_json:
        print_json("cost", found.to_dict())
        return
    from rooflinekit.present.text.power import print_costs

    print_costs(found)


def money_of(option: str, text: str) -> tuple[float, str]:
    """An amount and its currency. Raises InputError for one without.

    >>> money_of("--kwh-price", "0.25 USD")
    (0.25, 'USD')
    """
    found = _MONEY.fullmatch(text)
    if found is None:
        raise InputError(f"{option} {text!r}: expected an amount and its currency, such as '0.80 USD'")
    return float(found[1]), found[2]
