"""Prices of compared GPUs, and what leaves some of them out: watts and costs above a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import finite
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.cost import Job, Price
from rooflinekit.study.compare.pricing import Pricing
from rooflinekit.units import format_quantity


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
        for name, value in (("max watts", self.max_watts), ("max cost", self.max_cost)):
            if value is not None and not (finite(value) and value > 0):
                raise InputError(f"{name}: expected a positive number; got {value!r}")

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
        """Of costs; None without prices."""
        return None if self.price is None else self.price.currency

    def cost_of(self, p: Prediction) -> dict[str, Any]:
        """What a million samples cost (steps, where no size is named batch): per_million; None where not known."""
        price, job = self._price(p.machine.device), Job.of(p)
        if price is None or (price.kwh and job.energy_j is None):
            return {"per_million": None}
        amounts = price.rented(job.total_s), price.owned(job.total_s, job.energy_j or 0.0)
        return {"per_million": min(a for a in amounts if a is not None) * 1e6 / job.batch}

    def kept(
        self, found: Sequence[Prediction], rows: Sequence[dict[str, Any]]
    ) -> tuple[list[Prediction], list[dict[str, Any]], dict[str, str]]:
        """Those that keep the bounds, and why others do not. Raises InputError where none does."""
        beyond = {row["gpu"]: why for row in rows if (why := self._why(row))}
        if len(beyond) == len(rows):
            gpu, why = next(iter(beyond.items()))
            raise InputError(f"no GPU is left: {gpu}: {why}; allow more, or name other GPUs")
        left = [place for place, row in enumerate(rows) if row["gpu"] not in beyond]
        return [found[place] for place in left], [rows[place] for place in left], beyond

    def _why(self, row: Mapping[str, Any]) -> str:
        drawn, cost = row["drawn_w"], row["per_million"]
        if self.max_watts is not None and (drawn is None or drawn > self.max_watts):
            what = "what it draws is not known" if drawn is None else f"draws {format_quantity(drawn, 'W')}"
            return f"{what}, of at most {format_quantity(self.max_watts, 'W')}"
        if self.max_cost is not None and (cost is None or cost > self.max_cost):
            what = "what it costs is not known" if cost is None else f"costs {cost:.4g} {self.currency} a million"
            return f"{what}, of at most {self.max_cost:g}"
        return ""

    def _price(self, device: Device) -> Price | None:
        if not isinstance(self.price, Pricing):
            return self.price
        try:
            return self.price.of(device)
        except InputError:
            return None
