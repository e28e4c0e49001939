"""The constants of a board's power: unit, meaning, the value before any measurement, and how sure that is."""

from __future__ import annotations

from rooflinekit.calibrate.fitting.constants import Description


def _d(unit: str, meaning: str, start: float, low: float, high: float, spread: float, source: str) -> Description:
    return Description(unit=unit, meaning=meaning, start=start, low=low, high=high, spread=spread, source=source)


_STATED = "stated default"
_IDLE = f"{_STATED}: about what nvidia-smi shows of T4, A10, A100 and H100 that idle with their memory at full clock"
_PINS = "O'Connor et al., Fine-Grained DRAM, MICRO 2017: HBM2 3.9 pJ/bit, GDDR5 14 pJ/bit; and the controller"
_VOLTAGE = "Guerreiro et al., GPGPU Power Modeling for Multi-domain Voltage-Frequency Scaling, HPCA 2018: voltage is "
_VOLTAGE += "flat at low clocks, then rises with them"

ENERGY_CONSTANTS: dict[str, Description] = {
    "stand_by": _d("1", "share of the board's power that it draws while nothing runs, beside its memory's interface",
                   0.11, 0.02, 0.4, 0.2, _IDLE),
    "hbm_interface": _d("J/byte", "power of stacked memory's interface by the bandwidth that it offers, used or not",
                        10e-12, 1e-12, 50e-12, 0.4, _IDLE),
    "gddr_interface": _d("J/byte", "the same of memory beside the chip", 68e-12, 5e-12, 200e-12, 0.3, _IDLE),
    "sm_energy": _d("J/cycle", "an SM's clocks and schedulers while they issue or fetch, in a 16 nm process",
                    0.5e-9, 0.02e-9, 5e-9, 0.7, _STATED),
    "cache_energy": _d("J/byte", "a byte through the last-level cache and to the SM, in a 16 nm process",
                       100e-12, 5e-12, 600e-12, 0.7, _STATED),
    "hbm_energy": _d("J/byte", "a byte through stacked DRAM", 45e-12, 10e-12, 200e-12, 0.3, _PINS),
    "gddr_energy": _d("J/byte", "the same of memory beside the chip", 110e-12, 20e-12, 400e-12, 0.3, _PINS),
    "arithmetic_share": _d("1", "arithmetic's own part of the energy that a FLOP costs a board at its limit",
                           0.6, 0.05, 1.5, 0.4, "matrix_energy and lanes_energy hold operands, caches and clocks too"),
    "voltage_floor": _d("1", "lowest voltage of the SMs, of that at the full clock", 0.65, 0.4, 1.0, 0.15, _VOLTAGE),
    "voltage_slope": _d("1", "by how much of itself voltage falls as the clock falls by all of itself",
                        0.6, 0.05, 1.0, 0.3, _VOLTAGE),
    "held_share": _d("1", "mean watts of a board that its limit holds down, of the limit: controllers keep a distance",
                     0.95, 0.8, 1.0, 0.04, _STATED),
    "clock_floor": _d("1", "lowest clock of the SMs under load, of the boost", 0.12, 0.05, 0.5, 0.1,
                      "nvidia-smi -q -d SUPPORTED_CLOCKS: 135 MHz (V100), 210 MHz (A100, A40, H100)"),
}  # fmt: skip
