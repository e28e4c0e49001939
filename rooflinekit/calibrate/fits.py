"""Fitted constants in files: `calibration/fits/priors.yaml` for any GPU, `GPU.yaml` beside it for a measured one."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rooflinekit.calibrate.constants import CONSTANTS
from rooflinekit.errors import SpecError
from rooflinekit.files import write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import data_dir
from rooflinekit.hardware.yaml_file import read_mapping
from rooflinekit.model.machine import Calibration, Spread

SCHEMA_VERSION = 2
PRIORS = "priors"

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Value(_Record):
    value: _Positive
    stderr: _Error
    source: str


class _Spread(_Record):
    kernel: _Error
    shared: _Error


class _File(_Record):
    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    name: str
    constants: dict[str, _Value]
    spreads: dict[str, _Spread]
    correlations: dict[str, Annotated[float, Field(ge=-1, le=1)]] = Field(default_factory=dict)


@lru_cache(maxsize=64)
def load_constants(gpu: str = "", architecture: str = "") -> Calibration:
    """The constants of a GPU by its specification's name; what was not fitted on it is that of an unmeasured GPU.

    architecture: whose measured GPUs an unmeasured one takes after, as `architecture_of` names it.
    Raises SpecError for a damaged installation.
    """
    folder = data_dir("calibration") / "fits"
    shared = _read(folder / f"{PRIORS}.yaml")
    files = {name: folder / f"{name}.yaml" for name in (gpu, architecture) if name}
    found = {name: _read(file) for name, file in files.items() if file.is_file()}
    own = found.get(gpu)
    values = {**shared.constants, **next((one.constants for one in found.values()), {})}
    spreads = {**shared.spreads, **(own.spreads if own else {})}
    return Calibration(
        name=next((one.name for one in found.values()), shared.name),
        constants=MappingProxyType(
            {name: CONSTANTS[name].constant(v.value, v.stderr, v.source) for name, v in values.items()}
        ),
        spreads=MappingProxyType({name: Spread(kernel=s.kernel, shared=s.shared) for name, s in spreads.items()}),
        measured=frozenset(own.spreads) if own else frozenset(),
        correlations=MappingProxyType(shared.correlations),
    )


def constants_for(device: Device) -> Calibration:
    """The constants of a device: of its own measurements, of its architecture's, or of any GPU."""
    return load_constants(device.name, architecture_of(device))


def architecture_of(device: Device) -> str:
    """The name under which GPUs of one architecture share constants."""
    return f"architecture-{(device.compute_capability or device.architecture).lower().replace(' ', '-')}"


def _read(file: Traversable) -> _File:
    label = f"calibration/fits/{file.name}"
    try:
        found = _File.model_validate(read_mapping(file, label))
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{label}: {': '.join(map(str, first['loc']))}: {first['msg']}") from error
    unknown = sorted(set(found.constants) - set(CONSTANTS))
    missing = sorted(set(CONSTANTS) - set(found.constants)) if found.name == PRIORS else []
    if unknown or missing:
        wrong = f"unknown constant {unknown[0]}" if unknown else f"constant {missing[0]} is missing"
        raise SpecError(f"{label}: {wrong}; run 'rooflinekit fit' to make the file anew")
    return found


def write_fit(calibration: Calibration, file: Path, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says, line by line. Raises OutputError where it cannot."""
    document: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "name": calibration.name,
        "constants": {
            name: {"value": _rounded(c.value), "stderr": _rounded(c.stderr), "source": c.source}
            for name, c in calibration.constants.items()
        },
        "spreads": {
            name: {"kernel": _rounded(s.kernel), "shared": _rounded(s.shared)}
            for name, s in calibration.spreads.items()
        },
    }
    if calibration.correlations:
        document["correlations"] = {pair: round(r, 3) for pair, r in calibration.correlations.items()}
    text = "".join(f"# {line}\n" for line in head.splitlines())
    text += yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    write_text(text, file)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
