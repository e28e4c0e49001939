"""Convolutions as implicit matrix products.

A forward convolution over N images with P·Q output pixels, C input and K output channels, kernel R·S and g groups is
g products of [N·P·Q, C/g·R·S] with [C/g·R·S, K/g]. Zeros of the padding are multiplied like all others.
"""

from __future__ import annotations

import math

from rooflinekit.cost.rules.matmul import gemm_of
from rooflinekit.cost.rules.movement import zeros_then
from rooflinekit.cost.table import aten, dense_bytes, family, gradients, per_output, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, product, quotient, total


def _sizes(x: TensorSpec, weight: TensorSpec, y: TensorSpec, op: Op) -> tuple[Size, Size, Size, Size, Size]:
    """Pixels, input and output channels a group, kernel size, groups.

    A transposed convolution is the input gradient of a plain one: each of its *input* pixels meets the kernel.
    """
    groups: Size = op.attrs["groups"]
    anchor = x if op.attrs.get("transposed") else y  # cudnn_convolution has no such argument
    pixels = product((anchor.shape[0], *anchor.shape[2:]))
    return pixels, floor_div(x.shape[1], groups), floor_div(y.shape[1], groups), product(weight.shape[2:]), groups


FORWARD = aten("convolution _convolution cudnn_convolution convolution_overrideable")
BACKWARD = "aten.convolution_backward"


@rule(*FORWARD, timed_as=Family.CONVOLUTION)
def convolution(op: Op) -> Cost:
    """2·N·P·Q·K·C/g·R·S for P·Q output pixels (of a transposed one, input pixels); a bias 1 an output element.

    The weight is [K, C/g, R, S], or [C, K/g, R, S] when transposed.
    """
    x, weight = op.inputs[:2]
    pixels, c, k, kernel, groups = _sizes(x, weight, op.outputs[0], op)
    if op.attrs.get("transposed"):
        gemm = Gemm(batch=groups, m=pixels, n=product((k, kernel)), k=c)
    else:
        gemm = Gemm(batch=groups, m=pixels, n=k, k=product((c, kernel)))
    return Cost(gemms=(gemm,)) + per_output(op, int(op.attrs.get("bias") is not None))


@rule(BACKWARD, timed_as=Family.CONVOLUTION)
def convolution_backward(op: Op) -> list[Cost]:
    """The forward count for the gradient of the input, again for that of the weight; 1 a number summed for the bias.

    Each is a kernel, and computed only where it is needed.
    """
    grad, x, weight = op.inputs[:3]
    pixels, c, k, kernel, groups = _sizes(x, weight, grad, op)
    rows, columns = (c, k) if op.attrs["transposed"] else (k, c)
    of_input = Gemm(batch=groups, m=pixels, n=c, k=product((k, kernel)))
    of_weight = Gemm(batch=groups, m=rows, n=product((columns, kernel)), k=pixels)
    kernels = (
        (Cost(gemms=(of_input,), label="input gradient"), (grad, weight)),
        (Cost(gemms=(of_weight,), label="weight gradient"), (grad, x)),
        (Cost(vector_flop=grad.numel, label="bias gradient"), (grad,)),
    )
    return gradients(op, kernels)


@rule("aten.conv_tbc")
def convolution_time_first(op: Op) -> Cost:
    """2·T·B·R·C·K for T output steps of an input [·, B, C] and a weight [R, C, K]; a bias 1 an output element."""
    kernel, c, k = op.inputs[1].shape
    gemm = Gemm(m=product(op.outputs[0].shape[:2]), n=k, k=product((kernel, c)))
    return Cost(gemms=(gemm,)) + per_output(op, 1)


# Pooling. A window that reaches over the border, into padding or by `ceil_mode`, counts in full.


MAX_POOL, MAX_POOL_GRADIENT = aten("max_pool2d_with_indices max_pool2d_with_indices_backward")
MAX_POOLS = (*aten("max_pool1d max_pool2d"), MAX_POOL, *aten("max_pool3d_with_indices"))
RANDOM_POOLS = aten("fractional_max_pool2d fractional_max_pool3d")
AVERAGE_POOLS = aten("avg_pool1d avg_pool2d avg_pool3d")
ADAPTIVE_AVERAGES = aten("_adaptive_avg_pool2d _adaptive_avg_pool3d")
ADAPTIVE_MAXIMA = aten("adaptive_max_pool2d adaptive_max_pool3d")
MAX_POOL_GRADIENTS = (
    MAX_POOL_GRADIENT,
    *aten("max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward"),
    *aten("fractional_max_pool2d_backward fractional_max_pool3d_backward"),
)
AVERAGE_GRADIENTS = aten("avg_pool2d_backward avg_pool3d_backward")
ADAPTIVE_GRADIENTS = aten("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward")
POOLS = (*MAX_POOLS, *RANDOM_POOLS, *AVERAGE_POOLS, *ADAPTIVE_AVERAGES, *ADAPTIVE_MAXIMA)
POOL_GRADIENTS = (*MAX_POOL_GRADIENTS, *AVERAGE_GRADIENTS, *ADAPTIVE_GRADIENTS)


_MEAN = "One addition a window element and one multiplication an output."


