"""A calibration in a terminal: constants with their errors, how far predictions are off, the worst cases, warnings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from rooflinekit.calibrate.bench.session import Calibrated, outliers_of, warnings_of
from rooflinekit.calibrate.fitting.refit import OwnFit
from rooflinekit.calibrate.hosts.draft import HostCost
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.present.text.fits import constants_table
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.units import format_quantity


def print_calibration(found: Calibrated) -> None:
    """What was measured, what was fitted on it, and what to know about both."""
    out = console()
    head, fit = found.recorded.head, found.fit
    done = len(found.recorded.measurements)
    out.print(f"{head.device}, plan {head.plan}: {done} of {head.units} measurements")
    if found.costs:
        print_table(_costs(found.costs))
    if fit is not None:
        print_own_fit(fit)
    far, samples = outliers_of(found.recorded)
    if far:
        out.print(f"{far} of {samples} samples are outliers; they are kept, and medians do not feel them")
    for warning in warnings_of(found.recorded):
        out.print(f"warning: {warning}")


def print_own_fit(fit: OwnFit) -> None:
    """The constants that measurements tell, how far predictions are off with them, and the worst cases."""
    out = console()
    if fit.calibration.constants:
        out.print("constants of its own")
        print_table(constants_table(fit.calibration.constants))
    else:
        out.print("the measurements tell no constant: those of an unmeasured device stand")
    print_table(_families(fit))
    print_table(_worst(fit))
    if fit.left_out:
        out.print(f"{fit.left_out} cases are faster than the specification allows, and left out: is it of this device?")


def _costs(costs: Sequence[HostCost]) -> Table:
    """A row a case beside kernels."""
    rows = table("beside kernels", "what", "median", "± error", "rate")
    rows.columns[1].justify = "left"
    for cost in costs:
        summary, rate = cost.summary, cost.rate
        rows.add_row(
            cost.case.key,
            HOST_OPS[cost.case.op].meaning,
            format_quantity(summary.median, "s"),
            f"{summary.error:.0%}",
            format_quantity(*rate) if rate else "",
        )
    return rows


def _families(fit: OwnFit) -> Table:
    rows = table("family", "cases", "typical error", "before the fit", "bias")
    for family, errors in fit.errors.items():
        before = fit.errors_before[family]
        typical, typical_before, bias = (np.expm1(np.median(e)) for e in (np.abs(errors), np.abs(before), errors))
        rows.add_row(family, str(len(errors)), f"{typical:.0%}", f"{typical_before:.0%}", f"{bias:+.0%}")
    return rows


def _worst(fit: OwnFit) -> Table:
    rows = table("furthest off", "measured", "predicted", "measured / predicted")
    for miss in fit.worst:
        measured, predicted = (format_quantity(value, "s") for value in (miss.measured_s, miss.predicted_s))
        rows.add_row(miss.name, measured, predicted, f"{miss.measured_s / miss.predicted_s:.2f}")
    return rows
