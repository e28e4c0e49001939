"""Element-wise arithmetic: FLOP and special functions an output element, each with its arithmetic.

Comparisons and selections count like additions. A division is one special function. Activations, losses and random
numbers stand in files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.cost.table import (
    an_element,
    aten,
    family,
    per_input,
    per_output,
    reads,
    rule,
    sweep,
    traffic,
    work,
    writes,
)
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op, TensorSpec
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
REAL: dict[str, Work] = {
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


def work_of(op: Op, vector: int, special: int, *of_complex: int) -> Cost:
    """This work for each output element, and traffic; for complex numbers twice as much where nothing else is said."""
    real = vector, special
    return per_output(op, *((of_complex or (2 * vector, 2 * special)) if is_complex(op) else real))


def register(rows: Mapping[str, Work]) -> None:
    """Registers element-wise rules, by the work of an element of a real tensor."""
    family(work_of, {kind: (*row, *_COMPLEX.get(kind, ()), an_element(*row)) for kind, row in rows.items()})


register({kind: row for kind, row in REAL.items() if kind not in ("mul", "div")})
family(work_of, {"conj_physical _conj_physical": (0, 0, 1, 0, "Traffic alone.")})  # a real number is its own


def _second_is_complex(op: Op) -> bool:
    """Whether the second factor or divisor is: a tensor, or a number among the arguments."""
    return op.inputs[-1].dtype.is_complex if len(op.inputs) > 1 else isinstance(op.attrs.get("other"), complex)


@rule("aten.isinf")
def is_infinite(op: Op) -> list[Cost]:
    """Absolute value and comparison, a kernel each."""
    x, found = op.inputs[0], op.outputs[0]
    return [
        sweep("absolute value", x, reading=0, vector=1) + reads((x,)),
        sweep("comparison", x, writing=0, vector=1) + writes((found,)),
    ]


@rule("aten.mul")
def multiply(op: Op) -> Cost:
    """One multiplication; real times complex two, complex times complex four and two additions."""
    both = op.inputs[0].dtype.is_complex and _second_is_complex(op)
    return work_of(op, 1, 0, *(_COMPLEX["mul"] if both else (2, 0)))


@rule("aten.div")
def divide(op: Op) -> Cost:
    """One division, and one operation where the quotient is rounded. By a complex number 9 and 2."""
    rounded = int(op.attrs.get("rounding_mode") is not None)
    return work_of(op, rounded, 1, *(_COMPLEX["div"] if _second_is_complex(op) else (0, 2)))


@rule("aten.add", "aten.sub", "aten.rsub")
def add(op: Op) -> Cost:
    """a + alpha·b: a second operation where alpha is not 1. Of complex numbers twice as much."""
    return work_of(op, 1 + (op.attrs.get("alpha", 1) != 1), 0)


@rule("aten.addcmul", "aten.addcdiv")
def add_product(op: Op) -> Cost:
    """a + v·b·c, or a + v·b/c: one operation less where v is 1."""
    value = int(op.attrs.get("value", 1) != 1)
    if op.kind.startswith("aten.addcdiv"):
        return work_of(op, 1 + value, 1, 2 + 2 * value + 9, 2)
    return work_of(op, 2 + value, 0, 2 + 2 * value + 6, 0)


@rule("aten.clamp")
def clamp(op: Op) -> Cost:
    """One comparison with each bound there is."""
    bounds = sum(op.attrs.get(bound, 0) is not None for bound in ("min", "max"))
    return per_output(op, bounds)


#: exponent: work of it, for real and for complex numbers
_POWERS: dict[float, tuple[int, int, int, int]] = {
    2: (1, 0, 6, 0),
    3: (2, 0, 12, 0),
    -2: (1, 1, 10, 2),  # and the reciprocal
}


@rule("aten.pow")
def power(op: Op) -> Cost:
    """Squares and cubes are multiplications, other exponents a special function; complex ones exp(w · log z)."""
    exponent = op.attrs.get("exponent")
    known = _POWERS.get(exponent) if isinstance(exponent, int | float) else None
    return work_of(op, *(known or (0, 1, 11, 6)))


@rule("aten.mvlgamma")
def log_gamma_of_several(op: Op) -> Cost:
    """The sum of p log-gammas, each of another shift of x: 2 and 1 each."""
    return work_of(op, 2 * op.attrs["p"], op.attrs["p"])


@rule("aten.masked_select")
def masked_select(op: Op) -> Cost:
    """Counts along the mask to find each place, then copies what is selected; of the source it reads that alone."""
    _, mask = op.inputs
    return Cost(vector_flop=mask.numel, read_bytes=op.outputs[0].bytes) + reads((mask,)) + writes(op.outputs)


# Activations and their gradients: FLOP and special functions an element, each with its arithmetic.
#
# A sigmoid is 1 / (1 + exp(-x)): 2 operations and 2 special functions. Taking -|x| sets a sign bit and is not counted.


#: kind: (vector FLOP, special functions) an element
_PER_ELEMENT: dict[str, Work] = {
    "relu": (1, 0),
    "threshold": (1, 0),  # select
    "hardtanh": (2, 0),  # two comparisons
    "hardshrink": (2, 0),  # two comparisons
    "softshrink": (3, 0),  # two comparisons; x - λ or x + λ
    "leaky_relu": (2, 0),  # compare, multiply
    "_prelu_kernel": (2, 0),  # compare, multiply
    "hardsigmoid": (4, 0),  # x + 3, two comparisons, /6 as a multiplication
    "hardswish": (5, 0),  # hardsigmoid, times x
    "sigmoid": (2, 2),
    "silu": (3, 2),  # sigmoid, times x
    "softplus": (2, 2),  # compare, log(1 + exp(x)): add; exp, log
    "mish": (3, 3),  # softplus, tanh, multiply
    # gradients, of g the one of the output
    "threshold_backward": (1, 0),  # select
    "hardtanh_backward": (2, 0),  # two comparisons
    "hardshrink_backward": (2, 0),
    "softshrink_backward": (2, 0),
    "leaky_relu_backward": (2, 0),  # compare, multiply
    "_prelu_kernel_backward": (3, 0),  # compare; g·w for the input, g·x for the slope
    "hardsigmoid_backward": (3, 0),  # two comparisons, multiply
    "hardswish_backward": (5, 0),  # two comparisons, x/3 + 1/2, times g
    "sigmoid_backward": (3, 0),  # g·(1-y)·y
    "tanh_backward": (3, 0),  # g·(1-y·y)
    "silu_backward": (7, 2),  # s = sigmoid(x): 2 and 2; g·s·(1 + x·(1-s)): 5
    "softplus_backward": (3, 2),  # g·sigmoid(x)
    "mish_backward": (10, 5),  # s 2 and 2; t = tanh(softplus(x)) 2 and 3; g·(t + x·s·(1-t·t)): 6
}
register(_PER_ELEMENT)


@rule("aten.elu", "aten.celu")
def elu(op: Op) -> Cost:
    """α·(exp(c·x) - 1) below zero: compare, exp, subtract, multiply, and times c where that is not 1.

    CELU has c = 1/α. SELU is ELU with a factor on both sides of zero, which α absorbs below.
    """
    factor = op.attrs.get("alpha", 1) if op.kind.startswith("aten.celu") else op.attrs.get("input_scale", 1)
    return work_of(op, 3 + (factor != 1), 1)


@rule("aten.elu_backward")
def elu_backward(op: Op) -> Cost:
    """g·α·exp(c·x) below zero: compare, exp, two multiplications. From the output y it is g·(y + α), without exp."""
    return work_of(op, 3 + (op.attrs.get("input_scale", 1) != 1), 0 if op.attrs.get("is_result") else 1)


@rule("aten.gelu")
def gelu(op: Op) -> Cost:
    """x/2·(1 + erf(x/√2)): 4 and erf. With tanh(c·(x + a·x³)) in its place: 8 and tanh."""
    return work_of(op, 8 if op.attrs.get("approximate") == "tanh" else 4, 1)


@rule("aten.gelu_backward")
def gelu_backward(op: Op) -> Cost:
    """erf form: Φ(x) 3 and erf, φ(x) 3 and exp, g·(Φ + x·φ) 3.

    tanh form: t = tanh(c·(x + a·x³)) 5 and tanh, ½·(1 + t) 2, ½x·(1 - t²)·c·(1 + 3a·x²) 8, their sum times g 2.
    """
    return work_of(op, *((17, 1) if op.attrs.get("approximate") == "tanh" else (9, 2)))


@rule("aten.log_sigmoid_forward", "aten.log_sigmoid_backward")
def log_sigmoid(op: Op) -> Cost:
    """min(x, 0) - log1p(exp(-|x|)): 2, and exp and log; its gradient g / (1 + exp(x)) as g·1/…: 2, and exp and divide.

    CUDA leaves a CPU's buffer, the second output, empty, and does not read it as the third input.
    """
    return work(op.outputs[0].numel, 2, 2) + reads(op.inputs[:2]) + writes(op.outputs[:1])


_GLU = "s = sigmoid(b) 2 and 2, g·s for a, times (1-s)·a for b: 6 and 2 for each pair, written to both halves."
family(work_of, {"glu": (3, 2, "a·sigmoid(b) of the two halves of the input: 3 and 2 an output.")})
family(per_input, {"glu_backward": (6, 2, _GLU)})


@rule("aten.rrelu_with_noise")
def rrelu(op: Op) -> Cost:
    """Compare, multiply. Training draws a slope an element, writes it, and 1 where x is positive."""
    x, noise = op.inputs
    written = (*op.outputs, noise) if op.attrs.get("training") else op.outputs
    return work(x.numel, 2) + reads((x,)) + writes(written)


@rule("aten.rrelu_with_noise_backward")
def rrelu_backward(op: Op) -> Cost:
    """Training: g times the slope that was drawn. Else as a leaky ReLU: compare, multiply."""
    grad, x, noise = op.inputs
    training = bool(op.attrs.get("training"))
    return work(op.outputs[0].numel, 2 - training) + reads((grad, noise if training else x)) + writes(op.outputs)


SOFTMAXES = aten("_softmax _safe_softmax _masked_softmax _log_softmax")
SOFTMAX_GRADIENTS = aten("_softmax_backward_data _masked_softmax_backward _log_softmax_backward_data")

# --- softmax --------------------------------------------------------------------------------------------------


family(
    work_of,
    {
        "_softmax": (3, 2, "Maximum, subtraction and sum; exp and division."),
        "_safe_softmax": (6, 2, "Softmax; then 0 where a whole row is -inf: compare, and, select."),
        "_masked_softmax": (4, 2, "Softmax of what the mask leaves: a selection more."),
        "_softmax_backward_data": (4, 0, "Sum of g·y, then (g - sum)·y: 4 an element."),
        "_masked_softmax_backward": (5, 0, "As without a mask, and a selection."),
        "_log_softmax_backward_data": (3, 1, "Sum of g, then g - exp(y)·sum: 3 and exp."),
    },
    timed_as=Family.REDUCTION,
)


@rule("aten._log_softmax", timed_as=Family.REDUCTION)
def log_softmax(op: Op) -> Cost:
    """Maximum, subtraction, sum and another subtraction; exp, and one log a row."""
    (y,) = op.outputs
    dim = op.attrs["dim"] % max(len(y.shape), 1)
    rows = product(size for i, size in enumerate(y.shape) if i != dim)
    return work(y.numel, 4, 1) + Cost(special_flop=rows) + traffic(op)


# Random numbers. Drawing them, in whatever distribution, is not counted as FLOP: they cost what they write.
#
# Ops that take probabilities or rates as a tensor read it; one that takes a tensor for its shape alone does not.

_DRAWS = aten("rand rand_like randn randn_like randint randint_like randperm random uniform normal_ log_normal "
              "exponential geometric cauchy")  # fmt: skip
_DISTRIBUTIONS = "normal poisson binomial multinomial _standard_gamma _sample_dirichlet"
_DROPOUTS = "native_dropout _fused_dropout"

#: Ops whose results chance decides: none is the same when it is run again.
RANDOM = frozenset((*_DRAWS, *aten(f"{_DISTRIBUTIONS} {_DROPOUTS} bernoulli rrelu_with_noise")))


family(
    traffic,
    {
        " ".join(_DRAWS): (lambda op: writes(op.outputs), "Writes its numbers and reads nothing."),
        _DISTRIBUTIONS: ("Reads means, rates or probabilities, an element or a row each, and writes what it drew.",),
    },
)


@rule("aten.bernoulli")
def bernoulli(op: Op) -> Cost:
    """Reads its probabilities where they are a tensor: the input itself unless `p` is given."""
    if "p" not in op.attrs:
        return traffic(op)
    probability = op.attrs["p"]
    return reads((probability,) if isinstance(probability, TensorSpec) else ()) + writes(op.outputs)


_DROPOUT = "Compare with a random number, mask and scale; the mask is written too, a byte an element."
family(per_output, {_DROPOUTS: (3, _DROPOUT)})
register(
    {
        "native_dropout_backward": (2, 0),  # g·mask·scale
        "_masked_scale": (2, 0),
        "_standard_gamma_grad": (0, 1),
        "_dirichlet_grad": (0, 1),
    }
)
