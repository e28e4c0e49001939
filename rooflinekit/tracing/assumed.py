"""Sizes and answers that stand in the numbers of tensors, of which a trace has none: taken for granted, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from rooflinekit.errors import InputError, TraceError, nearest
from rooflinekit.ir.assumption import Assumption, Ground
from rooflinekit.tracing.finite import NUMBERS, answer
from rooflinekit.tracing.shapes import Made, broadcast, contiguous, count_of, indexed
from rooflinekit.tracing.shares import asks_for_all, known_number, note_hits, share_of
from rooflinekit.tracing.symbols import Symbols, caller
from rooflinekit.tracing.tensors import NODE, SPEC

_aten = torch.ops.aten

_NAME = "_rooflinekit_assumed"  # of a mask, what the assumption on it is called
_MASKS = (torch.bool, torch.uint8)
_FINEST = 10**6  # of a share


class Assumed:
    """What the user says of such numbers, and what else was taken."""

    def __init__(self, given: Mapping[str, Any], symbols: Symbols) -> None:
        self.asked = ""  # name of the newest number that nobody knows
        self._given = given
        self._symbols = symbols
        self._found: dict[str, Assumption] = {}
        self._names: dict[tuple[str, str], str] = {}  # (kind, line) → name
        self._module: Callable[[], str] = str

    def follow(self, module: Callable[[], str]) -> None:
        """`module` gives the path of the module that runs."""
        self._module = module

    @property
    def found(self) -> tuple[Assumption, ...]:
        """All that was taken. Raises InputError where the user names something else."""
        for name in self._given:
            if name not in self._names.values():
                known = tuple(self._names.values())
                has = f"it has {', '.join(map(repr, known))}" if known else "its data decide nothing"
                raise InputError(f"assume: this trace has no {name!r}: {has}{nearest(name, known)}")
        return tuple(self._found.values())

    # --- answers ----------------------------------------------------------------------------------------------

    def number(self, function: Any, args: Sequence[Any], *, optimizing: bool = False) -> Any:
        """What the operator that takes one number off the GPU returns, where that is known or taken; else None.

        Optimizers compute with the number of their step and with norms, whatever those are.
        """
        if function not in NUMBERS:
            return None
        known = answer(function, args)
        known = known_number(args[0]) if known is None else known
        if known is not None:
            return known
        if getattr(args[0], "constant", None) is not None:
            return None  # torch knows it
        if optimizing and function is not _aten.equal.default and args[0].dtype is not torch.bool:
            return 0.5 if args[0].is_floating_point() else 1
        kind = _source(args[0]) if function is not _aten.equal.default else "equal"
        name = self._name(kind)
        if name in self._given:
            value, ground = self._given[name], Ground.GIVEN
        elif kind in _USUAL and (args[0].dtype is torch.bool or kind == "equal"):
            value, ground = _USUAL[kind], Ground.USUAL
        else:
            self.asked = name
            return None
        self._take(name, value, None, ground)
        return bool(value) if args[0].dtype is torch.bool or kind == "equal" else value

    def unknown_size(self, shape: Sequence[Any]) -> TraceError:
        """The error for sizes that hang on a number that nobody knows."""
        where = caller()
        hint = f": say what it is, such as assume={{{self.asked!r}: 100}}" if self.asked else ""
        reason = f"the sizes {list(shape)} hang on a number that stands in a tensor"
        return TraceError(f"{reason} ({where}), and a trace has none{hint}", where=where, reason=reason)

    def answer(self, kind: str, usual: int, ground: Ground) -> int:
        """What a loop or a branch of torch's own asks of data, by the user or as given."""
        name = self._name(kind)
        value, ground = (self._given[name], Ground.GIVEN) if name in self._given else (usual, ground)
        self._take(name, value, None, ground)
        return int(value)

    # --- sizes ------------------------------------------------------------------------------------------------

    def made(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Made, ...] | None:
        """Sizes of results that data decide; None for operators whose results they do not."""
        decide = _VISION.get(function._opname) if function.namespace == "torchvision" else _DECIDED.get(function)
        return None if decide is None else decide(self, *args, **kwargs)

    def elements(self, kind: str, most: Any, mask: torch.Tensor | None = None, *, share: Fraction | None = None) -> Any:
        """So many of a number of elements, by the user, by what is known of the mask, by a share found, or all."""
        name = getattr(mask, _NAME, None) or self._name(kind)
        even = None
        if mask is not None:
            setattr(mask, _NAME, name)  # wherever it is used again, in backward too
            even = share_of(mask)
        if name in self._given:
            value, ground = _part(name, self._given[name], most), Ground.GIVEN
        elif even is not None:
            value, ground = even.count(most), Ground.EVEN
        elif share is not None:
            value, ground = _part(name, share, most), Ground.ALIKE
        else:
            value, ground = most, Ground.MOST
        self._take(name, value, most, ground)
        return value

    def named(self, function: Any, args: Sequence[Any]) -> Any:
        """Elements of a target that a mask names to be written; None where there is no mask."""
        if function not in _WRITING or not any(_is_mask(index) for index in args[1]):
            return None
        if fills(args[2], accumulate=len(args) > 3 and bool(args[3])):
            return None
        shape = indexed(args[0], args[1], lambda mask: self.elements("mask", count_of(mask.shape), mask))
        return None if shape is None else count_of(shape)

    # --- names ------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        """The kind, and a number where other lines have the same."""
        key = (kind, caller())
        if key not in self._names:
            alike = sum(known == kind for known, _ in self._names) + 1
            self._names[key] = kind if alike == 1 else f"{kind}_{alike}"
        return self._names[key]

    def _take(self, name: str, value: Any, most: Any, ground: Ground) -> None:
        if name in self._found:
            self._found[name] = replace(self._found[name], times=self._found[name].times + 1)
            return
        where = next(line for (_, line), known in self._names.items() if known == name)
        size = self._symbols.size
        self._found[name] = Assumption(
            name=name,
            where=where,
            module=self._module(),
            value=value if most is None else size(value),
            most=None if most is None else size(most),
            ground=ground,
        )


