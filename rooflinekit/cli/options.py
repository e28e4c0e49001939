"""Options that several commands take: each is declared here once, by theme, alone or as a record with what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.cli.command import Options, tell
from rooflinekit.cli.parse import quantity_of, variants_of
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.api.measured import MeasuredStep
    from rooflinekit.api.workload import Workload
    from rooflinekit.hardware.prices import PriceTable


def _names(function: str) -> dict[str, Callable[[str], list[str]]]:
    """Completes a name by what `api.specifications.{function}()` lists, which is imported when a shell asks."""

    def beginning(incomplete: str) -> list[str]:
        listed = getattr(import_module("rooflinekit.api.specifications"), function)()
        return [name for name in listed if name.startswith(incomplete)]

    return {"autocompletion": beginning}


GPUS, HOSTS = _names("device_names"), _names("host_names")
CLUSTERS = _names("cluster_names")
ONE_OR_MORE, NONE_OR_MORE = {"min": 1}, {"min": 0}

LISTED = "a cluster, as `rooflinekit clusters` lists them"
TARGET_HELP = (
    "timm:NAME, transformers:NAME or transformers:config.json, a language model such as llama-3.1-8b, FILE.py:NAME, "
    "or package.module:name"
)
_MODEL_HELP = "a name such as llama-3.1-70b, hf:OWNER/NAME in HuggingFace's cache, or the path of a config.json"

Target = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP, **_names("published_names"))]
Drafts = Annotated[bool, "accept draft specifications, whose numbers are not confirmed"]
ClusterName = Annotated[str, "--cluster NAME|FILE.yaml", LISTED, CLUSTERS]
ClusterGpus = Annotated[int | None, "how many GPUs of the cluster; by default all", ONE_OR_MORE]
BesideCluster = Annotated[int | None, "with --cluster: how many GPUs; by default all", ONE_OR_MORE]
StrategyName = Annotated[str, "with --cluster: one that `rooflinekit parallel` has"]
Force = Annotated[bool, "replace a file that exists"]
Rank = Annotated[
    int | None, "for a folder of traces: read only this rank; by default the mean of all ranks", NONE_OR_MORE
]

MEASURED = (
    "a time, '31.2 ms', or a file: a profiler's trace (or a folder with one for each rank), what `measure --out` "
    "wrote, or a .csv of name,seconds"
)
MeasuredOn = Annotated[
    str | None, "--measured-on GPU", "the GPU that the step was timed on; by default the one that the file names", GPUS
]


class Measured(Options):
    """A step that was measured, on which all predictions then rest."""

    measured: Annotated[
        str | None, "--measured TIME|FILE", "correct all predictions by a step that was timed: " + MEASURED
    ] = None
    measured_on: MeasuredOn = None
    measured_at: Annotated[
        list[str] | None, "--measured-at NAME=VALUE", "how the timed step differed: batch=8, execution=eager, …"
    ] = None

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that --measured-at gives, by name."""
        return changes_of("--measured-at", self.measured_at or ())

    def step(self, workload: Workload, **read: Any) -> MeasuredStep | None:
        """What the options say, None without --measured. Raises what `MeasuredStep.of` raises."""
        return workload.measured(self.measured, self.measured_on, self.changes, **read)


def needs(what: str, given: Mapping[str, object]) -> None:
    """Raises InputError for an option that is given and belongs to another one, `what`, which is not. given: by name,
    None, False or () where it is not given.
    """
    for name, value in given.items():
        if value not in (None, False, ()):
            raise InputError(f"--{name.replace('_', '-')}: belongs to {what}, which is missing")


