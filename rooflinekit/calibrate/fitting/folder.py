"""A folder of fits: written as a whole, without what no campaign supports any more, and held against a new fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rooflinekit.calibrate.fitting.files import PRIORS, FitFile, GpuFile, LinkFile, parts_of, read_fit, write_fit
from rooflinekit.calibrate.fitting.refit import Refit
from rooflinekit.errors import CampaignError
from rooflinekit.files import writing
from rooflinekit.hardware.specs import data_dir
from rooflinekit.published.stated import Constant
from rooflinekit.timing.collectives import LinkConstants
from rooflinekit.timing.machine import Calibration, Spread

TOLERANCE = 0.005  # by which a value or a spread of two fits may differ
ERROR_TOLERANCE = 0.05  # by which a standard error may
CORRELATION_TOLERANCE = 0.05  # by which a correlation may, absolutely
LINK_TOLERANCE = 0.01  # by which a value of links may, or a tenth of its standard error where that is more
LINK_ERROR_TOLERANCE = 0.1  # by which a standard error or a spread of links may

_MARK = "# Constants of "  # how each file made here begins
_OTHERS = "# Made by `python "  # how benchmarks go on, which make constants too
_ERROR = "standard error of "
_CORRELATION = "correlation of "


def default_folder() -> Path:
    """The fits in use."""
    return Path(str(data_dir("calibration"))) / "fits"


def default_campaigns() -> Path:
    """The campaigns of the checkout. Raises CampaignError for an installation, which comes without."""
    folder = Path(str(data_dir("calibration"))) / "campaigns"
    if not os.path.isdir(folder):
        raise CampaignError(
            "rooflinekit is installed without the measurements that its fits rest on: "
            "pass --campaigns DIR, such as calibration/campaigns of a checkout"
        )
    return folder


def write_folder(found: Refit, folder: Path, command: str) -> tuple[str, ...]:
    """One file a GPU and `priors.yaml`; says which files were removed: fits of GPUs that have no campaign any more.

    command: what made the fits, for the comment at each file's head. Files that no fit has made are left alone.
    Raises OutputError where the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for calibration in calibrations(found):
            write_fit(calibration, folder / f"{calibration.name}.yaml", _head(calibration.name, command))
        stale = [file for file in _fits(folder) if file.stem not in {*found.gpus, *found.architectures, PRIORS}]
        for file in stale:
            file.unlink()
    return tuple(file.name for file in stale)


def first_difference(found: Refit, folder: Path) -> str:
    """The first number by which the folder's files differ from the fit, in words; "" where none does.

    Values and spreads may differ by 0.5 %, standard errors by 5 %, correlations by 0.05. Raises SpecError for files
    that are no fits.
    """
    made = {calibration.name: calibration for calibration in calibrations(found)}
    there = {file.stem: file for file in _fits(folder)}
    for name, calibration in made.items():
        if name not in there:
            return f"{folder / name}.yaml is missing"
        difference = _difference(calibration, read_fit(GpuFile, there[name]), _tolerance)
        if difference:
            return f"{there[name]}: {difference}"
    left = sorted(set(there) - set(made))
    return f"{there[left[0]]}: no campaign is of {left[0]}" if left else ""


def calibrations(found: Refit) -> tuple[Calibration, ...]:
    """Calibrations of an unmeasured GPU, of architectures, and of the measured GPUs."""
    parts = {**found.architectures, **found.gpus}
    return (found.priors, *(parts[name] for name in sorted(parts)))


def _head(name: str, command: str) -> str:
    unmeasured = "a GPU that nobody has measured."
    measured = f"{name} where measurements tell them; for the rest, those of {PRIORS}.yaml stand."
    return f"{_MARK[2:]}{unmeasured if name == PRIORS else measured}\nMade by `{command}`."


def _fits(folder: Path) -> list[Path]:
    """The files that a fit has made."""

    def made(file: Path) -> bool:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return lines.readline().startswith(_MARK) and not lines.readline().startswith(_OTHERS)

    return sorted(file for file in folder.glob("*.yaml") if file.is_file() and made(file))


def links_difference(links: LinkConstants, file: Path) -> str:
    """The first number by which a file of links differs from a fit, in words; "" where none does."""

    def tolerance(key: str, value: float) -> float:
        constant = links.constants.get(key)
        share = LINK_ERROR_TOLERANCE if constant is None else max(LINK_TOLERANCE, 0.1 * constant.stderr)
        return share * value

    difference = _difference(links, read_fit(LinkFile, file), tolerance)
    return f"{file}: {difference}" if difference else ""


def _difference(fit: Calibration | LinkConstants, there: FitFile, tolerance: Callable[[str, float], float]) -> str:
    wanted = _numbers(fit.constants, fit.spreads, getattr(fit, "correlations", {}))
    actual = _numbers(there.told(), there.residuals(), getattr(there, "correlations", {}))
    for key in {**wanted, **actual}:
        if key not in actual:
            return f"{key} is missing; the campaigns give {wanted[key]:.4g}"
        if key not in wanted:
            return f"{key} is {actual[key]:.4g}; the campaigns do not tell it"
        if abs(wanted[key] - actual[key]) > tolerance(key, wanted[key]):
            return f"{key} is {actual[key]:.4g}; the campaigns give {wanted[key]:.4g}"
    return ""


def _tolerance(key: str, value: float) -> float:
    if key.startswith(_CORRELATION):
        return CORRELATION_TOLERANCE
    return value * (ERROR_TOLERANCE if key.startswith(_ERROR) else TOLERANCE)


def _numbers(
    constants: Mapping[str, Constant], spreads: Mapping[str, Spread], correlations: Mapping[str, float]
) -> dict[str, float]:
    """Every number under the name that a message gives it; values before errors and spreads."""
    values = {name: one.value for name, one in constants.items()}
    errors = {f"{_ERROR}{name}": one.stderr for name, one in constants.items()}
    parts = {
        f"{part} spread of {name}": s for name, one in spreads.items() for part, s in sorted(parts_of(one).items())
    }
    return {**values, **errors, **parts, **{f"{_CORRELATION}{pair}": r for pair, r in correlations.items()}}
