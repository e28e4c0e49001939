"""Operators whose results data decide: what sizes those have, by what is assumed of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from rooflinekit.tracing.shares import note_hits
from rooflinekit.tracing.tensors import Made, broadcast, contiguous, count_of, indexed, placed, schema_of, tensors_in

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)


class Assumes(Protocol):
    """What says how many of a number of elements there are."""

    def elements(self, kind: str, most: Any, mask: torch.Tensor | None = None, *, share: Fraction | None = None) -> Any:
        """So many of at most `most`."""


def is_mask(index: Any) -> bool:
    """Whether an index is a mask of what it takes."""
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def fills(value: torch.Tensor, *, accumulate: bool) -> bool:
    """Whether what is written under a mask is one number: CUDA then fills, and need not know where."""
    return not accumulate and isinstance(value.numel(), int) and value.numel() == 1


def _nonzero(assumed: Assumes, x: torch.Tensor) -> tuple[Made, ...]:
    """One dimension after the other."""
    found = assumed.elements("nonzero", x.numel(), x)
    return (Made((found, x.dim()), (1, found), torch.int64),)


def _masked_select(assumed: Assumes, x: torch.Tensor, mask: torch.Tensor) -> tuple[Made, ...]:
    (whole,) = broadcast(x, mask)
    return (contiguous((assumed.elements("mask", count_of(whole.shape), mask),), x.dtype),)


def _index(assumed: Assumes, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[Made, ...] | None:
    if not any(map(is_mask, indices)):
        return None
    shape = indexed(x, indices, lambda mask: assumed.elements("mask", count_of(mask.shape), mask))
    return (contiguous(shape, x.dtype),)


def _unique(
    assumed: Assumes, x: torch.Tensor, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[Made, ...]:
    """Values, where each was found, and how often: both empty where they are not asked for."""
    found = (assumed.elements("unique", x.numel()),)
    places = contiguous(x.shape if inverse else (0,), torch.int64)
    return contiguous(found, x.dtype), places, contiguous(found if counts else (0,), torch.int64)


def _unique_dim(assumed: Assumes, x: torch.Tensor, dim: int, *options: Any, **named: Any) -> tuple[Made, ...]:
    shape: list[Any] = list(x.shape)
    most = shape[dim]
    shape[dim] = assumed.elements("unique", most)
    counts = contiguous((shape[dim],), torch.int64)
    return contiguous(shape, x.dtype), contiguous((most,), torch.int64), counts


def _unique_consecutive(
    assumed: Assumes, x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[Made, ...]:
    return _unique(assumed, x, True, inverse, counts) if dim is None else _unique_dim(assumed, x, dim)


def _bincount(assumed: Assumes, x: torch.Tensor, weights: Any = None, minlength: int = 0) -> tuple[Made, ...]:
    """As many as asked for at least; where nothing is asked for, one for each element."""
    bins = minlength if minlength else assumed.elements("bincount", x.numel())
    return (contiguous((bins,), torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float64)),)


def _repeats(assumed: Assumes, repeats: torch.Tensor, *, output_size: Any = None) -> tuple[Made, ...]:
    """Each element once, if nothing else is said."""
    found = output_size if output_size is not None else assumed.elements("repeats", repeats.shape[0])
    return (contiguous((found,), torch.int64),)


def _nms(assumed: Assumes, boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> tuple[Made, ...]:
    return (contiguous((assumed.elements("nms", boxes.shape[0]),), torch.int64),)


def _linear_dynamic(assumed: Assumes, x: torch.Tensor, packed: Any, *options: Any) -> tuple[Made, ...]:
    """Weights of a layer quantized for CPUs, packed: how wide it is, stands in them."""
    with torch._C._DisableTorchDispatch():
        width = packed.unpack()[0].shape[0]
    return (contiguous((*x.shape[:-1], width), x.dtype),)


def _roi_align(assumed: Assumes, x: torch.Tensor, regions: torch.Tensor, *options: Any) -> tuple[Made, ...]:
    _, height, width = options[:3]
    return (contiguous((regions.shape[0], x.shape[1], height, width), x.dtype),)


def _deform_conv2d(assumed: Assumes, x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, *options: Any) -> Any:
    return (contiguous((x.shape[0], weight.shape[0], *offset.shape[2:]), x.dtype),)


#: Of torchvision, whose compiled part may be missing.
VISION: dict[str, Callable[..., tuple[Made, ...] | None]] = {
    "nms": _nms,
    "roi_align": _roi_align,
    "deform_conv2d": _deform_conv2d,
}

DECIDED: dict[Any, Callable[..., tuple[Made, ...] | None]] = {
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten.index.Tensor: _index,
    _aten._unique2.default: _unique,
    _aten._unique.default: lambda *args, **kwargs: _unique(*args, **kwargs)[:2],
    _aten.unique_dim.default: _unique_dim,
    _aten.unique_consecutive.default: _unique_consecutive,
    _aten.unique_dim_consecutive.default: _unique_dim,
    _aten.bincount.default: _bincount,
    _aten.repeat_interleave.Tensor: _repeats,
    torch.ops.quantized.linear_dynamic.default: _linear_dynamic,
}
WRITING = {_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


def note_decided(function: Any, args: Sequence[Any], output: Any) -> None:
    """Notes on such a result what is known of its numbers."""
    if function is _aten.nonzero.default:
        note_hits(output, args[0])


# Numbers of small tensors that follow from the model's own constants: worked out beside the trace, for whoever asks.
#
# Tables of sizes, solvers' points in time and lists of special tokens are made of constants by a few operators. These
# run once more on the constants themselves, so that code that looks at them finds what a step would.


_VALUES = "_rooflinekit_values"
_MOST = 4096  # numbers of a tensor that is followed
_known_aten = torch.ops.aten
#: What stands in their results is whatever the memory held.
_EMPTY = {
    *(
        _known_aten.empty.memory_format,
        _known_aten.empty_strided.default,
        _known_aten.empty_like.default,
        _known_aten.new_empty.default,
    ),
    *(_known_aten.new_empty_strided.default, _known_aten.empty_permuted.default),
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
