"""Element-wise arithmetic: FLOP and special functions an output element, each with its arithmetic.

Comparisons and selections count like additions. A division is one special function. Activations, losses and random
numbers stand in files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.cost.table import Rule, an_element, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product

#: Vector FLOP and special functions an element.
Work = tuple[int, int]

_ONE_OPERATION = (
    "neg", "abs", "sign", "sgn", "signbit", "copysign", "mul", "deg2rad", "rad2deg",
    "maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max", "where", "masked_fill",
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isposinf", "isneginf", "angle",
    "logical_not", "logical_and", "logical_or", "logical_xor",
    "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__",
    "floor", "ceil", "round", "trunc", "nextafter",
)  # fmt: skip

_ONE_SPECIAL_FUNCTION = (
    "div", "reciprocal", "remainder", "fmod", "sqrt", "rsqrt",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "erfinv", "special_erfcx", "special_ndtri", "special_log_ndtr",
    "lgamma", "digamma", "polygamma", "igamma", "igammac", "special_zeta",
    "i0", "special_i0e", "special_i1", "special_i1e",
)  # fmt: skip

_SEVERAL: dict[str, Work] = {
    "floor_divide": (1, 1),  # divide, round
    "frac": (2, 0),  # x - trunc(x)
    "heaviside": (2, 0),  # two comparisons
    "nan_to_num": (3, 0),  # is it nan, inf or -inf
    "lerp": (3, 0),  # a + w·(b-a)
    "linalg_cross": (3, 0),  # two multiplications, subtract
    "hypot": (3, 1),  # √(a·a + b·b)
    "ldexp": (1, 1),  # x · 2^e
    "sinc": (2, 2),  # is x zero; sin(πx) / πx
    "logit": (1, 2),  # log(x / (1 - x))
    "logit_backward": (2, 1),  # g / (x·(1 - x))
    "xlogy": (2, 1),  # is x zero; x · log y
    "special_xlog1py": (2, 1),  # is x zero; x · log1p y
    "special_entr": (3, 1),  # is x zero; -x · log x
    "logaddexp": (3, 2),  # max + log1p(exp(-|a-b|)): subtract, maximum, add
    "logaddexp2": (3, 2),  # the same to the base 2
    "polar": (2, 2),  # r·cos φ, r·sin φ
    "complex": (0, 0),  # puts two parts together
}

#: kind: (vector FLOP, special functions) an element of a real tensor
_REAL: dict[str, Work] = {
    **dict.fromkeys(_ONE_OPERATION, (1, 0)),
    **dict.fromkeys(_ONE_SPECIAL_FUNCTION, (0, 1)),
    **_SEVERAL,
}

#: The same of complex numbers z = a + b·i, where it is not just twice as much.
_COMPLEX: dict[str, Work] = {
    "polar": (2, 2),
    "complex": (0, 0),
    "abs": (3, 1),  # √(a·a + b·b)
    "angle": (0, 1),  # atan2
    "sgn": (3, 3),  # z / |z|
    "eq": (3, 0),  # two comparisons, and
    "ne": (3, 0),
    "mul": (6, 0),  # four multiplications, two additions
    "reciprocal": (4, 2),  # z* / (a·a + b·b)
    "div": (9, 2),  # z·w* 6, |w|² 3; both parts divided by it
    "exp": (2, 3),  # exp a · (cos b, sin b)
    "log": (3, 3),  # log |z|, atan2(b, a)
    "sqrt": (6, 3),  # |z| 3 and √; r = √((|z| + a)/2); b / 2r
    "sin": (2, 4),  # sin a · cosh b, cos a · sinh b
    "cos": (3, 4),  # cos a · cosh b, -sin a · sinh b
    "sinh": (2, 4),
    "cosh": (2, 4),
}


def is_complex(op: Op) -> bool:
    """Whether it works on complex numbers."""
    return any(tensor.dtype.is_complex for tensor in (*op.inputs, *op.outputs))


def work_of(op: Op, real: Work, complex_: Work | None = None) -> Cost:
    """So much work an output element, and traffic; for complex numbers twice as much where nothing else is said."""
    vector, special = (complex_ or (2 * real[0], 2 * real[1])) if is_complex(op) else real
    n = op.outputs[0].numel
    return Cost(vector_flop=product((vector, n)), special_flop=product((special, n))) + traffic(op)


def _per_element(real: Work, complex_: Work | None) -> Rule:
    def price(op: Op) -> Cost:
        return work_of(op, real, complex_)

    price.__doc__ = an_element(*real)
    return price


def register(work: Mapping[str, Work]) -> None:
    """Registers an element-wise rule for each of these ATen ops."""
    for kind, real in work.items():
        rule(f"aten.{kind}")(_per_element(real, _COMPLEX.get(kind)))


register({kind: work for kind, work in _REAL.items() if kind not in ("mul", "div")})
rule("aten.conj_physical", "aten._conj_physical")(_per_element((0, 0), (1, 0)))  # a real number is its own


def _second_is_complex(op: Op) -> bool:
    """Whether the second factor or divisor is: a tensor, or a number among the arguments."""
    return op.inputs[-1].dtype.is_complex if len(op.inputs) > 1 else isinstance(op.attrs.get("other"), complex)


@rule("aten.isinf")
def is_infinite(op: Op) -> list[Cost]:
    """Absolute value and comparison, a kernel each."""
    x, found = op.inputs[0], op.outputs[0]
    return [
        Cost(vector_flop=x.numel, write_bytes=product((x.numel, x.dtype.itemsize)), label="absolute value")
        + reads((x,)),
        Cost(vector_flop=x.numel, read_bytes=product((x.numel, x.dtype.itemsize)), label="comparison")
        + writes((found,)),
    ]


@rule("aten.mul")
def multiply(op: Op) -> Cost:
    """One multiplication; real times complex two, complex times complex four and two additions."""
    both = op.inputs[0].dtype.is_complex and _second_is_complex(op)
    return work_of(op, (1, 0), _COMPLEX["mul"] if both else (2, 0))


@rule("aten.div")
def divide(op: Op) -> Cost:
    """One division, and one operation where the quotient is rounded. By a complex number 9 and 2."""
    rounded = int(op.attrs.get("rounding_mode") is not None)
    return work_of(op, (rounded, 1), _COMPLEX["div"] if _second_is_complex(op) else (0, 2))


@rule("aten.add", "aten.sub", "aten.rsub")
def add(op: Op) -> Cost:
    """a + alpha·b: a second operation where alpha is not 1. Of complex numbers twice as much."""
    operations = 1 if op.attrs.get("alpha", 1) == 1 else 2
    return work_of(op, (operations, 0))


@rule("aten.addcmul", "aten.addcdiv")
def add_product(op: Op) -> Cost:
    """a + v·b·c, or a + v·b/c: one operation less where v is 1."""
    value = int(op.attrs.get("value", 1) != 1)
    if op.kind.startswith("aten.addcdiv"):
        return work_of(op, (1 + value, 1), (2 + 2 * value + 9, 2))
    return work_of(op, (2 + value, 0), (2 + 2 * value + 6, 0))


@rule("aten.clamp")
def clamp(op: Op) -> Cost:
    """One comparison with each bound there is."""
    bounds = sum(op.attrs.get(bound, 0) is not None for bound in ("min", "max"))
    return Cost(vector_flop=product((bounds, op.outputs[0].numel))) + traffic(op)


#: exponent: work of it, for real and for complex numbers
_POWERS: dict[float, tuple[Work, Work]] = {
    2: ((1, 0), (6, 0)),
    3: ((2, 0), (12, 0)),
    -2: ((1, 1), (10, 2)),  # and the reciprocal
}


@rule("aten.pow")
def power(op: Op) -> Cost:
    """Squares and cubes are multiplications, other exponents a special function; complex ones exp(w · log z)."""
    exponent = op.attrs.get("exponent")
    known = _POWERS.get(exponent) if isinstance(exponent, int | float) else None
    return work_of(op, *(known or ((0, 1), (11, 6))))


@rule("aten.mvlgamma")
def log_gamma_of_several(op: Op) -> Cost:
    """The sum of p log-gammas, each of another shift of x: 2 and 1 each."""
    terms = op.attrs["p"]
    return work_of(op, (2 * terms, terms))


@rule("aten.masked_select")
def masked_select(op: Op) -> Cost:
    """Counts along the mask to find each place, then copies what is selected; of the source it reads that alone."""
    _, mask = op.inputs
    return Cost(vector_flop=mask.numel, read_bytes=op.outputs[0].bytes) + reads((mask,)) + writes(op.outputs)
