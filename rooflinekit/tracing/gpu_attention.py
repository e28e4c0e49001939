"""Attention as a GPU runs it: which fused kernel CUDA's dispatcher takes, and what it was before there was one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from rooflinekit.ir.op import TensorSpec
from rooflinekit.tracing import autocast
from rooflinekit.tracing.tensors import expression


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As CUDA's dispatcher chooses: flash for half precision without a mask where all heads are equally wide, else
    memory-efficient, else unfused.

    Which of the fused two a given GPU really has (flash needs compute capability 8.0) changes neither FLOP nor bytes.
    """
    if query.is_nested:
        return NotImplemented
    query, key, value, attn_mask = autocast.lowered(query, key, value, attn_mask)
    with autocast.switched_off():
        return _fused_or_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _fused_or_not(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    backends: Any = torch.backends.cuda  # as torch.nn.attention.sdpa_kernel left them
    half = query.dtype in (torch.float16, torch.bfloat16)
    fusible = _alike(query, key, value, grouped=enable_gqa)
    flash = half and attn_mask is None and expression(query.shape[3]) == expression(value.shape[3])
    if fusible and flash and backends.flash_sdp_enabled():
        return _first(
            torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        )
    if not fusible or not (backends.mem_efficient_sdp_enabled() or (half and backends.cudnn_sdp_enabled())):
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


#: "1" takes cuDNN's attention after flash and memory-efficient, of which one runs.
_LATER_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


class SwitchedOn:
    """Which fused kernels may run where a program calls attention, in `sdpa_kernel(...)` or by the environment.

    The gradient, for which autograd is asked later, runs by what its forward pass ran by.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def attrs(self, kind: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
        """`backends` of an op: those that are on, nothing where all are; `prefers`: "ck" where that is asked for."""
        if kind.endswith("_backward"):
            return next((self._known[one.name] for one in inputs if one.name in self._known), {})
        backends: Any = torch.backends.cuda
        switches = {
            "flash": backends.flash_sdp_enabled(),
            "cudnn": backends.cudnn_sdp_enabled() and os.environ.get(_LATER_CUDNN) != "1",
            "efficient": backends.mem_efficient_sdp_enabled(),
        }
        found: dict[str, Any] = {}
        if not all(switches.values()):
            found["backends"] = tuple(name for name, on in switches.items() if on)
        if _prefers_ck():
            found["prefers"] = "ck"
        self._known |= dict.fromkeys((one.name for one in outputs), found)
        return found


def _prefers_ck() -> bool:
    """Whether torch.backends.cuda.preferred_rocm_fa_library("ck") was called, or TORCH_ROCM_FA_PREFER_CK is set."""
    preferred = getattr(torch.backends.cuda, "preferred_rocm_fa_library", None)  # from 2.6 on
    return os.environ.get("TORCH_ROCM_FA_PREFER_CK") == "1" or (preferred is not None and preferred().name == "Ck")


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, grouped: bool) -> bool:
    """Whether they are as fused kernels want them: [batch, heads, …] each, and nothing to be broadcast."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    pairs = [(query.shape[0], other.shape[0]) for other in (key, value)]
    if not grouped:
        pairs += [(query.shape[1], other.shape[1]) for other in (key, value)]
    return all(map(_may_be_equal, pairs))


def _may_be_equal(sizes: tuple[Any, Any]) -> bool:
    """Not where one is 1 or both are numbers; of two names that differ torch asks itself that they are equal."""
    a, b = map(expression, sizes)
    return bool(a == b or not (1 in (a, b) or all(isinstance(size, int) for size in (a, b))))


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as models wrote it before there was a function: scale, product, mask, softmax, dropout, product."""
    if query.is_nested:
        return NotImplemented
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(kept.logical_not(), float("-inf"))
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return functional.dropout(scores.softmax(dim=-1), dropout_p, dropout_p > 0.0) @ value


def _additive(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as fused kernels take it: numbers to add, expanded to [batch, heads, s, t]."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _first(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0]
