"""Ops that move numbers without computing, and those that do neither.

Which elements a triangle or a padding takes is decided by position: index arithmetic, which is no FLOP.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.cost.table import aten, dense_bytes, family, free, per_input, reads, rule, sweep, traffic, work, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import DType, Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, product, smaller, total

# Views, and what autograd, allocation and the profiler do on the CPU: no kernel.
free(
    *aten(
        "view _unsafe_view reshape _reshape_alias t transpose permute expand slice select squeeze unsqueeze split "
        "split_with_sizes chunk unbind unfold diagonal as_strided as_strided_ squeeze_ unsqueeze_ transpose_ t_ alias "
        "detach detach_ lift_fresh lift view_as_real view_as_complex real imag movedim empty empty_like empty_strided "
        "empty_permuted new_empty new_empty_strided resize_ resize_as_ set_ is_same_size sym_size sym_stride sym_numel "
        "sym_storage_offset unsafe_split unsafe_split_with_sizes unsafe_chunk _conj _neg_view "
        "profiler._record_function_enter_new profiler._record_function_exit prim.device "
        "size stride numel dim _has_same_storage_numel _efficientzerotensor"
    )
)


def zeros_then(label: str, op: Op, used: Iterable[TensorSpec], written: Size, flop: Size = 0) -> list[Cost]:
    """Zeros, then a kernel that reads `used` and writes `written` bytes; one that computes reads those bytes too."""
    read = written if flop != 0 else 0
    return [
        Cost(label="zeros") + writes(op.outputs),
        Cost(vector_flop=flop, read_bytes=read, write_bytes=written, label=label) + reads(used),
    ]


PADS = tuple(f"aten.{way}_pad{sides}d" for way in ("reflection", "replication") for sides in (1, 2, 3))
PAD_GRADIENTS = tuple(f"{kind}_backward" for kind in PADS)


def _copy_of_a_view(op: Op) -> Cost:
    return Cost(read_bytes=smaller(op.inputs[0].bytes, total(map(dense_bytes, op.outputs)))) + writes(op.outputs)


family(
    traffic,
    {
        "clone _to_copy contiguous cat stack flip rot90 repeat _local_scalar_dense tril triu pixel_shuffle "
        f"pixel_unshuffle channel_shuffle {' '.join(PADS)}": ("Reads its inputs, writes its output.",),
        "roll": (
            lambda op: [traffic(op)] * max(1, len(op.attrs.get("dims") or ())),
            "Reads its input and writes its output, once for each dimension.",
        ),
        "diagonal_copy narrow_copy permute_copy transpose_copy t_copy split_copy split_with_sizes_copy unbind_copy "
        "slice_copy select_copy as_strided_copy view_copy expand_copy squeeze_copy unsqueeze_copy unfold_copy "
        "alias_copy detach_copy": (_copy_of_a_view, "Reads as much as it writes, where the source has as much."),
        "copy_ copy": (
            lambda op: reads(op.inputs[1:]) + writes(op.outputs),
            "Reads the source; what stood in the target is not read.",
        ),
        "zeros zeros_like zero_ zero ones ones_like full full_like fill_ fill new_zeros new_ones new_full arange "
        "linspace eye tril_indices triu_indices scalar_tensor _new_zeros_with_same_feature_meta": (
            lambda op: writes(op.outputs), "Writes its output; a tensor that gives the shape is not read.",
        ),
    },
    timed_as=Family.MOVEMENT,
)  # fmt: skip


family(lambda op: work(op.outputs[0].numel, 0, 1) + writes(op.outputs), {"logspace": ("A power an element.",)})


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


family(
    lambda op: zeros_then("copy", op, op.inputs, dense_bytes(op.inputs[0])),
    {
        " ".join(PAD_GRADIENTS): (
            lambda op: zeros_then("sum", op, op.inputs[:1], op.outputs[0].bytes, flop=op.inputs[0].numel),
            "Zeros, then each gradient added to the element it is a copy of; of the input only the shape is used.",
        ),
        "unfold_backward": (
            lambda op: zeros_then(
                "sum", op, op.inputs, smaller(dense_bytes(op.inputs[0]), op.outputs[0].bytes), flop=op.inputs[0].numel
            ),
            "Zeros, then each gradient added to its element, which several windows may share.",
        ),
        "slice_backward select_backward diagonal_backward": (
            "A tensor of zeros, then a copy of the gradient into its place, of all of it too.",
        ),
    },
    timed_as=Family.MOVEMENT,
)  # fmt: skip


@rule("aten.diag_embed", "aten.block_diag", timed_as=Family.MOVEMENT)
def on_the_diagonal(op: Op) -> list[Cost]:
    """A tensor of zeros, then one copy for each tensor that is put into it."""
    zeros = Cost(label="zeros") + writes(op.outputs)
    return [zeros, *(sweep("copy", x, reading=0) + reads((x,)) for x in op.inputs)]


@rule(*aten("slice_scatter select_scatter diagonal_scatter as_strided_scatter"), timed_as=Family.MOVEMENT)
def scatter_into_a_view(op: Op) -> list[Cost]:
    """A copy of the whole, then of the source into its place."""
    whole, source = op.inputs
    return [
        Cost(label="copy") + reads((whole,)) + writes(op.outputs),
        sweep("scatter", source, reading=0) + reads((source,)),
    ]


_REPEATED = "Repetitions → places to read from: a running sum of the repetitions, then each place written."
family(per_input, {"repeat_interleave": (1, _REPEATED)}, timed_as=Family.MOVEMENT)


# Reading and writing by index: only the elements that the indices name are touched, not the whole table.
#
# An element is counted as often as an index names it; a mask as if it named every element. The out-of-place form of a
# write copies its whole target first.


_MASKS = (DType.BOOL, DType.UINT8)  # formats of indices that say for each element whether it is meant


def _some(source: TensorSpec, n: Size) -> Cost:
    """Reading `n` elements that indices name."""
    return Cost(read_bytes=product((n, source.dtype.itemsize)))


# --- reading --------------------------------------------------------------------------------------------------


@rule(*aten("index _unsafe_index index_select gather take embedding"), timed_as=Family.MOVEMENT)
def gather(op: Op) -> Cost:
    """Reads the indices and the elements or rows they name, not the table."""
    source, *indices = op.inputs
    return _some(source, op.outputs[0].numel) + reads(indices) + writes(op.outputs)


_FOUND = "A comparison an element, and a running count that gives each place."
family(per_input, {"nonzero nonzero_static": (2, _FOUND)}, timed_as=Family.MOVEMENT)


# --- writing --------------------------------------------------------------------------------------------------


def _written(op: Op, n: Size, sources: Iterable[TensorSpec], flop: int = 0) -> list[Cost]:
    """`n` elements of the target written; with `flop` operations each, what stands there is read as well."""
    touched = product((n, op.outputs[0].dtype.itemsize))
    kernel = Cost(read_bytes=touched if flop else 0, write_bytes=touched, label="scatter") + work(n, flop)
    return _in_place(op, kernel + reads(sources))


def _in_place(op: Op, kernel: Cost) -> list[Cost]:
    """The kernel that changes the first input; the out-of-place form copies that before."""
    if op.kind.endswith("_"):
        return [kernel]
    return [Cost(label="copy") + reads(op.inputs[:1]) + writes(op.outputs), kernel]


def _part(source: TensorSpec, n: Size) -> Cost:
    """Reading `n` elements of a source, of which that may be all."""
    return reads((source,)) if source.numel == n else _some(source, n)


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


@rule("aten.index_copy", "aten.index_add", "aten.index_reduce", timed_as=Family.MOVEMENT)
def index_write(op: Op) -> list[Cost]:
    """Each element of the source into its place: 1 where it adds or reduces, and 1 where a factor is not 1.

    A mean counts and divides: two more kernels.
    """
    index, source = op.inputs[1:3]
    flop = 0 if op.kind.startswith("aten.index_copy") else 1 + (op.attrs.get("alpha", 1) != 1)
    costs = _written(op, source.numel, (index, source), flop=flop)
    return [*costs, *(_mean(op, source) if op.attrs.get("reduce") == "mean" else ())]


def _mean(op: Op, named: TensorSpec) -> list[Cost]:
    """How often each element was named, and the division of all by that."""
    (y,) = op.outputs
    counted = product((named.numel, y.dtype.itemsize))
    return [
        Cost(vector_flop=named.numel, read_bytes=counted, write_bytes=counted, label="count") + reads(op.inputs[1:2]),
        Cost(special_flop=y.numel, read_bytes=product((2, y.bytes)), write_bytes=y.bytes, label="division"),
    ]


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
    masks = [index for index in op.attrs["indices"] if index is not None]
    alone = op.inputs[-1].numel == 1 and not op.attrs.get("accumulate")
    if alone and all(index.dtype in _MASKS for index in masks):
        kernel = Cost(vector_flop=target.numel, write_bytes=target.bytes, label="fill") + reads(op.inputs)
        return _in_place(op, kernel)
    named = op.attrs.get("named")  # of a mask
    places = _places(target, op.attrs["indices"]) if named is None else named
    return _written(op, places, read, flop=bool(op.attrs.get("accumulate")))


def _places(target: TensorSpec, indices: tuple[TensorSpec | None, ...]) -> Size:
    """Elements that indices name: their common shape, times the dimensions that none of them stands for."""
    given = [index for index in indices if index is not None]
    if any(index.dtype in _MASKS for index in given):
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


_NAMED = "The gradients that the mask names, one behind the other: a running count, and a copy."
family(
    lambda op: work(op.inputs[1].numel, 1) + traffic(op), {"masked_scatter_backward": (_NAMED,)},
    timed_as=Family.MOVEMENT,
)  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------------------


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
    touched = _some(table, n).read_bytes
    done = work(n, 2 + power, 1 - power) + work(rows, 1, 2)
    return done + Cost(read_bytes=touched, write_bytes=touched) + reads((indices,))


_SUM, _MEAN, _MAX = range(3)  # modes of an embedding bag


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only", timed_as=Family.MOVEMENT)
def embedding_bag(op: Op) -> Cost:
    """Each row that is named is read and added, or compared; times its weight if there is one. A mean divides."""
    table, indices, *rest = op.inputs
    y = op.outputs[0]
    n = product((indices.numel, table.shape[1]))
    flop = 2 if op.attrs.get("per_sample_weights") is not None else 1
    divisions = int(op.attrs["mode"] == _MEAN)
    done = work(n, flop) + work(y.numel, 0, divisions)
    return done + _some(table, n) + reads((indices, *rest)) + writes(op.outputs)


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
        return [work(n, factors) + Cost(write_bytes=touched) + reads((grad, *rest))]
    return zeros_then("sum", op, (grad, *rest), touched, flop=product((1 + factors, n)))


@rule("aten._embedding_bag_per_sample_weights_backward", timed_as=Family.MOVEMENT)
def embedding_bag_weights_backward(op: Op) -> Cost:
    """For each index the gradient of its bag times its row, summed: 2 an element."""
    grad, table, indices, *rest = op.inputs
    n = product((indices.numel, table.shape[1]))
    return work(n, 2) + _some(table, n) + reads((grad, indices, *rest)) + writes(op.outputs)