#: How a condition on a whole tensor comes out where data are as they should be.
_USUAL = {"all": True, "any": False, "equal": True}
_SHORT = {"_is_all_true": "all", "_is_any_true": "any"}


def _source(tensor: torch.Tensor) -> str:
    """What made a number: an operator, or the input that it is."""
    if asks_for_all(tensor):
        return "all"
    node = getattr(tensor, NODE, None)
    if node is None or node.op != "call_function":
        spec = getattr(tensor, SPEC, None)
        return "number" if spec is None else str(spec.name)
    while node.target in _MOVING and hasattr(node.args[0], "target"):
        node = node.args[0]
    name = str(node.name if node.op != "call_function" else getattr(node.target, "_opname", "number"))
    return _SHORT.get(name, name)


_MOVING = {_aten._to_copy.default, _aten.select.int, _aten.view.default, _aten.squeeze.default, _aten.alias.default}


def _part(name: str, given: Any, most: Any) -> Any:
    if isinstance(given, int) and not isinstance(given, bool):
        return min(given, most) if isinstance(most, int) else given
    share = Fraction(given).limit_denominator(_FINEST)
    return most * share.numerator // share.denominator


def check_assumed(given: object) -> dict[str, Any]:
    """The assumptions of a user by name; raises InputError for something else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"assume: expected names with numbers, such as {{'nonzero': 0.25}}; got {given!r:.60}")
    for name, value in given.items():
        count, share = isinstance(value, int) and value >= 0, isinstance(value, float) and 0 <= value <= 1
        if not (isinstance(name, str) and (count or share)):
            raise InputError(
                f"assume: {name!r}: expected a number of elements (0 or more), a share of the most (a float from 0.0 "
                f"to 1.0), or True or False; got {value!r:.60}"
            )
    return dict(given)


# --- operators whose results data decide ------------------------------------------------------------------------


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def fills(value: torch.Tensor, *, accumulate: bool) -> bool:
    """Whether what is written under a mask is one number: CUDA then fills, and need not know where."""
    return not accumulate and isinstance(value.numel(), int) and value.numel() == 1


def _nonzero(assumed: Assumed, x: torch.Tensor) -> tuple[Made, ...]:
    """One dimension after the other."""
    found = assumed.elements("nonzero", x.numel(), x)
    return (Made((found, x.dim()), (1, found), torch.int64),)


def _masked_select(assumed: Assumed, x: torch.Tensor, mask: torch.Tensor) -> tuple[Made, ...]:
    (whole,) = broadcast(x, mask)
    return (contiguous((assumed.elements("mask", count_of(whole.shape), mask),), x.dtype),)


def _index(assumed: Assumed, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[Made, ...] | None:
    if not any(map(_is_mask, indices)):
        return None
    shape = indexed(x, indices, lambda mask: assumed.elements("mask", count_of(mask.shape), mask))
    return (contiguous(shape, x.dtype),)


def _unique(
    assumed: Assumed, x: torch.Tensor, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[Made, ...]:
    """Values, where each was found, and how often: both empty where they are not asked for."""
    found = (assumed.elements("unique", x.numel()),)
    places = contiguous(x.shape if inverse else (0,), torch.int64)
    return contiguous(found, x.dtype), places, contiguous(found if counts else (0,), torch.int64)


def _unique_dim(assumed: Assumed, x: torch.Tensor, dim: int, *options: Any, **named: Any) -> tuple[Made, ...]:
    shape: list[Any] = list(x.shape)
    most = shape[dim]
    shape[dim] = assumed.elements("unique", most)
    counts = contiguous((shape[dim],), torch.int64)
    return contiguous(shape, x.dtype), contiguous((most,), torch.int64), counts


def _unique_consecutive(
    assumed: Assumed, x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[Made, ...]:
    return _unique(assumed, x, True, inverse, counts) if dim is None else _unique_dim(assumed, x, dim)


def _bincount(assumed: Assumed, x: torch.Tensor, weights: Any = None, minlength: int = 0) -> tuple[Made, ...]:
    """As many as asked for at least; where nothing is asked for, one for each element."""
    bins = minlength if minlength else assumed.elements("bincount", x.numel())
    return (contiguous((bins,), torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float64)),)


def _repeats(assumed: Assumed, repeats: torch.Tensor, *, output_size: Any = None) -> tuple[Made, ...]:
    """Each element once, if nothing else is said."""
    found = output_size if output_size is not None else assumed.elements("repeats", repeats.shape[0])
    return (contiguous((found,), torch.int64),)


def _nms(assumed: Assumed, boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> tuple[Made, ...]:
    return (contiguous((assumed.elements("nms", boxes.shape[0]),), torch.int64),)


def _linear_dynamic(assumed: Assumed, x: torch.Tensor, packed: Any, *options: Any) -> tuple[Made, ...]:
    """Weights of a layer quantized for CPUs, packed: how wide it is, stands in them."""
    with torch._C._DisableTorchDispatch():
        width = packed.unpack()[0].shape[0]
    return (contiguous((*x.shape[:-1], width), x.dtype),)


def _roi_align(assumed: Assumed, x: torch.Tensor, regions: torch.Tensor, *options: Any) -> tuple[Made, ...]:
    _, height, width = options[:3]
    return (contiguous((regions.shape[0], x.shape[1], height, width), x.dtype),)


def _deform_conv2d(assumed: Assumed, x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, *options: Any) -> Any:
    return (contiguous((x.shape[0], weight.shape[0], *offset.shape[2:]), x.dtype),)


#: Of torchvision, whose compiled part may be missing.
_VISION: dict[str, Callable[..., tuple[Made, ...] | None]] = {
    "nms": _nms,
    "roi_align": _roi_align,
    "deform_conv2d": _deform_conv2d,
}

_DECIDED: dict[Any, Callable[..., tuple[Made, ...] | None]] = {
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
_WRITING = {_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


def note_decided(function: Any, args: Sequence[Any], output: Any) -> None:
    """Notes on such a result what is known of its numbers."""
    if function is _aten.nonzero.default:
        note_hits(output, args[0])
