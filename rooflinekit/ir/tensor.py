"""Number formats and tensors as a kernel sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rooflinekit.ir.sizes import Size, product


class DType(StrEnum):
    """How a number is stored. The value is torch's name without the `torch.`."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1FN_X2 = "float4_e2m1fn_x2"  # two numbers in an element
    COMPLEX128 = "complex128"
    COMPLEX64 = "complex64"
    COMPLEX32 = "complex32"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"

    @classmethod
    def _missing_(cls, value: object) -> DType | None:
        """Also a torch.dtype, and the short names that people use: `DType("bf16")`."""
        name = str(value).removeprefix("torch.").lower()
        name = _SHORT.get(name, name)
        return next((dtype for dtype in cls if dtype.value == name), None)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        """Whether it is a real floating-point format."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        """Whether an element is a pair of floating-point numbers."""
        return self.value.startswith("complex")


_SHORT = {
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32", "f32": "float32",
    "float": "float32", "fp64": "float64", "f64": "float64", "double": "float64", "long": "int64", "int": "int32",
}  # fmt: skip
_ITEMSIZE = {
    dtype: 1
    if dtype.value.startswith(("float8", "float4")) or dtype in (DType.INT8, DType.UINT8, DType.BOOL)
    else 2
    if dtype is DType.BFLOAT16
    else int(dtype.value.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
    for dtype in DType
}


class Math(StrEnum):
    """How arithmetic is done: the key under which a device states a peak.

    Storage and arithmetic differ: float32 tensors are multiplied as tf32 or as fp32.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"


class Role(StrEnum):
    """What a tensor is to the step: decides in which account its memory stands."""

    INPUT = "input"
    WEIGHT = "weight"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    STATE = "state"  # of the optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor: its sizes, format and place, without its numbers."""

    name: str
    shape: tuple[Size, ...]
    dtype: DType
    role: Role = Role.ACTIVATION
    stride: tuple[Size, ...] | None = None  # elements; None for contiguous
    storage: str = ""  # the name of the memory behind it; views of one tensor share it; "" for its own

    @property
    def numel(self) -> Size:
        """Number of elements, expanded ones counted as often as they appear."""
        return product(self.shape)

    @property
    def bytes(self) -> Size:
        """Bytes of the memory behind it: a dimension expanded with stride 0 is stored once."""
        if self.stride is None:
            return product((*self.shape, self.dtype.itemsize))
        stored = (size for size, step in zip(self.shape, self.stride, strict=True) if step != 0)
        return product((*stored, self.dtype.itemsize))

    @property
    def memory(self) -> str:
        """Name of the memory behind it: equal for views of one tensor."""
        return self.storage or self.name
