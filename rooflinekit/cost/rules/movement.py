"""Ops that move numbers without computing, and those that do neither.

Which elements a triangle or a padding takes is decided by position: index arithmetic, which is no FLOP.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.cost.table import free, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import Size, product, smaller, total
from rooflinekit.ir.tensor import TensorSpec

# Views, and what autograd, allocation and the profiler do on the CPU: no kernel.
free(
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten.t", "aten.transpose",
    "aten.permute", "aten.expand", "aten.slice", "aten.select", "aten.squeeze", "aten.unsqueeze", "aten.split",
    "aten.split_with_sizes", "aten.chunk", "aten.unbind", "aten.unfold", "aten.diagonal", "aten.as_strided",
    "aten.as_strided_", "aten.squeeze_", "aten.unsqueeze_", "aten.transpose_", "aten.t_", "aten.alias",
    "aten.detach", "aten.detach_", "aten.lift_fresh", "aten.lift", "aten.view_as_real", "aten.view_as_complex",
    "aten.real", "aten.imag", "aten.movedim", "aten.empty", "aten.empty_like", "aten.empty_strided",
    "aten.empty_permuted", "aten.new_empty", "aten.new_empty_strided", "aten.resize_", "aten.resize_as_", "aten.set_",
    "aten.is_same_size", "aten.sym_size", "aten.sym_stride", "aten.sym_numel", "aten.sym_storage_offset",
    "aten.unsafe_split", "aten.unsafe_split_with_sizes", "aten.unsafe_chunk", "aten._conj", "aten._neg_view",
    "profiler._record_function_enter_new", "profiler._record_function_exit", "prim.device",
    "aten.size", "aten.stride", "aten.numel", "aten.dim", "aten._has_same_storage_numel", "aten._efficientzerotensor",
)  # fmt: skip


def dense_bytes(tensor: TensorSpec) -> Size:
    """Bytes of a tensor if each element had memory of its own."""
    return product((tensor.numel, tensor.dtype.itemsize))


def zeros_then(label: str, op: Op, used: Iterable[TensorSpec], written: Size, flop: Size = 0) -> list[Cost]:
    """A result of zeros; then a kernel that reads `used` and writes `written` bytes of it.

    One that computes adds to what stands there: it reads those bytes too.
    """
    read = written if flop != 0 else 0
    return [
        Cost(label="zeros") + writes(op.outputs),
        Cost(vector_flop=flop, read_bytes=read, write_bytes=written, label=label) + reads(used),
    ]


@rule(
    "aten.clone", "aten._to_copy", "aten.contiguous", "aten.cat", "aten.stack", "aten.flip",
    "aten.rot90", "aten.repeat", "aten._local_scalar_dense", "aten.tril", "aten.triu", "aten.pixel_shuffle",
    "aten.pixel_unshuffle", "aten.channel_shuffle",
    "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d", "aten.replication_pad1d",
    "aten.replication_pad2d", "aten.replication_pad3d",
 timed_as=Family.MOVEMENT)  # fmt: skip
def copy(op: Op) -> Cost:
    """Reads its inputs, writes its output."""
    return traffic(op)


@rule("aten.roll", timed_as=Family.MOVEMENT)
def roll(op: Op) -> list[Cost]:
    """Reads its input and writes its output, once for each dimension."""
    return [traffic(op)] * max(1, len(op.attrs.get("dims") or ()))


@rule(
    "aten.diagonal_copy", "aten.narrow_copy", "aten.permute_copy", "aten.transpose_copy", "aten.t_copy",
    "aten.split_copy", "aten.split_with_sizes_copy", "aten.unbind_copy", "aten.slice_copy", "aten.select_copy",
    "aten.as_strided_copy", "aten.view_copy", "aten.expand_copy", "aten.squeeze_copy", "aten.unsqueeze_copy",
    "aten.unfold_copy", "aten.alias_copy", "aten.detach_copy",
 timed_as=Family.MOVEMENT)  # fmt: skip
def copy_of_a_view(op: Op) -> Cost:
    """Reads as much as it writes, where the source has as much."""
    (x,) = op.inputs
    written = total(map(dense_bytes, op.outputs))
    return Cost(read_bytes=smaller(x.bytes, written)) + writes(op.outputs)


@rule("aten.copy_", "aten.copy", timed_as=Family.MOVEMENT)
def copy_into(op: Op) -> Cost:
    """Reads the source; what stood in the target is not read."""
    return reads(op.inputs[1:]) + writes(op.outputs)


@rule(
    "aten.zeros", "aten.zeros_like", "aten.zero_", "aten.zero", "aten.ones", "aten.ones_like", "aten.full",
    "aten.full_like", "aten.fill_", "aten.fill", "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.arange",
    "aten.linspace", "aten.eye", "aten.tril_indices", "aten.triu_indices", "aten.scalar_tensor",
 timed_as=Family.MOVEMENT)  # fmt: skip
def fill(op: Op) -> Cost:
    """Writes its output; a tensor that gives the shape is not read."""
    return writes(op.outputs)


@rule("aten.logspace")
def powers(op: Op) -> Cost:
    """A power an element."""
    return Cost(special_flop=op.outputs[0].numel) + writes(op.outputs)


@rule("aten.constant_pad_nd", timed_as=Family.MOVEMENT)
def pad_with_a_constant(op: Op) -> Cost | list[Cost]:
    """The constant everywhere, then a copy of what is kept. Where nothing is added, the copy alone."""
    (x,) = op.inputs
    pad = op.attrs["pad"]
    kept = dict(enumerate(x.shape))
    for i in range(0, len(pad), 2):
        last = len(x.shape) - 1 - i // 2
        kept[last] = total((kept[last], *(smaller(side, 0) for side in pad[i : i + 2])))
    moved = product((*kept.values(), x.dtype.itemsize))
    copied = Cost(read_bytes=smaller(x.bytes, moved), write_bytes=moved, label="copy")
    if all(side == smaller(side, 0) for side in pad):
        return copied
    return [Cost(label="fill") + writes(op.outputs), copied]


@rule(
    "aten.reflection_pad1d_backward", "aten.reflection_pad2d_backward", "aten.reflection_pad3d_backward",
    "aten.replication_pad1d_backward", "aten.replication_pad2d_backward", "aten.replication_pad3d_backward",
 timed_as=Family.MOVEMENT)  # fmt: skip
def pad_backward(op: Op) -> list[Cost]:
    """Zeros, then each gradient added to the element it is a copy of; of the input only the shape is used."""
    grad = op.inputs[0]
    return zeros_then("sum", op, (grad,), op.outputs[0].bytes, flop=grad.numel)


@rule("aten.unfold_backward", timed_as=Family.MOVEMENT)
def unfold_backward(op: Op) -> list[Cost]:
    """Zeros, then each gradient added to its element, which several windows may share."""
    (grad,) = op.inputs
    touched = smaller(dense_bytes(grad), op.outputs[0].bytes)
    return zeros_then("sum", op, (grad,), touched, flop=grad.numel)


@rule("aten.slice_backward", "aten.select_backward", "aten.diagonal_backward", timed_as=Family.MOVEMENT)
def view_backward(op: Op) -> list[Cost]:
    """A tensor of zeros, then a copy of the gradient into its place.

    Nothing for a slice that takes all: eager mode skips it, and only a trace with open sizes cannot see that.
    """
    (grad,) = op.inputs
    if grad.shape == op.outputs[0].shape:
        return []
    return zeros_then("copy", op, (grad,), dense_bytes(grad))


@rule("aten.diag_embed", "aten.block_diag", timed_as=Family.MOVEMENT)
def on_the_diagonal(op: Op) -> list[Cost]:
    """A tensor of zeros, then one copy for each tensor that is put into it."""
    zeros = Cost(label="zeros") + writes(op.outputs)
    return [zeros, *(Cost(write_bytes=dense_bytes(x), label="copy") + reads((x,)) for x in op.inputs)]


@rule(
    "aten.slice_scatter",
    "aten.select_scatter",
    "aten.diagonal_scatter",
    "aten.as_strided_scatter",
    timed_as=Family.MOVEMENT,
)
def scatter_into_a_view(op: Op) -> list[Cost]:
    """A copy of the whole, then of the source into its place."""
    whole, source = op.inputs
    return [
        Cost(label="copy") + reads((whole,)) + writes(op.outputs),
        Cost(write_bytes=dense_bytes(source), label="scatter") + reads((source,)),
    ]


@rule("aten.repeat_interleave", timed_as=Family.MOVEMENT)
def repeated_places(op: Op) -> Cost:
    """Repetitions → places to read from: a running sum of the repetitions, then each place written."""
    return Cost(vector_flop=op.inputs[0].numel) + traffic(op)
