"""Matrix products."""

from __future__ import annotations

from rooflinekit.cost.table import rule, traffic
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Op


@rule("aten.mm")
def mm(op: Op) -> Cost:
    """[m, k] × [k, n]."""
    a, b = op.inputs
    m, k = a.shape
    return Cost(gemms=(Gemm(m=m, n=b.shape[1], k=k),)) + traffic(op)


@rule("aten.addmm")
def addmm(op: Op) -> Cost:
    """[m, k] × [k, n] plus a bias in the same kernel: 1 FLOP an output element."""
    _, a, b = op.inputs
    m, k = a.shape
    (y,) = op.outputs
    return Cost(gemms=(Gemm(m=m, n=b.shape[1], k=k),), vector_flop=y.numel) + traffic(op)


@rule("aten.bmm")
def bmm(op: Op) -> Cost:
    """[batch, m, k] × [batch, k, n]."""
    a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(Gemm(batch=batch, m=m, n=b.shape[2], k=k),)) + traffic(op)


@rule("aten.baddbmm")
def baddbmm(op: Op) -> Cost:
    """[batch, m, k] × [batch, k, n] plus a matrix: 1 FLOP an output element."""
    _, a, b = op.inputs
    batch, m, k = a.shape
    (y,) = op.outputs
    return Cost(gemms=(Gemm(batch=batch, m=m, n=b.shape[2], k=k),), vector_flop=y.numel) + traffic(op)


@rule("aten.mv")
def mv(op: Op) -> Cost:
    """[m, k] × [k]."""
    a, _ = op.inputs
    m, k = a.shape
    return Cost(gemms=(Gemm(m=m, n=1, k=k),)) + traffic(op)


@rule("aten.dot", "aten.vdot")
def dot(op: Op) -> Cost:
    """[k] · [k]."""
    a, _ = op.inputs
    return Cost(gemms=(Gemm(m=1, n=1, k=a.numel),)) + traffic(op)


@rule("aten._scaled_mm")
def scaled_mm(op: Op) -> Cost:
    """[m, k] × [k, n] of 8-bit numbers with scales, which are applied once an output element."""
    a, b = op.inputs[:2]
    m, k = a.shape
    (y,) = op.outputs[:1]
    return Cost(gemms=(Gemm(m=m, n=b.shape[1], k=k),), vector_flop=y.numel) + traffic(op)
