"""Constants of a board's power in a file: `calibration/fits/energy.yaml`, made by `benchmarks/energy_accuracy.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rooflinekit.calibrate.fitting.document import FitFile, check_ranges, read_fit, write_constants
from rooflinekit.calibrate.fitting.energy_constants import ENERGY_CONSTANTS
from rooflinekit.errors import SpecError
from rooflinekit.hardware.specs import data_dir
from rooflinekit.model.machine import PowerConstants, Spread

SCHEMA_VERSION = 1
ENERGY = "energy"
_SPREAD = "mean watts"


class _File(FitFile):
    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


@cache
def load_power() -> PowerConstants:
    """The constants as shipped. Raises SpecError for a damaged installation."""
    label = f"calibration/fits/{ENERGY}.yaml"
    found = read_fit(_File, data_dir("calibration") / "fits" / f"{ENERGY}.yaml", label)
    wrong = sorted(set(found.constants) ^ set(ENERGY_CONSTANTS))
    if wrong or _SPREAD not in found.spreads:
        raise SpecError(f"{label}: {(wrong or [_SPREAD])[0]} is unknown or missing")
    check_ranges(found, ENERGY_CONSTANTS, label)
    return PowerConstants(
        constants=MappingProxyType(
            {name: ENERGY_CONSTANTS[name].constant(v.value, v.stderr, v.source) for name, v in found.constants.items()}
        ),
        spread=found.spreads[_SPREAD].shared,
    )


def write_power(found: PowerConstants, file: Path, head: str) -> None:
    """Writes the file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    spreads = {_SPREAD: Spread(kernel=0.0, shared=found.spread)}
    write_constants(file, head, schema=SCHEMA_VERSION, name=ENERGY, constants=found.constants, spreads=spreads)


def stated_power() -> PowerConstants:
    """The constants before any measurement."""
    return PowerConstants(
        constants=MappingProxyType(
            {name: about.constant(about.start, about.spread, about.source) for name, about in ENERGY_CONSTANTS.items()}
        ),
        spread=0.3,
    )
