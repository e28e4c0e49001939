"""Sizes and answers that stand in the numbers of tensors, of which a trace has none: taken for granted, by name.

Below it: operators whose results data decide, and what sizes those have by what is assumed of the data.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from rooflinekit.errors import InputError, TraceError, nearest
from rooflinekit.ir.coverage import Assumption, Ground
from rooflinekit.ir.op import Phase
from rooflinekit.tracing.known import NUMBERS, known_number, known_of
from rooflinekit.tracing.symbols import GIVEN_UP, MOST_ANSWERS, Symbols, TooManyQuestionsError, caller
from rooflinekit.tracing.tensors import (
    NODE,
    SPEC,
    Made,
    broadcast,
    contiguous,
    indexed,
    is_mask,
    placed,
    schema_of,
    tensors_in,
)

_aten = torch.ops.aten

_NAME = "_rooflinekit_assumed"  # of a mask, what the assumption on it is called
_FINEST = 10**6  # of a share


class Assumed:
    """The user's assumptions about numbers that data decide, and those that were made beside them."""

    def __init__(self, given: Mapping[str, Any], symbols: Symbols, module: Callable[[], str]) -> None:
        """`module` gives the path of the module that runs."""
        self.values = Values()
        self.asked = ""  # what says the newest number that nobody knows
        self.size = symbols.size
        self._given = given
        self._symbols = symbols
        self._found: dict[str, Assumption] = {}
        self._names: dict[tuple[str, str], str] = {}  # (kind, line) → name
        self._module = module

    @property
    def taken(self) -> tuple[Assumption, ...]:
        """All assumptions that were made so far."""
        return tuple(self._found.values())

    @property
    def found(self) -> tuple[Assumption, ...]:
        """All that was taken. Raises InputError where the user names something else."""
        for name in self._given:
            if name not in self._names.values():
                known = tuple(self._names.values())
                has = f"it has {', '.join(map(repr, known))}" if known else "its data decide nothing"
                raise InputError(f"assume: this trace has no {name!r}: {has}{nearest(name, known)}")
        return self.taken

    # --- answers ----------------------------------------------------------------------------------------------

    def number(self, function: Any, args: Sequence[Any], phase: Phase) -> Any:
        """What the operator that takes one number off the GPU returns, where that is known or taken; else None.

        Optimizers compute with the number of their step and with norms, whatever those are.
        """
        if function not in NUMBERS:
            return None
        for known in (known_of(args[0]).every, known_number(args[0]), self._valued(function, args)):
            if known is not None:
                return known
        if getattr(args[0], "constant", None) is not None:
            return None  # torch knows it
        compares = function is _aten.equal.default
        if phase is Phase.OPTIMIZER and not compares and args[0].dtype is not torch.bool:
            return 0.5 if args[0].is_floating_point() else 1
        kind = "equal" if compares else _source(args[0])
        name, usual = self._name(kind), _usual(kind, args[0])
        if name not in self._given and usual is None:
            self.asked = f"assume={{{name!r}: {False if args[0].dtype is torch.bool else 100}}}"
            return None
        value = self._taken(name, usual, None, Ground.USUAL)
        if name in self._given and self._symbols.names and self._found[name].times > MOST_ANSWERS:
            raise TooManyQuestionsError(GIVEN_UP[1])
        return bool(value) if args[0].dtype is torch.bool or kind == "equal" else value

    def _valued(self, function: Any, args: Sequence[Any]) -> Any:
        """What constants make of the number that is asked for."""
        if function is not _aten.equal.default:
            return self.values.ask(lambda known: known.item() if known.numel() == 1 else None, args[0])
        if tuple(args[0].shape) != tuple(args[1].shape):
            return False
        return self.values.ask(torch.equal, *args)

    def check_rows(self, table: torch.Tensor, indices: torch.Tensor) -> None:
        """Raises IndexError, as a GPU does, for indices that are known to lie beyond the rows of a table.

        Where sizes are open, the trace is valid only for those whose indices do not.
        """
        end = self.values.ask(lambda known: int(known.max()) + 1 if known.numel() else None, indices)
        end = known_of(indices).end if end is None else end
        if end is not None and end > table.shape[0]:
            raise IndexError(
                f"index {end - 1} of a table with {table.shape[0]} rows, such as learned positions for so many: "
                "give shorter inputs or a longer table"
            )

    def unknown_size(self, shape: Sequence[Any]) -> TraceError:
        """The error for sizes that hang on a number that nobody knows."""
        where = caller()
        hint = f": say what it is, such as {self.asked}" if self.asked else ""
        reason = f"the sizes {list(shape)} hang on a number that stands in a tensor"
        return TraceError(f"{reason} ({where}), and a trace has none{hint}", where=where, reason=reason)

    def answer(self, kind: str, usual: int, ground: Ground) -> int:
        """What a loop or a branch of torch's own asks of data, by the user or as given."""
        return int(self._taken(self._name(kind), usual, None, ground))

    # --- sizes ------------------------------------------------------------------------------------------------

    def made(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Made, ...] | None:
        """Sizes of results that data decide; None for operators whose results they do not."""
        decide = VISION.get(function._opname) if function.namespace == "torchvision" else DECIDED.get(function)
        if decide is None:
            return None
        known = self.values.result(function, args, kwargs)
        if known is not None:
            return tuple(Made.like(one) for _, one in placed(known))
        return decide(self, *args, **kwargs)

    def elements(self, kind: str, most: Any, mask: torch.Tensor | None = None, *, share: Fraction | None = None) -> Any:
        """A number of elements out of `most`: by the user, by what is known of the mask, by a share found, or all."""
        known = None if mask is None else self.values.ask(lambda numbers: int(numbers.count_nonzero()), mask)
        if known is not None:
            return known
        name = getattr(mask, _NAME, None) or self._name(kind)
        if mask is not None:
            setattr(mask, _NAME, name)  # wherever it is used again, in backward too
            if (even := known_of(mask).share) is not None:
                return self._taken(name, even.count(most), most, Ground.EVEN)
        if share is not None:
            return self._taken(name, _part(share, most), most, Ground.ALIKE)
        return self._taken(name, most, most, Ground.MOST)

    def trues(self, mask: torch.Tensor) -> Any:
        """The number of true elements of a mask."""
        return self.elements("mask", math.prod(mask.shape), mask)

    def length(self, kind: str, most: Any, even: Any | None) -> Any:
        """The length of sequences up to the longest: by the user, or `even` for all; where that is None the longest."""
        value, ground = (most, Ground.MOST) if even is None else (even, Ground.EVEN)
        return self._taken(self._name(kind), value, most, ground)

    def named(self, function: Any, args: Sequence[Any]) -> Any:
        """Elements of a target that a mask names to be written; None where there is no mask."""
        if function not in WRITING or not any(map(is_mask, args[1])):
            return None
        if fills(args[2], accumulate=len(args) > 3 and bool(args[3])):
            return None
        return math.prod(indexed(args[0], args[1], self.trues))

    # --- names ------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        """The kind, and a number where other lines have the same."""
        key = (kind, caller())
        if key not in self._names:
            alike = sum(known == kind for known, _ in self._names) + 1
            self._names[key] = kind if alike == 1 else f"{kind}_{alike}"
        return self._names[key]

    def _taken(self, name: str, value: Any, most: Any, ground: Ground) -> Any:
        """What the user says of this name, of `most` elements where they are counted; else the value. It is noted."""
        if name in self._given:
            given = self._given[name]
            value, ground = given if most is None else _part(given, most), Ground.GIVEN
        if name in self._found:
            self._found[name] = replace(self._found[name], times=self._found[name].times + 1)
            return value
        where = next(line for (_, line), known in self._names.items() if known == name)
        self._found[name] = Assumption(
            name=name,
            where=where,
            module=self._module(),
            value=value if most is None else self.size(value),
            most=None if most is None else self.size(most),
            ground=ground,
        )
        return value


