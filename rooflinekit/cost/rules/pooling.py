"""Pooling."""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product, total


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
