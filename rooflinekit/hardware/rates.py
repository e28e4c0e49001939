"""What each architecture can do per clock, to check datasheet peaks against.

The numbers come from the vendors' architecture papers and programming guides. A class is a CUDA compute capability, an
AMD target, the vectors of a CPU ("avx2"), or, for others, the architecture's name. A class that is not here is not
checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device


# Dense multiply-adds per SM (compute unit, Xe core) per clock with fp32 (int32) accumulation, at the full rate.
MATRIX_FMA: Mapping[str, Mapping[str, int]] = {
    "3.7": {},
    "5.2": {},
    "6.0": {},
    "6.1": {},
    "7.0": {"fp16": 512},
    "7.5": {"fp16": 512, "int8": 1024},
    "8.0": {"fp64": 64, "tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.6": {"tf32": 256, "fp16": 512, "bf16": 512, "int8": 1024},
    "8.7": {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.9": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "int8": 1024},
    "9.0": {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
    "10.0": {"fp64": 64, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192, "fp4": 16384},
    # Blackwell Ultra gave up fp64 and int8 for fp4.
    "10.3": {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 256, "fp4": 24576},
    "12.0": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "int8": 1024, "fp4": 2048},
    "gfx900": {},
    "gfx906": {},
    "gfx1030": {},
    "gfx908": {"fp32": 128, "fp16": 512, "bf16": 256, "int8": 512},
    "gfx90a": {"fp64": 128, "fp32": 128, "fp16": 512, "bf16": 512, "int8": 512},
    "gfx942": {"fp64": 128, "fp32": 128, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "gfx950": {"fp64": 64, "fp32": 128, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096, "fp4": 8192},
    "gfx1100": {"fp16": 256, "bf16": 256, "int8": 256},
    "M1 family 7": {},
    "M2 family 8": {},
    "M3 family 9": {},
    "Xe-HPC (Ponte Vecchio)": {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "Xe-HPG (Alchemist)": {"fp16": 1024, "bf16": 1024, "int8": 2048},
    "avx2": {},
    "avx512": {},
    "avx512-amx": {"bf16": 512, "int8": 1024},  # one tile product of 16 x 16 x 32 (64) in 16 clocks
}

# Of product lines with `tensor_rate: half-accumulate` (GeForce), these formats run at half the full rate.
HALVED_BY_ACCUMULATION = ("tf32", "fp16", "bf16", "fp8")

# Vector rates relative to one fp32 multiply-add per lane and clock. int8: dot products of four, beside matrix units.
VECTOR_RATIO: Mapping[str, Mapping[str, float]] = {
    "3.7": {"fp64": 1 / 3},
    "5.2": {"fp64": 1 / 32},
    "6.0": {"fp64": 1 / 2, "fp16": 2},
    "6.1": {"fp64": 1 / 32, "fp16": 1 / 64, "int8": 4},
    "7.0": {"fp64": 1 / 2, "fp16": 2},
    "7.5": {"fp64": 1 / 32, "fp16": 2},
    "8.0": {"fp64": 1 / 2, "fp16": 4},
    "8.6": {"fp64": 1 / 64, "fp16": 1},
    "8.7": {"fp64": 1 / 64, "fp16": 2},
    "8.9": {"fp64": 1 / 64, "fp16": 1},
    "9.0": {"fp64": 1 / 2, "fp16": 2},
    "10.0": {"fp64": 1 / 2},
    "10.3": {"fp64": 1 / 64},
    "12.0": {"fp64": 1 / 64, "fp16": 1},
    "gfx900": {"fp64": 1 / 16, "fp16": 2},
    "gfx906": {"fp64": 1 / 2, "fp16": 2, "int8": 4},
    "gfx1030": {"fp64": 1 / 16, "fp16": 2, "int8": 4},
    "gfx908": {"fp64": 1 / 2},
    "gfx90a": {"fp64": 1},
    "gfx942": {"fp64": 1},
    "gfx950": {"fp64": 1},
    "gfx1100": {"fp64": 1 / 16, "fp16": 4},
    "M1 family 7": {"fp16": 1},
    "M2 family 8": {"fp16": 1},
    "M3 family 9": {"fp16": 1},
    "Xe-HPC (Ponte Vecchio)": {"fp64": 1},
    "Xe-HPG (Alchemist)": {},
    "avx2": {"fp64": 1 / 2},
    "avx512": {"fp64": 1 / 2},
    "avx512-amx": {"fp64": 1 / 2, "fp16": 2},
}


def rate_class(device: Device) -> str:
    """The key under which the tables above may know this device."""
    return device.compute_capability or device.architecture


def matrix_fma(device: Device, math: str, *, accumulate: str = "fp32") -> float | None:
    """Multiply-adds per SM and clock in format `math`, for the product line; None when the class is not known.

    Zero means that the architecture has no matrix units for the format.
    """
    table = MATRIX_FMA.get(rate_class(device))
    if table is None:
        return None
    full = table.get(math, 0)
    # Of two accumulators only the wide one is halved; `half` halves both.
    return halve(full, math, device.tensor_rate) if accumulate == "fp32" or device.tensor_rate == "half" else full


def halve(full: int, math: str, tensor_rate: str) -> float:
    """Of the full rate in format `math`, accumulating in fp32 (int32), what a product line keeps."""
    if tensor_rate == "half":
        return full / 2
    return full / 2 if tensor_rate == "half-accumulate" and math in HALVED_BY_ACCUMULATION else full
