"""Convolutions as implicit matrix products.

A forward convolution over N images with P·Q output pixels, C input and K output channels, kernel R·S and g groups is
g products of [N·P·Q, C/g·R·S] with [C/g·R·S, K/g]. Zeros of the padding are multiplied like all others.
"""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import Size, floor_div, product
from rooflinekit.ir.tensor import TensorSpec


def _sizes(x: TensorSpec, weight: TensorSpec, y: TensorSpec, op: Op) -> tuple[Size, Size, Size, Size, Size]:
    """Pixels, input and output channels a group, kernel size, groups.

    A transposed convolution is the input gradient of a plain one: each of its *input* pixels meets the kernel.
    """
    groups: Size = op.attrs["groups"]
    anchor = x if op.attrs.get("transposed") else y  # cudnn_convolution has no such argument
    pixels = product((anchor.shape[0], *anchor.shape[2:]))
    return pixels, floor_div(x.shape[1], groups), floor_div(y.shape[1], groups), product(weight.shape[2:]), groups


@rule(
    "aten.convolution",
    "aten._convolution",
    "aten.cudnn_convolution",
    "aten.convolution_overrideable",
    timed_as=Family.CONVOLUTION,
)
def convolution(op: Op) -> Cost:
    """2·N·P·Q·K·C/g·R·S for P·Q output pixels (of a transposed one, input pixels); a bias 1 an output element.

    The weight is [K, C/g, R, S], or [C, K/g, R, S] when transposed.
    """
    x, weight = op.inputs[:2]
    (y,) = op.outputs
    pixels, c, k, kernel, groups = _sizes(x, weight, y, op)
    if op.attrs.get("transposed"):
        gemm = Gemm(batch=groups, m=pixels, n=product((k, kernel)), k=c)
    else:
        gemm = Gemm(batch=groups, m=pixels, n=k, k=product((c, kernel)))
    biased = op.attrs.get("bias") is not None
    return Cost(gemms=(gemm,), vector_flop=y.numel if biased else 0) + reads(op.inputs) + writes(op.outputs)


@rule("aten.convolution_backward", timed_as=Family.CONVOLUTION)
def convolution_backward(op: Op) -> list[Cost]:
    """The forward count for the gradient of the input, again for that of the weight; 1 a number summed for the bias.

    Each is a kernel, and computed only where it is needed.
    """
    grad, x, weight = op.inputs[:3]
    wants_input, wants_weight, wants_bias = op.attrs["output_mask"]
    results = iter(op.outputs)
    pixels, c, k, kernel, groups = _sizes(x, weight, grad, op)
    costs = []
    if wants_input:
        gemm = Gemm(batch=groups, m=pixels, n=c, k=product((k, kernel)))
        costs.append(Cost(gemms=(gemm,), label="input gradient") + reads((grad, weight)) + writes((next(results),)))
    if wants_weight:
        rows, columns = (c, k) if op.attrs["transposed"] else (k, c)
        gemm = Gemm(batch=groups, m=rows, n=product((columns, kernel)), k=pixels)
        costs.append(Cost(gemms=(gemm,), label="weight gradient") + reads((grad, x)) + writes((next(results),)))
    if wants_bias:
        reduction = Cost(vector_flop=grad.numel, label="bias gradient")
        costs.append(reduction + reads((grad,)) + writes((next(results),)))
    return costs


@rule("aten.conv_tbc")
def convolution_time_first(op: Op) -> Cost:
    """2·T·B·R·C·K for T output steps of an input [·, B, C] and a weight [R, C, K]; a bias 1 an output element."""
    _, weight, _ = op.inputs
    (y,) = op.outputs
    kernel, c, k = weight.shape
    gemm = Gemm(m=product(y.shape[:2]), n=k, k=product((kernel, c)))
    return Cost(gemms=(gemm,), vector_flop=y.numel) + reads(op.inputs) + writes(op.outputs)
