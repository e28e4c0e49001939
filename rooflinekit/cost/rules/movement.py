"""Ops that move numbers without computing, and those that do neither."""

from __future__ import annotations

from rooflinekit.cost.table import free, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import Size, product
from rooflinekit.ir.tensor import TensorSpec

# Views, and what autograd, allocation and the profiler do on the CPU: no kernel.
free(
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten.t", "aten.transpose",
    "aten.permute", "aten.expand", "aten.slice", "aten.select", "aten.squeeze", "aten.unsqueeze", "aten.split",
    "aten.split_with_sizes", "aten.chunk", "aten.unbind", "aten.unfold", "aten.diagonal", "aten.as_strided",
    "aten.as_strided_", "aten.squeeze_", "aten.unsqueeze_", "aten.transpose_", "aten.t_", "aten.alias",
    "aten.detach", "aten.detach_", "aten.lift_fresh", "aten.lift", "aten.view_as_real", "aten.view_as_complex",
    "aten.real", "aten.imag", "aten.movedim", "aten.empty", "aten.empty_like", "aten.empty_strided",
    "aten.empty_permuted", "aten.new_empty", "aten.new_empty_strided", "aten.resize_", "aten.set_",
    "aten.is_same_size", "aten.sym_size", "aten.sym_stride", "aten.sym_numel", "aten.sym_storage_offset",
    "aten.unsafe_split", "aten.unsafe_split_with_sizes", "aten.unsafe_chunk", "aten._conj", "aten._neg_view",
    "profiler._record_function_enter_new", "profiler._record_function_exit", "prim.device",
)  # fmt: skip


@rule(
    "aten.clone",
    "aten._to_copy",
    "aten.contiguous",
    "aten.cat",
    "aten.stack",
    "aten.roll",
    "aten.flip",
    "aten.repeat",
    "aten.constant_pad_nd",
    "aten._local_scalar_dense",
)
def copy(op: Op) -> Cost:
    """Reads its inputs, writes its output."""
    return traffic(op)


@rule("aten.copy_")
def copy_into(op: Op) -> Cost:
    """Reads the source; what stood in the target is not read."""
    return reads(op.inputs[1:]) + writes(op.outputs)


@rule(
    "aten.zeros",
    "aten.zeros_like",
    "aten.zero_",
    "aten.ones",
    "aten.ones_like",
    "aten.full",
    "aten.full_like",
    "aten.fill_",
    "aten.new_zeros",
    "aten.new_ones",
    "aten.new_full",
    "aten.arange",
    "aten.scalar_tensor",
)
def fill(op: Op) -> Cost:
    """Writes its output; a tensor that gives the shape is not read."""
    return writes(op.outputs)


@rule("aten.slice_backward", "aten.select_backward")
def view_backward(op: Op) -> list[Cost]:
    """A tensor of zeros, then a copy of the gradient into its place.

    Nothing for a slice that takes all: eager mode skips it, and only a trace with open sizes cannot see that.
    """
    (grad,) = op.inputs
    if grad.shape == op.outputs[0].shape:
        return []
    return [
        Cost(label="zeros") + writes(op.outputs),
        Cost(write_bytes=_dense_bytes(grad), label="copy") + reads((grad,)),
    ]


@rule("aten.embedding")
def embedding(op: Op) -> Cost:
    """Reads the indices and the rows they name, not the table."""
    _, indices = op.inputs
    (y,) = op.outputs
    return Cost(read_bytes=y.bytes) + reads((indices,)) + writes(op.outputs)


@rule("aten.embedding_dense_backward")
def embedding_backward(op: Op) -> list[Cost]:
    """A table of zeros, then each row of the gradient added to the row that its index names (read and written)."""
    grad, indices = op.inputs
    rows = _dense_bytes(grad)
    return [
        Cost(label="zeros") + writes(op.outputs),
        Cost(vector_flop=grad.numel, read_bytes=rows, write_bytes=rows, label="sum") + reads((grad, indices)),
    ]


@rule("aten.index", "aten.index_select", "aten.gather")
def gather(op: Op) -> Cost:
    """Reads the indices and the elements they name."""
    source, *indices = op.inputs
    (y,) = op.outputs
    return Cost(read_bytes=product((y.numel, source.dtype.itemsize))) + reads(indices) + writes(op.outputs)


def _dense_bytes(tensor: TensorSpec) -> Size:
    return product((tensor.numel, tensor.dtype.itemsize))
