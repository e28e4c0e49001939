"""Sizes at thousands of points at once, through code that is written for one.

A `Column` stands for a whole number at every point of a sweep. Code that adds, multiplies and divides sizes gets
columns back. Code that compares gets the answer of one of the points, the *pilot*, and the other points at which the
answer is not the same are crossed out in `Points.alike`: whatever the code has then made holds for the points that are
left, and only for them. What a column cannot follow (`int(column)`, its hash) crosses out all points with another
value. So a result is exact at every point that is left, or there is none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import SizeError
from rooflinekit.ir.sizes import LARGEST, Size, check_dims, evaluator, has_logarithm, is_formula, shown, symbol

if TYPE_CHECKING:
    import sympy


#: A number, or one at every point.
Number: TypeAlias = Any

#: Beyond this int64 might not hold a result, or a step on the way to it.
_SAFE = 2.0**62


class TooLargeError(Exception):
    """A count that int64 might not hold."""


class Points:
    """The points of a sweep, the one that decides, and those that would have gone its way so far."""

    def __init__(self, sizes: Mapping[str, NDArray[np.int64]], pilot: int = 0) -> None:
        self.sizes = dict(sizes)
        self.pilot = pilot
        self.count = len(next(iter(self.sizes.values()))) if self.sizes else 1
        self.alike = np.ones(self.count, dtype=bool)

    def decide(self, answers: NDArray[np.bool_]) -> bool:
        """The pilot's answer; points with another are crossed out."""
        answer = bool(answers[self.pilot])
        self.alike &= answers if answer else ~answers
        return answer

    def column(self, values: Any) -> Column:
        """A column of these values."""
        array = np.broadcast_to(np.asarray(values), (self.count,))
        if array.dtype.kind in "iu":
            return Column(self, array.astype(np.int64), float(np.abs(array).max(initial=0)))
        return Column(self, array.astype(np.float64), 0.0)

    def evaluator(self, expressions: Sequence[sympy.Expr]) -> Callable[[Size], Any]:
        """Gives each of these expressions as a column, a number as itself. Raises TooLargeError beyond int64."""
        found = {e: self.column(values) for e, values in _values(expressions, self.sizes).items()}
        return lambda size: found[size] if is_formula(size) else size


_Method: TypeAlias = Callable[["Column", Any], Any]


def _arithmetic(do: Callable[[Any, Any], Any], bound: Callable[[float, float], float]) -> _Method:
    """An operator of columns, and what no whole number in its result is further from 0 than."""

    def method(self: Column, other: Any) -> Any:
        if isinstance(other, Column):
            return self._made(do(self.values, other.values), bound(self.bound, other.bound))
        if not isinstance(other, int | float):
            return NotImplemented
        if abs(other) >= _SAFE and isinstance(other, int):
            raise TooLargeError
        return self._made(do(self.values, other), bound(self.bound, abs(other)))

    return method


def _comparison(how: Callable[[Any, Any], Any]) -> _Method:
    """A comparison of columns, which the pilot answers."""

    def method(self: Column, other: Any) -> Any:
        if other is self:
            return how(0, 0)
        if isinstance(other, Column):
            return self.points.decide(how(self.values, other.values))
        return self.points.decide(how(self.values, other)) if isinstance(other, int | float) else NotImplemented

    return method


class Column:
    """A number at every point."""

    __slots__ = ("bound", "points", "values")
    __array_ufunc__ = None  # numpy's numbers leave arithmetic with columns to columns

    def __init__(self, points: Points, values: NDArray[Any], bound: float) -> None:
        """`bound`: no whole number in it is further from 0."""
        self.points, self.values, self.bound = points, values, bound

    def __repr__(self) -> str:
        return f"<Column {self.values[self.points.pilot]} at the pilot of {len(self.values)} points>"

    def _made(self, values: NDArray[Any], bound: float) -> Column:
        if values.dtype.kind == "i" and bound >= _SAFE:
            raise TooLargeError
        return Column(self.points, values, bound)

    __add__ = __radd__ = _arithmetic(operator.add, operator.add)
    __sub__ = _arithmetic(operator.sub, operator.add)
    __rsub__ = _arithmetic(lambda a, b: b - a, operator.add)
    __mul__ = __rmul__ = _arithmetic(operator.mul, operator.mul)
    __floordiv__ = _arithmetic(operator.floordiv, lambda a, b: a)
    __rfloordiv__ = _arithmetic(lambda a, b: b // a, lambda a, b: b)
    __mod__ = _arithmetic(operator.mod, lambda a, b: b)
    __truediv__ = _arithmetic(operator.truediv, lambda a, b: 0.0)
    __rtruediv__ = _arithmetic(lambda a, b: b / a, lambda a, b: 0.0)

    def __neg__(self) -> Column:
        return self._made(-self.values, self.bound)

    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)

    def __bool__(self) -> bool:
        return self.points.decide(self.values != 0)

    def _pilots(self) -> Any:
        """The pilot's number, once the points with others are crossed out."""
        value = self.values[self.points.pilot]
        self.points.alike &= self.values == value
        return value

    def __int__(self) -> int:
        return int(self._pilots())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._pilots())

    def __hash__(self) -> int:
        return hash(self._pilots().item())

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        raise TypeError("a Column is no array; take its values")


