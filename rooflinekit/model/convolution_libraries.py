"""Which library has which algorithm of a convolution, in which format and on which GPU."""

from __future__ import annotations

from typing import Protocol

from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math
from rooflinekit.model.convolution_forms import CUDNN, FEWER_FLOP, IN_PASSES, NAIVE, library_of
from rooflinekit.model.engines import has_dot_products, on_engine

GCN, RDNA = "GCN", "RDNA"  # generations of AMD's GPUs; CDNA goes on from GCN


class Algorithm(Protocol):
    """What tells where an algorithm exists."""

    @property
    def library(self) -> str:
        """That has it; "" for every one."""

    @property
    def generation(self) -> str:
        """Of the GPUs that alone have it; "" for all."""

    @property
    def formats(self) -> tuple[Math, ...]:
        """It exists in; none for all."""

    @property
    def lanes(self) -> bool:
        """Whether it is for the vector lanes alone."""

    @property
    def algorithm(self) -> str:
        """Its name; "" for products as they are."""


def runs(algorithm: Algorithm, math: Math, device: Device) -> bool:
    """Whether a device's library has an algorithm in this arithmetic.

    cuDNN takes the lanes where no matrix engine has the format. Sums of 16 bits on lanes need dot products. On a CPU
    PyTorch asks for oneDNN's direct algorithm alone (aten/src/ATen/native/mkldnn/Conv.cpp).
    """
    if algorithm.generation not in ("", generation_of(device)):
        return False
    fewer = device.kind == "cpu" and algorithm.algorithm in FEWER_FLOP
    unknown = algorithm.formats and math not in algorithm.formats
    if fewer or unknown or algorithm.library not in ("", library_of(device)):
        return False
    if not algorithm.lanes or not algorithm.formats:
        return True
    if algorithm.library == CUDNN:
        return not on_engine(device, math)
    return math is not Math.FP16 or algorithm.algorithm in (NAIVE, IN_PASSES) or has_dot_products(device)


def generation_of(device: Device) -> str:
    """Which of AMD's instruction sets a GPU has, as MIOpen's assembly is written for one of them; "" for all others."""
    target = device.compute_capability or ""
    return "" if library_of(device) == CUDNN else GCN if target.startswith("gfx9") else RDNA
