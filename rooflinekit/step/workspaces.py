"""Memory that libraries and ATen's own kernels take while an op runs, or keep."""

from __future__ import annotations

from rooflinekit.hardware.device import Device
from rooflinekit.ir.points import integer
from rooflinekit.model.kernel import Issue, Kernel
from rooflinekit.model.libraries import exists
from rooflinekit.model.miopen import NAIVE, UNFOLDED

#: Of cuBLAS, kept from its first product on: 4 MiB twice and 16 KiB eight times, on compute capability 9.0 eight times
#: 4 MiB (aten/src/ATen/cuda/CUDABlas.cpp, getChosenWorkspaceSize, torch 2.13).
_PRODUCT_WORKSPACE = 2 * 4 * 2**20 + 8 * 16 * 2**10
_PRODUCT_WORKSPACE_HOPPER = 8 * 4 * 2**20
_LARGE = ("9.0", "10.0", "10.3")  # of 10.x by peaks that were measured on B200 (benchmarks/liger_memory.py)

_LOSSES = {
    "aten.mse_loss": 1, "aten.smooth_l1_loss": 1, "aten.huber_loss": 1, "aten.soft_margin_loss": 1,
    "aten.binary_cross_entropy": 1, "aten.binary_cross_entropy_with_logits": 2,
}  # fmt: skip
#: Tensors of the first input's size that stand between the kernels of one op.
_BETWEEN = {**_LOSSES, "aten.logsumexp": 1, "aten.dist": 1, "aten.isinf": 1, "aten.roll": 1}

_SOFTMAX_BACKWARD = "aten._softmax_backward_data"


def workspace_of(issue: Issue, device: Device, *, fused: bool) -> int:
    """Of a convolution: tensors with channels last in the place of its own, and the windows of an image where they are
    written out because the device's library has no other way. Of a softmax's backward that PyTorch runs: gradient times
    result (softmax_backward_cuda_out of ATen's cuda/SoftMax.cu).
    """
    kind = issue.op.kind.removesuffix("_")
    if kind in _BETWEEN and not fused:
        x, y = issue.op.inputs[0], issue.op.outputs[0]
        given = kind in _LOSSES and x.shape == y.shape  # then the result is one of them
        between = 0 if kind == "aten.roll" and len(issue.kernels) < 2 else _BETWEEN[kind] - given
        return between * integer(x.numel) * x.dtype.itemsize
    if issue.op.kind == _SOFTMAX_BACKWARD:
        return 0 if fused or device.kind != "gpu" else integer(issue.op.outputs[0].bytes)
    copied = sum(integer(k.cost.write_bytes) for k in issue.kernels if k.cost.label == "to channels last") + max(
        (integer(t.bytes) for k in issue.kernels if k.cost.label == "from channels last" for t in issue.op.outputs[:1]),
        default=0,
    )
    return copied + max((_windows(kernel, device) for kernel in issue.kernels), default=0)


def _windows(kernel: Kernel, device: Device) -> int:
    """Bytes of the windows of one image, where that is the way in which a convolution is run; else 0."""
    able = [k for k in (kernel, *kernel.alternatives) if exists(k.algorithm, k.math, device) and k.algorithm != NAIVE]
    if not kernel.alternatives or any(k.algorithm.name != UNFOLDED.name for k in able):
        return 0
    result = integer(kernel.cost.write_bytes)  # which a loop over images writes anew each time where it is a sum
    return max(
        (integer(k.cost.write_bytes) // k.chain.links - (result if k.direction == "weight" else result // k.chain.links)
         for k in able if k.chain), default=0,
    )  # fmt: skip


def product_workspace(device: Device) -> int:
    """Bytes that cuBLAS keeps on this device."""
    return _PRODUCT_WORKSPACE_HOPPER if device.compute_capability in _LARGE else _PRODUCT_WORKSPACE
