"""Remembers what an operator returns for arguments of given sizes and formats.

Networks repeat themselves: most ops of a trace have been seen before with tensors of the same shape. torch's own shape
functions take 50 µs to some milliseconds an op; making a fake tensor of known sizes takes 10 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rooflinekit.ir.tensor import TensorSpec

_CPU = torch.device("cpu")

# What these return depends on the numbers in their tensors.
_UNPREDICTABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)


@functools.cache
def _repeatable(function: torch._ops.OpOverload) -> bool:
    """Whether it returns new tensors only, and always of the same sizes for arguments of the same sizes."""
    returns = function._schema.returns
    new = all(r.alias_info is None and str(r.type) == "Tensor" for r in returns)
    return bool(returns) and new and not any(tag in function.tags for tag in _UNPREDICTABLE)


@dataclass(frozen=True, slots=True)
class _Made:
    """Sizes and format of a returned tensor."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype


def fake_like(mode: FakeTensorMode, shape: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype) -> FakeTensor:
    """A fake tensor of these sizes and strides, without going through torch's dispatcher."""
    with torch._C._DisableTorchDispatch():
        empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, empty, _CPU)


class OpMemory:
    """Calls operators, and answers from memory where it can."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._made: dict[object, tuple[_Made, ...]] = {}

    def call(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """The operator's result. `attrs` are its arguments as they stand in `Op.attrs`."""
        if function in _LIKE_ARGUMENTS:
            return tuple(map(self._like, _LIKE_ARGUMENTS[function](args)))
        if not _repeatable(function):
            return function(*args, **kwargs)
        key = (function, tuple(map(_key, attrs.values())))
        made = self._made.get(key)
        if made is None and function in _OWN_SHAPES:
            made = self._made[key] = _OWN_SHAPES[function](*args, **kwargs)
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
            return fake_like(self._mode, (0,), (1,), torch.float32)
        return fake_like(self._mode, model.shape, model.stride(), model.dtype)


def _described(outputs: Sequence[Any]) -> tuple[_Made, ...] | None:
    """How to make such tensors again; None for anything out of the ordinary."""
    found = []
    for tensor in outputs:
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.fake_device != _CPU:
            return None
        if not isinstance(tensor.storage_offset(), int) or tensor.storage_offset() != 0 or tensor.constant is not None:
            return None
        found.append(_Made(tuple(tensor.shape), tensor.stride(), tensor.dtype))
    return tuple(found)


def _contiguous(shape: Sequence[Any], dtype: torch.dtype) -> _Made:
    """A dense tensor, row by row; products of open sizes ask nothing about them."""
    stride: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step = step * size
    return _Made(tuple(shape), tuple(stride), dtype)


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[_Made, ...]:
    """torch finds this by running a decomposition of twenty ops, 6 ms for each new shape."""
    channels = (x.shape[1],) if training else (0,)
    statistics = torch.float64 if x.dtype is torch.float64 else torch.float32
    saved = _Made(channels, (1,), statistics)
    return _Made(tuple(x.shape), x.stride(), x.dtype), saved, saved


def _constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> tuple[_Made, ...]:
    """torch's way forces every open size to its example. `pad` begins with the last dimension."""
    shape: list[Any] = list(x.shape)
    for i in range(len(pad) // 2):
        shape[-1 - i] = shape[-1 - i] + pad[2 * i] + pad[2 * i + 1]
    return (_contiguous(shape, x.dtype),)


#: Operators whose results are plainer than torch's way to them.
_OWN_SHAPES: dict[Any, Callable[..., tuple[_Made, ...]]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.constant_pad_nd.default: _constant_pad,
}

#: Operators that torch cannot run on fake tensors: their results are like these of their arguments.
_LIKE_ARGUMENTS: dict[Any, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    # input, weights, stride, buffer, hidden state, cell state
    torch.ops.aten._cudnn_rnn_backward.default: lambda args: (args[0], args[4], args[5], list(args[1])),
}


def _key(value: Any) -> object:
    if isinstance(value, TensorSpec):
        return (value.shape, value.stride, value.dtype)
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    # 2, 2.0 and True are equal, and make different tensors
    return (type(value), value)
