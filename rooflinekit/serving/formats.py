"""Number formats of weights and of the cache of keys and values, and the bytes that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.tensor import DType

#: Weights of 4 bits that share a scale (GPTQ and AWQ as published; also the group of aiconfigurator's int4_wo).
GROUP = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the matrices of layers are stored and multiplied; embedding and output matrix stay in 16 bits.

    bits: of a number. activations: format in which they are multiplied. dynamic: the scale of the activations is found
    anew in each step, where it is otherwise fixed. weight_only: weights become numbers of 16 bits in the product.
    """

    bits: int
    stored: DType
    activations: DType
    dynamic: bool = False
    weight_only: bool = False

    @property
    def eight_bits(self) -> bool:
        """Whether both factors of the product have 8 bits."""
        return self.activations.itemsize == 1

    @property
    def outside(self) -> DType:
        """The format of everything but the products."""
        return DType.BFLOAT16 if self.eight_bits else self.activations

    def scale_shape(self, n: int, k: int) -> tuple[int, ...]:
        """Scales of an [n, k] matrix: one in all, one a row, or one a group of 128 in a row; () for none."""
        if self.bits == 16:
            return ()
        if not self.weight_only:
            return (1,)
        return (n,) if self.bits == 8 else (n, -(-k // GROUP))

    def weight_bytes(self, n: int, k: int) -> int:
        """Bytes of an [n, k] matrix with its scales: of 2 bytes in weight-only formats, else of 4."""
        scales = 1
        for size in self.scale_shape(n, k):
            scales *= size
        return n * k * self.bits // 8 + (scales * (2 if self.weight_only else 4) if self.bits < 16 else 0)


_BF16, _FP16, _FP8 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3FN

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "bf16": WeightFormat(bits=16, stored=_BF16, activations=_BF16),
        "fp16": WeightFormat(bits=16, stored=_FP16, activations=_FP16),
        "fp8": WeightFormat(bits=8, stored=_FP8, activations=_FP8),
        "fp8-dynamic": WeightFormat(bits=8, stored=_FP8, activations=_FP8, dynamic=True),
        "int8": WeightFormat(bits=8, stored=DType.INT8, activations=_BF16, weight_only=True),
        "int4": WeightFormat(bits=4, stored=DType.UINT8, activations=_BF16, weight_only=True),
    }
)
KV_FORMATS: Mapping[str, DType] = MappingProxyType({"bf16": _BF16, "fp16": _FP16, "fp8": _FP8})

_Format = TypeVar("_Format")


def check_format(what: str, name: str, known: Mapping[str, _Format]) -> _Format:
    """The format of this name; raises InputError for another word."""
    if name not in known:
        raise InputError(f"{what} {name!r}: expected {', '.join(known)}{nearest(str(name), known)}")
    return known[name]
