"""RMS normalization as CUDA runs it: an operator of its own, where the CPU writes it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rooflinekit.tracing import autocast

_FUSED = torch.ops.aten._fused_rms_norm.default
_HERE = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[Any], weight: torch.Tensor | None = None, eps: float | None = None
) -> Any:
    """One kernel, but for complex numbers, images with channels last, and a weight of another format."""
    x, weight = autocast.widened(x, weight)
    images = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    apart = images is not None and not x.is_contiguous() and x.is_contiguous(memory_format=images)
    if apart or x.is_complex() or (weight is not None and weight.dtype is not x.dtype) or _transformed():
        return NotImplemented
    return _Normalized.apply(x, weight, list(normalized_shape), eps)  # type: ignore[no-untyped-call]


def _transformed() -> bool:
    """Whether functorch looks through what it calls, and would not through an operator of ours."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _Normalized(torch.autograd.Function):
    """The operator with its gradient, which torch has where there is CUDA only."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: list[Any], eps: float | None
    ) -> torch.Tensor:
        """Keeps what CUDA's keeps: the input, the weight, and 1/σ of each row."""
        y, inverse = _FUSED.redispatch(_HERE, x, shape, weight, eps)
        context.save_for_backward(x, weight, inverse)
        context.shape = shape
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> Any:
        """Gradients of the input and of the weight, each where it is wanted."""
        x, weight, inverse = context.saved_tensors
        wanted = list(context.needs_input_grad[:2])
        of_x, of_weight = torch.ops.aten._fused_rms_norm_backward(grads[0], x, context.shape, inverse, weight, wanted)
        return of_x, of_weight, None, None
