"""Attention as a GPU runs it: which operator CUDA's dispatcher takes, and what packages call.

How long packed sequences are, stands in a tensor of where they begin. What a call does follows from the length of a
sequence's keys, which is an assumption by the name `varlen`: all sequences equally long, or as the user says, up to the
longest, which the call names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.utils._mode_utils import no_dispatch

from rooflinekit.ir.op import TensorSpec
from rooflinekit.tracing import autocast
from rooflinekit.tracing.assumed import Assumed
from rooflinekit.tracing.tensors import expression


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """As CUDA's dispatcher chooses: flash for half precision without a mask where all heads are equally wide, else
    memory-efficient, else unfused.

    Which of the fused two a given GPU really has (flash needs compute capability 8.0) changes neither FLOP nor bytes.
    """
    if query.is_nested:
        return NotImplemented
    if isinstance(attn_mask, CausalBias):
        return _by_bias(query, key, value, attn_mask, dropout_p, scale, enable_gqa)
    query, key, value, attn_mask = autocast.lowered(query, key, value, attn_mask)
    backends: Any = torch.backends.cuda  # as torch.nn.attention.sdpa_kernel left them
    half = query.dtype in (torch.float16, torch.bfloat16)
    fusible = _alike(query, key, value, grouped=enable_gqa)
    flash = half and attn_mask is None and expression(query.shape[3]) == expression(value.shape[3])
    training = any(one.requires_grad for one in (query, key, value)) and torch.is_grad_enabled()
    aten: Any = torch.ops.aten
    with autocast.switched_off():
        if fusible and flash and backends.flash_sdp_enabled():
            with Callers.within(trains=training):
                return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if not fusible or not (backends.mem_efficient_sdp_enabled() or (half and backends.cudnn_sdp_enabled())):
            if not backends.math_sdp_enabled():
                raise RuntimeError(_NO_KERNEL)
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        mask = None if attn_mask is None else _additive(attn_mask, query, key)
        efficient = backends.mem_efficient_sdp_enabled()
        run = aten._scaled_dot_product_efficient_attention if efficient else aten._scaled_dot_product_cudnn_attention
        return run(query, key, value, mask, training, dropout_p, is_causal, scale=scale)[0]


def _by_bias(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, dropout_p: float, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    """As torch.nn.attention.bias does: of two causal masks flash attention takes by name what ends at the lower right.

    For other formats and widths that one is written out.
    """
    lengths = bias.seq_len_q, bias.seq_len_kv
    if lengths[0] == lengths[1] or bias.variant is CausalVariant.UPPER_LEFT:
        return attention(query, key, value, None, dropout_p, True, scale, enable_gqa)
    lowered = autocast.lowered(query, key, value)
    widths, backends = {expression(one.shape[3]) for one in lowered}, cast("Any", torch.backends.cuda)
    if len(widths) > 1 or lowered[0].dtype is torch.float32 or not backends.flash_sdp_enabled():
        mask = torch.ones(lengths, dtype=torch.bool, device=query.device).tril(lengths[1] - lengths[0])
        return attention(query, key, value, mask, dropout_p, False, scale, enable_gqa)
    behind = (one.transpose(1, 2) for one in lowered)
    with autocast.switched_off():
        run: Any = torch.ops.aten._flash_attention_forward
        return run(*behind, None, None, *lengths, dropout_p, True, False, scale=scale)[0].transpose(1, 2)


def plain_bias(kind: type, *_: Any) -> torch.Tensor:
    """A causal mask of torch.nn.attention.bias, which holds lengths alone, without the fake tensors of a trace."""
    with no_dispatch():
        return torch.Tensor.__new__(kind)


#: As PyTorch says it.
_NO_KERNEL = (
    "No available kernel. Aborting execution. (scaled_dot_product_attention: sdpa_kernel(...) leaves none on "
    "that takes this mask, format and shape; allow SDPBackend.MATH, or EFFICIENT_ATTENTION for masks)"
)


#: "1" takes cuDNN's attention after flash and memory-efficient, of which one runs.
_LATER_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
#: "1" does what torch.backends.cuda.preferred_rocm_fa_library("ck") does.
_PREFERS_CK = "TORCH_ROCM_FA_PREFER_CK"


_NARROW = 64  # numbers of a head up to which every kernel has a gradient


class Callers:
    """How a program calls attention: which fused kernels may run, and which package calls an operator of PyTorch's.

    A gradient is as its forward pass, and comes later.
    """

    _now: Mapping[str, Any] = {}  # of what is called now: its `package`, or whether it `trains`

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}  # by the name of what a forward pass has made

    @classmethod
    @contextmanager
    def within(cls, **now: Any) -> Iterator[None]:
        """It is this of what is called within."""
        cls._now = now
        try:
            yield
        finally:
            cls._now = {}

    def attrs(self, kind: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
        """`package` of an op of packed sequences, and what `_switched_on` says of another; nothing of other ops."""
        if "scaled_dot_product" not in kind and kind not in PACKING:
            return {}
        if kind.endswith("_backward"):
            return next((self._known[one.name] for one in inputs if one.name in self._known), {})
        if kind in PACKING:
            found = {"package": self._now["package"]} if "package" in self._now else {}
        else:
            found = _switched_on(trains=bool(self._now.get("trains")) and inputs[0].shape[-1] > _NARROW)
        self._known |= dict.fromkeys((one.name for one in outputs), found)
        return found


def _switched_on(*, trains: bool) -> dict[str, Any]:
    """Which kernels may run here: in `sdpa_kernel(...)`, by the environment, or with deterministic algorithms.

    `backends`: those that are on, nothing where all are; `order`: theirs, where the program sets it; `prefers`: "ck"
    where that is asked for; `trained`: that heads so wide have a gradient, which not every GPU has the shared memory
    for.
    """
    backends: Any = torch.backends.cuda
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    # cuDNN's has sums in any order (sdp_utils.cpp, check_cudnn_deterministic, as remembered)
    ordered = torch.are_deterministic_algorithms_enabled() and not warns
    switches = {
        "flash": backends.flash_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled() and os.environ.get(_LATER_CUDNN) != "1" and not ordered,
        "efficient": backends.mem_efficient_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
    }
    found: dict[str, Any] = {}
    if not all(switches.values()):
        found["backends"] = tuple(name for name, on in switches.items() if on)
    if order := _order_asked():
        found["order"] = order
    if os.environ.get(_PREFERS_CK) == "1" or backends.preferred_rocm_fa_library().name == "Ck":
        found["prefers"] = "ck"
    return found | ({"trained": True} if trains else {})


_NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}  # by torch.nn.attention.SDPBackend
_STANDING = ("flash", "efficient", "math", "cudnn")  # PyTorch's own order, and that which it sets for a GPU it runs on
_SET = ("cudnn", "flash", "efficient", "math")


def _order_asked() -> tuple[str, ...]:
    """The order in which `sdpa_kernel(..., set_priority=True)` has them tried; () for PyTorch's own."""
    found = tuple(_NAMES[one] for one in torch._C._get_sdp_priority_order() if one in _NAMES)
    cuda: Any = torch.cuda
    return () if found == _STANDING or (found == _SET and cuda.is_initialized()) else found


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, grouped: bool) -> bool:
    """Whether they are as fused kernels want them: [batch, heads, …] each, and nothing to be broadcast."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    alike = (0,) if grouped else (0, 1)
    return all(_may_be_equal(query.shape[dim], other.shape[dim]) for dim in alike for other in (key, value))


def _may_be_equal(one: Any, other: Any) -> bool:
    """Not where one is 1 or both are numbers; of two names that differ torch asks itself that they are equal."""
    a, b = expression(one), expression(other)
    return bool(a == b or not (1 in (a, b) or all(isinstance(size, int) for size in (a, b))))


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
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


# Sequences that are packed one behind the other, and xFormers.

#: Operators that take packed sequences [tokens, heads, size], where they are given the beginnings.
PACKING = frozenset(
    (
        "flash_attn._flash_attn_varlen_forward", "flash_attn._flash_attn_varlen_backward",
        "torch_attn._varlen_attn", "torch_attn._varlen_attn_backward",
        "aten._flash_attention_forward", "aten._flash_attention_backward",
        "aten._efficient_attention_forward", "aten._efficient_attention_backward",
    )
)  # fmt: skip
_KEYS, _LONGEST = "_rooflinekit_keys", ("max_seqlen_k", "max_k")
_BEGINNINGS = ("cu_seqlens_k", "cu_seq_k", "cum_seq_k", "cu_seqlens_q", "cu_seq_q", "cum_seq_q")


def packed_keys(given: Mapping[str, Any], assumed: Assumed) -> dict[str, Any]:
    """`packed_keys`, those of one sequence, as an attribute of the op; nothing where sequences are a batch by shape.

    given: the arguments by name. The gradient takes what its forward pass took.
    """
    beginnings = next((given[name] for name in _BEGINNINGS if given.get(name) is not None), None)
    if beginnings is None:
        return {}
    if not hasattr(beginnings, _KEYS):
        longest = next(given[name] for name in _LONGEST if name in given)
        key = given.get("key", given.get("k"))
        paged = given.get("block_table") is not None
        rows, sequences = key.shape[0] if key.dim() == 3 else key.shape[0] * key.shape[1], beginnings.shape[0] - 1
        even = None if paged else -(-rows // sequences)
        setattr(beginnings, _KEYS, assumed.size(assumed.length("varlen", longest, even)))
    return {"packed_keys": getattr(beginnings, _KEYS)}


def xformers_attention(inp: Any, op: Any = None) -> torch.Tensor:
    """What xformers.ops.memory_efficient_attention calls on a GPU, of tensors [b, s, (groups,) h, d] or [b, s, d].

    Flash attention of 16 bits, with heads of one width up to 256 and masks that it knows; elsewhere CUTLASS's kernels,
    which torch has. inp: xFormers' record of a call, whose own checks run. op: the operators that are asked for.
    """
    inp.validate_inputs()
    shape, bias = inp.normalize_bmhk(), inp.attn_bias
    query, key, value = map(_without_groups, (inp.query, inp.key, inp.value))
    added = bias if isinstance(bias, torch.Tensor) else getattr(bias, "_bias", None)
    name, window = type(bias).__name__, getattr(bias, "_window_size", None)
    causal = "Causal" in name or "LowerTriangular" in name
    begins, longest = _beginnings(bias)
    asked = str(getattr(op[0] if isinstance(op, tuple) else op, "NAME", ""))
    even = query.shape[-1] == value.shape[-1] and query.shape[-1] <= _WIDTH
    with Callers.within(package="xformers"):
        if added is None and even and query.dtype in (torch.float16, torch.bfloat16) and "cutlass" not in asked:
            if begins[0] is not None:
                query, key, value = (one.flatten(0, 1) for one in (query, key, value))
            most = [known or one.shape[1] for known, one in zip(longest, (query, key), strict=True)]
            ends = (-1, -1) if window is None else (window - 1, 0)
            out = torch.ops.aten._flash_attention_forward(
                query, key, value, *begins, *most, inp.p, causal, False, scale=inp.scale, window_size_left=ends[0],
                window_size_right=ends[1],
            )[0]  # fmt: skip
        else:
            if added is not None and added.dim() == _GROUPED:
                added = added.flatten(1, 2)
            mask = causal + ("BottomRight" in name)  # 1: from the upper left, 2: to the lower right
            key, value = (one.expand(-1, -1, query.shape[2], -1) for one in (key, value))
            kept = any(one.requires_grad for one in (query, key, value))
            out = torch.ops.aten._efficient_attention_forward(
                query, key, value, added, *begins, *longest, inp.p, mask, kept, scale=inp.scale, window_size=window
            )[0]
    return out.reshape(shape)  # type: ignore[no-any-return]


_GROUPED, _WIDTH = 5, 256  # dimensions of tensors with groups of heads, and numbers of a head that flash takes


def _without_groups(x: torch.Tensor) -> torch.Tensor:
    """[b, s, h, d] of [b, s, groups, h, d], and one head where all are the same."""
    if x.dim() == _GROUPED:
        return x[:, :, :, 0] if x.stride(3) == 0 else x.flatten(2, 3)
    return x[:, :, :1] if x.stride(2) == 0 and x.shape[2] > 1 else x


def _beginnings(bias: Any) -> tuple[list[Any], list[Any]]:
    """Where packed queries and keys begin, and the longest of each; their lengths xFormers knows as numbers."""
    if not hasattr(bias, "q_seqinfo"):
        return [None, None], [None, None]
    queries, keys = ([b - a for a, b in one.intervals()] for one in (bias.q_seqinfo, bias.k_seqinfo))
    begins = [torch.empty(len(own) + 1, dtype=torch.int32) for own in (queries, keys)]
    met = sum(s * t for s, t in zip(queries, keys, strict=True)) / max(1, sum(queries))  # keys that a query meets
    for one in begins:
        setattr(one, _KEYS, max(1, round(met)))
    return begins, [max(queries), max(keys)]
