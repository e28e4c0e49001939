"""Constants for a GPU that nobody has measured, from `calibration/fits/priors.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rooflinekit.errors import SpecError
from rooflinekit.hardware.specs import data_dir
from rooflinekit.hardware.yaml_file import read_mapping
from rooflinekit.model.machine import Calibration, Constant
from rooflinekit.units import parse_quantity

_SECONDS = "s"


class _Constant(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    value: Annotated[float, Field(ge=0)]
    stderr: Annotated[float, Field(ge=0)]
    unit: str
    meaning: str
    source: str

    @field_validator("value", "stderr", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return (
            parse_quantity(value, _SECONDS) if isinstance(value, str) else float(value) if type(value) is int else value
        )


class _Priors(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1)]
    name: str
    constants: dict[str, _Constant]


@lru_cache(maxsize=1)
def load_priors() -> Calibration:
    """The constants of an unmeasured GPU, each with its spread between GPUs and its source.

    Raises SpecError for a damaged installation.
    """
    label = "calibration/fits/priors.yaml"
    try:
        priors = _Priors.model_validate(read_mapping(data_dir("calibration") / "fits" / "priors.yaml", label))
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{label}: {': '.join(map(str, first['loc']))}: {first['msg']}") from error
    constants: Mapping[str, Constant] = MappingProxyType(
        {name: Constant(**constant.model_dump()) for name, constant in priors.constants.items()}
    )
    return Calibration(name=priors.name, constants=constants)
