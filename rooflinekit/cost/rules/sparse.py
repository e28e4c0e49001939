"""Products with sparse matrices, by the numbers that one holds; and with the pattern that keeps two of four.

The tracer names an op on sparse tensors `sparse.…` and puts into `attrs["held"]`, for each of them, its place among
the inputs, how many numbers it holds, and the bytes of their indices. Where that is not known, as of the product of two
sparse matrices, the op is `sparse_of_unknown_size.…`, and priced by default.
"""

from __future__ import annotations

from rooflinekit.cost.rules.quantized import activation
from rooflinekit.cost.table import free, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import floor_div, product, smaller, total

_PARTS = (
    "_indices", "_values", "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices",
    "is_coalesced", "_coalesced_", "_nnz", "sparse_dim", "dense_dim", "_dimI", "_dimV",
)  # fmt: skip
_VIEWS = ("t", "transpose", "detach", "alias", "is_same_size")

# The parts of a sparse tensor are views of it, and so is its transpose.
free(*(f"{space}.{name}" for space in ("sparse", "sparse_of_unknown_size") for name in (*_PARTS, *_VIEWS)))
free(
    "aten._sparse_coo_tensor_with_dims", "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten._sparse_coo_tensor_unsafe", "aten._sparse_compressed_tensor_unsafe",
)  # fmt: skip


@rule("sparse.mm", "sparse._sparse_mm", "sparse.mv", "sparse.addmm", "sparse.addmv", "sparse._sparse_addmm")
def sparse_product(op: Op) -> Cost:
    """Each of the z numbers meets n columns, 2·z·n; of the dense matrix at most one row is read for each of them.

    Added to a matrix: an addition an element, and a multiplication by each factor that is not 1.
    """
    ((place, numbers, indices),) = op.attrs["held"]
    *added, first, second = op.inputs
    sparse, dense = (first, second) if place == len(added) else (second, first)
    (y,) = op.outputs
    each = product(dense.shape[1:] if dense is second else dense.shape[:-1])
    beta, alpha = op.attrs.get("beta", 1), op.attrs.get("alpha", 1)
    operations = (beta not in (0, 1)) + (beta != 0) + (alpha != 1) if added else 0
    touched = smaller(dense.bytes, product((numbers, each, dense.dtype.itemsize)))
    return (
        Cost(
            gemms=(Gemm(m=1, n=each, k=numbers),),
            vector_flop=product((operations, y.numel)),
            read_bytes=total((product((numbers, sparse.dtype.itemsize)), indices, touched)),
        )
        + reads(added if beta != 0 else ())
        + writes((y,))
    )


@rule("sparse.add")
def add_sparse(op: Op) -> list[Cost]:
    """Each of the z numbers added to its place, 1, and times a factor that is not 1; the dense target copied before."""
    ((place, numbers, indices),) = op.attrs["held"]
    target, held = op.inputs[1 - place], product((numbers, op.inputs[place].dtype.itemsize))
    flop = 1 if op.attrs.get("alpha", 1) == 1 else 2
    kernel = Cost(
        vector_flop=product((flop, numbers)), read_bytes=total((held, indices, held)), write_bytes=held, label="sum"
    )
    return [kernel] if op.kind.endswith("_") else [Cost(label="copy") + reads((target,)) + writes(op.outputs), kernel]


@rule("sparse.clone", timed_as=Family.MOVEMENT)
def copy_sparse(op: Op) -> Cost:
    """The z numbers and their indices, read and written."""
    ((_, numbers, indices),) = op.attrs["held"]
    held = total((product((numbers, op.inputs[0].dtype.itemsize)), indices))
    return Cost(read_bytes=held, write_bytes=held)


@rule("aten._sparse_semi_structured_mm", "aten._sparse_semi_structured_addmm")
def two_of_four(op: Op) -> Cost:
    """[m, k/2] packed × [k, n]: half the multiply-adds of the dense product. A matrix is added, times its factors."""
    added = op.kind.endswith("addmm")
    packed, _, b = op.inputs[added:]
    (y,) = op.outputs
    factors = sum(op.attrs.get(name, 1) != 1 for name in ("alpha", "beta"))
    gemm = Gemm(m=packed.shape[0], n=b.shape[1], k=packed.shape[1])
    return Cost(gemms=(gemm,), vector_flop=product((1 + factors, y.numel)) if added else 0) + traffic(op)


@rule("aten._sparse_semi_structured_linear")
def two_of_four_linear(op: Op) -> Cost:
    """[rows, k] × weight [n, k/2] packed, and a bias; an activation is a comparison, or a sigmoid 3 and 2."""
    packed = op.inputs[1]
    (y,) = op.outputs
    n, half = packed.shape
    vector, special = activation(op)
    vector += op.attrs.get("bias") is not None
    work = Cost(vector_flop=product((vector, y.numel)), special_flop=product((special, y.numel)))
    return Cost(gemms=(Gemm(m=floor_div(y.numel, n), n=n, k=half),)) + work + traffic(op)


@rule("aten._cslt_sparse_mm")
def two_of_four_by_cusparselt(op: Op) -> Cost:
    """A packed [m, k] × [k, n], its result possibly transposed: half of the k products an element, and a bias."""
    b = op.inputs[1]
    (y,) = op.outputs
    rows, columns = y.shape
    biased = y.numel if op.attrs.get("bias") is not None else 0
    return Cost(gemms=(Gemm(m=rows, n=columns, k=floor_div(b.shape[0], 2)),), vector_flop=biased) + traffic(op)
