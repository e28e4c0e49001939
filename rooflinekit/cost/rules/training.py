"""Kernels of frameworks that train language models: several element-wise steps in one, products that add up."""

from __future__ import annotations

from rooflinekit.cost.table import rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import product, quotient


@rule("training.pointwise")
def pointwise(op: Op) -> Cost:
    """As many operations and special functions an element of its largest tensor as it says; its traffic."""
    sizes = [tensor.numel for tensor in (*op.inputs, *op.outputs)]
    n = max(sizes, key=lambda size: int(size))
    work = Cost(vector_flop=product((op.attrs["vector"], n)), special_flop=product((op.attrs["special"], n)))
    return work + traffic(op)


@rule("training.accumulated_mm")
def accumulated_mm(op: Op) -> Cost:
    """[m, k] × [k, n] added to what stands in the result: 2·m·k·n, and the result read and written."""
    a, b = op.inputs[:2]
    return Cost(gemms=(Gemm(m=a.shape[0], n=b.shape[1], k=a.shape[1]),)) + traffic(op)


@rule("training.causal_softmax", timed_as=Family.REDUCTION)
def causal_softmax(op: Op) -> Cost:
    """Rows of a causal square in one kernel, or their gradient: the lower half is read, all of the result written.

    Scale, maximum, subtraction, sum and one exp an element that takes part; of a gradient two products and a sum.
    """
    n = quotient(op.outputs[0].numel, 2)
    read = quotient(product((op.attrs["reads"], op.outputs[0].bytes)), 2)
    backward = op.attrs["reads"] == 2
    work = Cost(vector_flop=product((4, n)), special_flop=0 if backward else n, read_bytes=read)
    return work + writes(op.outputs)
