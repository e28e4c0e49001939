"""One operator: what it is, where it comes from, what it touches, and what it costs."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.sizes import Size, product

# Number formats and tensors as a kernel sees them.


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
    def sixteen_bits(self) -> bool:
        """Whether an element has 16 bits."""
        return self.itemsize == 2

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
    dtype: max(1, int((re.findall(r"\d+", dtype) or [8])[0]) // 8) for dtype in DType
}  # of the bits in its name


class Math(StrEnum):
    """How arithmetic is done, as devices state peaks: float32 tensors, for one, are multiplied as tf32 or as fp32."""

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

    @property
    def channels_last(self) -> bool:
        """Whether the channels of an image's pixel lie next to each other."""
        return self.stride is not None and bool(self.stride[1] == 1)

    def seen(self, *shape: Size, mark: str = "seen") -> TensorSpec:
        """Its memory in another shape, contiguous, with a mark behind its name."""
        return replace(self, name=f"{self.name}.{mark}", shape=shape, stride=None, storage=self.memory)


def memories(specs: Iterable[TensorSpec]) -> set[str]:
    """Names of the memory behind tensors."""
    return {spec.memory for spec in specs}


def nothing() -> Mapping[str, Any]:
    """An empty mapping that cannot be changed."""
    return MappingProxyType({})


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Records are full of read-only mappings, and go to other processes and into caches.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


#: Namespace of what a strategy puts into a step: collectives, waits, ends of compiled graphs. torch.compile fuses
#: nothing across them.
ADDED = "rooflinekit."

#: Attribute of an op that PyTorch runs by itself even where torch.compile makes the kernels around it.
EAGER = "eager"

#: Attribute of a compiled kernel: memory that it writes, with all over which it may write that.
IN_PLACE = "in place"


class Phase(StrEnum):
    """Which part of a step an op belongs to. The loss is part of the forward phase."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Family(StrEnum):
    """Kinds of kernels that behave alike, on the GPU and in the CPU's work to issue them."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    OPTIMIZER = "optimizer"
    VIEW = "view"  # launches nothing


#: Those that multiply matrices.
OF_PRODUCTS = (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENCE)


class Basis(StrEnum):
    """What a cost rests on: a rule, a default, or that the op launches nothing."""

    RULE = "rule"  # a rule written for this op
    FREE = "free"  # registered by name as costing nothing: views, bookkeeping
    DEFAULT = "default"  # no rule: compulsory traffic, one FLOP an element


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator as dispatched: what it is, where it comes from, what it reads and writes."""

    name: str  # unique in its graph
    kind: str  # "aten.convolution": namespace and operator, without overload
    module: str = ""  # "layer1.0.conv1": path of the module that called it; "" for the root
    phase: Phase = Phase.FORWARD
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=nothing)  # every argument by schema name, defaults included

    @property
    def read(self) -> set[str]:
        """Memory that it reads."""
        return memories(self.inputs)

    @property
    def made(self) -> set[str]:
        """Memory that it writes."""
        return memories(self.outputs)

    def signature(self) -> tuple[object, ...]:
        """What its cost can depend on: equal for ops that cost the same."""

        tensors = (*self.inputs, *self.outputs)
        names = [tensor.name for tensor in tensors]
        memories = [tensor.memory for tensor in tensors]
        return (
            self.kind,
            len(self.inputs),
            tuple((tensor.shape, tensor.dtype, tensor.stride) for tensor in tensors),
            # which of them are the same tensor, and which share memory
            tuple(map(names.index, names)),
            tuple(map(memories.index, memories)),
            tuple((name, attr_key(value)) for name, value in self.attrs.items()),
        )


def attr_key(value: Any) -> object:
    """What an argument of an op is known by: equal for those with which it does the same."""
    if isinstance(value, TensorSpec):
        return (value.shape, value.dtype, value.stride)
    if isinstance(value, list | tuple):
        return tuple(map(attr_key, value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return type(value), value  # 2, 2.0 and True are equal, and make different tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOp:
    """An op with its cost: one `Cost` for each kernel that eager execution launches, none for a free op."""

    op: Op
    costs: tuple[Cost, ...]
    basis: Basis
    timed_as: Family = Family.ELEMENTWISE

    @property
    def family(self) -> Family:
        """The family that it is timed as; a view where it launches nothing."""
        return self.timed_as if self.costs else Family.VIEW
