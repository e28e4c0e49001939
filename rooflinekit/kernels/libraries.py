"""Which libraries a device has, by its vendor, and which of their algorithms exist on it.

A vendor is a file with a record of `algorithms.Libraries`, as `cudnn`, `miopen` and `onednn` are, and a line here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rooflinekit.hardware.device import Device, has_dot_products, on_tensor_core
from rooflinekit.ir.op import Math
from rooflinekit.kernels import cudnn, miopen, onednn
from rooflinekit.kernels.algorithms import Algorithm, Libraries

OF_GPUS: dict[str, Libraries] = {"NVIDIA": cudnn.LIBRARIES, "AMD": miopen.LIBRARIES}
OF_CPUS = onednn.LIBRARIES
#: Of GPUs of other vendors: NVIDIA's, but that nothing says that theirs run recurrent layers side by side.
STAND_IN = replace(cudnn.LIBRARIES, side_by_side=False)


def every_library() -> Collection[Libraries]:
    """The libraries of all vendors and CPUs, NVIDIA's first."""
    first, *others = OF_GPUS.values()
    return first, OF_CPUS, *others


def libraries_of(device: Device) -> Libraries:
    """What runs a device's products, convolutions and recurrent layers."""
    return OF_CPUS if device.kind == "cpu" else OF_GPUS.get(device.vendor, STAND_IN)


def rated_as(device: Device) -> str:
    """Whose constants a device's convolutions have: MIOpen's, or cuDNN's, which stand in for oneDNN's too."""
    return libraries_of(device).rates


def stand_in_note(device: Device) -> str:
    """That another vendor's libraries stand in for the device's own, which are not known; "" where they are."""
    libraries = libraries_of(device)
    if libraries is not STAND_IN:
        return ""
    return f"the libraries of {device.vendor} are not known: algorithms are those of {', '.join(libraries.names)}"


def formats_channels_last(device: Device) -> Collection[str]:
    """The formats that a device multiplies on tensor cores, and whose convolutions want channels last there."""
    return device.matrix_peak if libraries_of(device).channels_last else ()


def exists(algorithm: Algorithm, math: Math, device: Device) -> bool:
    """Whether a device has an algorithm in this arithmetic; sums of 16 bits on CUDA cores need dot products."""
    libraries = libraries_of(device)
    if algorithm.library not in ("", *libraries.names) or (algorithm.formats and math not in algorithm.formats):
        return False
    if algorithm.generation not in ("", libraries.generation(device)):
        return False
    if algorithm.needs_tensor_cores and not on_tensor_core(device, math):
        return False
    if algorithm.instead_of_tensor_cores and on_tensor_core(device, math):
        return False
    return not algorithm.needs_dot_products or math is not Math.FP16 or has_dot_products(device)
