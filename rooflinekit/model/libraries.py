"""Which libraries a device has, and which of their algorithms exist on it."""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math
from rooflinekit.model.algorithms import ATEN, CUBLAS, CUDNN, MIOPEN, ONEDNN, ROCBLAS, Algorithm
from rooflinekit.model.miopen import GCN, RDNA
from rooflinekit.model.tensor_cores import has_dot_products, on_tensor_core

#: Of GPUs, by vendor: products, convolutions, and PyTorch's own kernels. A vendor that is not here has the first ones.
_OF_GPUS: Mapping[str, tuple[str, ...]] = {"NVIDIA": (CUBLAS, CUDNN, ATEN), "AMD": (ROCBLAS, MIOPEN, ATEN)}
_OF_CPUS = (ONEDNN,)


def libraries_of(device: Device) -> tuple[str, ...]:
    """The libraries that run a device's products and convolutions."""
    if device.kind == "cpu":
        return _OF_CPUS
    return _OF_GPUS.get(device.vendor, _OF_GPUS["NVIDIA"])


def rated_as(device: Device) -> str:
    """Whose constants a device's convolutions have: MIOpen's, or cuDNN's, which stand in for oneDNN's too."""
    return MIOPEN if MIOPEN in libraries_of(device) else CUDNN


def stand_in_note(device: Device) -> str:
    """That another vendor's libraries stand in for the device's own, which are not known; "" where they are."""
    if device.kind == "cpu" or device.vendor in _OF_GPUS:
        return ""
    return f"the libraries of {device.vendor} are not known: algorithms are those of {', '.join(libraries_of(device))}"


def generation_of(device: Device) -> str:
    """Which of AMD's instruction sets a GPU has, as MIOpen's assembly is written for one of them; "" for all others."""
    if MIOPEN not in libraries_of(device):
        return ""
    return GCN if (device.compute_capability or "").startswith("gfx9") else RDNA


def exists(algorithm: Algorithm, math: Math, device: Device) -> bool:
    """Whether a device has an algorithm in this arithmetic.

    Sums of 16 bits on CUDA cores, which AMD calls stream processors, need dot products.
    """
    if algorithm.library not in ("", *libraries_of(device)):
        return False
    if algorithm.generation not in ("", generation_of(device)) or (algorithm.formats and math not in algorithm.formats):
        return False
    if algorithm.needs_tensor_cores and not on_tensor_core(device, math):
        return False
    if algorithm.instead_of_tensor_cores and on_tensor_core(device, math):
        return False
    return not algorithm.needs_dot_products or math is not Math.FP16 or has_dot_products(device)