def changes_of(option: str, given: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, each once. Raises InputError for several values of one."""
    found = variants_of(given, option)
    several = [name for name, values in found.items() if len(values) > 1]
    if several:
        raise InputError(f"{option} {several[0]}: expected one value; got {len(found[several[0]])}")
    return {name: values[0] for name, values in found.items()}


Carbon = Annotated[float | None, "--carbon KG", "kg of CO2 for each kWh, to print emissions"]


class Named(Options):
    """--price: what an hour of a GPU costs, by the GPU's name."""

    price: Annotated[
        list[str] | None, "--price GPU=DOLLARS", "dollars for one hour of a GPU, such as h100=2.99; repeatable"
    ] = None


class Hourly(Options):
    """--price-per-hour: what an hour of any GPU costs."""

    price_per_hour: Annotated[
        str | None, "--price-per-hour MONEY", "the price of one hour of every GPU, with its currency: '0.80 USD'"
    ] = None
    prices: Annotated[
        str | None,
        "--prices NAME|FILE",
        "prices of an hour: a .csv of two columns (h100,2.99), or a .yaml with currency, day and source",
        _names("price_tables"),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether anything is priced."""
        return any(vars(self).get(name) for name in ("price", "price_per_hour", "prices", "purchase_price"))

    def pricing(self) -> rk.Pricing:
        """What the options say. Raises InputError where they name no price, and SpecError for a table that is none."""
        given = {"price": None, "purchase_price": None, "kwh_price": None, **vars(self)}
        hour, purchase, kwh = (
            None if given[name] is None else money_of(f"--{name.replace('_', '-')}", given[name])
            for name in ("price_per_hour", "purchase_price", "kwh_price")
        )
        if given["price"] and self.prices is not None:
            raise InputError("--price, --prices: give one of the two")
        table = None if self.prices is None else rk.load_prices(self.prices)
        if given["price"]:
            table = table_of(given["price"])
        shares = {name: given[name] for name in ("years", "utilization", "pue") if name in given}
        return rk.Pricing(hour=hour, purchase=purchase, kwh=kwh, table=table, **shares)


class Prices(Hourly, Named):
    """The options of prices: for any GPU, and by name."""


class Purchase(Prices):
    """What GPUs cost that are rented or bought, and their electricity."""

    purchase_price: Annotated[
        str | None, "--purchase-price MONEY", "the price of buying one GPU, such as '30000 USD'"
    ] = None
    years: Annotated[float, "years over which the purchase is spread"] = 4.0
    utilization: Annotated[float, "the share of these years in which the GPU works"] = 1.0
    kwh_price: Annotated[str | None, "--kwh-price MONEY", "the price of electricity, such as '0.25 USD'"] = None
    pue: Annotated[float, "total power (with host, fans and cooling) divided by that of the GPUs"] = 1.0

    def check(self, **counted: object) -> None:
        """Raises InputError for options that nothing rests on. counted: options whose answers have the PUE in them."""
        if self.purchase_price is None:
            bought = {"years": self.years != 4, "utilization": self.utilization != 1, "kwh_price": self.kwh_price}
            needs("--purchase-price", bought)
        if self.kwh_price is None and all(one is None for one in counted.values()):
            *names, last = ("kwh-price", *counted)
            needs(f"--{', --'.join(names)} or --{last}", {"pue": self.pue != 1})


class Limits(Options):
    """Options that leave GPUs out."""

    max_watts: Annotated[str | None, "--max-watts WATTS", "leave out GPUs that draw more power on average"] = None
    max_cost: Annotated[
        float | None, "leave out GPUs on which the run (or, without a run, a million samples) costs more"
    ] = None

    @property
    def watts(self) -> float | None:
        """The number that --max-watts gives, in watts."""
        return None if self.max_watts is None else quantity_of("--max-watts", self.max_watts, "W")


# "$0.80/h", "0.80 USD / hour" and, where dollars are meant anyhow, "0.80" are one amount.
_MONEY = re.compile(r"\s*(\$?)\s*(\d*\.?\d+(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z]{3}|\$)?\s*(?:/\s*(?:h|hr|hour|kWh))?\s*")


def money_of(option: str, text: str) -> tuple[float, str]:
    """An amount and its currency. Raises InputError for one without.

    >>> money_of("--kwh-price", "0.25 EUR"), money_of("--price-per-hour", "$2.99/h")
    ((0.25, 'EUR'), (2.99, 'USD'))
    """
    found = _MONEY.fullmatch(text)
    currency = found and (found[3] or found[1])
    if found is None or not currency:
        raise InputError(f"{option} {text!r}: expected an amount and its currency, such as '0.80 USD'")
    return float(found[2]), currency.replace("$", "USD").upper()


def _priced(text: str) -> tuple[str, float]:
    name, _, dollars = text.partition("=")
    found = _MONEY.fullmatch(dollars)
    if not name or found is None or (found[3] or "usd").lower() not in ("$", "usd") or not float(found[2]):
        raise InputError(f"--price {text!r}: expected a GPU and the dollars of an hour, such as h100=2.99")
    return name.strip(), float(found[2])


def table_of(prices: Sequence[str]) -> PriceTable:
    """The prices that --price gives."""
    from rooflinekit.api.money import price_table

    return price_table(map(_priced, prices), "--price", date.today())


def devices_of(gpus: Sequence[str], clusters: Sequence[str], *, allow_draft: bool = False) -> list[rk.Device]:
    """The GPUs of these names, and those of the clusters."""
    named = [name for cluster in clusters for name in rk.load_cluster(cluster).device_names]
    return [rk.load_device(gpu, allow_draft=allow_draft) for gpu in gpus] + [rk.load_device(name) for name in named]


def say_notes(pricing: rk.Pricing, devices: Sequence[rk.Device]) -> None:
    """Old prices and examples, on standard error. Raises InputError where --price names a GPU that is not looked at."""
    if pricing.table is not None and pricing.table.prices[0].source == "--price":
        for name in pricing.table.unused(devices):
            listed = ", ".join(dict.fromkeys(device.name for device in devices))
            raise InputError(f"--price {name}=…: this GPU is not among those compared: {listed}")
    for note in pricing.notes(devices):
        tell(note)
