"""Kernels that move numbers one by one, for rows begin off a boundary of 16 bytes: products in 16 bits, long softmaxes.

A thread brings 16 bytes of a row to the tensor core at once, where every row begins at a multiple of them. Rows of
197 numbers do not: those are loaded and stored one by one, those of 50 in pairs. Attention that is written out over an
odd number of tokens has its scores so; weights and what layers hand on mostly have multiples of 8.

A softmax of more than 1024 numbers gives a row to 1024 threads (aten/src/ATen/native/cuda/SoftMax.cu since PyTorch
2.2). Where rows are aligned and fit 48 KiB, it keeps them in shared memory (cunn_SoftMaxForwardSmem) and loads 16 bytes
at once. Else it reads them three times (cunn_SoftMaxForward), in rounds of 16 bytes for each of the 1024 threads; what
is left of the last such round, a row of up to 8191 numbers of 16 bits as a whole, is loaded a number at a time.
"""

from __future__ import annotations

from rooflinekit.ir.op import Op, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.model.rows import MOST_THREADS, SOFTMAX_PASSES, WARP_ROW, columns_length

_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
_SOFTMAXES = ("aten._softmax", "aten._log_softmax")
_AT_ONCE = 8  # numbers of 16 bits in 16 bytes
_LOADED_BYTES = 16  # at once
_SHARED_BYTES = 48 * 1024  # of shared memory that a block gets unasked
#: Loads of a single element that moving one number takes, through a register (± 30 %): scores of 96 × 3137² and
#: 16 × 5185² in bf16 take an H100 0.42 to 0.58 cycles of an SM a number, written or read (profiles of TimeSformer and
#: OWLv2, TraceLens), where `access_cycles` is 0.28: 1.3 to 1.9 of them with the traffic beside. The least is taken, as
#: timm's written-out attention on an RTX 3090 asks for no more.
_EACH = 1.3


def unaligned_accesses(op: Op) -> int:
    """Loads of single elements that a kernel on such rows takes beyond what it would on others; 0 for other ops."""
    if op.kind in _SOFTMAXES:
        return _of_a_softmax(op)
    if op.kind not in _PRODUCTS:
        return 0
    return integer(_EACH * sum(_in_pieces(tensor) for tensor in (*op.inputs[-2:], *op.outputs[:1])))


def _in_pieces(matrix: TensorSpec) -> int:
    """How many pieces of a row are moved at once, of all rows; none where rows are aligned."""
    if matrix.dtype.itemsize != 2 or len(matrix.shape) < 2:
        return 0
    shape = matrix.shape[-2:]
    stride = (shape[1], 1) if matrix.stride is None else matrix.stride[-2:]
    along = 1 if integer(stride[1]) == 1 else 0
    if integer(stride[along]) != 1 or integer(shape[1 - along]) == 1:
        return 0  # copied before; or a vector, whose only row begins where memory does
    row = integer(stride[1 - along])
    pieces = next(many for many in (_AT_ONCE, 4, 2, 1) if row % many == 0)
    return 0 if pieces == _AT_ONCE else integer(matrix.numel) // pieces


def _of_a_softmax(op: Op) -> int:
    """What its passes load number by number, less what those numbers would have taken 16 bytes at a time."""
    x = op.inputs[0]
    if not x.shape or columns_length(op):
        return 0
    length, at_once = integer(x.shape[-1]), _LOADED_BYTES // x.dtype.itemsize
    held = length % at_once == 0 and length * x.dtype.itemsize < _SHARED_BYTES
    if length <= WARP_ROW or held:
        return 0
    alone = length % (at_once * MOST_THREADS)
    return integer(x.numel) // length * alone * SOFTMAX_PASSES * (at_once - 1) // at_once