#: How a condition on a whole tensor comes out where data are as they should be.
_USUAL = {"all": True, "any": False, "equal": True}
#: Comparisons, by what they do with numbers.
_COMPARED = {getattr(_aten, name).Scalar: getattr(operator, name) for name in ("lt", "le", "gt", "ge")}
_DRAWN = {_aten.rand.default, _aten.rand_like.default, _aten.uniform.default, _aten.uniform_.default}
_SHORT = {"_is_all_true": "all", "_is_any_true": "any"}


def _usual(kind: str, tensor: torch.Tensor) -> bool | float | None:
    """How a condition comes out where data are as they should be, or more often than not where chance decides; of
    chance itself the middle.
    """
    if kind in _USUAL and (tensor.dtype is torch.bool or kind == "equal"):
        return _USUAL[kind]
    node: Any = getattr(tensor, NODE, None)
    target = getattr(node, "target", None)
    if target in _DRAWN:
        return 0.5
    if target not in _COMPARED or getattr(node.args[0], "target", None) not in _DRAWN:
        return None
    return bool(_COMPARED[target](0.5, node.args[1])) if isinstance(node.args[1], float) else None


def _source(tensor: torch.Tensor) -> str:
    """The operator that made a number, or the input that it is."""
    if asks := known_of(tensor).asks:
        return asks
    node = getattr(tensor, NODE, None)
    if node is None or node.op != "call_function":
        spec = getattr(tensor, SPEC, None)
        return "number" if spec is None else str(spec.name)
    while node.target in _MOVING and hasattr(node.args[0], "target"):
        node = node.args[0]
    name = str(node.name if node.op != "call_function" else getattr(node.target, "_opname", "number"))
    return _SHORT.get(name, name)


