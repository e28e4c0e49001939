"""What is known of a tensor's numbers, though a trace has none: answers, and how many elements of a mask are true.

A model that looks whether its numbers are finite is told that they are: what it does where they overflow is not the
step to predict. Packed sequences know how many of them there are at each step. A choice of k of n experts makes a mask
of which each token has k: `topk` names k of n places, and over all tokens each place is taken as often as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rooflinekit.tracing.tensors import expression

#: Attribute of a tensor of which every element is known, and the same.
_ANSWER = "_rooflinekit_answer"
#: Of such a tensor: whether the GPU has no part in it.
_ON_CPU = "_rooflinekit_on_cpu"

_TESTS: dict[Callable[..., Any], bool] = {
    **dict.fromkeys((torch.isfinite, torch.Tensor.isfinite), True),
    **dict.fromkeys((torch.isnan, torch.Tensor.isnan, torch.isinf, torch.Tensor.isinf), False),
}
#: Operators that take one number off the GPU; what is known of a tensor that is compared is how that comes out.
NUMBERS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
_ALIKE = {torch.all, torch.Tensor.all, torch.any, torch.Tensor.any}
_OPPOSITE = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__}


def note_answer(function: Callable[..., Any], args: Sequence[Any], output: Any) -> None:
    """Notes on the result of a test of finiteness, and on what is derived from it, how it comes out."""
    if function in _TESTS:
        setattr(output, _ANSWER, _TESTS[function])
    elif function is torch.Tensor.__getitem__:
        if isinstance(output, torch.Tensor) and hasattr(args[0], _ANSWER):
            note_elements(output, getattr(args[0], _ANSWER), on_cpu=getattr(args[0], _ON_CPU, False))
    elif function in _ALIKE or function in _OPPOSITE:
        known = getattr(args[0], _ANSWER, None) if args else None
        if known is not None:
            setattr(output, _ANSWER, known is (function in _ALIKE))


def note_elements(tensor: torch.Tensor, value: Any, *, on_cpu: bool = False) -> None:
    """Notes what every element of the tensor is, and whether it is on the CPU, where nobody waits for it."""
    setattr(tensor, _ANSWER, value)
    setattr(tensor, _ON_CPU, on_cpu)


def answer_of(tensor: torch.Tensor) -> Any:
    """What every element is, where that is known; else None."""
    return getattr(tensor, _ANSWER, None)


def on_cpu(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether it asks for a number that is known, and never was on the GPU."""
    return function in NUMBERS and getattr(args[0], _ON_CPU, False)


