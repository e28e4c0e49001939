"""What steps cost: rented by the hour, or bought and fed with electricity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError
from rooflinekit.step.prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd

HOUR_S = 3600.0
YEAR_HOURS = 8766.0
KWH_J = 3.6e6
_BATCH = "batch"


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
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise InputError(f"{name}: expected {low:g} to {high:g}; got {value!r}")

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
        """What so many joules of GPUs cost."""
        return self.kwh * self.pue * joules / KWH_J

    def break_even_hours(self, watts: float) -> float | None:
        """Hours of work after which buying has cost less than renting; inf for never, None where one price lacks."""
        if self.hour is None or self.purchase is None:
            return None
        saved = self.hour - self.electricity(watts * HOUR_S)
        return self.purchase / saved if saved > 0 else math.inf


@dataclass(frozen=True, kw_only=True)  # no slots: the cached property needs a place
class Costs:
    """Steps with their prices: the cheapest sample, or step, first."""

    predictions: tuple[Prediction, ...]
    prices: tuple[Price, ...]
    samples: float | None = None  # of a run, in the unit of the size named batch
    carbon: float | None = None  # kg CO2 a kWh

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a GPU, the cheapest first.

        gpu, total_s, power_w, energy_j; cost (of a step: the lesser of rented and owned), per_million (samples; where
        no size is named batch, of steps), rented, owned, break_even_h; and of the run, where samples are given, run_s,
        run_kwh and run_cost; with `carbon` run_kg, or kg of a million. What is not known is NaN.
        """
        import pandas as pd

        rows = [self._row(p, price) for p, price in zip(self.predictions, self.prices, strict=True)]
        return pd.DataFrame(rows).sort_values("per_million", kind="stable", ignore_index=True)

    def _row(self, p: Prediction, price: Price) -> dict[str, Any]:
        joules = math.nan if p.energy_j is None else p.energy_j
        rented = price.rented(p.total_s)
        owned = price.owned(p.total_s, joules if price.kwh else 0.0)
        cost = min(c for c in (rented, owned) if c is not None)
        batch = p.sizes.get(_BATCH, 1)
        steps = (1e6 if self.samples is None else self.samples) / batch
        watts = math.nan if p.power_w is None else p.power_w
        row = {
            "gpu": p.machine.name,
            "total_s": p.total_s,
            "power_w": watts,
            "energy_j": joules,
            "cost": cost,
            "per_million": cost * 1e6 / batch,
            "rented": math.nan if rented is None else rented,
            "owned": math.nan if owned is None else owned,
            "break_even_h": _number(price.break_even_hours(watts if price.kwh else 0.0)),
        }
        if self.samples is not None:
            row |= {"run_s": steps * p.total_s, "run_cost": steps * cost}
            row["run_kwh"] = steps * joules * price.pue / KWH_J
        if self.carbon is not None:
            row["kg"] = self.carbon * steps * joules * price.pue / KWH_J
        return row

    @property
    def currency(self) -> str:
        """Of all numbers."""
        return self.prices[0].currency

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; null for what is not known."""
        rows = self.table.to_dict("records")
        clean = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
        return {"currency": self.currency, "samples": self.samples, "carbon_kg_per_kwh": self.carbon, "rows": clean}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def costs_of(
    predictions: Sequence[Prediction],
    prices: Sequence[Price],
    *,
    samples: float | None = None,
    carbon: float | None = None,
    max_watts: float | None = None,
    max_cost: float | None = None,
) -> Costs:
    """Steps with the price of each one's GPU.

    samples: of an epoch or a whole run (tokens, where the size named batch counts those). carbon: kg CO2 a kWh.
    max_watts, max_cost: leave out GPUs that draw more on average, or whose run (a million samples, where none is named)
    costs more. Raises InputError for prices in several currencies, a number out of range, and where none is left.
    """
    currencies = sorted({price.currency for price in prices})
    if len(currencies) != 1:
        raise InputError(f"prices: expected one currency; got {', '.join(currencies) or 'none'}")
    for name, value in (("samples", samples), ("carbon", carbon), ("max watts", max_watts), ("max cost", max_cost)):
        if value is not None and not (math.isfinite(value) and 0 < value <= 1e18):
            raise InputError(f"{name}: expected a positive number; got {value!r}")
    whole = Costs(predictions=tuple(predictions), prices=tuple(prices), samples=samples, carbon=carbon)
    kept = [
        (p, price)
        for p, price in zip(predictions, prices, strict=True)
        if (max_watts is None or (p.power_w is not None and p.power_w <= max_watts))
        and (max_cost is None or whole._row(p, price)["run_cost" if samples else "per_million"] <= max_cost)
    ]
    if not kept:
        asked = {"watts": max_watts, f"{currencies[0]}": max_cost}
        said = ", ".join(f"at most {value:g} {unit}" for unit, value in asked.items() if value is not None)
        raise InputError(f"no GPU is left: {said}; allow more, or name other GPUs")
    left, theirs = zip(*kept, strict=True)
    return Costs(predictions=left, prices=theirs, samples=samples, carbon=carbon)
