"""Limits of power, and costs, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooflinekit.present.text.tables import console, table
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.study.compare.cost import Costs
    from rooflinekit.study.compare.limits import PowerLimits


def print_limits(found: PowerLimits[Any], rack: pd.DataFrame | None = None) -> None:
    """A line a limit, and which take least; `rack`: what a rack does in a day under each."""
    model, mode, device = found.heading
    sizes = ", ".join(f"{name}={value}" for name, value in found.sizes.items())
    rows = table("power limit", "time of a step", "slower", "mean power", "energy", "saved", "energy × time",
                 *(() if rack is None else ("GPUs of a rack", "in a day")))  # fmt: skip
    for i, row in enumerate(found.table.to_dict("records")):
        rows.add_row(
            format_quantity(row["limit_w"], "W"),
            format_quantity(row["total_s"], "s"),
            f"{row['slower']:.1%}",
            format_quantity(row["power_w"], "W") + (" above it" if row["above"] else ""),
            format_quantity(row["energy_j"], "J"),
            f"{row['saved']:.1%}",
            f"{row['energy_delay']:.3g} J·s",
            *(() if rack is None else (f"{rack['gpus'][i]:,}", f"{rack['samples_a_day'][i]:,.4g}")),
        )
    out = console()
    on = f"{found.gpus} GPUs of {device}" if found.gpus > 1 else device
    out.print(f"{model} {mode}{f' ({sizes})' if sizes else ''} on {on}", markup=False)
    out.print(rows)
    out.print(str(found), markup=False)


def print_costs(found: Costs) -> None:
    """A line a GPU, the cheapest first."""
    money, rows = found.currency, found.table.to_dict("records")
    heads: dict[str, Callable[[dict[Any, Any]], str]] = {
        "time of a step": lambda r: format_quantity(r["total_s"], "s"),
        "mean power": lambda r: _or_dash(r["power_w"], lambda v: format_quantity(v, "W")),
        f"{money} a million {found.unit}": lambda r: f"{r['per_million']:.4g}",
        "break-even": lambda r: _or_dash(r["break_even_h"], lambda v: f"{v:,.0f} h of work"),
        "run": lambda r: f"{r['run_s'] / 3600:,.3g} h",
        f"{money} a run": lambda r: f"{r['run_cost']:,.4g}",
        "kWh a run": lambda r: _or_dash(r["run_kwh"], lambda v: f"{v:,.4g}"),
        "kg CO2": lambda r: _or_dash(r["kg"], lambda v: f"{v:,.3g}"),
    }
    needs = {"break-even": "break_even_h", "run": "run_s", f"{money} a run": "run_s", "kWh a run": "run_s"}
    needs["kg CO2"] = "kg"
    shown = {
        head: text
        for head, text in heads.items()
        if head not in needs or any(not math.isnan(row.get(needs[head], math.nan)) for row in rows)
    }
    lines = table("GPU", *shown)
    for row in rows:
        lines.add_row(row["gpu"], *(text(row) for text in shown.values()))
    console().print(lines)


def _or_dash(value: float, text: Callable[[float], str]) -> str:
    return "–" if math.isnan(value) else "never" if math.isinf(value) else text(value)
