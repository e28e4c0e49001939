"""One operator: what it is, where it comes from, what it touches, and what it costs."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.tensor import TensorSpec


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


class Basis(StrEnum):
    """What a cost rests on."""

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
            tuple((name, _attr_key(value)) for name, value in self.attrs.items()),
        )


def _attr_key(value: Any) -> object:
    if isinstance(value, TensorSpec):
        return (value.shape, value.dtype, value.stride)
    if isinstance(value, list | tuple):
        return tuple(map(_attr_key, value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOp:
    """An op with its cost: one `Cost` for each kernel that eager execution launches, none for a free op."""

    op: Op
    costs: tuple[Cost, ...]
    basis: Basis
    timed_as: Family = Family.ELEMENTWISE
