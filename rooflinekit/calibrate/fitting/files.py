"""Fitted constants in files of `calibration/fits/`: read, held against what is known of each, and written.

`priors.yaml` is of any GPU, `GPU.yaml` of a measured one, `links.yaml` of collectives, `energy.yaml` of power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import Field

from rooflinekit.calibrate.fitting.constants import CONSTANTS, ENERGY_CONSTANTS, LINK_CONSTANTS, Description
from rooflinekit.errors import SpecError
from rooflinekit.files import write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.fields import Record
from rooflinekit.hardware.specs import data_dir
from rooflinekit.hardware.yaml_file import read_record
from rooflinekit.published.stated import Constant
from rooflinekit.timing.collectives import LinkConstants
from rooflinekit.timing.families import complete
from rooflinekit.timing.machine import Calibration, PowerConstants, Spread

PRIORS, CPUS, LINKS, ENERGY = "priors", "architecture-cpu", "links", "energy"
#: Standard deviation, as a logarithm, of how far a CPU that was not measured is from what is known of CPUs, all its
#: kernels together. Steps of families that were not fitted on lie 0.18 apart on two CPUs (calibration/make/cpu.py);
#: that other CPUs lie further off is a stated choice.
_STRANGER = 0.3
_OF_POWER = "mean watts"  # the spread in `energy.yaml`

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Relative, or of a logarithm: beyond, a number says nothing, and intervals have no bounds.
_Error = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]


class FitValue(Record):
    """A constant as it stands in a file."""

    value: _Positive
    stderr: _Error
    source: str


class FitSpread(Record):
    """Residuals of a family, as standard deviations of a logarithm; with what is off by so many seconds."""

    random: _Error
    systematic: _Error
    short_s: _Error = 0.0


class FitFile(Record):
    """A file of constants."""

    known: ClassVar[Mapping[str, Description]]  # by the first word of each name
    name: str
    constants: dict[str, FitValue]
    spreads: dict[str, FitSpread]

    def told(self) -> Mapping[str, Constant]:
        """The constants with what is known of each."""
        return MappingProxyType(
            {name: self.known[_kind(name)].constant(v.value, v.stderr, v.source) for name, v in self.constants.items()}
        )

    def residuals(self) -> Mapping[str, Spread]:
        """The spreads as the time model takes them."""
        return MappingProxyType({name: Spread(**dict(spread)) for name, spread in self.spreads.items()})


class GpuFile(FitFile):
    """Constants of a GPU, of an architecture, or of any GPU."""

    known: ClassVar[Mapping[str, Description]] = CONSTANTS
    schema_version: Annotated[int, Field(alias="schema", ge=2, le=2)]
    correlations: dict[str, Annotated[float, Field(ge=-1, le=1)]] = Field(default_factory=dict)


class LinkFile(FitFile):
    """Constants of collectives."""

    known: ClassVar[Mapping[str, Description]] = LINK_CONSTANTS
    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1)]


class EnergyFile(FitFile):
    """Constants of the power that boards draw."""

    known: ClassVar[Mapping[str, Description]] = ENERGY_CONSTANTS
    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1)]


_File = TypeVar("_File", bound=FitFile)


def _kind(name: str) -> str:
    return name.split(" ")[0]


def read_fit(kind: type[_File], file: Path | Traversable, label: str = "", *, strict: bool = False) -> _File:
    """What a file holds. Raises SpecError for another form, unknown constants and, `strict`, values out of range."""
    label = label or str(file)
    found = read_record(kind, file, label)
    unknown = sorted(name for name in found.constants if _kind(name) not in kind.known)
    whole = kind is not LinkFile and found.name in (PRIORS, ENERGY)
    missing = sorted(set(kind.known) - set(found.constants)) if whole else []
    if unknown or missing:
        wrong = f"unknown constant {unknown[0]}" if unknown else f"constant {missing[0]} is missing"
        raise SpecError(f"{label}: {wrong}; run 'rooflinekit fit' to make the file anew")
    for name, given in found.constants.items() if strict else ():
        about = kind.known[_kind(name)]
        if not about.low <= given.value <= about.high:
            raise SpecError(
                f"{label}: constants: {name}: expected {about.low:g} to {about.high:g} {about.unit} ({about.meaning}); "
                f"got {given.value:g}"
            )
    return found


def _read_shipped(kind: type[_File], name: str) -> _File:
    return read_fit(kind, _folder() / f"{name}.yaml", f"calibration/fits/{name}.yaml", strict=kind is EnergyFile)


def parts_of(s: Spread) -> dict[str, float]:
    """A spread as files have it: its seconds stand there where they are told."""
    return {"random": s.random, "systematic": s.systematic} | ({"short_s": s.short_s} if s.short_s else {})


def _write(
    file: Path,
    head: str,
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


# Of GPUs.


@lru_cache(maxsize=64)
def load_constants(gpu: str = "", architecture: str = "") -> Calibration:
    """The constants of a GPU by its specification's name; what was not fitted on it is that of an unmeasured GPU.

    architecture: whose measured GPUs an unmeasured one takes after, as `architecture_of` names it.
    Raises SpecError for a damaged installation.
    """
    names = [name for name in (gpu, architecture) if name and (_folder() / f"{name}.yaml").is_file()]
    found = {name: _read_shipped(GpuFile, name) for name in names}
    return _over_priors(next(iter(found.values()), None), found.get(gpu))


@lru_cache(maxsize=4)
def _priors(folder: str) -> tuple[GpuFile, Mapping[str, Constant], Mapping[str, Spread]]:
    """The constants and spreads of any GPU, which every device's begin with: read once for each folder."""
    found = _read_shipped(GpuFile, PRIORS)
    return found, found.told(), complete(found.residuals())