def integer(number: Number) -> int:
    """As `int(number)`, for every point of a column, which goes for an `int` where types are told.

    >>> integer(2.7)
    2
    """
    if not isinstance(number, Column):
        return int(number)
    if number.values.dtype.kind == "i":
        return number  # type: ignore[return-value]
    largest = float(np.abs(number.values).max(initial=0.0))
    if largest >= _SAFE:
        raise TooLargeError
    return Column(number.points, number.values.astype(np.int64), largest)  # type: ignore[return-value]


def larger(a: Number, b: Number) -> Any:
    """As `max(a, b)`, at every point by itself.

    >>> larger(2, 3)
    3
    """
    points = next((n.points for n in (a, b) if isinstance(n, Column)), None)
    if points is None:
        return max(a, b)
    values = np.maximum(values_of(a), values_of(b))
    return Column(points, values, max(bound_of(a), bound_of(b)))


def anywhere_below(a: Number, limit: float) -> bool:
    """Whether `a < limit`, of a column at one point at least.

    >>> anywhere_below(2, 3)
    True
    """
    return bool((a.values < limit).any()) if isinstance(a, Column) else bool(a < limit)


def values_of(number: Number) -> Any:
    """The numbers of a column; a number as itself."""
    return number.values if isinstance(number, Column) else number


def bound_of(number: Number) -> float:
    """A bound on the absolute value of a number, or of every number in a column."""
    return number.bound if isinstance(number, Column) else abs(float(number))


# Formulas at thousands of sizes at once, in exact integers.


@lru_cache(maxsize=32)
def _compiled(expressions: tuple[sympy.Expr, ...], names: tuple[str, ...]) -> Callable[..., list[Any]]:
    """A function of the named sizes that gives every expression in integers, or in arrays of them."""
    import sympy

    numerators, denominators = [], []
    for expression in expressions:
        whole = expression.replace(sympy.floor, _floored).replace(sympy.ceiling, lambda arg: -_floored(-arg))
        numerator, denominator = sympy.together(whole).as_numer_denom()
        numerators.append(sympy.expand(numerator))
        denominators.append(int(denominator))
    functions = {"floor_div": operator.floordiv, "Min": np.minimum, "Max": np.maximum, "Mod": operator.mod}
    run = sympy.lambdify([symbol(name) for name in names], numerators, modules=[functions, "numpy"], cse=True)

    def evaluate(*values: Any) -> list[Any]:
        return [value // denominator for value, denominator in zip(run(*values), denominators, strict=True)]

    return evaluate


def _values(
    expressions: Iterable[sympy.Expr], columns: Mapping[str, NDArray[Any]], *, of_any_size: bool = False
) -> dict[sympy.Expr, NDArray[Any]]:
    """Each expression at these sizes. Where int64 might not hold one, Python's integers or TooLargeError."""
    distinct = tuple(dict.fromkeys(expressions))
    # exact in sympy alone: one point at a time
    logarithms = [e for e in distinct if has_logarithm(e)]
    others = tuple(e for e in distinct if not has_logarithm(e))
    run = _compiled(others, tuple(columns))
    bounds = run(*(float(column.max(initial=1)) for column in columns.values()))
    given = list(columns.values())
    if max((abs(float(bound)) for bound in bounds), default=0.0) >= _SAFE / 4:
        if not of_any_size:
            raise TooLargeError
        given = [column.astype(object) for column in given]
    found = dict(zip(others, run(*given), strict=True))
    if logarithms:
        count = len(given[0]) if given else 1
        rows = [evaluator({name: int(column[i]) for name, column in columns.items()}) for i in range(count)]
        found |= {e: np.array([at(e) for at in rows]) for e in logarithms}
    return found


def _floored(argument: sympy.Expr) -> sympy.Expr:
    import sympy

    numerator, denominator = sympy.together(argument).as_numer_denom()
    return sympy.Function("floor_div")(numerator, denominator)


def evaluated(expressions: Mapping[str, sympy.Expr], dims: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes and each expression as arrays of one length; single numbers go with arrays.

    Results are int64, or Python integers where int64 might not hold them. Raises SizeError for sizes that are not
    positive integers or arrays of different lengths.
    """
    import sympy

    arrays = {name: _array(name, value) for name, value in dims.items()}
    lengths = {len(array) for array in arrays.values() if array.ndim}
    if len(lengths) > 1:
        raise SizeError(
            f"sizes of different lengths: {', '.join(f'{n} {a.size}' for n, a in arrays.items() if a.ndim)}"
        )
    length = lengths.pop() if lengths else 1
    columns = {name: np.broadcast_to(array, length) for name, array in arrays.items()}
    formulas = {name: sympy.sympify(e) for name, e in expressions.items()}
    values = _values(formulas.values(), columns, of_any_size=True)
    return {**columns, **{name: np.broadcast_to(values[e], length) for name, e in formulas.items()}}


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim <= 1:
        array = value
        if array.size and not 1 <= int(array.min()) <= int(array.max()) <= LARGEST:
            raise SizeError(f"size {name!r}: expected integers from 1 to 2**48; got {shown(value)}")
        return array.astype(np.int64)
    many = isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "shape", None) != ()
    numbers = [check_dims({name: one}, (name,))[name] for one in (value if many else (value,))]
    if not numbers:
        raise SizeError(f"size {name!r}: expected a positive integer or a list of them; got {shown(value)}")
    return np.array(numbers if many else numbers[0], dtype=np.int64)