def answer(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What the operator that takes one number off the GPU returns, where that is known; None for any other."""
    return answer_of(args[0]) if function in NUMBERS else None


# How many of a mask's elements are true where a choice made it; each function says what an operator's result keeps.


_aten = torch.ops.aten


def note(function: Any, args: Sequence[Any], output: Any) -> None:
    """Notes on an operator's result what follows from what is known of its arguments."""
    follow = _FOLLOWING.get(function)
    if follow is not None:
        follow(args, output)


# --- choices ----------------------------------------------------------------------------------------------------


def _among(source: torch.Tensor, dim: int | None, indices: torch.Tensor) -> None:
    """Indices along a dimension of the source; of all its elements where that is None."""
    number = source.shape[dim] if source.dim() and dim is not None else None
    if isinstance(number, int):
        setattr(indices, CHOICE, number)


# --- masks of choices ---------------------------------------------------------------------------------------------


def _equal(args: Sequence[Any], output: Any) -> None:
    trues = getattr(args[0], TRUES, None)
    if trues is not None and expression(trues) == expression(args[1]):
        setattr(output, ASKS, "all")
    number = getattr(args[0], CHOICE, None)
    if number is not None and type(args[1]) is int and 0 <= args[1] < number:
        setattr(output, SHARE, Share(1, number, None, args[1]))
    elif number is not None and isinstance(args[1], torch.Tensor):
        sizes = (args[1].numel(), *args[1].shape[-1:])
        if args[1].dim() and all(expression(size) == number for size in sizes):  # beside 0, 1, 2 …
            setattr(output, SHARE, Share(1, number, output.dim() - 1))
    elif type(args[1]) is int and args[1] == 1:
        _same(args, output)


def _against_zero(args: Sequence[Any], output: Any) -> None:
    if type(args[1]) in (int, float) and args[1] == 0:
        _same(args, output)
        if hasattr(args[0], TRUES):
            setattr(output, ASKS, "any")


def _scattered(args: Sequence[Any], output: Any) -> None:
    """Ones where indices of a choice name them, in zeros."""
    target, dim, index = args[:3]
    number = getattr(index, CHOICE, None)
    if number is None or not target.dim() or expression(target.shape[dim]) != number:
        return
    if isinstance(index.shape[dim], int):
        setattr(output, SHARE, Share(min(index.shape[dim], number), number, dim % target.dim()))


# --- what keeps it ----------------------------------------------------------------------------------------------


def _same(args: Sequence[Any], output: Any) -> None:
    for name in (CHOICE, SHARE, ELEMENTS):
        known = getattr(args[0], name, None)
        if known is not None:
            setattr(output, name, known)


def _reshaped(args: Sequence[Any], output: Any) -> None:
    """A view of other sizes: the places stay known where they are the last dimension before and after."""
    source, share = args[0], share_of(args[0])
    places = output.shape[-1] if output.dim() else None
    kept = share is not None and isinstance(places, int) and places == share.whole
    _moved(source, output, {source.dim() - 1: output.dim() - 1} if kept else {})
    elements = getattr(source, ELEMENTS, None)
    if elements is not None and output.dim() == 1:
        setattr(output, ELEMENTS, tuple(flat(elements)))


def _permuted(args: Sequence[Any], output: Any) -> None:
    order = [dim % args[0].dim() for dim in args[1]]
    _moved(args[0], output, {old: new for new, old in enumerate(order)})


def _transposed(args: Sequence[Any], output: Any) -> None:
    rank = max(args[0].dim(), 1)
    a, b = (dim % rank for dim in (args[1:3] if len(args) > 2 else (0, rank - 1)))
    _moved(args[0], output, {**{dim: dim for dim in range(rank)}, a: b, b: a})


def _moved(source: torch.Tensor, output: torch.Tensor, new: Mapping[int, int]) -> None:
    if (number := getattr(source, CHOICE, None)) is not None:
        setattr(output, CHOICE, number)
    share = share_of(source)
    if share is not None:
        setattr(output, SHARE, replace(share, dim=None if share.dim is None else new.get(share.dim)))


def _expanded(args: Sequence[Any], output: Any) -> None:
    further = output.dim() - args[0].dim()
    _moved(args[0], output, {old: old + further for old in range(args[0].dim())})


def _widened(args: Sequence[Any], output: Any) -> None:
    dim = args[1] % output.dim()
    _moved(args[0], output, {old: old + (old >= dim) for old in range(args[0].dim())})


def _selected(args: Sequence[Any], output: Any) -> None:
    source, dim, index = args[:3]
    dim %= source.dim()
    elements = getattr(source, ELEMENTS, None)
    if elements is not None and dim == 0 and type(index) is int:
        one = elements[index]
        if isinstance(one, tuple):
            setattr(output, ELEMENTS, one)
        else:
            note_elements(output, one)
    share = share_of(source)
    if share is not None and dim == share.dim:
        setattr(output, SHARE, replace(share, dim=None, slot=index if type(index) is int else None))
    else:
        _moved(source, output, {old: old - (old > dim) for old in range(source.dim())})


def _sliced(args: Sequence[Any], output: Any) -> None:
    """A part along one dimension: of the places themselves, not all are left."""
    source, dim = args[0], args[1] if len(args) > 1 else 0
    share, whole = share_of(source), expression(output.shape[dim]) == expression(source.shape[dim])
    if share is not None and dim % source.dim() == share.dim and not whole:
        setattr(output, SHARE, replace(share, dim=None))
    else:
        _moved(source, output, {old: old for old in range(source.dim())})
    elements = getattr(source, ELEMENTS, None)
    bounds = [*args[2:], None, None, None][:3]
    if elements is not None and dim % source.dim() == 0 and all(type(one) in (int, type(None)) for one in bounds):
        setattr(output, ELEMENTS, elements[slice(*bounds)])


def _picked(args: Sequence[Any], output: Any) -> None:
    """A row of a mask over places, by a tensor that holds its number."""
    source, indices = args[:2]
    share, number = share_of(source), known_number(indices[0]) if len(indices) == 1 else None
    if share is not None and share.dim == 0 and type(number) is int:
        setattr(output, SHARE, replace(share, dim=None, slot=number))


def _unbound(args: Sequence[Any], output: Any) -> None:
    dim = args[1] if len(args) > 1 else 0
    elements = getattr(args[0], ELEMENTS, None)
    if elements is not None and dim % args[0].dim() == 1:  # rows of one element
        setattr(output[0], ELEMENTS, tuple(flat(elements)))
        return
    for index, one in enumerate(output):
        _selected((args[0], dim, index), one)


def _summed(args: Sequence[Any], output: Any) -> None:
    """A sum, maximum or `any` over some dimensions."""
    share, source = share_of(args[0]), args[0]
    if source.dtype is torch.bool and output.dim() == 0:
        setattr(output, TRUES, source.numel())
    if share is None:
        return
    given = args[1] if len(args) > 1 else None
    given = [given] if isinstance(given, int) else list(given or range(source.dim()))
    dims = {dim % source.dim() for dim in given}
    if len(dims) == source.dim():
        _known_scalar(share.count(source.numel()), output)
        return
    if share.dim is not None and share.dim not in dims and source.dim() - len(dims) == 1 and output.dim() == 1:
        total = source.numel() * share.part // share.whole
        if output.dtype is not torch.bool:
            setattr(output, ELEMENTS, _evenly(total, share.whole))
    part: Any = share.part
    for dim in dims:
        part = part * (share.whole if dim == share.dim else source.shape[dim])
    part = min(part, share.whole) if isinstance(part, int) else share.whole
    left = [dim for dim in range(source.dim()) if dim not in dims]
    kept = left.index(share.dim) if share.dim in left and output.dim() == len(left) else None
    setattr(output, SHARE, replace(share, part=part, dim=kept))


def _known_scalar(count: Any, output: torch.Tensor) -> None:
    if output.dim() == 0:
        if output.dtype is torch.bool:
            note_elements(output, count > 0 if isinstance(count, int) else True)
        else:
            note_elements(output, count)


def _evenly(total: Any, places: int) -> tuple[Any, ...]:
    """A total shared out among places, in whole numbers."""
    return tuple((place + 1) * total // places - place * total // places for place in range(places))


def _counted(args: Sequence[Any], output: Any) -> None:
    """How often each place was chosen."""
    number = getattr(args[0], CHOICE, None)
    if number is not None and isinstance(output.shape[0], int) and output.shape[0] == number:
        setattr(output, ELEMENTS, _evenly(args[0].numel(), number))


def _running(args: Sequence[Any], output: Any) -> None:
    elements = getattr(args[0], ELEMENTS, None)
    if elements is not None and not isinstance(elements[0], tuple):
        sums: list[Any] = []
        for one in elements:
            sums.append(one + (sums[-1] if sums else 0))
        setattr(output, ELEMENTS, tuple(sums))


_FOLLOWING: dict[Any, Callable[[Sequence[Any], Any], None]] = {
    _aten.topk.default: lambda args, output: _among(args[0], args[2] if len(args) > 2 else -1, output[1]),
    _aten.argmax.default: lambda args, output: _among(args[0], args[1] if len(args) > 1 else None, output),
    _aten.max.dim: lambda args, output: _among(args[0], args[1], output[1]),
    _aten.multinomial.default: lambda args, output: _among(args[0], -1, output),
    **dict.fromkeys((_aten.eq.Scalar, _aten.eq.Tensor), _equal),
    **dict.fromkeys((_aten.ne.Scalar, _aten.gt.Scalar), _against_zero),
    **dict.fromkeys((way for one in (_aten.scatter, _aten.scatter_) for way in (one.value, one.src)), _scattered),
    **dict.fromkeys((_aten._to_copy.default, _aten.clone.default, _aten.detach.default, _aten.alias.default), _same),
    **dict.fromkeys(
        (_aten.view.default, _aten._unsafe_view.default, _aten.squeeze.dim, _aten.squeeze.default), _reshaped
    ),
    _aten.expand.default: _expanded,
    _aten.permute.default: _permuted,
    _aten.transpose.int: _transposed,
    _aten.t.default: _transposed,
    _aten.unsqueeze.default: _widened,
    _aten.select.int: _selected,
    _aten.unbind.int: _unbound,
    _aten.slice.Tensor: _sliced,
    _aten.index.Tensor: _picked,
    **dict.fromkeys((_aten.sum.dim_IntList, _aten.sum.default, _aten.amax.default), _summed),
    **dict.fromkeys((_aten.any.dim, _aten.any.default, _aten.any.dims), _summed),
    **dict.fromkeys((_aten.bincount.default, _aten.histc.default), _counted),
    _aten.cumsum.default: _running,
}


# What is known of a mask's elements, noted on the tensors: of a choice, among how many; of a mask, which share of it
# is true; of a small tensor, its elements. What operators make of it is told above.


CHOICE, SHARE, ELEMENTS = "_rooflinekit_choice", "_rooflinekit_share", "_rooflinekit_elements"
TRUES, ASKS = "_rooflinekit_trues", "_rooflinekit_asks"  # of how many elements true ones are counted; "all", "any"


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
        taken = elements * self.part
        return (self.slot + 1) * taken // self.whole - self.slot * taken // self.whole


def share_of(tensor: torch.Tensor) -> Share | None:
    """What is known of a mask."""
    return getattr(tensor, SHARE, None)


def asks_for(tensor: torch.Tensor) -> str:
    """Whether a number of true elements was compared with "all" that there are, or tells whether there are "any"."""
    return str(getattr(tensor, ASKS, ""))


def note_one_hot(tensor: torch.Tensor, places: int) -> None:
    """Notes that one element along the last dimension is 1, and the others are 0."""
    setattr(tensor, SHARE, Share(1, places, tensor.dim() - 1))


def note_hits(found: torch.Tensor, mask: torch.Tensor) -> None:
    """Notes which rows `nonzero` of a mask over places names, [rows, 1]: spread evenly."""
    share, rows = share_of(mask), found.shape[0]
    if share is not None and mask.dim() == 1 and share.dim == 0 and isinstance(rows, int) and rows > 0:
        places = int(mask.shape[0])  # those slots that get one, where there are too few for all
        setattr(found, ELEMENTS, tuple((-(-(row + 1) * places // rows) - 1,) for row in range(rows)))


def known_number(tensor: torch.Tensor | None) -> Any:
    """The only element of a tensor, where that is known; else None."""
    elements = tuple(flat(getattr(tensor, ELEMENTS, ())))
    return elements[0] if len(elements) == 1 else None


def flat(elements: Any) -> Iterator[Any]:
    """The numbers of nested tuples, one after the other."""
    for one in elements:
        yield from flat(one) if isinstance(one, tuple) else (one,)
