"""A fit in a terminal: the constants with their errors, and how far predictions are off by family."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from rooflinekit.calibrate.fitting.refit import Refit
from rooflinekit.model.machine import Calibration, Constant, Spread
from rooflinekit.present.text.tables import console, print_table, table


def print_refit(found: Refit) -> None:
    """Constants of an unmeasured GPU, those that architectures and GPUs have of their own, and spreads by family."""
    out = console()
    measured = sum(len(observations) for observations in found.observations)
    out.print(f"{measured} measurements on {len(found.gpus)} GPUs: {', '.join(found.gpus)}")
    out.print("constants of a GPU that nobody has measured")
    print_table(constants_table(found.priors.constants))
    for name, calibration in {**found.architectures, **found.gpus}.items():
        if calibration.constants:
            out.print(f"{name}: constants of its own")
            print_table(constants_table(calibration.constants))
    out.print("how far predictions are off, as a standard deviation: each kernel alone / a family together")
    print_table(_spreads(found.priors, found.gpus))


def constants_table(constants: Mapping[str, Constant]) -> Table:
    """A row a constant: value ± error, unit, source."""
    rows = table("constant", "value", "± error", "unit", "source")
    rows.columns[-1].justify = rows.columns[-2].justify = "left"
    for name, c in constants.items():
        rows.add_row(name, f"{c.value:.4g}", f"± {c.value * c.stderr:.2g} ({c.stderr:.0%})", c.unit, c.source)
    return rows


def _spreads(priors: Calibration, gpus: Mapping[str, Calibration]) -> Table:
    rows = table("family", "unmeasured GPU", *gpus)
    for family, spread in priors.spreads.items():
        rows.add_row(family, _percent(spread), *(_percent(one.spreads.get(family)) for one in gpus.values()))
    return rows


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    besides = f" + {1e6 * spread.short_s:.1f} µs" if spread.short_s else ""
    return f"{spread.random:.0%}{besides} / {spread.systematic:.0%}"
