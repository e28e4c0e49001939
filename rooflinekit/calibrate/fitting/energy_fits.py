"""Constants of a board's power: what each is, and the file `energy.yaml`, made by `benchmarks/energy_accuracy.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rooflinekit.calibrate.fitting.constants import Description
from rooflinekit.calibrate.fitting.document import FitFile, check_ranges, read_fit, write_constants
from rooflinekit.errors import SpecError
from rooflinekit.hardware.specs import data_dir
from rooflinekit.model.machine import PowerConstants, Spread

_d = Description

_STATED = "stated default"
_IDLE = f"{_STATED}: about what nvidia-smi shows of T4, A10, A100 and H100 that idle with their memory at full clock"
_PINS = "O'Connor et al., Fine-Grained DRAM, MICRO 2017: HBM2 3.9 pJ/bit, GDDR5 14 pJ/bit; and the controller"
_VOLTAGE = "Guerreiro et al., GPGPU Power Modeling for Multi-domain Voltage-Frequency Scaling, HPCA 2018: voltage is "
_VOLTAGE += "flat at low clocks, then rises with them"

ENERGY_CONSTANTS: dict[str, Description] = {
    "stand_by": _d("1", "share of the board's power that it draws while nothing runs, beside its memory's interface",
                   0.11, 0.02, 0.4, 0.2, 0.0, _IDLE),
    "hbm_interface": _d("J/byte", "power of stacked memory's interface by the bandwidth that it offers, used or not",
                        10e-12, 1e-12, 50e-12, 0.4, 0.0, _IDLE),
    "gddr_interface": _d("J/byte", "the same of memory beside the chip", 68e-12, 5e-12, 200e-12, 0.3, 0.0, _IDLE),
    "sm_energy": _d("J/cycle", "an SM's clocks and schedulers while they issue or fetch, in a 16 nm process",
                    0.5e-9, 0.02e-9, 5e-9, 0.7, 0.0, _STATED),
    "cache_energy": _d("J/byte", "a byte through the last-level cache and to the SM, in a 16 nm process",
                       100e-12, 5e-12, 600e-12, 0.7, 0.0, _STATED),
    "hbm_energy": _d("J/byte", "a byte through stacked DRAM", 45e-12, 10e-12, 200e-12, 0.3, 0.0, _PINS),
    "gddr_energy": _d("J/byte", "the same of memory beside the chip", 110e-12, 20e-12, 400e-12, 0.3, 0.0, _PINS),
    "voltage_floor": _d("1", "lowest voltage of the SMs, of that at the full clock",
                        0.65, 0.4, 1.0, 0.15, 0.0, _VOLTAGE),
    "voltage_slope": _d("1", "by how much of itself voltage falls as the clock falls by all of itself",
                        0.6, 0.05, 1.0, 0.3, 0.0, _VOLTAGE),
    "held_share": _d("1", "mean watts of a board that its limit holds down, of the limit: controllers keep a distance",
                     0.95, 0.8, 1.0, 0.04, 0.0, _STATED),
    "clock_floor": _d("1", "lowest clock of the SMs under load, of the boost", 0.12, 0.05, 0.5, 0.1,
                      0.0, "nvidia-smi -q -d SUPPORTED_CLOCKS: 135 MHz (V100), 210 MHz (A100, A40, H100)"),
}  # fmt: skip


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
        spread=found.spreads[_SPREAD].systematic,
    )


def write_power(found: PowerConstants, file: Path, head: str) -> None:
    """Writes the file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    spreads = {_SPREAD: Spread(random=0.0, systematic=found.spread)}
    write_constants(file, head, schema=SCHEMA_VERSION, name=ENERGY, constants=found.constants, spreads=spreads)


def stated_power() -> PowerConstants:
    """The constants before any measurement."""
    return PowerConstants(
        constants=MappingProxyType(
            {name: about.constant(about.start, about.spread, about.source) for name, about in ENERGY_CONSTANTS.items()}
        ),
        spread=0.3,
    )
