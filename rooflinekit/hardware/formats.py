"""Which number formats a device multiplies, and on which unit, by its specification."""

from __future__ import annotations

from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import Math


def vector_math(math: Math) -> Math:
    """The arithmetic that CUDA cores do for a format: fp64 for itself, fp32 for all others."""
    return Math.FP64 if math is Math.FP64 else Math.FP32


def tensor_core_peak(device: Device, math: Math) -> float | None:
    """FLOP/s of the tensor core by the datasheet, where it multiplies the format; tf32 is fp32 where it has that."""
    stands_in = device.matrix_peak.get(Math.FP32.value) if math is Math.TF32 else None
    return device.matrix_peak.get(math.value, stands_in)


def on_tensor_core(device: Device, math: Math) -> bool:
    """Whether a tensor core multiplies the format."""
    return tensor_core_peak(device, math) is not None


def has_dot_products(device: Device) -> bool:
    """Whether lanes sum products of fp16 pairs in fp32, as AMD's with int8 do; others sum in fp16, unlike PyTorch."""
    peaks = device.vector_peak
    half, single = peaks.get(Math.FP16.value, 0.0), peaks.get(Math.FP32.value, 0.0)
    return Math.INT8.value in peaks and half > single > 0
