"""What a GPU would run, where tracing on fake CPU tensors would take another path.

Fake tensors pretend to lie on the CPU, and there attention falls apart into matrix products and a softmax, dropout
into four kernels, and a recurrent layer into a loop. The replacements stand above autograd, so that backward follows
the same choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from rooflinekit.tracing import recurrent
from rooflinekit.tracing.shapes import RESAMPLING


@contextmanager
def gpu_view() -> Iterator[None]:
    """Replaces functions that CPU tracing would decompose by the operators that CUDA dispatches."""
    # A mode is switched off inside the function that it was asked about. nn.MultiheadAttention and F.interpolate call
    # these from inside such a function: there only the names that they look up reach them.
    places = [(functional, "scaled_dot_product_attention"), (functional, "dropout")]
    places += [(torch._C._nn, name) for name in RESAMPLING]
    originals = [(place, name, getattr(place, name)) for place, name in places]
    try:
        for place, name, original in originals:
            setattr(place, name, _REPLACED[original])
        with _GpuView():
            yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)


class _GpuView(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replacement = _REPLACED.get(function)
        if replacement is not None:
            output = replacement(*args, **(kwargs or {}))
            if output is not NotImplemented:
                return output
        return function(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As CUDA's dispatcher chooses: flash for half precision without a mask, else memory-efficient, else unfused.

    Which of the fused two a given GPU really has (flash needs compute capability 8.0) changes neither FLOP nor bytes.
    """
    # Leading dimensions beyond [batch, heads] or a missing one are folded, as PyTorch does.
    lead = query.shape[:-2]
    if len(lead) != 2:
        q, k, v = (t.reshape(-1, 1, *t.shape[-2:]) if lead else t[None, None] for t in (query, key, value))
        mask = (
            None
            if attn_mask is None
            else attn_mask.expand(*lead, *attn_mask.shape[-2:]).reshape(-1, 1, *attn_mask.shape[-2:])
        )
        output = _attention(q, k, v, mask, dropout_p, is_causal, scale)
        return output.reshape(*lead, *output.shape[-2:])
    backends: Any = torch.backends.cuda  # as torch.nn.attention.sdpa_kernel left them
    half = query.dtype in (torch.float16, torch.bfloat16)
    if attn_mask is None and half and backends.flash_sdp_enabled():
        return _first(
            torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        )
    if not (backends.mem_efficient_sdp_enabled() or (half and backends.cudnn_sdp_enabled())):
        unfused: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return unfused
    if enable_gqa and query.shape[1] != key.shape[1]:
        # Only flash takes grouped heads; the others are given repeated ones.
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = None if attn_mask is None else _additive(attn_mask, query, key)
    training = query.requires_grad or key.requires_grad
    if backends.mem_efficient_sdp_enabled():
        return _first(
            torch.ops.aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, training, dropout_p, is_causal, scale=scale
            )
        )
    return _first(
        torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, training, dropout_p, is_causal, scale=scale
        )
    )


def _additive(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as fused kernels take it: numbers to add, expanded to [batch, heads, s, t]."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _first(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0]


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA has one kernel that writes the output and the mask."""
    if not training or p == 0.0:
        return input
    if inplace or p == 1.0 or not torch.is_grad_enabled():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    output: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return output


def _resample(name: str, x: torch.Tensor, size: Sequence[Any] | None, *options: Any) -> torch.Tensor:
    """As PyTorch, whose way from scale factors to sizes would force every open size to its example."""
    *corners, scales = options  # align_corners stands before the scale factors where there is such a thing
    if size is None:
        size = [_scaled(edge, scale) for edge, scale in zip(x.shape[2:], scales, strict=True)]
    given = scales if scales is not None else [None] * len(size)
    output: torch.Tensor = getattr(torch.ops.aten, name).default(x, size, *corners, *given)
    return output


def _scaled(edge: Any, scale: float) -> Any:
    """floor(edge · scale), in whole numbers where the scale or its inverse is one."""
    if scale == int(scale):
        return edge * int(scale)
    inverse = 1 / scale
    return edge // int(inverse) if inverse == int(inverse) else torch.sym_int(edge * scale)  # type: ignore[no-untyped-call]


_REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.scaled_dot_product_attention: _attention,
    functional.dropout: _dropout,
    **{getattr(torch._C._nn, name): functools.partial(_resample, name) for name in RESAMPLING},
    torch.lstm: recurrent.lstm,
    torch.gru: recurrent.gru,
    torch.rnn_tanh: recurrent.rnn_tanh,
    torch.rnn_relu: recurrent.rnn_relu,
}
