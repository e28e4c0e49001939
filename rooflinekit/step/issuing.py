"""What the CPU spends on issuing an op, after which ops it waits, and which ops a CUDA graph issues for it."""

from __future__ import annotations

from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import EAGER, DType, Op, Phase
from rooflinekit.model.fusion import is_fused
from rooflinekit.model.kernel import Issue
from rooflinekit.model.recurrence import RECURRENT
from rooflinekit.step.execution import Execution

#: Operators after which PyTorch waits for the GPU, to make a tensor or a number of what it has counted.
_READING = {
    "aten._local_scalar_dense", "aten.equal", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten._unique",
    "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive", "aten.bincount", "torchvision.nms",
}  # fmt: skip


def reads_a_number(op: Op) -> bool:
    """Whether the CPU waits for its result: `.item()`, a condition on a tensor, or a size that data decide."""
    if op.kind in _READING:
        return True
    if op.kind == "aten.repeat_interleave":
        return op.attrs.get("output_size", 0) is None
    masks = (DType.BOOL, DType.UINT8)
    if op.kind == "aten.index":
        return any(index is not None and index.dtype in masks for index in op.attrs.get("indices", ()))
    return "named" in op.attrs  # written under a mask


def is_captured(op: Op, execution: Execution) -> bool:
    """Whether an op is in a CUDA graph: all, but torch.compile captures only what it is given to compile.

    Which recurrent layers are not (torch/_dynamo/config.py, allow_rnn).
    """
    outside = EAGER in op.attrs or "cpu_s" in op.attrs or op.kind in RECURRENT
    return execution.as_graph and not (execution.entered and outside)


def called_s(host: Host) -> float:
    """CPU time of an op that another one calls on the CPU: in C++, as autograd's engine does, and without a launch."""
    return host.backward_factor * host.dispatch_s("view")


def issue_cost_s(issue: Issue, host: Host, execution: Execution | None = None) -> float:
    """CPU time of issuing one op, all its launches included.

    A compiled step launches its Triton kernels from inductor's wrapper, which calls libraries without modules, autocast
    and autograd around them, at `compiled_call` of what they cost from Python. Views cost it nothing.
    """
    further_s = max(0, sum(kernel.launches for kernel in issue.kernels) - 1) * host.launch
    if calls := sum(kernel.chain.calls for kernel in issue.kernels if kernel.chain):
        further_s += calls * called_s(host)
    fused, entered = execution is not None and execution.fused, execution is not None and execution.entered
    if fused and is_fused(issue):
        return host.compiled_launch + further_s
    dispatch_s = host.dispatch_s(issue.family.value)
    if fused and not issue.kernels:  # put there by a strategy, for inductor has no views
        return float(issue.op.attrs.get("cpu_s", dispatch_s))
    if entered:
        return dispatch_s * host.compiled_call + further_s
    if issue.op.phase is Phase.BACKWARD:
        dispatch_s *= host.backward_factor
    return dispatch_s + issue.calls * host.module + further_s
