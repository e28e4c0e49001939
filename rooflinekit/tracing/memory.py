"""Remembers what an operator returns for arguments of given sizes and formats.

Networks repeat themselves: most ops of a trace have been seen before with tensors of the same shape. torch's own shape
functions take 50 µs to some milliseconds an op; making a fake tensor of known sizes takes 10 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from rooflinekit.ir.op import attr_key
from rooflinekit.tracing.tensors import (
    FAKE_DEVICE,
    LIKE_ARGUMENTS,
    OWN_SHAPES,
    Made,
    contiguous,
    expanded_stride,
    is_expanded,
)

_CPU = torch.device(FAKE_DEVICE)

_EXPAND = torch.ops.aten.expand.default
_LIFT = torch.ops.aten.lift_fresh.default

# What these return depends on the numbers in their tensors.
_UNPREDICTABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)


@functools.cache
def _is_view(function: torch._ops.OpOverload) -> bool:
    """Whether it returns one tensor that shares the memory of its first argument, unchanged."""
    if function is torch.ops.aten._unsafe_view.default:  # a view that promises autograd not to be one
        return True
    first, returns = function._schema.arguments[:1], function._schema.returns
    if len(returns) != 1 or not first or str(returns[0].type) != "Tensor" or function.namespace != "aten":
        return False
    shared, given = returns[0].alias_info, first[0].alias_info
    return shared is not None and given is not None and not shared.is_write and not given.is_write


@functools.cache
def _repeatable(function: torch._ops.OpOverload) -> bool:
    """Whether it returns new tensors only, and always of the same sizes for arguments of the same sizes."""
    returns = function._schema.returns
    new = all(r.alias_info is None and str(r.type) == "Tensor" for r in returns)
    return bool(returns) and new and not any(tag in function.tags for tag in _UNPREDICTABLE)


def fake_like(mode: FakeTensorMode, made: Made) -> FakeTensor:
    """A fake tensor of these sizes and strides, without going through torch's dispatcher."""
    with torch._C._DisableTorchDispatch():
        empty = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
    return FakeTensor(mode, empty, _CPU)


class OpMemory:
    """Calls operators, and answers from memory where it can."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._made: dict[object, tuple[Made, ...]] = {}
        self._views: dict[object, tuple[Made, Any]] = {}

    def call(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """The operator's result. `attrs` are its arguments as they stand in `Op.attrs`."""
        if function is _LIFT and type(args[0]) is torch.Tensor and args[0].numel() == 0:
            # Caches begin with an empty tensor a layer; torch takes a millisecond to look for its number.
            return fake_like(self._mode, Made.like(args[0]))
        if _is_view(function):
            return self._view(function, args, kwargs, attrs)
        if function in LIKE_ARGUMENTS:
            return tuple(map(self._like, LIKE_ARGUMENTS[function](args)))
        if function not in OWN_SHAPES and not _repeatable(function):
            return function(*args, **kwargs)
        key = (function, tuple(map(attr_key, attrs.values())))
        made = self._made.get(key)
        if made is None and function in OWN_SHAPES:
            made = self._made[key] = OWN_SHAPES[function](*args, **kwargs)
        if made is None:
            output = function(*args, **kwargs)
            found = _described((output,) if isinstance(output, torch.Tensor) else output)
            if found is not None:
                self._made[key] = found
            return output
        return self.result(function, made)

    def result(self, function: torch._ops.OpOverload, made: Sequence[Made]) -> Any:
        """New tensors as an operator returns them."""
        tensors = tuple(fake_like(self._mode, one) for one in made)
        return tensors[0] if len(function._schema.returns) == 1 else tensors

    def _view(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """A view of the first argument, its place told from where that begins."""
        base = args[0]
        if not _is_plain(base):
            return function(*args, **kwargs)
        key = (function, tuple(map(attr_key, attrs.values())))
        seen = self._views.get(key)
        if seen is None:
            output = function(*args, **kwargs)
            if type(output) is FakeTensor and output.untyped_storage()._cdata == base.untyped_storage()._cdata:
                stride = expanded_stride(base, output.shape) if function is _EXPAND else output.stride()
                made = Made(tuple(output.shape), stride, output.dtype)
                seen = self._views[key] = (made, output.storage_offset() - base.storage_offset())
            if seen is None or function is not _EXPAND:
                return output
        made, further = seen
        if made.dtype is not base.dtype:
            return function(*args, **kwargs)
        offset = base.storage_offset() + further
        with in_kernel_invocation_manager(self._mode):
            view = torch.as_strided(base, made.shape, made.stride, offset)
        return FakeTensor(self._mode, view, _CPU)

    def _like(self, model: Any) -> Any:
        if isinstance(model, list):
            return [self._like(one) for one in model]
        if model is None:
            return None
        # An expanded argument's gradient has memory of its own for every element.
        return fake_like(self._mode, contiguous(model.shape, model.dtype) if is_expanded(model) else Made.like(model))


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is FakeTensor and tensor.layout is torch.strided and tensor.fake_device == _CPU


def _described(outputs: Sequence[Any]) -> tuple[Made, ...] | None:
    """How to make such tensors again; None for anything out of the ordinary."""
    found = []
    for tensor in outputs:
        if not _is_plain(tensor) or tensor.constant is not None:
            return None
        if not isinstance(tensor.storage_offset(), int) or tensor.storage_offset() != 0:
            return None
        found.append(Made.like(tensor))
    return tuple(found)
