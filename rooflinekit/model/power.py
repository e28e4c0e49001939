"""The clock that a board's power sustains.

A board of P watts idles at idle_share·P. A FLOP costs energy that falls with the process node,

    energy = energy_16nm · (node / 16 nm) ^ energy_node_exponent, by number format and on the CUDA cores as on the
    tensor core with an exponent of its own,

on the tensor core also with the multiply-adds that an SM does in a clock: larger instructions fetch fewer operands
for each of them (a tile of a×a multiplies each number a times, so with the square root of its size),

    energy · (512 / multiply-adds a clock) ^ energy_size_exponent,

so arithmetic sustains at most (1 - idle_share)·P / energy, however many units there are. Bursts that are shorter than
the board's thermal time constant (seconds) may escape it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math

#: Formats of a tensor core that halve 16 bits, and how often: by each halving a FLOP takes `eight_bit_energy` of the
#: energy. Half as many bits are moved, and multipliers shrink with the square of the mantissa, but sums stay in fp32.
#: Of 4 bits a constant of its own, fitted on a B200's products, came to 0.363 where this says 0.371.
_HALVED = {Math.FP8: 1, Math.INT8: 1, Math.FP4: 2}
#: Of wider formats, of a 16-bit FLOP's: an MI100 sustains 40 of its 46 TFLOP/s in fp32 where it has 185 in fp16
#: (MIOpen's tuning data), 1.39²; TF32, whose mantissa is fp16's and whose operands have twice the bytes, by half of it
#: as a logarithm. ± 20 %.
_WIDER = {Math.FP16: 1.0, Math.BF16: 1.0, Math.TF32: 1.39, Math.FP32: 1.39**2}
_LEAST_S = 1e-12  # of a call, to divide by
_REFERENCE_NM = 16.0
_REFERENCE_SIZE = 512.0  # multiply-adds in 16 bits that an SM of Volta does in a clock
_OF_FP32 = {Math.FP64: 2.0, Math.FP16: 0.5}  # on the CUDA cores: by the bits of what is multiplied


#: Names that stand for another library or a shrink of an older process, whose energy they share; 8 nm, which is
#: Samsung's alone, takes as much as 12 would elsewhere: A40 and RTX A6000 sustain 106 to 118 TFLOP/s of bf16 at 300 W.
_GENERATION = {12: 16, 8: 12, 6: 7, 4: 5}


def node_nm(device: Device) -> float | None:
    """The process generation in nanometres, out of the maker's name for it ("TSMC 4N"); None where none is stated."""
    found = re.search(r"\d+", device.process_node or "")
    if found is None:
        return None
    named = int(found.group())
    return float(_GENERATION.get(named, named))


def _products_a_clock(device: Device) -> float:
    """Multiply-adds in 16 bits that an SM's tensor core is made for in a clock; Volta's where it has none."""
    tables = (device.matrix_peak_fp16_accumulate, device.matrix_peak)  # GeForce boards do half of what the SM could
    peak = next((table[name] for table in tables for name in ("fp16", "bf16") if table.get(name)), None)
    clock = device.clock.tensor or device.clock.boost
    return peak / (2 * device.sm_count * clock) if peak else _REFERENCE_SIZE


def power_limit(device: Device, values: Mapping[str, float], math: Math, *, tensor_core: bool) -> float:
    """FLOP/s that the board's power sustains; infinite where power or process are not stated."""
    watts = board_share(device)
    if watts is None or node_nm(device) is None:
        return float("inf")
    return float((1 - values["idle_share"]) * watts / flop_energy(device, values, math, tensor_core=tensor_core))


def held_s(free_s: Any, limited_s: Any, *, window_s: float, calls: float, before: float) -> Any:
    """Mean seconds of calls in a row that take `free_s` at the full clock, and `limited_s` at what power sustains.

    The clock is lowered `window_s` after the first. before: calls ahead of those whose mean it is.
    """
    if np.isinf(calls):
        return np.maximum(free_s, limited_s)
    free = np.clip((window_s / np.maximum(free_s, _LEAST_S) - before) / calls, 0.0, 1.0)
    return np.maximum(free_s, limited_s - free * (limited_s - free_s))


def board_share(device: Device) -> float | None:
    """Watts of the board that are this device's; None where none are stated."""
    return None if device.board_power is None else device.board_power / device.devices_per_board


def flop_energy(device: Device, values: Mapping[str, float], math: Math, *, tensor_core: bool) -> float:
    """Joules of a FLOP that sustained products cost a board at its limit, all that comes with them included."""
    if tensor_core and (math in _HALVED or math in _WIDER):
        of_16_bits = values["eight_bit_energy"] ** _HALVED[math] if math in _HALVED else _WIDER[math]
        energy = values["matrix_energy"] * of_16_bits
        energy *= (_REFERENCE_SIZE / _products_a_clock(device)) ** values["energy_size_exponent"]
        return float(energy * process(device, values))
    return simt_energy(device, values) * _OF_FP32.get(math, 1.0)


def simt_energy(device: Device, values: Mapping[str, float]) -> float:
    """Joules of an fp32 FLOP on the CUDA cores."""
    return float(values["simt_energy"] * process(device, values, "simt_node_exponent"))


def process(device: Device, values: Mapping[str, float], exponent: str = "energy_node_exponent") -> float:
    """Energy of switching in the device's process, of that in 16 nm; 1 where the process is not stated."""
    node = node_nm(device)
    return 1.0 if node is None else (node / _REFERENCE_NM) ** values[exponent]
