"""Pooling. A window that reaches over the border, into padding or by `ceil_mode`, counts in full."""

from __future__ import annotations

import math

from rooflinekit.cost.rules.movement import dense_bytes, zeros_then
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, product, total
from rooflinekit.ir.tensor import TensorSpec


@rule(
    "aten.max_pool1d",
    "aten.max_pool2d",
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.fractional_max_pool2d",
    "aten.fractional_max_pool3d",
    timed_as=Family.REDUCTION,
)
def max_pool(op: Op) -> Cost:
    """One comparison a window element. Where random numbers place the windows, that is index arithmetic."""
    kernel = product(_window(op))
    return Cost(vector_flop=product((op.outputs[0].numel, kernel))) + traffic(op)


@rule(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
    "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward",
    timed_as=Family.REDUCTION,
)
def max_pool_backward(op: Op) -> Cost:
    """Adds each gradient at its index; of the input only the shape is used."""
    grad, _, indices = op.inputs
    return Cost(vector_flop=grad.numel) + reads((grad, indices)) + writes(op.outputs)


@rule("aten.max_unpool2d", "aten.max_unpool3d", timed_as=Family.REDUCTION)
def max_unpool(op: Op) -> list[Cost]:
    """Zeros, then each element copied to its index."""
    x, indices = op.inputs
    return zeros_then("copy", op, (x, indices), dense_bytes(x))


@rule("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d", timed_as=Family.REDUCTION)
def average_pool(op: Op) -> Cost:
    """One addition a window element and one multiplication an output."""
    kernel = total((product(_window(op)), 1))
    return Cost(vector_flop=product((op.outputs[0].numel, kernel))) + traffic(op)


@rule("aten.avg_pool2d_backward", "aten.avg_pool3d_backward", timed_as=Family.REDUCTION)
def average_pool_backward(op: Op) -> Cost:
    """One addition a window element and one multiplication an output; of the input only the shape is used."""
    grad = op.inputs[0]
    kernel = total((product(_window(op)), 1))
    return Cost(vector_flop=product((grad.numel, kernel))) + reads((grad,)) + writes(op.outputs)


@rule("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", timed_as=Family.REDUCTION)
def adaptive_average_pool(op: Op) -> Cost:
    """One addition a window element and one multiplication an output."""
    x, y = op.inputs[0], op.outputs[0]
    return Cost(vector_flop=total((_adaptive_windows(op, x, y), y.numel))) + traffic(op)


@rule("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d", timed_as=Family.REDUCTION)
def adaptive_max_pool(op: Op) -> Cost:
    """One comparison a window element."""
    return Cost(vector_flop=_adaptive_windows(op, op.inputs[0], op.outputs[0])) + traffic(op)


@rule("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward", timed_as=Family.REDUCTION)
def adaptive_average_pool_backward(op: Op) -> Cost:
    """One multiplication a window element; of the input only the shape is used.

    Elements that several windows share are added up too: one addition a window element beyond the first.
    """
    grad, x = op.inputs[0], op.outputs[0]
    windows = _adaptive_windows(op, x, grad)
    return Cost(vector_flop=total((product((2, windows)), product((-1, x.numel))))) + reads((grad,)) + writes((x,))


def _window(op: Op) -> tuple[int, ...]:
    """The kernel size, one number for all dimensions written out."""
    size = op.attrs["kernel_size"]
    return tuple(size) * _dimensions(op) if len(size) == 1 else tuple(size)


def _dimensions(op: Op) -> int:
    return next(d for d in (1, 2, 3) if f"{d}d" in op.kind)


def _adaptive_windows(op: Op, x: TensorSpec, y: TensorSpec) -> Size:
    """Elements of all windows together.

    Window i of O over I elements reaches from ⌊i·I/O⌋ to ⌈(i+1)·I/O⌉. Neighbours share an element where O does not
    divide i·I, which is so for O - gcd(I, O) of them: I + O - gcd(I, O) in all.
    """
    spatial = -_dimensions(op)
    spans = (
        total((i, o, product((-1, _gcd(i, o))))) for i, o in zip(x.shape[spatial:], y.shape[spatial:], strict=True)
    )
    return product((*x.shape[:spatial], *spans))


def _gcd(a: Size, b: Size) -> Size:
    """The greatest common divisor; of a number and an open size: Σ φ(d) over the number's divisors d that divide it.

    Of two open sizes of which neither is a multiple of the other for all values: 1.
    """
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        divisors = (d for d in range(1, b + 1) if b % d == 0)
        return total(product((_totient(d), _divides(d, a))) for d in divisors)
    return next((x for x, y in ((b, a), (a, b)) if product((floor_div(y, x), x)) == y), 1)


def _divides(d: int, n: Size) -> Size:
    """1 where d divides n, else 0."""
    return total((1, floor_div(n, d), product((-1, ceil_div(n, d)))))


def _totient(n: int) -> int:
    return sum(math.gcd(k, n) == 1 for k in range(1, n + 1))
