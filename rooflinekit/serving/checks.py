"""What is asked of a served model, checked; and the limits of its GPUs in words."""

from __future__ import annotations

from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import finite, shown, whole
from rooflinekit.model.machine import Machine
from rooflinekit.units import format_quantity

#: Beyond these a stream is not played: each client's requests are followed one by one.
_MOST_CLIENTS, _MOST_TOKENS, _MOST_PARTS = 2**16, 2**24, 2**16


def limits_text(machine: Machine) -> str:
    """ ", at most 400 W" for a machine under limits; "" for another."""
    limits = ((machine.power_limit, "W"), (machine.clock_limit, "Hz"))
    told = [format_quantity(limit, unit) for limit, unit in limits if limit is not None]
    return f", at most {' and '.join(told)}" if told else ""


def check_stream(batch: int, input: int, output: int) -> None:
    """Raises InputError for a number of clients or tokens below 1, or beyond any that is served."""
    for name, value in (("batch", batch), ("input", input), ("output", output)):
        number, most = whole(value), _MOST_CLIENTS if name == "batch" else _MOST_TOKENS
        if number is None or number < 1:
            raise InputError(f"{name}: expected a positive integer; got {shown(value)}")
        if number > most:
            raise InputError(f"{name}: expected at most {most:,}; got {shown(value)}")


def check_parts(tp: int, ep: int, dp: int = 1) -> None:
    """Raises InputError for a number of GPUs or of parts below 1, or beyond any cluster."""
    for name, value in (("tp", tp), ("ep", ep), ("dp", dp)):
        number = whole(value)
        if number is None or not 1 <= number <= _MOST_PARTS:
            raise InputError(f"{name}: expected a positive integer of at most {_MOST_PARTS:,}; got {shown(value)}")


def check_price(price_usd: float | None) -> None:
    """Raises InputError for a price that is not above 0."""
    if price_usd is not None and not (finite(price_usd) and price_usd > 0):
        raise InputError(f"price_usd: expected dollars for one GPU, above 0; got {shown(price_usd)}")
