"""What was measured and fitted as the fields of documents for `--json`: base units, and null for what there is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rooflinekit.api.calibrate import Refitted
from rooflinekit.calibrate.bench.session import Calibrated, outliers_of, warnings_of
from rooflinekit.calibrate.campaigns.files import Summary
from rooflinekit.calibrate.fitting.refit import OwnFit
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.published.stated import Constant
from rooflinekit.study.profile.drawn import Drawn
from rooflinekit.study.profile.matching import Validation, document_of
from rooflinekit.timing.machine import Calibration


def measured(found: Validation, file: Path | None) -> dict[str, Any]:
    """A step as it was measured beside its prediction."""
    return {
        "measured_s": found.measured_s, "predicted_s": found.predicted_s, "error": found.error, "inside": found.inside,
        "noisy": found.summary.noisy, "validation": document_of(found), "file": None if file is None else str(file),
    }  # fmt: skip


def calibrated(found: Calibrated, files: Mapping[str, Iterable[Path]]) -> dict[str, Any]:
    """What a run of `calibrate` has measured and fitted, and which files hold it, by what they are."""
    head, (outliers, samples) = found.recorded.head, outliers_of(found.recorded)
    return {
        "device": head.device, "plan": head.plan, "measurements": len(found.recorded.measurements),
        "units": head.units, "left": found.outcome.left, "samples": samples, "outliers": outliers,
        "host_ops": [
            {"case": cost.case.key, "what": HOST_OPS[cost.case.op].meaning, "median_s": cost.summary.median,
             "error": cost.summary.error}
            for cost in found.costs
        ],
        "fit": None if found.fit is None else own_fit(found.fit), "warnings": list(warnings_of(found.recorded)),
        "files": {name: [str(file) for file in group] for name, group in files.items()},
    }  # fmt: skip


def own_fit(fit: OwnFit) -> dict[str, Any]:
    """The constants that a device's own measurements tell, and how far predictions are off with and without them."""
    return {
        "constants": _constants(fit.calibration.constants),
        "families": fit.families,
        "worst": [
            {"case": miss.name, "measured_s": miss.measured_s, "predicted_s": miss.predicted_s} for miss in fit.worst
        ],
        "left_out": fit.left_out,
    }


def refitted(done: Refitted, *, written: bool) -> dict[str, Any]:
    """All fits, which were written, or only compared with those that are there."""
    found = done.found
    return {
        "folder": str(done.folder),
        "written": written,
        "difference": done.difference or None,
        "removed": list(done.removed),
        "measurements": sum(len(observations) for observations in found.observations),
        "priors": _calibration(found.priors),
        "architectures": {name: _calibration(one) for name, one in found.architectures.items()},
        "gpus": {name: _calibration(one) for name, one in found.gpus.items()},
    }


def summarized(found: Summary) -> dict[str, Any]:
    """The summary of a file of measurements, for JSON."""
    return {
        "file": str(found.file), "device": found.device, "origin": found.origin,
        "environment": dict(found.environment), "cases": found.cases,
        "counts": [{"op": op, "format": dtype, "cases": count} for (op, dtype), count in found.counts.items()],
        "noisy": list(found.noisy),
        "failures": [{"status": one.status, "cases": list(one.cases), "note": one.note} for one in found.failures],
    }  # fmt: skip


def drawn(found: Drawn, file: Path) -> dict[str, Any]:
    """What of traces became measured ops, and what did not, by reason."""
    rows = found.campaign.rows
    return {
        "file": str(file), "device": found.campaign.gpu, "source": found.campaign.source,
        "ops": [
            {"op": str(op), "shapes": len(part), "calls": int(part["count"].sum())} for op, part in rows.groupby("op")
        ],
        "kernels_s": found.seconds, "refused_s": found.refused_s, "refused": dict(found.refused),
    }  # fmt: skip


def _calibration(one: Calibration) -> dict[str, Any]:
    return {
        "constants": _constants(one.constants),
        "spreads": {family: asdict(spread) for family, spread in one.spreads.items()},
    }


def _constants(constants: Mapping[str, Constant]) -> dict[str, dict[str, Any]]:
    """Constants by name; `error` is a standard error as a share of the value."""
    return {
        name: {"value": c.value, "error": c.stderr, "unit": c.unit, "source": c.source} for name, c in constants.items()
    }
