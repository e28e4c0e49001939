"""What a search looks for, and what a configuration has to meet: "time<0.1 s", "throughput>=1000", "batch>=8"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError, UnitError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import resolve
from rooflinekit.study.sweep.plan import Plan
from rooflinekit.units import parse_quantity

#: What can be had least of, and what most of, with its column.
LEAST = {
    "time": "total_s", "dollars": "dollars", "memory": "peak_bytes", "price": "price", "energy": "joules",
    "cost": "dollars",  # whose order is the same where prices are those of an hour
}  # fmt: skip
MOST = {"throughput": "throughput"}
GOALS = LEAST | MOST


def goal_of(minimize: str | None, maximize: str | None) -> str:
    """What is looked for: by default the most throughput, as the shortest step is that of the smallest batch.

    Raises InputError for a word that is not known, and for both.
    """
    if minimize is not None and maximize is not None:
        raise InputError(f"minimize {minimize!r} and maximize {maximize!r}: expected one of the two")
    for option, word, known, others in (("minimize", minimize, LEAST, MOST), ("maximize", maximize, MOST, LEAST)):
        if word is not None and word not in known:
            other = {"minimize": "maximize", "maximize": "minimize"}[option]
            hint = f"; {other} {word!r}" if word in others else nearest(word, known)
            raise InputError(f"{option} {word!r}: expected {' or '.join(map(repr, known))}{hint}")
    return minimize or maximize or "throughput"


def named_prices(given: Mapping[str, float], devices: Iterable[Device]) -> dict[str, float]:
    """Prices by the devices' names, where they are given by any name that a device answers to.

    Raises InputError for a device that is not looked at, for one that is named twice, and for no positive number.
    """
    known = {device.name: device for device in devices}
    found: dict[str, float] = {}
    for name, price in given.items():
        try:
            device = resolve(name, known.values()).name
        except LookupError:
            listed = ", ".join(known)
            raise InputError(f"prices: no device {name!r} is looked at: {listed}{nearest(name, known)}") from None
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 < price < float("inf"):
            raise InputError(f"prices: {name!r}: expected dollars, a positive number; got {price!r:.60}")
        if device in found:
            raise InputError(f"prices: {device} is given twice")
        found[device] = price
    return found


def prices_of(plan: Plan, given: Mapping[str, float]) -> dict[str, float | None]:
    """Dollars of each device that occurs; of a board with several, of one of them."""
    devices = {device.name: device for case in plan.cases for device in case.setting.devices}
    given = named_prices(given, devices.values())
    launch = {
        name: None if device.launch_price_usd is None else device.launch_price_usd / device.devices_per_board
        for name, device in devices.items()
    }
    return {**launch, **given}


#: What can be asked for: its column, and the unit that a number may have.
QUANTITIES = {
    "time": ("total_s", "s"),  # of a step
    "low": ("low_s", "s"),  # the ends of its 90 % interval
    "high": ("high_s", "s"),
    "gpu-time": ("gpu_s", "s"),
    "throughput": ("throughput", ""),  # of the size named batch, else steps, a second
    "memory": ("peak_bytes", "byte"),
    "price": ("price", ""),  # dollars at launch
    "dollars": ("dollars", ""),  # the price by the throughput
    "cost": ("cost", ""),  # dollars of a sample, where prices are those of an hour
    "power": ("power_w", "W"),  # mean of all GPUs over a step
    "energy": ("joules", "J"),  # of a sample, else of a step
}
_COMPARISON = re.compile(r"\s*([\w-]+)\s*(<=|>=|<|>|=)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A bound on a column."""

    text: str
    column: str
    comparison: str
    limit: float

    def excess(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """By which factor values are beyond the limit, as a logarithm; 0 where they meet it."""
        numbers = np.asarray(values, dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = np.abs(np.log(numbers / self.limit))
        met = {
            "<": numbers < self.limit, "<=": numbers <= self.limit, ">": numbers > self.limit,
            ">=": numbers >= self.limit, "=": numbers == self.limit,
        }[self.comparison]  # fmt: skip
        # one that is on the limit of "<", or is not known (a price), does not meet it either
        return np.where(met, 0.0, np.maximum(np.nan_to_num(beyond, nan=np.inf), 1e-12))


def requirements_of(texts: Iterable[str], sizes: Sequence[str]) -> tuple[Requirement, ...]:
    """What these texts ask for; besides quantities they may name sizes. Raises InputError."""
    return tuple(_requirement(text, sizes) for text in texts)


def _requirement(text: str, sizes: Sequence[str]) -> Requirement:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise InputError(f"require {text!r}: expected a quantity and its bound, such as 'time<0.1 s'")
    name, comparison, bound = found.groups()
    known = [*QUANTITIES, *sizes]
    if name not in known:
        raise InputError(f"require {text!r}: {name!r} is not known: {', '.join(known)}{nearest(name, known)}")
    column, unit = QUANTITIES.get(name, (name, ""))
    try:
        limit = float(bound)
    except ValueError:
        try:
            limit = parse_quantity(bound, unit) if unit else float("nan")
        except UnitError as error:
            raise InputError(f"require {text!r}: {error}") from error
    if not limit > 0 or limit == float("inf"):
        raise InputError(f"require {text!r}: expected a positive number; got {bound!r}")
    return Requirement(text=" ".join(text.split()), column=column, comparison=comparison, limit=limit)
