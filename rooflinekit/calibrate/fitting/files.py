"""Fitted constants in files: `calibration/fits/priors.yaml` for any GPU, `GPU.yaml` beside it for a measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.document import FitFile, check_ranges, read_fit, spreads_in, write_constants
from rooflinekit.calibrate.fitting.energy_fits import load_power
from rooflinekit.errors import SpecError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import data_dir
from rooflinekit.model.families import complete
from rooflinekit.model.machine import Calibration

SCHEMA_VERSION = 2
PRIORS = "priors"
CPUS = "architecture-cpu"
#: Standard deviation, as a logarithm, of how far a CPU that was not measured is from what is known of CPUs, all its
#: kernels together. Steps of families that were not fitted on lie 0.18 apart on two CPUs (benchmarks/cpu_constants.py);
#: that other CPUs lie further off is a stated choice.
_STRANGER = 0.3


class _File(FitFile):
    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    correlations: dict[str, Annotated[float, Field(ge=-1, le=1)]] = Field(default_factory=dict)


@lru_cache(maxsize=64)
def load_constants(gpu: str = "", architecture: str = "") -> Calibration:
    """The constants of a GPU by its specification's name; what was not fitted on it is that of an unmeasured GPU.

    architecture: whose measured GPUs an unmeasured one takes after, as `architecture_of` names it.
    Raises SpecError for a damaged installation.
    """
    files = {name: _folder() / f"{name}.yaml" for name in (gpu, architecture) if name}
    found = {name: _read(file, _label(file)) for name, file in files.items() if file.is_file()}
    return _over_priors(next(iter(found.values()), None), found.get(gpu))


@lru_cache(maxsize=4)
def _priors(folder: str) -> _File:
    """The constants of any GPU, which every device's begin with: read once for each folder."""
    file = _folder() / f"{PRIORS}.yaml"
    return _read(file, _label(file))


def load_fit(file: Path, device: Device) -> Calibration:
    """The constants that a file holds for a device, as if it lay in `calibration/fits`.

    Raises SpecError for a file that is no fit, or one of another device.
    """
    own = _read(file, str(file))
    if own.name != device.name:
        raise SpecError(
            f"{file}: holds constants of {own.name!r}, not of {device.name!r}; name a fit of that device, "
            "or none for the constants that are shipped"
        )
    check_ranges(own, CONSTANTS, str(file))
    return _over_priors(own, own)


def fit_files() -> tuple[Traversable, ...]:
    """The shipped constants, in the order of their names."""
    return tuple(sorted((f for f in _folder().iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name))


def _folder() -> Traversable:
    return data_dir("calibration") / "fits"


def _label(file: Traversable) -> str:
    return f"calibration/fits/{file.name}"


def _over_priors(nearest: _File | None, own: _File | None) -> Calibration:
    """The constants of the nearest relative that has a fit, and the spreads of the GPU's own, over those of any GPU."""
    shared = _priors(str(_folder()))
    values = {**shared.constants, **(nearest.constants if nearest else {})}
    spreads = {**complete(shared.spreads), **(own.spreads if own else {})}
    return Calibration(
        name=nearest.name if nearest else shared.name,
        constants=MappingProxyType(
            {name: CONSTANTS[name].constant(v.value, v.stderr, v.source) for name, v in values.items()}
        ),
        spreads=spreads_in(spreads),
        measured=frozenset(own.spreads) if own else frozenset(),
        correlations=MappingProxyType(shared.correlations),
        power=load_power(),
    )


def constants_for(device: Device) -> Calibration:
    """The constants of a device: of its own measurements, of its architecture's, or of any GPU."""
    found = load_constants(device.name, architecture_of(device))
    return found if device.name == found.name else of_stranger(found, device)


def of_stranger(found: Calibration, device: Device) -> Calibration:
    """A GPU's constants for a device that was not measured: with wider intervals for a CPU, as none was."""
    if device.kind != "cpu":
        return found
    wide = {family: replace(s, systematic=max(s.systematic, _STRANGER)) for family, s in found.spreads.items()}
    return replace(found, spreads=MappingProxyType(wide))


def fits_for(devices: Sequence[Device], file: Path | None) -> tuple[Calibration, ...]:
    """The constants of each device, the file's for the one that it is of. Raises SpecError where it is of none."""
    if file is None:
        return tuple(map(constants_for, devices))
    of = _read(file, str(file)).name
    stranger = of not in [device.name for device in devices]  # of which load_fit says what is wrong
    return tuple(load_fit(file, one) if stranger or one.name == of else constants_for(one) for one in devices)


def architecture_of(device: Device) -> str:
    """The name under which GPUs of one architecture share constants; all CPUs are one."""
    if device.kind == "cpu":
        return CPUS
    return f"architecture-{(device.compute_capability or device.architecture).lower().replace(' ', '-')}"


def _read(file: Path | Traversable, label: str) -> _File:
    found = read_fit(_File, file, label)
    unknown = sorted(set(found.constants) - set(CONSTANTS))
    missing = sorted(set(CONSTANTS) - set(found.constants)) if found.name == PRIORS else []
    if unknown or missing:
        wrong = f"unknown constant {unknown[0]}" if unknown else f"constant {missing[0]} is missing"
        raise SpecError(f"{label}: {wrong}; run 'rooflinekit fit' to make the file anew")
    return found


def write_fit(calibration: Calibration, file: Path, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says, line by line. Raises OutputError where it cannot."""
    related = {pair: round(r, 3) for pair, r in calibration.correlations.items()}
    write_constants(
        file, head, schema=SCHEMA_VERSION, name=calibration.name, constants=calibration.constants,
        spreads=calibration.spreads, **({"correlations": related} if related else {}),
    )  # fmt: skip
