"""Element-wise ops: FLOP and special functions an output element, each with its arithmetic.

Comparisons and selections count like additions. A division is one special function.
"""

from __future__ import annotations

from rooflinekit.cost.table import Rule, rule, traffic
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product

#: kind: (vector FLOP, special functions) an element of the largest tensor
_PER_ELEMENT: dict[str, tuple[int, int]] = {
    # one operation
    "neg": (1, 0),
    "abs": (1, 0),
    "sign": (1, 0),
    "relu": (1, 0),
    "mul": (1, 0),
    "maximum": (1, 0),
    "minimum": (1, 0),
    "where": (1, 0),
    "masked_fill": (1, 0),
    "eq": (1, 0),
    "ne": (1, 0),
    "lt": (1, 0),
    "le": (1, 0),
    "gt": (1, 0),
    "ge": (1, 0),
    "logical_not": (1, 0),
    "logical_and": (1, 0),
    "logical_or": (1, 0),
    "logical_xor": (1, 0),
    "bitwise_not": (1, 0),
    "bitwise_and": (1, 0),
    "bitwise_or": (1, 0),
    "bitwise_xor": (1, 0),
    "floor": (1, 0),
    "ceil": (1, 0),
    "round": (1, 0),
    "trunc": (1, 0),
    "clamp_min": (1, 0),
    "clamp_max": (1, 0),
    "isnan": (1, 0),
    "isinf": (1, 0),
    # one special function
    "div": (0, 1),
    "reciprocal": (0, 1),
    "remainder": (0, 1),
    "exp": (0, 1),
    "exp2": (0, 1),
    "expm1": (0, 1),
    "log": (0, 1),
    "log2": (0, 1),
    "log1p": (0, 1),
    "sin": (0, 1),
    "cos": (0, 1),
    "tanh": (0, 1),
    "erf": (0, 1),
    "sqrt": (0, 1),
    "rsqrt": (0, 1),
    # activations
    "clamp": (2, 0),  # two comparisons
    "hardtanh": (2, 0),  # two comparisons
    "leaky_relu": (2, 0),  # compare, multiply
    "hardsigmoid": (4, 0),  # x+3, two comparisons, /6 as a multiplication
    "hardswish": (5, 0),  # hardsigmoid, times x
    "sigmoid": (2, 2),  # 1 / (1 + exp(-x)): negate, add; exp, divide
    "silu": (3, 2),  # sigmoid, times x
    "elu": (3, 1),  # compare, exp, subtract, multiply
    "softplus": (2, 2),  # compare, log(1 + exp(x)): add; exp, log
    "mish": (3, 3),  # softplus, tanh, multiply
    "logit": (1, 2),  # log(x / (1 - x))
    # gradients
    "threshold_backward": (1, 0),  # select
    "hardtanh_backward": (2, 0),  # two comparisons
    "leaky_relu_backward": (2, 0),  # compare, multiply
    "hardsigmoid_backward": (3, 0),  # two comparisons, multiply
    "hardswish_backward": (5, 0),  # two comparisons, x/3 + 1/2, times the gradient
    "sigmoid_backward": (3, 0),  # g·(1-y)·y
    "tanh_backward": (3, 0),  # g·(1-y·y)
    "silu_backward": (7, 2),  # s = sigmoid(x): 2 and 2; g·s·(1 + x·(1-s)): 5
    "elu_backward": (3, 1),
    "softplus_backward": (3, 2),  # g·sigmoid(x)
    "native_dropout_backward": (2, 0),  # g·mask·scale
    # losses, before reduction
    "mse_loss": (3, 0),  # difference, square, sum
    "mse_loss_backward": (3, 0),  # difference, two multiplications
    "binary_cross_entropy_with_logits": (4, 2),  # max(x,0) - x·y + log(1+exp(-|x|))
    # several at once
    "addcmul": (3, 0),  # a + v·b·c
    "addcdiv": (2, 1),  # a + v·b/c
    "lerp": (3, 0),  # a + w·(b-a)
}


def _per_element(vector: int, special: int) -> Rule:
    def price(op: Op) -> Cost:
        reduces = op.kind.endswith(("_loss", "_with_logits"))  # to a scalar, as their arguments ask
        n = op.inputs[0].numel if reduces else op.outputs[0].numel
        return Cost(vector_flop=product((vector, n)), special_flop=product((special, n))) + traffic(op)

    return price


for _kind, (_vector, _special) in _PER_ELEMENT.items():
    rule(f"aten.{_kind}")(_per_element(_vector, _special))


@rule("aten.add", "aten.sub", "aten.rsub")
def add(op: Op) -> Cost:
    """a + alpha·b: a second operation where alpha is not 1."""
    n = op.outputs[0].numel
    return Cost(vector_flop=product((1 if op.attrs.get("alpha", 1) == 1 else 2, n))) + traffic(op)


@rule("aten.pow")
def power(op: Op) -> Cost:
    """Squares and cubes are multiplications, other exponents a special function."""
    n = op.outputs[0].numel
    multiplications = {2: 1, 3: 2}.get(op.attrs.get("exponent"), 0)  # type: ignore[arg-type]
    if multiplications:
        return Cost(vector_flop=product((multiplications, n))) + traffic(op)
    return Cost(special_flop=n) + traffic(op)


@rule("aten.gelu")
def gelu(op: Op) -> Cost:
    """x/2·(1 + erf(x/√2)): 4 and erf. With tanh(c·(x + a·x³)) in its place: 8 and tanh."""
    n = op.outputs[0].numel
    vector = 8 if op.attrs.get("approximate") == "tanh" else 4
    return Cost(vector_flop=product((vector, n)), special_flop=n) + traffic(op)


@rule("aten.gelu_backward")
def gelu_backward(op: Op) -> Cost:
    """erf form: Φ(x) 3 and erf, φ(x) 3 and exp, g·(Φ + x·φ) 3.

    tanh form: t = tanh(c·(x + a·x³)) 5 and tanh, ½·(1 + t) 2, ½x·(1 - t²)·c·(1 + 3a·x²) 8, their sum times g 2.
    """
    n = op.outputs[0].numel
    vector, special = (17, 1) if op.attrs.get("approximate") == "tanh" else (9, 2)
    return Cost(vector_flop=product((vector, n)), special_flop=product((special, n))) + traffic(op)


@rule("aten.native_dropout")
def dropout(op: Op) -> Cost:
    """Compare a random number, which costs no FLOP here, then mask and scale; the mask is written too."""
    return Cost(vector_flop=product((3, op.outputs[0].numel))) + traffic(op)