def load_fit(file: Path, device: Device) -> Calibration:
    """The constants of a file for a device, as if shipped. Raises SpecError for no fit, or one of another device."""
    own = read_fit(GpuFile, file, strict=True)
    if own.name != device.name:
        raise SpecError(
            f"{file}: holds constants of {own.name!r}, not of {device.name!r}; name a fit of that device, "
            "or none for the constants that are shipped"
        )
    return _over_priors(own, own)


def fit_files() -> tuple[Traversable, ...]:
    """The shipped constants, in the order of their names."""
    return tuple(sorted((f for f in _folder().iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name))


def _folder() -> Traversable:
    return data_dir("calibration") / "fits"


def _over_priors(nearest: GpuFile | None, own: GpuFile | None) -> Calibration:
    """The constants of the nearest relative that has a fit, and the spreads of the GPU's own, over those of any GPU."""
    shared, constants, spreads = _priors(str(_folder()))
    return Calibration(
        name=nearest.name if nearest else shared.name,
        constants=MappingProxyType({**constants, **(nearest.told() if nearest else {})}),
        spreads=MappingProxyType({**spreads, **(own.residuals() if own else {})}),
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
    of = read_fit(GpuFile, file).name
    stranger = of not in [device.name for device in devices]  # of which load_fit says what is wrong
    return tuple(load_fit(file, one) if stranger or one.name == of else constants_for(one) for one in devices)


def architecture_of(device: Device) -> str:
    """The name under which GPUs of one architecture share constants; all CPUs are one."""
    if device.kind == "cpu":
        return CPUS
    return f"architecture-{(device.compute_capability or device.architecture).lower().replace(' ', '-')}"


def write_fit(calibration: Calibration, file: Path, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says, line by line. Raises OutputError where it cannot."""
    related = {pair: round(r, 3) for pair, r in calibration.correlations.items()}
    further = {"correlations": related} if related else {}
    _write(file, head, 2, calibration.name, calibration.constants, calibration.spreads, **further)


# Of collectives: the shipped ones, and over them those of machines at hand.


@cache
def _shipped_links() -> LinkFile:
    return _read_shipped(LinkFile, LINKS)


def load_links(file: Path | None = None) -> LinkConstants:
    """The constants of collectives as shipped, or a file's over them. Raises SpecError for a file that is none."""
    files = [_shipped_links(), *([] if file is None else [read_fit(LinkFile, file, strict=True)])]
    constants = {name: constant for one in files for name, constant in one.told().items()}
    spreads = {name: spread for one in files for name, spread in one.residuals().items()}
    return LinkConstants(constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))


def write_links(constants: LinkConstants, file: Path, name: str, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    _write(file, head, 1, name, constants.constants, constants.spreads)


# Of power.


@cache
def load_power() -> PowerConstants:
    """The constants as shipped. Raises SpecError for a damaged installation."""
    found = _read_shipped(EnergyFile, ENERGY)
    if _OF_POWER not in found.spreads:
        raise SpecError(f"calibration/fits/{ENERGY}.yaml: {_OF_POWER} is unknown or missing")
    return PowerConstants(constants=found.told(), spread=found.spreads[_OF_POWER].systematic)


def write_power(found: PowerConstants, file: Path, head: str) -> None:
    """Writes the file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    _write(file, head, 1, ENERGY, found.constants, {_OF_POWER: Spread(random=0.0, systematic=found.spread)})
