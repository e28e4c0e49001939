"""Reading and writing by index: only the elements that the indices name are touched, not the whole table.

An element is counted as often as an index names it; a mask as if it named every element. The out-of-place form of a
write copies its whole target first.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.cost.rules.movement import dense_bytes, zeros_then
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import Size, product, smaller, total
from rooflinekit.ir.tensor import DType, TensorSpec

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
