"""Losses that read their targets as indices or work on whole sequences; element-wise ones stand in elementwise.py."""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(op: Op) -> Cost:
    """Reads one log-probability a target, not all of them; negates and sums: 2 a target."""
    log_probability, target = op.inputs[:2]
    picked = Cost(read_bytes=product((target.numel, log_probability.dtype.itemsize)))
    work = Cost(vector_flop=product((2, target.numel)))
    return work + picked + reads(op.inputs[1:]) + writes(op.outputs)


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(op: Op) -> Cost:
    """Writes zeros everywhere and one value a target; the log-probabilities give their shape alone."""
    grad, _, target, *rest = op.inputs
    return Cost(vector_flop=target.numel) + reads((grad, target, *rest)) + writes(op.outputs)
