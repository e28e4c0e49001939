"""Sizes: plain integers where known, sympy expressions in named positive integers where not."""

from __future__ import annotations

import itertools
import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from rooflinekit.errors import SizeError, nearest

if TYPE_CHECKING:
    import sympy


#: A size is an `int`, or a sympy expression in the user's named sizes. Integers stay plain integers because a
#: traced network has tens of thousands of them and sympy's are a hundred times slower.
Size: TypeAlias = "int | sympy.Expr"


#: No size is larger: no machine has the memory for a tensor of so many bytes. Counts that grow with the cube of a size
#: are still numbers of floating point.
LARGEST = 2**48


def whole(value: object) -> int | None:
    """A whole number, Python's, numpy's or sympy's, as an `int`; None for anything else: True, 2.0, an array.

    >>> whole(symbol("n") * 0 + 4), whole(4.0), whole(True)
    (4, None, None)
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        number = value.__index__()
    except Exception:  # an array of several, a tensor of fractions: whatever an object's own method raises
        return None
    return number if type(number) is int else None


def finite(value: object) -> bool:
    """Whether a value is a finite number, Python's or numpy's; a text, True or an array is none.

    >>> finite(1.5), finite(math.nan), finite("1"), finite(True), finite(10**400)
    (True, False, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the numbers of floating point
        return False


def finite_or_none(value: Any) -> Any:
    """The value, None for a float that is NaN or infinite: JSON has no such numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_count(value: object) -> bool:
    """Whether a value counts something: a finite number of 0 or more, a formula of sizes, or a column of numbers.

    >>> is_count(3), is_count(symbol("n")), is_count(-1), is_count(math.nan), is_count("3")
    (True, True, False, False, False)
    """
    if type(value) is int and value < LARGEST:
        return value >= 0
    return (isinstance(value, numbers.Real) and finite(value) and float(value) >= 0) or (
        is_formula(value) or hasattr(value, "points")
    )


def is_formula(value: object) -> TypeGuard[sympy.Basic]:
    """Whether a value is sympy's. Nothing is before sympy is loaded, which takes a fifth of a second.

    >>> is_formula(symbol("n")), is_formula(4)
    (True, False)
    """
    if type(value) is int:
        return False
    basic = getattr(sys.modules.get("sympy"), "Basic", None)
    return basic is not None and isinstance(value, basic)


def symbol(name: str) -> sympy.Symbol:
    """The symbol of the named size: equal for equal names, positive and integer.

    >>> symbol("batch") == symbol("batch")
    True
    """
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def formula(size: Size) -> sympy.Expr:
    """A size as sympy's, its products of sums multiplied out.

    >>> formula(4).is_Integer
    True
    """
    import sympy

    return sympy.expand(sympy.sympify(size))


def has_logarithm(expression: sympy.Expr) -> bool:
    """Whether a logarithm stands in it, which is exact in sympy alone."""
    import sympy

    return bool(expression.has(sympy.log))


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes; 1 for none, like the number of elements of a scalar.

    >>> product((2, 3, 4))
    24
    """
    return _joined(sizes, operator.mul, 1)


def total(sizes: Iterable[Size]) -> Size:
    """The sum of sizes, like terms collected.

    >>> total((2, 3, symbol("batch"), symbol("batch")))
    2*batch + 5
    """
    return _joined(sizes, operator.add, 0)


def _joined(sizes: Iterable[Size], join: Callable[[Any, Any], Any], constant: Size) -> Size:
    symbolic: list[sympy.Expr] = []
    for size in sizes:
        if is_formula(size):
            symbolic.append(size)
        else:  # an integer, or a column of them
            constant = join(constant, size)
    if not symbolic:
        return constant
    import sympy

    return simplest((sympy.Mul if join is operator.mul else sympy.Add)(constant, *symbolic))


def ceil_div(numerator: Size, denominator: Size) -> Size:
    """`numerator / denominator`, rounded up.

    >>> ceil_div(7, 2), ceil_div(symbol("n"), 2)
    (4, ceiling(n/2))
    """
    if not _open(numerator, denominator):
        return -(-numerator // denominator)
    import sympy

    return simplest(sympy.ceiling(sympy.sympify(numerator) / denominator))


def floor_div(numerator: Size, denominator: Size) -> Size:
    """`numerator / denominator`, rounded down.

    >>> floor_div(7, 2), floor_div(4 * symbol("n"), 2)
    (3, 2*n)
    """
    if not _open(numerator, denominator):
        return numerator // denominator
    import sympy

    return simplest(sympy.floor(sympy.sympify(numerator) / denominator))


def quotient(numerator: Size, denominator: int) -> Size:
    """`numerator / denominator`, where that is known to be whole.

    >>> quotient(12, 2), quotient(symbol("n") ** 2 + symbol("n"), 2)
    (6, n**2/2 + n/2)
    """
    if not _open(numerator, denominator):
        if numerator % denominator:
            raise ValueError(f"{numerator} is no multiple of {denominator}")
        return numerator // denominator
    import sympy

    return simplest(sympy.expand(numerator / denominator))


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes.

    >>> smaller(3, 2), smaller(symbol("n"), symbol("n"))
    (2, n)
    """
    if not _open(a, b):
        return min(a, b)
    import sympy

    return simplest(sympy.Min(a, b))


def _open(*sizes: Size) -> bool:
    """Whether one of them is a formula; integers and columns of them are none."""
    return any(map(is_formula, sizes))


def simplest(expression: sympy.Expr) -> Size:
    """A sympy integer as an `int`, anything else as it is."""
    return int(expression) if expression.is_Integer else expression


_FAINT = 0.4  # of difflib, for a word among few: "client" is for "clusters"


def check_names(
    given: Iterable[str], known: Iterable[str], *, complete: bool = True, options: Iterable[str] = ()
) -> None:
    """Raises SizeError for a name not in `known` and, with `complete`, a missing one. options: words to suggest."""
    given, known = tuple(given), tuple(known)
    for name in given:
        if name not in known:
            has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
            near = nearest(name, known) or nearest(name, options, likeness=_FAINT)
            raise SizeError(f"no size is named {name!r} in this workload: {has}{near}")
    missing = [name for name in known if name not in given]
    if complete and missing:
        raise missing_size(missing)


def check_dims(given: Mapping[str, object], known: Iterable[str], *, complete: bool = False) -> dict[str, int]:
    """The sizes of `given` as integers.

    Raises SizeError for a name that is not in `known`, a value that is not a positive integer and, where
    `complete` is asked for, a known name that is not given.
    """
    known = tuple(known)
    check_names(given, known, complete=False)
    checked: dict[str, int] = {}
    for name, value in given.items():
        number = whole(value)
        if number is None or number < 1:
            raise SizeError(f"size {name!r}: expected a positive integer; got {shown(value)}")
        if number > LARGEST:
            raise SizeError(f"size {name!r}: expected at most 2**48 = {LARGEST:,}; got {shown(value)}")
        checked[name] = number
    check_names(checked, known, complete=complete)
    return checked


def shown(value: object) -> str:
    """A value in a message: one short line, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a number too long for text, or an object's own method
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:59]}…"


