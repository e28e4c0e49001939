"""What files of fitted constants have in common, those of GPUs and those of links."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rooflinekit.calibrate.fitting.constants import Description
from rooflinekit.errors import SpecError
from rooflinekit.files import write_text
from rooflinekit.hardware.yaml_file import read_mapping
from rooflinekit.model.machine import Constant, Spread

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Relative, or of a logarithm: beyond, a number says nothing, and intervals have no bounds.
_Error = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


class FitRecord(BaseModel):
    """A part of a file of constants."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FitValue(FitRecord):
    """A constant as it stands in a file."""

    value: _Positive
    stderr: _Error
    source: str


class FitSpread(FitRecord):
    """Residuals of a family, as standard deviations of a logarithm; with what is off by so many seconds."""

    random: _Error
    systematic: _Error
    short_s: _Error = 0.0


class FitFile(FitRecord):
    """A file of constants, but for the version of its schema."""

    name: str
    constants: dict[str, FitValue]
    spreads: dict[str, FitSpread]


_File = TypeVar("_File", bound=FitFile)


def read_fit(kind: type[_File], file: Path | Traversable, label: str) -> _File:
    """What a file holds. Raises SpecError, beginning with the label, for one of another form."""
    try:
        return kind.model_validate(read_mapping(file, label))
    except ValidationError as error:
        first = error.errors()[0]
        where = ": ".join(map(str, first["loc"]))
        raise SpecError(f"{label}: {where}: {first['msg']}") from error


def check_ranges(found: FitFile, known: Mapping[str, Description], label: str) -> None:
    """Raises SpecError for a constant outside of the range in which it has its meaning."""
    for name, given in found.constants.items():
        about = known[name.split(" ")[0]]
        if not about.low <= given.value <= about.high:
            raise SpecError(
                f"{label}: constants: {name}: expected {about.low:g} to {about.high:g} {about.unit} ({about.meaning}); "
                f"got {given.value:g}"
            )


def spreads_in(spreads: Mapping[str, FitSpread]) -> Mapping[str, Spread]:
    """The residuals as the time model takes them."""
    return MappingProxyType(
        {name: Spread(random=s.random, systematic=s.systematic, short_s=s.short_s) for name, s in spreads.items()}
    )


def parts_of(s: Spread) -> dict[str, float]:
    """A spread as files have it: its seconds stand there where they are told."""
    return {"random": s.random, "systematic": s.systematic} | ({"short_s": s.short_s} if s.short_s else {})


def write_constants(
    file: Path,
    head: str,
    *,
    schema: int,
    name: str,
    constants: Mapping[str, Constant],
    spreads: Mapping[str, Spread],
    **further: Any,
) -> None:
    """Writes one file. `head`: what the comment at the top says, line by line. Raises OutputError where it cannot."""
    document: dict[str, Any] = {
        "schema": schema,
        "name": name,
        "constants": {
            key: {"value": _rounded(c.value), "stderr": _rounded(c.stderr), "source": c.source}
            for key, c in constants.items()
        },
        "spreads": {key: {part: _rounded(value) for part, value in parts_of(s).items()} for key, s in spreads.items()},
        **further,
    }
    text = "".join(f"# {line}\n" for line in head.splitlines())
    write_text(text + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120), file)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
