"""Sizes of results, where torch's own way to them is slow, forces open sizes to numbers, or does not exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Made:
    """Sizes, strides and format of a returned tensor."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype


def contiguous(shape: Sequence[Any], dtype: torch.dtype) -> Made:
    """A dense tensor, row by row; products of open sizes ask nothing about them."""
    stride: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step = step * size
    return Made(tuple(shape), tuple(stride), dtype)


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Made, ...]:
    """torch finds this by running a decomposition of twenty ops, 6 ms for each new shape."""
    channels = (x.shape[1],) if training else (0,)
    statistics = torch.float64 if x.dtype is torch.float64 else torch.float32
    saved = Made(channels, (1,), statistics)
    return Made(tuple(x.shape), x.stride(), x.dtype), saved, saved


def _constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> tuple[Made, ...]:
    """torch's way forces every open size to its example. `pad` begins with the last dimension."""
    shape: list[Any] = list(x.shape)
    for i in range(len(pad) // 2):
        shape[-1 - i] = shape[-1 - i] + pad[2 * i] + pad[2 * i + 1]
    return (contiguous(shape, x.dtype),)


def _resampled(x: torch.Tensor, size: Sequence[Any], *options: Any) -> tuple[Made, ...]:
    return (contiguous((*x.shape[:2], *size), x.dtype),)


def _resampled_backward(
    grad: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *options: Any
) -> tuple[Made, ...]:
    return (contiguous(input_size, grad.dtype),)


def _im2col(
    x: torch.Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> tuple[Made, ...]:
    """[n, c, h, w] → [n, c·r·s, windows]; without n likewise."""
    *lead, c, h, w = x.shape
    windows = 1
    for i, size in enumerate((h, w)):
        windows = windows * ((size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1)
    return (contiguous((*lead, c * kernel[0] * kernel[1], windows), x.dtype),)


def _col2im(x: torch.Tensor, size: Sequence[Any], kernel: Sequence[int], *options: Any) -> tuple[Made, ...]:
    """[n, c·r·s, windows] → [n, c, h, w]; without n likewise."""
    *lead, rows, _ = x.shape
    return (contiguous((*lead, rows // math.prod(kernel), *size), x.dtype),)


_aten = torch.ops.aten

#: Names of the resampling operators, which exist with a `_backward` each.
RESAMPLING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip

#: Operators whose results follow from their arguments' sizes.
OWN_SHAPES: dict[Any, Callable[..., tuple[Made, ...]]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten.constant_pad_nd.default: _constant_pad,
    _aten.im2col.default: _im2col,
    _aten.col2im.default: _col2im,
    **{getattr(_aten, name).default: _resampled for name in RESAMPLING},
    **{getattr(_aten, f"{name}_backward").default: _resampled_backward for name in RESAMPLING},
}


def _attention_gradients(args: Sequence[Any]) -> tuple[Any, ...]:
    """Of query, key, value and mask, each where it is wanted."""
    return tuple(one if wanted else None for one, wanted in zip(args[1:5], args[10], strict=True))


#: Operators that torch cannot run on fake tensors: their results are like these of their arguments.
LIKE_ARGUMENTS: dict[Any, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    # input, weights, stride, buffer, hidden state, cell state
    _aten._cudnn_rnn_backward.default: lambda args: (args[0], args[4], args[5], list(args[1])),
    _aten._scaled_dot_product_efficient_attention_backward.default: _attention_gradients,
}
