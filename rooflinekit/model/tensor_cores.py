"""Which formats a device's tensor core and its lanes multiply, by its specification."""

from __future__ import annotations

from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math


def tensor_core_peak(device: Device, math: Math) -> float | None:
    """FLOP/s of the tensor core by the datasheet, where it multiplies the format; tf32 is fp32 where it has that."""
    stands_in = device.matrix_peak.get(Math.FP32.value) if math is Math.TF32 else None
    return device.matrix_peak.get(math.value, stands_in)


def on_tensor_core(device: Device, math: Math) -> bool:
    """Whether a tensor core multiplies the format."""
    return tensor_core_peak(device, math) is not None


def has_dot_products(device: Device) -> bool:
    """Whether lanes multiply pairs of fp16 numbers and sum them in fp32: those that do so with four of int8 (AMD).

    Fused multiply-adds of two fp16 numbers alone sum in fp16, which PyTorch does not.
    """
    peaks = device.vector_peak
    half, single = peaks.get(Math.FP16.value, 0.0), peaks.get(Math.FP32.value, 0.0)
    return Math.INT8.value in peaks and half > single > 0