def missing_size(names: Sequence[str]) -> SizeError:
    """The error for named sizes that are still open."""
    words = f"size{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"
    return SizeError(
        f"no number is given for {words}: add {', '.join(f'{name}=…' for name in names)} "
        f"({' '.join(f'--{name} …' for name in names)} on the command line)"
    )


def numbers_of(dims: Mapping[str, int]) -> dict[sympy.Symbol, sympy.Integer]:
    """Named sizes as sympy's symbols, and their numbers as sympy's."""
    import sympy

    return {symbol(name): sympy.Integer(value) for name, value in dims.items()}


def evaluator(dims: Mapping[str, int]) -> Callable[[Size], Size]:
    """A function that puts numbers for named sizes, each distinct expression worked out once.

    >>> at = evaluator({"batch": 4})
    >>> at(3 * symbol("batch") + 1), at(7)
    (13, 7)
    """
    values: dict[sympy.Symbol, sympy.Integer] = {}
    memory: dict[sympy.Expr, Size] = {}

    def at(size: Size) -> Size:
        if isinstance(size, int):
            return size
        if size not in memory:
            if not values:
                values.update(numbers_of(dims))
            memory[size] = simplest(size.xreplace(values))
        return memory[size]

    return at


# Where a trace holds: what the model's own code asked about its sizes while it was traced.


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something the model's own code compared while it was traced: the trace holds where `holds` does."""

    holds: sympy.Basic  # a relation between named sizes
    where: str  # "model.py:12"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSize:
    """A named size that the model's code forces to a constant, so that the trace holds for this value alone."""

    name: str
    value: int
    where: str  # "model.py:12"
    reason: str = ""  # why it could not stay open, where the code did not ask for a number itself

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"size {self.name!r} is forced to {self.value} by {self.where}{why}"


def may_hold(relation: sympy.Basic, numbers: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    """Whether a relation between sizes is not known to be false at these, which are of `numbers_of`.

    Where it divides by 0 the model cannot have gone on.

    >>> n = symbol("n")
    >>> [may_hold(4 % (n // 2) < 1, numbers_of({"n": size})) for size in (1, 4, 7)]
    [False, True, False]
    """
    import sympy

    try:
        return bool(relation.xreplace(numbers) != sympy.false)
    except (ZeroDivisionError, TypeError):  # a remainder of 0, or a comparison with what a division by 0 leaves
        return False


def check_conditions(conditions: tuple[Condition, ...], given: Mapping[str, int]) -> None:
    """Raises SizeError where a condition is known not to hold at the given sizes."""
    numbers = numbers_of(given) if conditions else {}
    for condition in conditions:
        if not may_hold(condition.holds, numbers):
            sizes = ", ".join(f"{name}={value}" for name, value in given.items())
            raise SizeError(
                f"the trace is valid only for {condition.holds} ({condition.where}), which is not true at {sizes}; "
                "trace again at these sizes"
            )


def check_at_all(condition: Condition, groups: Iterable[Mapping[str, Sequence[int]]], given: Mapping[str, int]) -> None:
    """The check of `check_conditions` at every combination of groups of sizes; values in a group go together."""
    parts: list[list[tuple[tuple[str, int], ...]]] = []
    for group in groups:
        names = [name for name in group if symbol(name) in condition.holds.free_symbols]
        rows = dict.fromkeys(zip(*(group[name] for name in names), strict=True))
        parts.append([tuple(zip(names, values, strict=True)) for values in rows] or [()])
    for chosen in itertools.product(*parts):
        check_conditions((condition,), {**given, **dict(pair for pairs in chosen for pair in pairs)})
