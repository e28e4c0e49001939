"""What a search looks for, and what devices cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflinekit.errors import InputError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.names import resolve
from rooflinekit.study.sweep.plan import Plan

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
