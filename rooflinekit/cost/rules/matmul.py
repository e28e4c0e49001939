"""Matrix products.

A complex product is the real one of [m, 2k] with [2k, 2n]: a complex multiply-add is four real ones.
"""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import Size, product
from rooflinekit.ir.tensor import TensorSpec


def _gemm(a: TensorSpec, *, batch: Size = 1, m: Size, n: Size, k: Size) -> Gemm:
    """The product of `a` with another matrix."""
    parts = 2 if a.dtype.is_complex else 1
    return Gemm(batch=batch, m=m, n=product((parts, n)), k=product((parts, k)))


def _plus(op: Op) -> Cost:
    """Traffic of beta·input + alpha·product, an addition an output element, and a multiplication by each factor that
    is not 1. With beta = 0 the input is not read.
    """
    (y,) = op.outputs
    beta, alpha = op.attrs.get("beta", 1), op.attrs.get("alpha", 1)
    operations = (beta not in (0, 1)) + (beta != 0) + (alpha != 1)
    used = op.inputs[1:] if beta == 0 else op.inputs
    return Cost(vector_flop=product((operations, y.numel))) + reads(used) + writes((y,))


@rule("aten.mm")
def mm(op: Op) -> Cost:
    """[m, k] × [k, n]."""
    a, b = op.inputs
    m, k = a.shape
    return Cost(gemms=(_gemm(a, m=m, n=b.shape[1], k=k),)) + traffic(op)


@rule("aten.addmm")
def addmm(op: Op) -> Cost:
    """[m, k] × [k, n] plus a bias in the same kernel."""
    _, a, b = op.inputs
    m, k = a.shape
    return Cost(gemms=(_gemm(a, m=m, n=b.shape[1], k=k),)) + _plus(op)


@rule("aten.bmm")
def bmm(op: Op) -> Cost:
    """[batch, m, k] × [batch, k, n]."""
    a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(_gemm(a, batch=batch, m=m, n=b.shape[2], k=k),)) + traffic(op)


@rule("aten.baddbmm")
def baddbmm(op: Op) -> Cost:
    """[batch, m, k] × [batch, k, n] plus a matrix in the same kernel."""
    _, a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(_gemm(a, batch=batch, m=m, n=b.shape[2], k=k),)) + _plus(op)


@rule("aten.mv")
def mv(op: Op) -> Cost:
    """[m, k] × [k]."""
    a, _ = op.inputs
    m, k = a.shape
    return Cost(gemms=(_gemm(a, m=m, n=1, k=k),)) + traffic(op)


@rule("aten.dot", "aten.vdot")
def dot(op: Op) -> Cost:
    """[k] · [k]."""
    a, _ = op.inputs
    return Cost(gemms=(_gemm(a, m=1, n=1, k=a.numel),)) + traffic(op)


@rule("aten._scaled_mm")
def scaled_mm(op: Op) -> Cost:
    """[m, k] × [k, n] of 8-bit numbers with scales, which are applied once an output element; a bias is added once."""
    a, b = op.inputs[:2]
    m, k = a.shape
    (y,) = op.outputs[:1]
    operations = 2 if op.attrs.get("bias") is not None else 1
    return Cost(gemms=(Gemm(m=m, n=b.shape[1], k=k),), vector_flop=product((operations, y.numel))) + traffic(op)
