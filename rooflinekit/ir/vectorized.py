"""Formulas at thousands of sizes at once, in exact integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from rooflinekit.errors import SizeError
from rooflinekit.ir.sizes import LARGEST, check_dims, evaluator, has_logarithm, shown, symbol

#: Beyond this int64 might not hold a result, or a step on the way to it.
_SAFE = 2.0**60

_floor_div = sympy.Function("floor_div")


def compiled(expressions: Sequence[sympy.Expr], names: Sequence[str]) -> Callable[..., list[Any]]:
    """One function of the named sizes that gives every expression, for integers or arrays of them.

    Divisions become integer divisions, so that no value passes through a floating-point number.
    """
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


def _floored(argument: sympy.Expr) -> sympy.Expr:
    numerator, denominator = sympy.together(argument).as_numer_denom()
    return _floor_div(numerator, denominator)


def evaluated(expressions: Mapping[str, sympy.Expr], dims: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes and each expression as arrays of one length; single numbers go with arrays.

    Results are int64, or Python integers where int64 might not hold them. Raises SizeError for sizes that are not
    positive integers or arrays of different lengths.
    """
    arrays = {name: _array(name, value) for name, value in dims.items()}
    lengths = {len(array) for array in arrays.values() if array.ndim}
    if len(lengths) > 1:
        raise SizeError(
            f"sizes of different lengths: {', '.join(f'{n} {a.size}' for n, a in arrays.items() if a.ndim)}"
        )
    length = lengths.pop() if lengths else 1
    columns = {name: np.broadcast_to(array, length) for name, array in arrays.items()}
    formulas = [sympy.sympify(e) for e in expressions.values()]
    if any(map(has_logarithm, formulas)):
        # A logarithm is exact in sympy alone: one row at a time.
        rows = [evaluator({n: int(column[i]) for n, column in columns.items()}) for i in range(length)]
        exactly = {name: np.array([at(f) for at in rows]) for name, f in zip(expressions, formulas, strict=True)}
        return {**columns, **exactly}
    run = compiled(formulas, list(columns))
    bound = run(*(float(column.max()) if length else 1.0 for column in columns.values()))
    exact = max([abs(float(value)) for value in bound], default=0.0) < _SAFE
    values = run(*(column if exact else column.astype(object) for column in columns.values()))
    found = {name: np.broadcast_to(value, length) for name, value in zip(expressions, values, strict=True)}
    return {**columns, **found}


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
