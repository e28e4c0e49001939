"""Reductions and softmax."""

from __future__ import annotations

from rooflinekit.cost.table import rule, traffic
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import floor_div, product, total


@rule(
    "aten.sum",
    "aten.mean",
    "aten.amax",
    "aten.amin",
    "aten.max",
    "aten.min",
    "aten.argmax",
    "aten.argmin",
    "aten.any",
    "aten.all",
    "aten.prod",
    "aten.cumsum",
)
def reduce(op: Op) -> Cost:
    """One operation an input element."""
    return Cost(vector_flop=op.inputs[0].numel) + traffic(op)


@rule("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
def variance(op: Op) -> Cost:
    """Mean, then difference, square and sum: 4 an input element."""
    return Cost(vector_flop=product((4, op.inputs[0].numel))) + traffic(op)


@rule("aten.linalg_vector_norm")
def vector_norm(op: Op) -> Cost:
    """Square and sum: 2 an input element, and a root an output."""
    return Cost(vector_flop=product((2, op.inputs[0].numel)), special_flop=op.outputs[0].numel) + traffic(op)


@rule("aten._softmax")
def softmax(op: Op) -> Cost:
    """Maximum, subtraction and sum; exp and division."""
    n = op.outputs[0].numel
    return Cost(vector_flop=product((3, n)), special_flop=product((2, n))) + traffic(op)


@rule("aten._softmax_backward_data")
def softmax_backward(op: Op) -> Cost:
    """Sum of g·y, then (g - sum)·y: 4 an element."""
    return Cost(vector_flop=product((4, op.outputs[0].numel))) + traffic(op)


@rule("aten._log_softmax")
def log_softmax(op: Op) -> Cost:
    """Maximum, subtraction, sum and another subtraction; exp, and one log a row."""
    (y,) = op.outputs
    rows = floor_div(y.numel, y.shape[op.attrs["dim"]])
    return Cost(vector_flop=product((4, y.numel)), special_flop=total((y.numel, rows))) + traffic(op)


@rule("aten._log_softmax_backward_data")
def log_softmax_backward(op: Op) -> Cost:
    """Sum of g, then g - exp(y)·sum: 3 and exp."""
    n = op.outputs[0].numel
    return Cost(vector_flop=product((3, n)), special_flop=n) + traffic(op)