_MOVING = {_aten._to_copy.default, _aten.select.int, _aten.view.default, _aten.squeeze.default, _aten.alias.default}


def _part(given: Any, most: Any) -> Any:
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


# Flexible attention: which pairs of query and key take part, its mask says by a function, and that is asked.
#
# A mask that looks at the model's data cannot be asked: how much it keeps is then an assumption with a name.


#: Where query, key and the block mask stand among the arguments of an operator.
_PLACES = {"flex_attention": (0, 1, 4), "flex_attention_backward": (0, 1, 9)}
_PAIRS = "_rooflinekit_pairs"  # of a query: what was found, for the backward pass
_MOST_PAIRS = 2**22  # pairs that are asked about, of one head
_HEADS = 16  # that are asked about


def masked_pairs(name: str, args: Sequence[Any], assumed: Assumed) -> dict[str, Any]:
    """What a mask leaves, as attributes of the op: `is_causal`, or `pairs` of one head; nothing where all take part."""
    if name not in _PLACES:
        return {}
    query, key, mask = (args[place] for place in _PLACES[name])
    function = mask[-1]
    known = getattr(query, _PAIRS, {})
    if function not in known:
        known[function] = _asked(function, query, key, assumed)
        setattr(query, _PAIRS, known)
    found: dict[str, Any] = known[function]
    return found


def _asked(function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, assumed: Assumed) -> dict[str, Any]:
    s, t = query.shape[2], key.shape[2]
    example = [int(n) if isinstance(n, int) else n.node.hint for n in (*query.shape[:2], s, t)]
    answer = _answered(function, *example)
    if answer is None:
        return {"pairs": assumed.size(assumed.elements("flex_mask", s * t))}
    share, causal, whole = answer
    if share == 1:
        return {}
    if causal:
        return {"is_causal": True}
    if whole and isinstance(s, int) and isinstance(t, int):
        return {"pairs": int(share * s * t)}
    return {"pairs": assumed.size(assumed.elements("flex_mask", s * t, share=share))}


