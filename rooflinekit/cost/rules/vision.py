"""Operators of torchvision: deformable convolution, regions of interest, suppression of overlapping boxes."""

from __future__ import annotations

from rooflinekit.cost.rules.matmul import gemm_of
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import ceil_div, product, quotient, total

#: A number between four: its place floored, what is left and the rest of it, 6; four weights, their products, 3 sums.
_BETWEEN = 6 + 4 + 4 + 3
#: Two boxes: corners of what they share 4, its sides 4, its area 1, both areas together 2, the comparison 1.
_OVERLAP = 12
_WORD = 64  # boxes of which one integer says whether they overlap


@rule("torchvision.deform_conv2d")
def deform_conv2d(op: Op) -> list[Cost]:
    """As a convolution, 2·N·P·Q·K·C/g·R·S; each of the N·P·Q·C·R·S numbers under the window lies between four: 17.

    A mask is one multiplication each. The numbers under the window are written and read again.
    """
    x, weight, offset, mask, bias = op.inputs[:5]
    (y,) = op.outputs
    k, c, r, s = weight.shape
    n, _, p, q = y.shape
    window = product((n, x.shape[1], r, s, p, q))
    masked = bool(op.attrs.get("use_mask"))
    sampled = Cost(vector_flop=product((_BETWEEN + masked, window)), label="window")
    sampled += reads((x, offset, mask) if masked else (x, offset))
    moved = product((window, x.dtype.itemsize))
    multiplied = Cost(
        gemms=(gemm_of(x, batch=op.attrs["groups"], m=product((n, p, q)), n=k // op.attrs["groups"], k=c * r * s),),
        vector_flop=y.numel,
        read_bytes=moved,
    )
    return [sampled + Cost(write_bytes=moved), multiplied + reads((weight, bias)) + writes((y,))]


@rule("torchvision.roi_align")
def roi_align(op: Op) -> Cost:
    """A mean of samples for each output element, each between four numbers: 17, and 1 for the sum.

    As many samples as asked for in both directions; where that is left to the region, 2 in each are counted.
    """
    samples = op.attrs["sampling_ratio"]
    each = (samples if samples > 0 else 2) ** 2
    y = op.outputs[0]
    return Cost(vector_flop=product(((_BETWEEN + 1) * each, y.numel)), special_flop=y.numel) + traffic(op)


@rule("torchvision.nms")
def nms(op: Op) -> Cost:
    """n(n - 1)/2 pairs of boxes: 12 and a division; a bit each says whether they overlap, written and read."""
    n = op.inputs[0].shape[0]
    pairs = quotient(product((n, total((n, -1)))), 2)
    bits = product((n, ceil_div(n, _WORD), 8))
    return Cost(
        vector_flop=product((_OVERLAP, pairs)), special_flop=pairs, read_bytes=bits, write_bytes=bits
    ) + traffic(op)
