"""A calibration in a terminal: constants with their errors, how far predictions are off, the worst cases, warnings."""

from __future__ import annotations

import numpy as np

from rooflinekit.calibrate.session import Calibrated, warnings_of
from rooflinekit.present.fit_text import constants_table
from rooflinekit.present.tables import console, table
from rooflinekit.units import format_quantity


def print_calibration(found: Calibrated) -> None:
    """What was measured, what was fitted on it, and what to know about both."""
    out, wide = console(), console(wide=True)
    head, fit = found.recorded.head, found.fit
    done = len(found.recorded.measurements)
    out.print(f"{head.device}, plan {head.plan}: {done} of {head.units} measurements")
    if fit.calibration.constants:
        out.print("constants of its own")
        wide.print(constants_table(fit.calibration.constants))
    else:
        out.print("the measurements tell no constant: those of an unmeasured device stand")
    rows = table("family", "cases", "typical error", "before the fit", "bias")
    for family, errors in fit.errors.items():
        before = fit.errors_before[family]
        typical, typical_before, bias = (np.expm1(np.median(e)) for e in (np.abs(errors), np.abs(before), errors))
        rows.add_row(family, str(len(errors)), f"{typical:.0%}", f"{typical_before:.0%}", f"{bias:+.0%}")
    wide.print(rows)
    rows = table("furthest off", "measured", "predicted", "measured / predicted")
    for miss in fit.worst:
        measured, predicted = (format_quantity(value, "s") for value in (miss.measured_s, miss.predicted_s))
        rows.add_row(miss.name, measured, predicted, f"{miss.measured_s / miss.predicted_s:.2f}")
    wide.print(rows)
    if fit.left_out:
        out.print(f"{fit.left_out} cases are faster than the specification allows, and left out: is it of this device?")
    for warning in warnings_of(found.recorded):
        out.print(f"warning: {warning}")
