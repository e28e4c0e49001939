"""What steps cost: rented by the hour, or bought and fed with electricity; on one GPU or on many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from statistics import mean
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.prices import PriceTable
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.ir.sizes import finite, finite_or_none
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd


HOUR_S = 3600.0
YEAR_HOURS = 8766.0
KWH_J = 3.6e6


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs, all in one currency.

    hour: rented, electricity included. purchase: bought, spread over `years` of which it works the share
    `utilization`, with electricity at `kwh` beside it. pue: what a data centre draws by what its GPUs draw, for host,
    fans, cooling and supply; 1 counts the GPUs alone. Raises InputError for numbers that make no price.
    """

    currency: str
    hour: float | None = None
    purchase: float | None = None
    years: float = 4.0
    utilization: float = 1.0
    kwh: float = 0.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        if self.hour is None and self.purchase is None:
            raise InputError("price: expected what an hour costs, or a purchase; got neither")
        for name, value, low, high in (
            ("price of an hour", self.hour, 0.0, 1e6), ("purchase price", self.purchase, 0.0, 1e9),
            ("years", self.years, 0.01, 50.0), ("utilization", self.utilization, 0.001, 1.0),
            ("price of a kWh", self.kwh, 0.0, 1e4), ("PUE", self.pue, 1.0, 10.0),
        ):  # fmt: skip
            expect(value is None or (finite(value) and low <= value <= high), name, f"{low:g} to {high:g}", value)

    def rented(self, seconds: float) -> float | None:
        """What so many seconds cost by the hour; None without such a price."""
        return None if self.hour is None else self.hour * seconds / HOUR_S

    def owned(self, seconds: float, joules: float) -> float | None:
        """What they cost on a GPU that was bought: its share of the purchase, and electricity; None likewise."""
        if self.purchase is None:
            return None
        working_s = self.years * YEAR_HOURS * self.utilization * HOUR_S
        return self.purchase * seconds / working_s + self.electricity(joules)

    def electricity(self, joules: float) -> float:
        """The cost of the electricity for so many joules."""
        return self.kwh * self.pue * joules / KWH_J

    def break_even_hours(self, watts: float) -> float | None:
        """Hours of work after which buying has cost less than renting; inf for never, None where a price lacks, or the
        watts are not known."""
        if self.hour is None or self.purchase is None or math.isnan(watts):
            return None
        saved = self.hour - self.electricity(watts * HOUR_S)
        return self.purchase / saved if saved > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A step as money sees it: so many GPUs for so long, and what they get done."""

    what: str  # the GPU, or how many of which cluster
    total_s: float
    energy_j: float | None  # of all GPUs
    batch: float  # samples or tokens of a step
    unit: str = "samples"  # what a batch is of: "samples", "tokens" or "steps"
    gpus: int = 1

    def costs(self, price: Price) -> tuple[float, float, float]:
        """The costs of the step: rented, owned, and the lesser of these; NaN for what is not known."""
        joules = _number(self.energy_j) if price.kwh else 0.0
        rented = _number(price.rented(self.gpus * self.total_s))
        owned = _number(price.owned(self.gpus * self.total_s, joules))
        return rented, owned, min((c for c in (rented, owned) if not math.isnan(c)), default=math.nan)

    @classmethod
    def of(cls, p: Prediction) -> Job:
        """The job that a prediction describes."""
        unit, batch = p.counted
        return cls(what=p.machine.name, total_s=p.total_s, energy_j=p.energy_j, batch=batch, unit=unit)


@dataclass(frozen=True, kw_only=True)  # no slots: the cached property needs a place
class Costs:
    """Steps with their prices: the cheapest sample, token or step first."""

    jobs: tuple[Job, ...]
    prices: tuple[Price, ...]  # of one GPU of each
    samples: float | None = None  # of a run, in the unit of the jobs
    carbon: float | None = None  # kg CO2 a kWh

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a GPU or cluster, the cheapest first.

        gpu, gpus (how many), total_s, power_w, energy_j (of all of them); cost (of a step: the lesser of rented and
        owned), per_million (samples or tokens; where no size is named batch, of steps), rented, owned, break_even_h;
        and of the run, where samples are given, run_s, run_kwh and run_cost; with `carbon` kg of it, or of a million.
        What is not known is NaN.
        """
        import pandas as pd

        rows = [self._row(job, price) for job, price in zip(self.jobs, self.prices, strict=True)]
        return pd.DataFrame(rows).sort_values("per_million", kind="stable", ignore_index=True)

    def within(self, max_watts: float | None, max_cost: float | None) -> Costs:
        """Those that draw no more on average, all GPUs together, and of which the run, or a million where none is
        named, costs no more. Raises InputError where none is left.
        """
        kept = []
        for job, price in zip(self.jobs, self.prices, strict=True):
            row = self._row(job, price)
            drawn = max_watts is None or row["power_w"] <= max_watts  # what is not known does not keep a bound
            if drawn and (max_cost is None or row["run_cost" if self.samples else "per_million"] <= max_cost):
                kept.append((job, price))
        if not kept:
            asked = {"watts": max_watts, self.prices[0].currency: max_cost}
            said = ", ".join(f"at most {value:g} {unit}" for unit, value in asked.items() if value is not None)
            raise InputError(f"no GPU is left: {said}; allow more, or name other GPUs")
        jobs, prices = zip(*kept, strict=True)
        return replace(self, jobs=jobs, prices=prices)

    def _row(self, job: Job, price: Price) -> dict[str, Any]:
        joules = _number(job.energy_j)
        steps = (1e6 if self.samples is None else self.samples) / job.batch
        watts, kwh = joules / job.total_s if job.total_s else math.nan, steps * joules * price.pue / KWH_J
        rented, owned, cost = job.costs(price)
        row = {
            "gpu": job.what, "gpus": job.gpus, "total_s": job.total_s, "power_w": watts, "energy_j": joules,
            "cost": cost, "per_million": cost * 1e6 / job.batch, "rented": rented, "owned": owned,
            "break_even_h": _number(price.break_even_hours(watts / job.gpus if price.kwh else 0.0)),
        }  # fmt: skip
        if self.samples is not None:
            row |= {"run_s": steps * job.total_s, "run_cost": steps * cost, "run_kwh": kwh}
        if self.carbon is not None:
            row["kg"] = self.carbon * kwh
        return row

    @property
    def currency(self) -> str:
        """The currency of all amounts."""
        return self.prices[0].currency

    @property
    def unit(self) -> str:
        """The unit that is counted: "samples", "tokens" or "steps"."""
        return self.jobs[0].unit

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; null for what is not known."""
        rows = self.table.to_dict("records")
        clean = [{name: finite_or_none(value) for name, value in row.items()} for row in rows]
        named = {"currency": self.currency, "unit": self.unit, "samples": self.samples}
        return {**named, "carbon_kg_per_kwh": self.carbon, "rows": clean}


def check_positive(given: Mapping[str, float | None]) -> None:
    """Raises InputError for what is no positive number; None is not given."""
    for name, value in given.items():
        expect(value is None or (finite(value) and 0 < value <= 1e18), name, "a positive number", value)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


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
        """The mean price of these GPUs."""
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
        """The currency of all amounts."""
        return self._currencies()[0]

    def _currencies(self) -> list[str]:
        given = [amount[1] for amount in (self.hour, self.purchase, self.kwh) if amount is not None]
        listed = [] if self.table is None else [price.currency for price in self.table.prices]
        return sorted({*given, *listed})

    def _price(self, hour: Amount | None) -> Price:
        (hour_price, _), (purchase, _), (kwh, _) = (one or (None, "") for one in (hour, self.purchase, self.kwh))
        return Price(
            currency=self.currency, hour=hour_price, purchase=purchase, years=self.years,
            utilization=self.utilization, kwh=kwh or 0.0, pue=self.pue,
        )  # fmt: skip


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What GPUs cost, and the most that they may draw (watts, mean over a step) and cost (a million samples).

    A GPU that the table of prices does not have costs what is not known: it stands last, and keeps no bound. Raises
    InputError for a bound that is no positive number.
    """

    price: Price | Pricing | None = None
    max_watts: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        check_positive({"max watts": self.max_watts, "max cost": self.max_cost})

    def check(self, sort: str) -> None:
        """Raises InputError where costs are asked for and no price is given: none is taken by default."""
        asked = "sort 'cost'" if sort == "cost" else "max cost" if self.max_cost is not None else ""
        if asked and self.price is None:
            raise InputError(
                f"{asked}: a price is missing: --price h100=2.99 (dollars an hour), --price-per-hour '0.80 USD', or "
                "--prices with a table's name or file"
            )

    @property
    def currency(self) -> str | None:
        """The currency of costs; None without prices."""
        return None if self.price is None else self.price.currency

    def cost_of(self, p: Prediction) -> dict[str, Any]:
        """What a million samples cost (steps, where no size is named batch): per_million; None where not known."""
        job, price = Job.of(p), self.price
        if isinstance(price, Pricing):
            try:
                price = price.of(p.machine.device)
            except InputError:
                price = None
        if price is None or (price.kwh and job.energy_j is None):
            return {"per_million": None}
        return {"per_million": job.costs(price)[-1] * 1e6 / job.batch}

    def beyond(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """GPUs whose rows do not keep the bounds, and why. Raises InputError where none does."""
        found = {row["gpu"]: why for row in rows if (why := self._why(row))}
        if len(found) == len(rows):
            gpu, why = next(iter(found.items()))
            raise InputError(f"no GPU is left: {gpu}: {why}; allow more, or name other GPUs")
        return found

    def _why(self, row: Mapping[str, Any]) -> str:
        drawn, cost = row["drawn_w"], row["per_million"]
        if self.max_watts is not None and (drawn is None or drawn > self.max_watts):
            what = "what it draws is not known" if drawn is None else f"draws {format_quantity(drawn, 'W')}"
            return f"{what}, of at most {format_quantity(self.max_watts, 'W')}"
        if self.max_cost is not None and (cost is None or cost > self.max_cost):
            what = "what it costs is not known" if cost is None else f"costs {cost:.4g} {self.currency} a million"
            return f"{what}, of at most {self.max_cost:g}"
        return ""
