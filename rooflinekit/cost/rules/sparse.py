"""Sparse matrices: the parts of one are views of it. How many numbers one holds, a trace does not know.

So a product with a sparse matrix is priced by default, and named. Of the half of the numbers that the pattern two of
four keeps, the size is known.
"""

from __future__ import annotations

from rooflinekit.cost.table import free, rule, traffic
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import floor_div, product

free(
    "aten._indices", "aten._values", "aten.indices", "aten.values", "aten.crow_indices", "aten.col_indices",
    "aten.ccol_indices", "aten.row_indices", "aten._sparse_coo_tensor_with_dims",
    "aten._sparse_coo_tensor_with_dims_and_tensors", "aten._sparse_coo_tensor_unsafe",
    "aten._sparse_compressed_tensor_unsafe", "aten.is_coalesced", "aten._coalesced_", "aten._nnz", "aten.sparse_dim",
    "aten.dense_dim", "aten._dimI", "aten._dimV",
)  # fmt: skip


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
    vector = (op.attrs.get("bias") is not None) + {"relu": 1, "silu": 3}.get(op.attrs.get("activation") or "", 0)
    special = 2 if op.attrs.get("activation") == "silu" else 0
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
