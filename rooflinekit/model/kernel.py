"""A kernel, and the op that launches it: what the time model is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tensor import Math
from rooflinekit.model.reuse import Reuse
from rooflinekit.model.rows import NO_ROWS, Rows


class Family(StrEnum):
    """Kinds of kernels that behave alike, on the GPU and in the CPU's work to issue them."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    OPTIMIZER = "optimizer"
    VIEW = "view"  # launches nothing


#: Under which name the residuals of a family are kept; element-wise where no other is named. Products of 8 bits, which
#: libraries tune apart, have one of their own.
_SPREAD_FAMILIES = {
    Family.MATMUL: "product",
    Family.CONVOLUTION: "convolution",
    Family.ATTENTION: "attention",
    Family.NORMALIZATION: "normalization",
    Family.REDUCTION: "softmax",
}
_EIGHT_BITS = (Math.FP8, Math.INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch: what it computes in which arithmetic, and its traffic. All sizes are numbers."""

    name: str  # of its op, with the part of it: "convolution_3: input gradient"
    kind: str
    family: Family
    module: str
    phase: Phase
    math: Math
    engine: bool  # whether its products can use the matrix engine
    cost: Cost
    algorithm: str = ""  # where it is not the plain one: "Winograd"
    alternatives: tuple[Kernel, ...] = ()  # the same work by other algorithms
    pointwise: bool = False  # a convolution of one pixel: a product without gathering windows
    rows: Rows = NO_ROWS
    reread_bytes: int = 0  # of what it reads twice: first for statistics over the whole tensor
    recent: tuple[Reuse, ...] = ()  # of what it reads: touched by the kernels before it

    @property
    def spread_family(self) -> str:
        """The family of measurements that tells how far predictions of such kernels are off."""
        if self.family is Family.MATMUL and self.math in _EIGHT_BITS:
            return "quantized product"
        return _SPREAD_FAMILIES.get(self.family, "elementwise")

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOP/byte; None for a kernel that moves nothing."""
        moved = float(self.cost.bytes)
        return float(self.cost.flop) / moved if moved else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One op as the CPU issues it, with the kernels that it launches: none for a view."""

    op: Op
    family: Family
    kernels: tuple[Kernel, ...]
