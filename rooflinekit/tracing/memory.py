"""Remembers what an operator returns for arguments of given sizes and formats.

Networks repeat themselves: most ops of a trace have been seen before with tensors of the same shape. torch's own shape
functions take 50 µs to some milliseconds an op; making a fake tensor of known sizes takes 10 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rooflinekit.ir.tensor import TensorSpec
from rooflinekit.tracing.shapes import LIKE_ARGUMENTS, OWN_SHAPES, Made, contiguous

_CPU = torch.device("cpu")

# What these return depends on the numbers in their tensors.
_UNPREDICTABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)


@functools.cache
def _repeatable(function: torch._ops.OpOverload) -> bool:
    """Whether it returns new tensors only, and always of the same sizes for arguments of the same sizes."""
    returns = function._schema.returns
    new = all(r.alias_info is None and str(r.type) == "Tensor" for r in returns)
    return bool(returns) and new and not any(tag in function.tags for tag in _UNPREDICTABLE)


def fake_like(mode: FakeTensorMode, shape: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype) -> FakeTensor:
    """A fake tensor of these sizes and strides, without going through torch's dispatcher."""
    with torch._C._DisableTorchDispatch():
        empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, empty, _CPU)


class OpMemory:
    """Calls operators, and answers from memory where it can."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._made: dict[object, tuple[Made, ...]] = {}

    def call(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """The operator's result. `attrs` are its arguments as they stand in `Op.attrs`."""
        if function in LIKE_ARGUMENTS:
            return tuple(map(self._like, LIKE_ARGUMENTS[function](args)))
        if not _repeatable(function):
            return function(*args, **kwargs)
        key = (function, tuple(map(_key, attrs.values())))
        made = self._made.get(key)
        if made is None and function in OWN_SHAPES:
            made = self._made[key] = OWN_SHAPES[function](*args, **kwargs)
        if made is None:
            output = function(*args, **kwargs)
            found = _described((output,) if isinstance(output, torch.Tensor) else output)
            if found is not None:
                self._made[key] = found
            return output
        tensors = tuple(fake_like(self._mode, one.shape, one.stride, one.dtype) for one in made)
        return tensors[0] if len(function._schema.returns) == 1 else tensors

    def _like(self, model: Any) -> Any:
        if isinstance(model, list):
            return [self._like(one) for one in model]
        if model is None:
            return None
        # An expanded argument's gradient has memory of its own for every element.
        made = contiguous(model.shape, model.dtype)
        expanded = any(isinstance(step, int) and step == 0 for step in model.stride())
        return fake_like(self._mode, made.shape, made.stride if expanded else model.stride(), made.dtype)


def _described(outputs: Sequence[Any]) -> tuple[Made, ...] | None:
    """How to make such tensors again; None for anything out of the ordinary."""
    found = []
    for tensor in outputs:
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.fake_device != _CPU:
            return None
        if not isinstance(tensor.storage_offset(), int) or tensor.storage_offset() != 0 or tensor.constant is not None:
            return None
        found.append(Made(tuple(tensor.shape), tensor.stride(), tensor.dtype))
    return tuple(found)


def _key(value: Any) -> object:
    if isinstance(value, TensorSpec):
        return (value.shape, value.stride, value.dtype)
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    # 2, 2.0 and True are equal, and make different tensors
    return (type(value), value)
