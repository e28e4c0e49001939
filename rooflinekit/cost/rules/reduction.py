"""Reductions, softmax, pooling and the losses built on them."""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Op
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


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(op: Op) -> Cost:
    """Reads one log-probability a target, not all of them; negates and sums: 2 a target."""
    log_probability, target = op.inputs[:2]
    picked = Cost(read_bytes=product((target.numel, log_probability.dtype.itemsize)))
    work = Cost(vector_flop=product((2, target.numel)))
    return work + picked + reads(op.inputs[1:]) + writes(op.outputs)


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(op: Op) -> Cost:
    """Writes zeros everywhere and one value a target; the log-probabilities give their shape alone."""
    grad, _, target, *rest = op.inputs
    return Cost(vector_flop=target.numel) + reads((grad, target, *rest)) + writes(op.outputs)


@rule("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.max_pool2d")
def max_pool(op: Op) -> Cost:
    """One comparison a window element."""
    kernel = product(_window(op))
    return Cost(vector_flop=product((op.outputs[0].numel, kernel))) + traffic(op)


@rule("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward")
def max_pool_backward(op: Op) -> Cost:
    """Adds each gradient at its index; of the input only the shape is used."""
    grad, _, indices = op.inputs
    return Cost(vector_flop=grad.numel) + reads((grad, indices)) + writes(op.outputs)


@rule("aten.avg_pool2d", "aten.avg_pool3d")
def average_pool(op: Op) -> Cost:
    """One addition a window element and one multiplication an output."""
    kernel = total((product(_window(op)), 1))
    return Cost(vector_flop=product((op.outputs[0].numel, kernel))) + traffic(op)


@rule("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def average_pool_backward(op: Op) -> Cost:
    """One addition a window element and one multiplication an output; of the input only the shape is used."""
    grad = op.inputs[0]
    kernel = total((product(_window(op)), 1))
    return Cost(vector_flop=product((grad.numel, kernel))) + reads((grad,)) + writes(op.outputs)


@rule("aten._adaptive_avg_pool2d")
def adaptive_average_pool(op: Op) -> Cost:
    """Every input element is added once (where sizes divide), every output multiplied once."""
    return Cost(vector_flop=total((op.inputs[0].numel, op.outputs[0].numel))) + traffic(op)


@rule("aten._adaptive_avg_pool2d_backward")
def adaptive_average_pool_backward(op: Op) -> Cost:
    """One multiplication an element of the result; of the input only the shape is used."""
    return Cost(vector_flop=op.outputs[0].numel) + reads(op.inputs[:1]) + writes(op.outputs)


def _window(op: Op) -> tuple[int, ...]:
    """The kernel size, one number for all dimensions written out."""
    size = op.attrs["kernel_size"]
    dimensions = 3 if "3d" in op.kind else 2
    return tuple(size) * dimensions if len(size) == 1 else tuple(size)
