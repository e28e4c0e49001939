"""Numbers of small tensors that follow from the model's own constants: worked out beside the trace, for whoever asks.

Tables of sizes, solvers' points in time and lists of special tokens are made of constants by a few operators. These run
once more on the constants themselves, so that code that looks at them finds what a step would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from rooflinekit.tracing.dispatched import placed, schema_of
from rooflinekit.tracing.tensors import tensors_in

_VALUES = "_rooflinekit_values"
_MOST = 4096  # numbers of a tensor that is followed
_aten = torch.ops.aten
#: What stands in their results is whatever the memory held.
_EMPTY = {
    *(_aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default),
    *(_aten.new_empty_strided.default, _aten.empty_permuted.default),
}


def keep(fake: torch.Tensor, tensor: torch.Tensor) -> None:
    """Notes the numbers of a small tensor that is no parameter on the fake one in its place."""
    if not isinstance(tensor, nn.Parameter) and _readable(tensor):
        setattr(fake, _VALUES, _copy(tensor).to(fake.dtype))


def _readable(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_meta and _small(tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily():
        return tensor.detach().to("cpu", copy=True)


def _small(tensor: torch.Tensor) -> bool:
    numbers = tensor.numel()
    return isinstance(numbers, int) and numbers <= _MOST


class Values:
    """What is known of the tensors of one trace."""

    def __init__(self) -> None:
        self._spoilt: dict[int, Any] = {}  # identity of memory in which something unknown was written → that memory

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's numbers; None where they are not known."""
        if not isinstance(tensor, FakeTensor):
            return _copy(tensor) if _readable(tensor) else None
        known: torch.Tensor | None = getattr(tensor, _VALUES, None)
        return None if known is None or known.untyped_storage()._cdata in self._spoilt else known

    def number(self, tensor: torch.Tensor) -> Any:
        """The only number of a tensor, where that is known; else None."""
        known = self.of(tensor)
        if known is None or known.numel() != 1:
            return None
        with unset_fake_temporarily():
            return known.item()

    def alike(self, first: torch.Tensor, second: torch.Tensor) -> bool | None:
        """Whether two tensors are equal, where that is known; else None."""
        one, other = self.of(first), self.of(second)
        if one is None or other is None:
            return None
        with unset_fake_temporarily():
            return torch.equal(one, other)

    def trues(self, mask: torch.Tensor) -> int | None:
        """How many elements are not zero, where that is known; else None."""
        known = self.of(mask)
        if known is None:
            return None
        with unset_fake_temporarily():
            return int(known.count_nonzero())

    def result(
        self, function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = ()
    ) -> Any:
        """What an operator makes of its arguments' numbers; None where these are not known, or `out` is large."""
        if function in _EMPTY or torch.Tag.nondeterministic_seeded in function.tags or function.namespace != "aten":
            return None
        if not all(_small(fake) for _, fake in placed(out)):
            return None
        try:
            mine = self._mine(args)
            named = {name: self._mine(value) for name, value in kwargs.items()}
            if "device" in named:
                named["device"] = "cpu"
            with unset_fake_temporarily(), torch.no_grad():
                return function(*mine, **named)
        except (_UnknownError, RuntimeError, TypeError, ValueError, IndexError):
            return None

    def follow(self, function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Notes on an operator's result what its arguments' numbers make of it."""
        known = self.result(function, args, kwargs, out)
        if known is None:
            for target in tensors_in([args[i] for i in schema_of(function)[2] if i < len(args)]):
                if (spoilt := getattr(target, _VALUES, None)) is not None:
                    self._spoilt[spoilt.untyped_storage()._cdata] = spoilt
            return
        real = dict(placed(known))
        for place, fake in placed(out):
            if place in real and tuple(real[place].shape) == tuple(fake.shape):
                setattr(fake, _VALUES, real[place])

    def _mine(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise _UnknownError
            return known
        if isinstance(value, list | tuple):
            return [self._mine(one) for one in value]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _UnknownError
        return value


class _UnknownError(Exception):
    """A number on which the result hangs is not known."""