def _answered(function: Callable[..., Any], b: int, h: int, s: int, t: int) -> tuple[Fraction, bool, bool] | None:
    """The share of pairs kept, whether just those with key ≤ query are, and whether every pair was asked about.

    None where the function cannot be asked outside of the trace.
    """
    heads = [(i, j) for i in range(b) for j in range(h)]
    heads, every_head = heads[:: -(-len(heads) // _HEADS)], len(heads) <= _HEADS
    step = -(-s * t // _MOST_PAIRS)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        rows, columns = torch.arange(0, s, step), torch.arange(t)
        over_keys = torch.vmap(function, in_dims=(None, None, None, 0))
        over_all = torch.vmap(over_keys, in_dims=(None, None, 0, None))
        try:
            kept = [over_all(torch.tensor(i), torch.tensor(j), rows, columns) for i, j in heads]
            counts = [int(one.sum()) for one in kept]
            causal = all(torch.equal(one, rows[:, None] >= columns) for one in kept)
        except Exception:  # a user's function, which may hold tensors of the trace
            return None
    share = Fraction(sum(counts), len(heads) * len(rows) * t)
    # An average over heads that is no whole number of pairs is a share as any other.
    return share, causal, every_head and step == 1 and (share * s * t).denominator == 1


def fills(value: torch.Tensor, *, accumulate: bool) -> bool:
    """Whether what is written under a mask is one number: CUDA then fills, and need not know where."""
    return not accumulate and isinstance(value.numel(), int) and value.numel() == 1


def _nonzero(assumed: Assumed, x: torch.Tensor) -> tuple[Made, ...]:
    found = assumed.elements("nonzero", x.numel(), x)
    return (Made((found, x.dim()), (1, found), torch.int64),)


def _masked_select(assumed: Assumed, x: torch.Tensor, mask: torch.Tensor) -> tuple[Made, ...]:
    (whole,) = broadcast(x, mask)
    return (contiguous((assumed.elements("mask", math.prod(whole.shape), mask),), x.dtype),)


def _index(assumed: Assumed, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[Made, ...] | None:
    if not any(map(is_mask, indices)):
        return None
    return (contiguous(indexed(x, indices, assumed.trues), x.dtype),)


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


def _bincount(assumed: Assumed, x: torch.Tensor, weights: Any = None, minlength: int = 0) -> tuple[Made, ...]:
    """At least as many bins as asked for; where nothing is asked for, one for each element."""
    bins = minlength if minlength else assumed.elements("bincount", x.numel())
    return (contiguous((bins,), torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float64)),)


def _linear_dynamic(assumed: Assumed, x: torch.Tensor, packed: Any, *options: Any) -> tuple[Made, ...]:
    """Weights of a layer quantized for CPUs, packed: how wide it is, stands in them."""
    with torch._C._DisableTorchDispatch():
        width = packed.unpack()[0].shape[0]
    return (contiguous((*x.shape[:-1], width), x.dtype),)


#: Of torchvision, whose compiled part may be missing.
VISION: dict[str, Callable[..., tuple[Made, ...] | None]] = {
    "nms": lambda assumed, boxes, *options: (contiguous((assumed.elements("nms", boxes.shape[0]),), torch.int64),),
    "roi_align": lambda assumed, x, regions, scale, height, width, *options: (
        contiguous((regions.shape[0], x.shape[1], height, width), x.dtype),
    ),
    "deform_conv2d": lambda assumed, x, weight, offset, *options: (
        contiguous((x.shape[0], weight.shape[0], *offset.shape[2:]), x.dtype),
    ),
}

DECIDED: dict[Any, Callable[..., tuple[Made, ...] | None]] = {
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten.index.Tensor: _index,
    _aten._unique2.default: _unique,
    _aten._unique.default: lambda *args, **kwargs: _unique(*args, **kwargs)[:2],
    _aten.unique_dim.default: _unique_dim,
    _aten.unique_consecutive.default: lambda assumed, x, inverse=False, counts=False, dim=None: (
        _unique(assumed, x, True, inverse, counts) if dim is None else _unique_dim(assumed, x, dim)
    ),
    _aten.unique_dim_consecutive.default: _unique_dim,
    _aten.bincount.default: _bincount,
    # each element once, unless something else is said
    _aten.repeat_interleave.Tensor: lambda assumed, repeats, *, output_size=None: (
        contiguous(
            (assumed.elements("repeats", repeats.shape[0]) if output_size is None else output_size,), torch.int64
        ),
    ),
    torch.ops.quantized.linear_dynamic.default: _linear_dynamic,
}
WRITING = {_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


# Numbers of small tensors that follow from the model's own constants: worked out beside the trace, for whoever asks.
#
# Tables of sizes, solvers' points in time and lists of special tokens are made of constants by a few operators. These
# run once more on the constants themselves, so that code that looks at them finds what a step would.


_VALUES = "_rooflinekit_values"
_MOST_NUMBERS = 4096  # numbers of a tensor that is followed
#: What stands in their results is whatever the memory held.
_EMPTY = {
    _aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
    _aten.new_empty_strided.default, _aten.empty_permuted.default,
}  # fmt: skip
#: Operators whose result one argument decides by itself: zeros, or of masks what is true everywhere.
_ABSORBED = {
    **dict.fromkeys((_aten.bitwise_and.Tensor, _aten.logical_and.default), False),
    **dict.fromkeys((_aten.bitwise_or.Tensor, _aten.logical_or.default), True),
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
    return isinstance(numbers, int) and numbers <= _MOST_NUMBERS


class Values:
    """Known values of the tensors of one trace."""

    def __init__(self) -> None:
        self._spoilt: dict[int, Any] = {}  # identity of memory in which something unknown was written → that memory

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's numbers; None where they are not known."""
        if not isinstance(tensor, FakeTensor):
            return _copy(tensor) if _readable(tensor) else None
        known: torch.Tensor | None = getattr(tensor, _VALUES, None)
        return None if known is None or known.untyped_storage()._cdata in self._spoilt else known

    def ask(self, question: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """What a function says of the tensors' numbers; None where they are not known."""
        known = list(map(self.of, tensors))
        if any(one is None for one in known):
            return None
        with unset_fake_temporarily():
            return question(*known)

    def result(
        self, function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = ()
    ) -> Any:
        """What an operator makes of its arguments' numbers; None where these are not known, or `out` is large."""
        if function in _EMPTY or torch.Tag.nondeterministic_seeded in function.tags or function.namespace != "aten":
            return None
        if any(isinstance(arg, FakeTensor) and not hasattr(arg, _VALUES) for arg in args):
            return None  # told at once: most are unknown
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
        if known is None and function in _ABSORBED:
            known = self._absorbed(args, out, by=_ABSORBED[function])
        if known is None:
            for target in tensors_in([args[i] for i in schema_of(function)[2] if i < len(args)]):
                if (spoilt := getattr(target, _VALUES, None)) is not None:
                    self._spoilt[spoilt.untyped_storage()._cdata] = spoilt
            return
        real = dict(placed(known))
        for place, fake in placed(out):
            if place in real and tuple(real[place].shape) == tuple(fake.shape):
                setattr(fake, _VALUES, real[place])

    def _absorbed(self, args: Sequence[Any], out: torch.Tensor, *, by: bool) -> torch.Tensor | None:
        """The result where one argument is `by` everywhere, whatever the other is."""
        known = (self.of(arg) for arg in args if isinstance(arg, torch.Tensor))
        if not _small(out) or (by and out.dtype is not torch.bool):
            return None
        with unset_fake_temporarily():
            if any(one is not None and bool((one.bool() == by).all()) for one in known):
                return torch.full(tuple(out.shape), by, dtype=out.dtype)
        return None

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
