"""Ops that move numbers without computing, and those that do neither.

Which elements a triangle or a padding takes is decided by position: index arithmetic, which is no FLOP.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.cost.table import free, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import DType, Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, product, smaller, total

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


# Reading and writing by index: only the elements that the indices name are touched, not the whole table.
#
# An element is counted as often as an index names it; a mask as if it named every element. The out-of-place form of a
# write copies its whole target first.


# --- reading --------------------------------------------------------------------------------------------------


@rule("aten.index", "aten._unsafe_index", "aten.index_select", "aten.gather", "aten.take", timed_as=Family.MOVEMENT)
def gather(op: Op) -> Cost:
    """Reads the indices and the elements they name."""
    source, *indices = op.inputs
    (y,) = op.outputs
    return Cost(read_bytes=product((y.numel, source.dtype.itemsize))) + reads(indices) + writes(op.outputs)


@rule("aten.nonzero", "aten.nonzero_static", timed_as=Family.MOVEMENT)
def nonzero(op: Op) -> Cost:
    """A comparison an element, and a running count that gives each place."""
    return Cost(vector_flop=product((2, op.inputs[0].numel))) + traffic(op)


# --- writing --------------------------------------------------------------------------------------------------


def _written(op: Op, n: Size, sources: Iterable[TensorSpec], flop: int = 0) -> list[Cost]:
    """`n` elements of the target written; with `flop` operations each, what stands there is read as well."""
    (y,) = op.outputs
    touched = product((n, y.dtype.itemsize))
    read = touched if flop else 0
    kernel = Cost(vector_flop=product((flop, n)), read_bytes=read, write_bytes=touched, label="scatter")
    kernel += reads(sources)
    if op.kind.endswith("_"):
        return [kernel]
    return [Cost(label="copy") + reads(op.inputs[:1]) + writes((y,)), kernel]


def _part(source: TensorSpec, n: Size) -> Cost:
    """Reading `n` elements of a source."""
    return Cost(read_bytes=source.bytes if source.numel == n else product((n, source.dtype.itemsize)))


@rule("aten.scatter", "aten.scatter_add", "aten.scatter_reduce", timed_as=Family.MOVEMENT)
def scatter(op: Op) -> list[Cost]:
    """One write an index, of a number or of the source's first elements; an addition, product or comparison where it
    reduces. A mean counts how often each element is named and divides: two more kernels.
    """
    index, *source = op.inputs[1:3]
    reduces = op.kind.rstrip("_").endswith("_add") or op.attrs.get("reduce") is not None
    *before, kernel = _written(op, index.numel, (index,), flop=int(reduces))
    kernel += sum((_part(s, index.numel) for s in source), Cost())
    return [*before, kernel, *(_mean(op, index) if op.attrs.get("reduce") == "mean" else ())]


@rule("aten.index_reduce", timed_as=Family.MOVEMENT)
def index_reduce(op: Op) -> list[Cost]:
    """An operation for each element of the source. A mean counts and divides: two more kernels."""
    index, source = op.inputs[1:3]
    costs = _written(op, source.numel, (index, source), flop=1)
    return [*costs, *(_mean(op, source) if op.attrs["reduce"] == "mean" else ())]


def _mean(op: Op, named: TensorSpec) -> list[Cost]:
    """How often each element was named, and the division of all by that."""
    (y,) = op.outputs
    counted = product((named.numel, y.dtype.itemsize))
    return [
        Cost(vector_flop=named.numel, read_bytes=counted, write_bytes=counted, label="count") + reads(op.inputs[1:2]),
        Cost(special_flop=y.numel, read_bytes=product((2, y.bytes)), write_bytes=y.bytes, label="division"),
    ]


@rule("aten.index_add", timed_as=Family.MOVEMENT)
def index_add(op: Op) -> list[Cost]:
    """An addition for each element of the source, and a multiplication where a factor is not 1."""
    index, source = op.inputs[1:3]
    return _written(op, source.numel, (index, source), flop=1 if op.attrs.get("alpha", 1) == 1 else 2)


@rule("aten.index_copy", timed_as=Family.MOVEMENT)
def index_copy(op: Op) -> list[Cost]:
    """Each element of the source into its place."""
    index, source = op.inputs[1:3]
    return _written(op, source.numel, (index, source))


@rule("aten.index_fill", timed_as=Family.MOVEMENT)
def index_fill(op: Op) -> list[Cost]:
    """A number into each row that is named."""
    target, *read = op.inputs
    row = product(size for d, size in enumerate(target.shape) if d != op.attrs["dim"] % max(len(target.shape), 1))
    return _written(op, product((read[0].numel, row)), read)


@rule("aten.put")
def put(op: Op) -> list[Cost]:
    """Each element of the source into its place, added where it accumulates."""
    index, source = op.inputs[1:3]
    return _written(op, index.numel, (index, source), flop=bool(op.attrs.get("accumulate")))


@rule("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl", timed_as=Family.MOVEMENT)
def index_put(op: Op) -> list[Cost]:
    """Each value into its place, repeated to the shape of the places, and added where it accumulates.

    One number under a mask is filled in everywhere: a selection an element.
    """
    target, *read = op.inputs
    if _fills(op):
        kernel = Cost(vector_flop=target.numel, write_bytes=target.bytes, label="fill") + reads(op.inputs)
        return (
            [kernel] if op.kind.endswith("_") else [Cost(label="copy") + reads((target,)) + writes(op.outputs), kernel]
        )
    named = op.attrs.get("named")  # of a mask
    places = _places(target, op.attrs["indices"]) if named is None else named
    return _written(op, places, read, flop=bool(op.attrs.get("accumulate")))


def _fills(op: Op) -> bool:
    """Whether one number is put where masks are true."""
    masks = [index for index in op.attrs["indices"] if index is not None]
    alone = op.inputs[-1].numel == 1 and not op.attrs.get("accumulate")
    return alone and all(index.dtype in (DType.BOOL, DType.UINT8) for index in masks)


def _places(target: TensorSpec, indices: tuple[TensorSpec | None, ...]) -> Size:
    """Elements that indices name: their common shape, times the dimensions that none of them stands for."""
    given = [index for index in indices if index is not None]
    if any(index.dtype in (DType.BOOL, DType.UINT8) for index in given):
        return target.numel  # a mask
    rest = [size for d, size in enumerate(target.shape) if d >= len(indices) or indices[d] is None]
    rank = max(len(index.shape) for index in given)
    padded = [(1,) * (rank - len(index.shape)) + index.shape for index in given]
    common = [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]
    return product((*common, *rest))


@rule("aten.masked_scatter", timed_as=Family.MOVEMENT)
def masked_scatter(op: Op) -> list[Cost]:
    """A running count of the mask, kept in int64, gives each place in the source; then the copy into the target."""
    _, mask, source = op.inputs
    counts = product((mask.numel, DType.INT64.itemsize))
    running = Cost(vector_flop=mask.numel, write_bytes=counts, label="count") + reads((mask,))
    *before, kernel = _written(op, mask.numel, (mask,))
    kernel += Cost(read_bytes=counts) + _part(source, smaller(source.numel, mask.numel))
    return [*before, running, kernel]


@rule("aten.masked_scatter_backward", timed_as=Family.MOVEMENT)
def masked_scatter_backward(op: Op) -> Cost:
    """The gradients that the mask names, one behind the other: a running count, and a copy."""
    return Cost(vector_flop=op.inputs[1].numel) + traffic(op)


# --- tables ---------------------------------------------------------------------------------------------------


@rule("aten.embedding", timed_as=Family.MOVEMENT)
def embedding(op: Op) -> Cost:
    """Reads the indices and the rows they name, not the table."""
    _, indices = op.inputs
    (y,) = op.outputs
    return Cost(read_bytes=y.bytes) + reads((indices,)) + writes(op.outputs)


@rule("aten.embedding_dense_backward", timed_as=Family.MOVEMENT)
def embedding_backward(op: Op) -> list[Cost]:
    """A table of zeros, then each row of the gradient added to the row that its index names (read and written).

    Scaled by how often an index occurs: a count and a division each, and a multiplication an element.
    """
    grad, indices = op.inputs
    zeros, added = zeros_then("sum", op, (grad, indices), dense_bytes(grad), flop=grad.numel)
    if op.attrs.get("scale_grad_by_freq"):
        added += Cost(vector_flop=total((indices.numel, grad.numel)), special_flop=indices.numel)
    return [zeros, added]


@rule("aten.embedding_renorm_", timed_as=Family.MOVEMENT)
def embedding_renorm(op: Op) -> Cost:
    """Each row that is named: the sum of powers 2 an element, its root, a comparison, a division, then scaled: 1."""
    table, indices = op.inputs
    rows = indices.numel
    n = product((rows, table.shape[1]))
    power = 1 if op.attrs.get("norm_type", 2.0) in (1.0, 2.0) else 0  # others are a special function
    touched = product((n, table.dtype.itemsize))
    return Cost(
        vector_flop=total((product((2 + power, n)), rows)),
        special_flop=total((product((1 - power, n)), product((2, rows)))),
        read_bytes=touched,
        write_bytes=touched,
    ) + reads((indices,))


_SUM, _MEAN, _MAX = range(3)  # modes of an embedding bag


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only", timed_as=Family.MOVEMENT)
def embedding_bag(op: Op) -> Cost:
    """Each row that is named is read and added, or compared; times its weight if there is one. A mean divides."""
    table, indices, *rest = op.inputs
    y = op.outputs[0]
    n = product((indices.numel, table.shape[1]))
    flop = 2 if op.attrs.get("per_sample_weights") is not None else 1
    divisions = y.numel if op.attrs["mode"] == _MEAN else 0
    rows = Cost(read_bytes=product((n, table.dtype.itemsize)))
    return (
        Cost(vector_flop=product((flop, n)), special_flop=divisions)
        + rows
        + reads((indices, *rest))
        + writes(op.outputs)
    )


@rule("aten._embedding_bag_backward", "aten._embedding_bag_dense_backward", timed_as=Family.MOVEMENT)
def embedding_bag_backward(op: Op) -> list[Cost]:
    """A table of zeros, then the gradient of each bag added to the rows that it summed; weighted, times the weight.

    A mean divides by the bag's size, one multiplication an element. Of a maximum, each element of the gradient goes to
    one row. A sparse gradient is a copy of the bag's row for each index.
    """
    grad, *rest = op.inputs
    indices = op.attrs["indices"]
    mode = op.attrs["mode"]
    n = grad.numel if mode == _MAX else product((indices.numel, grad.shape[1]))
    factors = (mode == _MEAN) + (op.attrs.get("per_sample_weights") is not None)
    touched = product((n, grad.dtype.itemsize))
    if op.attrs.get("sparse"):
        return [Cost(vector_flop=product((factors, n)), write_bytes=touched) + reads((grad, *rest))]
    return zeros_then("sum", op, (grad, *rest), touched, flop=product((1 + factors, n)))


@rule("aten._embedding_bag_per_sample_weights_backward", timed_as=Family.MOVEMENT)
def embedding_bag_weights_backward(op: Op) -> Cost:
    """For each index the gradient of its bag times its row, summed: 2 an element."""
    grad, table, indices, *rest = op.inputs
    n = product((indices.numel, table.shape[1]))
    rows = Cost(vector_flop=product((2, n)), read_bytes=product((n, table.dtype.itemsize)))
    return rows + reads((grad, indices, *rest)) + writes(op.outputs)
