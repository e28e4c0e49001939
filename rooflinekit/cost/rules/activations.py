"""Activations and their gradients: FLOP and special functions an element, each with its arithmetic.

A sigmoid is 1 / (1 + exp(-x)): 2 operations and 2 special functions. Taking -|x| sets a sign bit and is not counted.
"""

from __future__ import annotations

from rooflinekit.cost.rules.elementwise import Work, register, work_of
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import product, total

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
    return work_of(op, (3 + (factor != 1), 1))


@rule("aten.elu_backward")
def elu_backward(op: Op) -> Cost:
    """g·α·exp(c·x) below zero: compare, exp, two multiplications. From the output y it is g·(y + α), without exp."""
    scaled = int(op.attrs.get("input_scale", 1) != 1)
    return work_of(op, (3 + scaled, 0) if op.attrs.get("is_result") else (3 + scaled, 1))


@rule("aten.gelu")
def gelu(op: Op) -> Cost:
    """x/2·(1 + erf(x/√2)): 4 and erf. With tanh(c·(x + a·x³)) in its place: 8 and tanh."""
    return work_of(op, (8 if op.attrs.get("approximate") == "tanh" else 4, 1))


@rule("aten.gelu_backward")
def gelu_backward(op: Op) -> Cost:
    """erf form: Φ(x) 3 and erf, φ(x) 3 and exp, g·(Φ + x·φ) 3.

    tanh form: t = tanh(c·(x + a·x³)) 5 and tanh, ½·(1 + t) 2, ½x·(1 - t²)·c·(1 + 3a·x²) 8, their sum times g 2.
    """
    return work_of(op, (17, 1) if op.attrs.get("approximate") == "tanh" else (9, 2))


@rule("aten.log_sigmoid_forward")
def log_sigmoid(op: Op) -> Cost:
    """min(x, 0) - log1p(exp(-|x|)): 2, and exp and log. CUDA leaves the second output, a CPU's buffer, empty."""
    y = op.outputs[0]
    work = Cost(vector_flop=product((2, y.numel)), special_flop=product((2, y.numel)))
    return work + reads(op.inputs) + writes((y,))


@rule("aten.log_sigmoid_backward")
def log_sigmoid_backward(op: Op) -> Cost:
    """g / (1 + exp(x)) as g·1/…: add, multiply; exp, divide. The CPU's buffer is not read."""
    n = op.outputs[0].numel
    work = Cost(vector_flop=product((2, n)), special_flop=product((2, n)))
    return work + reads(op.inputs[:2]) + writes(op.outputs)


@rule("aten.glu")
def glu(op: Op) -> Cost:
    """a·sigmoid(b) of the two halves of the input: 3 and 2 an output."""
    return work_of(op, (3, 2))


@rule("aten.glu_backward")
def glu_backward(op: Op) -> Cost:
    """s = sigmoid(b) 2 and 2, g·s for a, times (1-s)·a for b: 6 and 2 for each pair, written to both halves."""
    n = op.inputs[0].numel
    return Cost(vector_flop=product((6, n)), special_flop=product((2, n))) + traffic(op)


@rule("aten.rrelu_with_noise")
def rrelu(op: Op) -> Cost:
    """Compare, multiply. Training draws a slope an element, writes it, and 1 where x is positive."""
    x, noise = op.inputs
    written = (*op.outputs, noise) if op.attrs.get("training") else op.outputs
    return Cost(vector_flop=product((2, x.numel))) + reads((x,)) + writes(written)


@rule("aten.rrelu_with_noise_backward")
def rrelu_backward(op: Op) -> Cost:
    """Training: g times the slope that was drawn. Else as a leaky ReLU: compare, multiply."""
    grad, x, noise = op.inputs
    n = op.outputs[0].numel
    if op.attrs.get("training"):
        return Cost(vector_flop=n) + reads((grad, noise)) + writes(op.outputs)
    return Cost(vector_flop=product((2, n))) + reads((grad, x)) + writes(op.outputs)


# --- softmax --------------------------------------------------------------------------------------------------


@rule("aten._softmax", timed_as=Family.REDUCTION)
def softmax(op: Op) -> Cost:
    """Maximum, subtraction and sum; exp and division."""
    return work_of(op, (3, 2))


@rule("aten._safe_softmax", timed_as=Family.REDUCTION)
def safe_softmax(op: Op) -> Cost:
    """Softmax; then 0 where a whole row is -inf: compare, and, select."""
    return work_of(op, (6, 2))


@rule("aten._masked_softmax", timed_as=Family.REDUCTION)
def masked_softmax(op: Op) -> Cost:
    """Softmax of what the mask leaves: a selection more."""
    return work_of(op, (4, 2))


@rule("aten._softmax_backward_data", timed_as=Family.REDUCTION)
def softmax_backward(op: Op) -> Cost:
    """Sum of g·y, then (g - sum)·y: 4 an element."""
    return work_of(op, (4, 0))


@rule("aten._masked_softmax_backward", timed_as=Family.REDUCTION)
def masked_softmax_backward(op: Op) -> Cost:
    """As without a mask, and a selection."""
    return work_of(op, (5, 0))


@rule("aten._log_softmax", timed_as=Family.REDUCTION)
def log_softmax(op: Op) -> Cost:
    """Maximum, subtraction, sum and another subtraction; exp, and one log a row."""
    (y,) = op.outputs
    dim = op.attrs["dim"] % max(len(y.shape), 1)
    rows = product(size for i, size in enumerate(y.shape) if i != dim)
    return Cost(vector_flop=product((4, y.numel)), special_flop=total((y.numel, rows))) + traffic(op)


@rule("aten._log_softmax_backward_data", timed_as=Family.REDUCTION)
def log_softmax_backward(op: Op) -> Cost:
    """Sum of g, then g - exp(y)·sum: 3 and exp."""
    return work_of(op, (3, 1))