family(
    lambda op, scaled: per_output(op, _taps(op) + scaled),
    {
        " ".join((*MAX_POOLS, *RANDOM_POOLS)): (
            0, "One comparison a window element. Where random numbers place the windows, that is index arithmetic.",
        ),
        " ".join(AVERAGE_POOLS): (1, _MEAN),
        " ".join(MAX_POOL_GRADIENTS): (
            lambda op: work(op.inputs[0].numel, 1) + reads((op.inputs[0], op.inputs[2])) + writes(op.outputs),
            "Adds each gradient at its index; of the input only the shape is used.",
        ),
        "max_unpool2d max_unpool3d": (
            lambda op: zeros_then("copy", op, op.inputs, dense_bytes(op.inputs[0])),
            "Zeros, then each element copied to its index.",
        ),
        " ".join(AVERAGE_GRADIENTS): (
            lambda op: work(op.inputs[0].numel, _taps(op) + 1) + reads(op.inputs[:1]) + writes(op.outputs),
            "One addition a window element and one multiplication an output; of the input only the shape is used.",
        ),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip


family(
    lambda op, scaled: work(_adaptive_windows(op, op.inputs[0], op.outputs[0]), 1) + per_output(op, scaled),
    {" ".join(ADAPTIVE_AVERAGES): (1, _MEAN), " ".join(ADAPTIVE_MAXIMA): (0, "One comparison a window element.")},
    timed_as=Family.REDUCTION,
)


@rule(*ADAPTIVE_GRADIENTS, timed_as=Family.REDUCTION)
def adaptive_average_pool_backward(op: Op) -> Cost:
    """One multiplication a window element; of the input only the shape is used.

    Elements that several windows share are added up too: one addition a window element beyond the first.
    """
    grad, x = op.inputs[0], op.outputs[0]
    windows = _adaptive_windows(op, x, grad)
    return Cost(vector_flop=total((product((2, windows)), product((-1, x.numel))))) + reads((grad,)) + writes((x,))


def _taps(op: Op) -> int:
    """Elements of a window, whose size may be one number for all dimensions."""
    size = op.attrs["kernel_size"]
    return math.prod(tuple(size) * _dimensions(op) if len(size) == 1 else size)


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
    """The greatest common divisor; of a number and an open size Σ φ(d) over the number's divisors d that divide it.

    Of two open sizes the one that divides the other for all values, or 1.
    """
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        divisors = (d for d in range(1, b + 1) if b % d == 0)
        totients = ((sum(math.gcd(k, d) == 1 for k in range(1, d + 1)), d) for d in divisors)
        # 1 where d divides a, else 0
        return total(product((t, total((1, floor_div(a, d), product((-1, ceil_div(a, d))))))) for t, d in totients)
    return next((x for x, y in ((b, a), (a, b)) if product((floor_div(y, x), x)) == y), 1)


# Operators of torchvision: deformable convolution, regions of interest, suppression of overlapping boxes.


#: A number between four: its place floored, what is left and the rest of it, 6; four weights, their products, 3 sums.
_BETWEEN = 6 + 4 + 4 + 3
#: Two boxes: corners of what they share 4, its sides 4, its area 1, both areas together 2, the comparison 1.
_OVERLAP = 12
_WORD = 64  # boxes of which one integer says whether they overlap


@rule("torchvision.deform_conv2d")
def deform_conv2d(op: Op) -> list[Cost]:
    """A convolution, 2·N·P·Q·K·C/g·R·S; each of the N·P·Q·C·R·S numbers under the window lies between four: 17.

    A mask is one multiplication each. The numbers under the window are written and read again.
    """
    x, weight, offset, mask, bias = op.inputs[:5]
    (y,) = op.outputs
    k, c, r, s = weight.shape
    n, _, p, q = y.shape
    window = product((n, x.shape[1], r, s, p, q))
    masked = bool(op.attrs.get("use_mask"))
    moved = product((window, x.dtype.itemsize))
    sampled = Cost(write_bytes=moved, label="window") + work(window, _BETWEEN + masked)
    gemm = gemm_of(x, batch=op.attrs["groups"], m=product((n, p, q)), n=k // op.attrs["groups"], k=c * r * s)
    multiplied = Cost(gemms=(gemm,), vector_flop=y.numel, read_bytes=moved)
    return [
        sampled + reads((x, offset, mask) if masked else (x, offset)),
        multiplied + reads((weight, bias)) + writes((y,)),
    ]


@rule("torchvision.roi_align")
def roi_align(op: Op) -> Cost:
    """A mean of samples for each output element, each between four numbers: 17, and 1 for the sum.

    As many samples as asked for in both directions; where that is left to the region, 2 in each are counted.
    """
    samples = op.attrs["sampling_ratio"]
    each = (samples if samples > 0 else 2) ** 2
    return per_output(op, (_BETWEEN + 1) * each, 1)


@rule("torchvision.nms")
def nms(op: Op) -> Cost:
    """n(n - 1)/2 pairs of boxes: 12 and a division; a bit each says whether they overlap, written and read."""
    n = op.inputs[0].shape[0]
    pairs = quotient(product((n, total((n, -1)))), 2)
    bits = product((n, ceil_div(n, _WORD), 8))
    return work(pairs, _OVERLAP, 1) + Cost(read_bytes=bits, write_bytes=bits) + traffic(op)
