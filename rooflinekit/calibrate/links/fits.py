"""Constants of collectives in files: `calibration/fits/links.yaml`, and over it those of machines at hand."""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rooflinekit.calibrate.fitting.document import FitFile, check_ranges, read_fit, spreads_in, write_constants
from rooflinekit.calibrate.links.constants import LINK_CONSTANTS
from rooflinekit.errors import SpecError
from rooflinekit.hardware.specs import data_dir
from rooflinekit.model.collectives import LinkConstants

SCHEMA_VERSION = 1
LINKS = "links"
TOLERANCE = 0.01  # by which a value of two fits may differ, or a tenth of its standard error where that is more
ERROR_TOLERANCE = 0.1  # by which a standard error or a spread may


class _File(FitFile):
    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


def load_links(file: Path | None = None) -> LinkConstants:
    """The constants of collectives as shipped, or a file's over them. Raises SpecError for a file that is none."""
    shipped = _shipped()
    if file is None:
        return shipped
    given = _read(file, str(file))
    check_ranges(given, LINK_CONSTANTS, str(file))
    over = _constants(given)
    return LinkConstants(
        constants=MappingProxyType({**shipped.constants, **over.constants}),
        spreads=MappingProxyType({**shipped.spreads, **over.spreads}),
    )


@cache
def _shipped() -> LinkConstants:
    return _constants(_read(data_dir("calibration") / "fits" / f"{LINKS}.yaml", f"calibration/fits/{LINKS}.yaml"))


def _constants(file: _File) -> LinkConstants:
    return LinkConstants(
        constants=MappingProxyType(
            {
                key: LINK_CONSTANTS[key.split()[0]].constant(v.value, v.stderr, v.source)
                for key, v in file.constants.items()
            }
        ),
        spreads=spreads_in(file.spreads),
    )


def write_links(constants: LinkConstants, file: Path, name: str, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    write_constants(
        file, head, schema=SCHEMA_VERSION, name=name, constants=constants.constants, spreads=constants.spreads
    )


def links_difference(constants: LinkConstants, file: Path) -> str:
    """The first number by which a file differs from a fit, in words; "" where none does. Raises SpecError."""
    there = _read(file, str(file))
    if missing := sorted(set(constants.constants) ^ set(there.constants)):
        return f"{file}: {missing[0]} is in one of the file and the fit alone"
    for key, constant in constants.constants.items():
        for word, made, stands, tolerance in (
            (key, constant.value, there.constants[key].value, max(TOLERANCE, 0.1 * constant.stderr)),
            (f"standard error of {key}", constant.stderr, there.constants[key].stderr, ERROR_TOLERANCE),
        ):
            if abs(made - stands) > tolerance * made:
                return f"{file}: {word} is {stands:.4g}; the campaigns give {made:.4g}"
    for name, spread in constants.spreads.items():
        stands = there.spreads[name].kernel if name in there.spreads else 0.0
        if abs(spread.kernel - stands) > ERROR_TOLERANCE * spread.kernel:
            return f"{file}: spread of {name} is {stands:.4g}; the campaigns give {spread.kernel:.4g}"
    return ""


def _read(file: Path | Traversable, label: str) -> _File:
    found = read_fit(_File, file, label)
    unknown = sorted(key for key in found.constants if key.split(" ")[0] not in LINK_CONSTANTS)
    if unknown:
        raise SpecError(f"{label}: unknown constant {unknown[0]}; run 'rooflinekit fit' to make the file anew")
    return found
