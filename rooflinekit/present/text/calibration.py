"""A calibration in a terminal: constants with their errors, how far predictions are off, the worst cases, warnings."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from rooflinekit.calibrate.bench.session import Calibrated, outliers_of, warnings_of
from rooflinekit.calibrate.campaigns.files import Summary
from rooflinekit.calibrate.fitting.refit import OwnFit, Refit
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.present.text.tables import Cell, print_table, say, table, table_of
from rooflinekit.published.stated import Constant
from rooflinekit.study.profile.drawn import Drawn
from rooflinekit.timing.machine import Spread
from rooflinekit.units import format_quantity, said

_SHOWN = 8  # reasons


def print_calibration(found: Calibrated) -> None:
    """What was measured, what was fitted on it, and what to know about both."""
    head, fit = found.recorded.head, found.fit
    done = len(found.recorded.measurements)
    say(f"{head.device}, plan {head.plan}: {done} of {head.units} measurements")
    if found.costs:
        columns: dict[str, Cell] = {
            "beside kernels": ("case.key", ""), "what": lambda cost: HOST_OPS[cost.case.op].meaning,
            "median": ("summary.median", "s"), "± error": ("summary.error", ".0%"),
            "rate": lambda cost: said(*cost.rate) if cost.rate else "",
        }  # fmt: skip
        print_table(table_of(columns, found.costs, words=(0, 1)))
    if fit is not None:
        print_own_fit(fit)
    far, samples = outliers_of(found.recorded)
    if far:
        say(f"{far} of {samples} samples are outliers; they are kept, as medians are robust to them")
    say(*warnings_of(found.recorded), before="warning: ")


def print_own_fit(fit: OwnFit) -> None:
    """The constants that measurements tell, how far predictions are off with them, and the worst cases."""
    if fit.calibration.constants:
        say("constants of its own")
        print_table(constants_table(fit.calibration.constants))
    else:
        say("the measurements determine no constant, so those of an unmeasured device are kept")
    families: dict[str, Cell] = {
        "family": ("family", ""), "cases": ("cases", ""), "typical error": ("typical_error", ".0%"),
        "before the fit": ("typical_error_before", ".0%"), "bias": lambda row: f"{row['bias']:+.0%}",
    }  # fmt: skip
    print_table(table_of(families, ({"family": family, **found} for family, found in fit.families.items())))
    worst: dict[str, Cell] = {
        "furthest off": ("name", ""), "measured": ("measured_s", "s"), "predicted": ("predicted_s", "s"),
        "measured / predicted": lambda miss: f"{miss.measured_s / miss.predicted_s:.2f}",
    }  # fmt: skip
    print_table(table_of(worst, fit.worst))
    if fit.left_out:
        left_out = f"{fit.left_out} cases are left out, as they are faster than the specification allows"
        say(f"{left_out}: is it of this device?")


def print_refit(found: Refit) -> None:
    """Constants of an unmeasured GPU, those that architectures and GPUs have of their own, and spreads by family."""
    measured = sum(len(observations) for observations in found.observations)
    say(f"{measured} measurements on {len(found.gpus)} GPUs: {', '.join(found.gpus)}")
    say("constants of a GPU that nobody has measured")
    print_table(constants_table(found.priors.constants))
    for name, calibration in {**found.architectures, **found.gpus}.items():
        if calibration.constants:
            say(f"{name}: constants of its own")
            print_table(constants_table(calibration.constants))
    say("how far predictions are off, as a standard deviation: each kernel alone / a family together")
    spreads = (
        (family, _percent(spread), *(_percent(one.spreads.get(family)) for one in found.gpus.values()))
        for family, spread in found.priors.spreads.items()
    )
    print_table(table(("family", "unmeasured GPU", *found.gpus), spreads))


def constants_table(constants: Mapping[str, Constant]) -> Table:
    """A row a constant: value ± error, unit, source."""
    rows = (
        (name, f"{c.value:.4g}", f"± {c.value * c.stderr:.2g} ({c.stderr:.0%})", c.unit, c.source)
        for name, c in constants.items()
    )
    return table(("constant", "value", "± error", "unit", "source"), rows, words=(0, 3, 4))


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    besides = f" + {1e6 * spread.short_s:.1f} µs" if spread.short_s else ""
    return f"{spread.random:.0%}{besides} / {spread.systematic:.0%}"


def print_summary(found: Summary) -> None:
    """Device, origin, environment; a table of cases by op and format; what is noisy or failed."""
    say(f"{found.file}: {found.device}, {found.origin}")
    say(*(f"  {name}: {text}" for name, text in found.environment.items()))
    formats = list(dict.fromkeys(dtype for _, dtype in found.counts))
    if found.counts:
        ops = dict.fromkeys(op for op, _ in found.counts)
        counts = ((op, *(found.counts.get((op, dtype), "") for dtype in formats)) for op in ops)
        print_table(table(("measured cases", *formats), counts))
    if found.noisy:
        say(f"noisy: {len(found.noisy)} of {found.cases} cases, such as {found.noisy[0]}")
    for failure in found.failures:
        cases = "case" if len(failure.cases) == 1 else "cases"
        say(f"{failure.status}: {len(failure.cases)} {cases}, such as {failure.cases[0]}: {failure.note}")


def print_drawn(found: Drawn) -> None:
    """Prints which kernels of a trace became measured ops, and which did not."""
    rows = found.campaign.rows
    counted = ((op, len(part), int(part["count"].sum())) for op, part in rows.groupby("op"))
    say(f"{found.campaign.gpu}, {found.campaign.source}")
    print_table(table(("measured ops", "shapes", "calls"), counted))
    share = 1 - found.refused_s / found.seconds if found.seconds else 0.0
    say(f"{share:.0%} of {format_quantity(found.seconds, 's')} of kernels became rows; of the rest:")
    say(*(f"  {count} × {reason}" for reason, count in list(found.refused.items())[:_SHOWN]))
    if len(found.refused) > _SHOWN:
        say(f"  and {len(found.refused) - _SHOWN} more reasons")
