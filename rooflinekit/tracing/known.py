"""What is known of a tensor's numbers, though a trace has none: answers, and how many elements of a mask are true.

A model that looks whether its numbers are finite is told that they are: what it does where they overflow is not the
step to predict. Packed sequences know how many of them there are at each step. A choice of k of n experts makes a mask
of which each token has k: `topk` names k of n places, and over all tokens each place is taken as often as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rooflinekit.tracing.tensors import expression


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a mask's elements is true: `part` of `whole`.

    `dim` is that of the places among which was chosen; where one of them was taken out, `slot` is its number.
    """

    part: int
    whole: int
    dim: int | None = None
    slot: int | None = None

    def count(self, elements: Any) -> Any:
        """How many are true; those of all slots together are exact."""
        if self.slot is None:
            return -(-elements * self.part // self.whole)
        return _even_part(elements * self.part, self.whole, self.slot)


def _even_part(total: Any, places: int, place: int) -> Any:
    """What one of so many places gets of a total that is shared out among them, in whole numbers."""
    return (place + 1) * total // places - place * total // places


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts of one tensor; None for what is not known."""

    every: Any = None  # what every element is, or how a test of them all comes out
    on_cpu: bool = False  # whether the GPU has no part in that: nobody waits for it
    choice: int | None = None  # among how many places its elements, indices, name one
    share: Share | None = None  # which part of a mask is true
    elements: tuple[Any, ...] | None = None  # of a small tensor, in nested tuples
    end: Any = None  # of indices that count up by one: the number behind the last
    trues: Any = None  # of how many elements this number counts the true ones
    asks: str = ""  # whether such a number was compared with "all" that there are, or tells whether there are "any"


_KNOWN = "_rooflinekit_known"  # attribute of a tensor
_NOTHING = Known()


def known_of(tensor: Any) -> Known:
    """Known facts of a tensor; none for anything else."""
    known: Known = getattr(tensor, _KNOWN, _NOTHING)
    return known


def tell(tensor: Any, **facts: Any) -> None:
    """Notes further facts; None tells nothing."""
    told = {name: fact for name, fact in facts.items() if fact is not None}
    if told:
        setattr(tensor, _KNOWN, replace(known_of(tensor), **told))


# What others ask, and tell.


#: Operators that take one number off the GPU; what is known of a tensor that is compared is how that comes out.
NUMBERS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
_TESTS: dict[Callable[..., Any], bool] = {
    **dict.fromkeys((torch.isfinite, torch.Tensor.isfinite), True),
    **dict.fromkeys((torch.isnan, torch.Tensor.isnan, torch.isinf, torch.Tensor.isinf), False),
}
_ALIKE = {torch.all, torch.Tensor.all, torch.any, torch.Tensor.any}
_OPPOSITE = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__}


def note_answer(function: Callable[..., Any], args: Sequence[Any], output: Any) -> None:
    """Notes on the result of a test of finiteness, and on what is derived from it, how it comes out."""
    known = known_of(args[0]) if args else _NOTHING
    if function in _TESTS:
        tell(output, every=_TESTS[function])
    elif function is torch.Tensor.__getitem__ and isinstance(output, torch.Tensor):
        tell(output, every=known.every, on_cpu=known.on_cpu or None)
    elif function in _ALIKE | _OPPOSITE and isinstance(known.every, int | float):
        tell(output, every=bool(known.every) is (function in _ALIKE))


def on_cpu(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether it asks for a number that is known, and never was on the GPU."""
    return function in NUMBERS and known_of(args[0]).on_cpu


def known_number(tensor: torch.Tensor | None) -> Any:
    """The only element of a tensor, where that is known; else None."""
    elements = pytree.tree_leaves(known_of(tensor).elements or ())
    return elements[0] if len(elements) == 1 else None


# What operators make of it: each function tells what is known of the results of those that stand above it.


_aten = torch.ops.aten
_WHOLE = {  # keep every element, wherever it then stands
    *(_aten._to_copy.default, _aten.clone.default, _aten.detach.default, _aten.alias.default, _aten.expand.default),
    *(_aten.unsqueeze.default, _aten.view.default, _aten._unsafe_view.default, _aten.permute.default, _aten.t.default),
}
_Follow = Callable[[Sequence[Any], Any], None]
_FOLLOWING: dict[Any, _Follow] = {
    _aten.topk.default: lambda args, output: _among(args[0], args[2] if len(args) > 2 else -1, output[1]),
    _aten.argmax.default: lambda args, output: _among(args[0], args[1] if len(args) > 1 else None, output),
    _aten.max.dim: lambda args, output: _among(args[0], args[1], output[1]),
    _aten.multinomial.default: lambda args, output: _among(args[0], -1, output),
}


def note(function: Any, args: Sequence[Any], output: Any) -> None:
    """Notes on an operator's result what follows from what is known of its arguments."""
    follow = _FOLLOWING.get(function)
    if follow is not None:
        follow(args, output)
        if function in _WHOLE:
            tell(output, end=known_of(args[0]).end)


def _after(*functions: Any) -> Callable[[_Follow], _Follow]:
    def register(follow: _Follow) -> _Follow:
        _FOLLOWING.update(dict.fromkeys(functions, follow))
        return follow

    return register


def _among(source: torch.Tensor, dim: int | None, indices: torch.Tensor) -> None:
    """Indices along a dimension of the source; of all its elements where that is None."""
    number = source.shape[dim] if source.dim() and dim is not None else None
    tell(indices, choice=number if isinstance(number, int) else None)


# --- masks of choices ---------------------------------------------------------------------------------------------


@_after(_aten.eq.Scalar, _aten.eq.Tensor)
def _equal(args: Sequence[Any], output: Any) -> None:
    known, other = known_of(args[0]), args[1]
    number = known.choice
    if known.trues is not None and expression(known.trues) == expression(other):
        tell(output, asks="all")
    if number is not None and type(other) is int and 0 <= other < number:
        tell(output, share=Share(1, number, None, other))
    elif number is not None and isinstance(other, torch.Tensor):
        sizes = (other.numel(), *other.shape[-1:])
        if other.dim() and all(expression(size) == number for size in sizes):  # beside 0, 1, 2 …
            tell(output, share=Share(1, number, output.dim() - 1))
    elif type(other) is int and other == 1:
        _same(args, output)


@_after(_aten.ne.Scalar, _aten.gt.Scalar)
def _against_zero(args: Sequence[Any], output: Any) -> None:
    if type(args[1]) in (int, float) and args[1] == 0:
        _same(args, output)
        tell(output, asks="any" if known_of(args[0]).trues is not None else None)


@_after(*(way for one in (_aten.scatter, _aten.scatter_) for way in (one.value, one.src)))
def _scattered(args: Sequence[Any], output: Any) -> None:
    """Ones where indices of a choice name them, in zeros."""
    target, dim, index = args[:3]
    number = known_of(index).choice
    if number is None or not target.dim() or expression(target.shape[dim]) != number:
        return
    if isinstance(index.shape[dim], int):
        tell(output, share=Share(min(index.shape[dim], number), number, dim % target.dim()))


# --- what keeps it ----------------------------------------------------------------------------------------------


@_after(_aten._to_copy.default, _aten.clone.default, _aten.detach.default, _aten.alias.default)
def _same(args: Sequence[Any], output: Any) -> None:
    known = known_of(args[0])
    tell(output, choice=known.choice, share=known.share, elements=known.elements)


@_after(*(_aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.expand.default, _aten.unsqueeze.default))
def _viewed(args: Sequence[Any], output: Any) -> None:
    """Elements by other dimensions: the places are where there are as many, as far from each other in memory."""
    source, known = args[0], known_of(args[0])
    share = known.share
    if share is not None and share.dim is not None:
        place = expression(source.shape[share.dim]), expression(source.stride(share.dim))
        dims = [(expression(size), expression(far)) for size, far in zip(output.shape, output.stride(), strict=True)]
        share = replace(share, dim=dims.index(place) if place in dims else None)
    tell(output, choice=known.choice, share=share)


@_after(_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
def _counting(args: Sequence[Any], output: Any) -> None:
    if args[2:] in ((), (1,)) and not output.is_floating_point():
        tell(output, end=args[min(len(args), 2) - 1])


@_after(_aten.add.Tensor)
def _moved(args: Sequence[Any], output: Any) -> None:
    end, by = known_of(args[0]).end, args[1]
    if end is not None and isinstance(by, int | torch.SymInt):
        tell(output, end=end + by)


@_after(_aten.view.default, _aten._unsafe_view.default, _aten.squeeze.dim, _aten.squeeze.default)
def _reshaped(args: Sequence[Any], output: Any) -> None:
    _viewed(args, output)
    elements = known_of(args[0]).elements
    if elements is not None and output.dim() == 1:
        tell(output, elements=tuple(pytree.tree_leaves(elements)))


@_after(_aten.select.int)
def _selected(args: Sequence[Any], output: Any) -> None:
    source, dim, index = args[:3]
    dim %= source.dim()
    known = known_of(source)
    if known.elements is not None and dim == 0 and type(index) is int:
        one = known.elements[index]
        tell(output, **{"elements" if isinstance(one, tuple) else "every": one})
    if known.share is not None and dim == known.share.dim:
        tell(output, share=replace(known.share, dim=None, slot=index if type(index) is int else None))
    else:
        _viewed(args, output)


@_after(_aten.unbind.int)
def _unbound(args: Sequence[Any], output: Any) -> None:
    source, dim = args[0], args[1] if len(args) > 1 else 0
    elements = known_of(source).elements
    if elements is not None and dim % source.dim() == 1:  # rows of one element
        tell(output[0], elements=tuple(pytree.tree_leaves(elements)))
        return
    for index, one in enumerate(output):
        _selected((source, dim, index), one)


@_after(_aten.slice.Tensor)
def _sliced(args: Sequence[Any], output: Any) -> None:
    """A part along one dimension."""
    _viewed(args, output)
    dim, bounds = args[1] if len(args) > 1 else 0, [*args[2:], None, None, None][:3]
    elements = known_of(args[0]).elements
    if elements is not None and dim % args[0].dim() == 0 and all(type(one) in (int, type(None)) for one in bounds):
        tell(output, elements=elements[slice(*bounds)])


@_after(_aten.index.Tensor)
def _picked(args: Sequence[Any], output: Any) -> None:
    """A row of a mask over places, by a tensor that holds its number."""
    source, indices = args[:2]
    share, number = known_of(source).share, known_number(indices[0]) if len(indices) == 1 else None
    if share is not None and share.dim == 0 and type(number) is int:
        tell(output, share=replace(share, dim=None, slot=number))


@_after(_aten.nonzero.default)
def _hits(args: Sequence[Any], output: Any) -> None:
    """Which rows of a mask over places it names, [rows, 1]: spread evenly."""
    mask, rows = args[0], output.shape[0]
    share = known_of(mask).share
    if share is not None and mask.dim() == 1 and share.dim == 0 and isinstance(rows, int) and rows > 0:
        places = int(mask.shape[0])  # those slots that get one, where there are too few for all
        tell(output, elements=tuple((-(-(row + 1) * places // rows) - 1,) for row in range(rows)))


# --- numbers of true elements -----------------------------------------------------------------------------------


@_after(_aten.sum.dim_IntList, _aten.sum.default, _aten.amax.default, _aten.any.dim, _aten.any.default, _aten.any.dims)
def _summed(args: Sequence[Any], output: Any) -> None:
    """A sum, maximum or `any` over some dimensions."""
    share, source = known_of(args[0]).share, args[0]
    if source.dtype is torch.bool and output.dim() == 0:
        tell(output, trues=source.numel())
    if share is None:
        return
    given = args[1] if len(args) > 1 else None
    given = [given] if isinstance(given, int) else list(given or range(source.dim()))
    dims = {dim % source.dim() for dim in given}
    if len(dims) == source.dim():
        count = share.count(source.numel())
        some = count > 0 if isinstance(count, int) else True
        tell(output, every=None if output.dim() else some if output.dtype is torch.bool else count)
        return
    if share.dim is not None and share.dim not in dims and source.dim() - len(dims) == 1 and output.dim() == 1:
        total = source.numel() * share.part // share.whole
        if output.dtype is not torch.bool:
            tell(output, elements=_evenly(total, share.whole))
    part: Any = share.part
    for dim in dims:
        part = part * (share.whole if dim == share.dim else source.shape[dim])
    part = min(part, share.whole) if isinstance(part, int) else share.whole
    left = [dim for dim in range(source.dim()) if dim not in dims]
    kept = left.index(share.dim) if share.dim in left and output.dim() == len(left) else None
    tell(output, share=replace(share, part=part, dim=kept))


def _evenly(total: Any, places: int) -> tuple[Any, ...]:
    return tuple(_even_part(total, places, place) for place in range(places))


@_after(_aten.bincount.default, _aten.histc.default)
def _counted(args: Sequence[Any], output: Any) -> None:
    """How often each place was chosen."""
    number = known_of(args[0]).choice
    if number is not None and isinstance(output.shape[0], int) and output.shape[0] == number:
        tell(output, elements=_evenly(args[0].numel(), number))


@_after(_aten.cumsum.default)
def _running(args: Sequence[Any], output: Any) -> None:
    elements = known_of(args[0]).elements
    if elements is not None and not isinstance(elements[0], tuple):
        tell(output, elements=tuple(accumulate(elements)))
