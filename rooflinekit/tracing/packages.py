"""Attention as packages call it: of sequences that are packed one behind the other, and by xFormers.

How long packed sequences are, stands in a tensor of where they begin. What a call does follows from the length of a
sequence's keys, which is an assumption by the name `varlen`: all sequences equally long, or as the user says, up to the
longest, which the call names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rooflinekit.ir.op import TensorSpec
from rooflinekit.ir.sizes import Size
from rooflinekit.tracing.assumed import Assumed

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


def packed_keys(given: Mapping[str, Any], assumed: Assumed, size: Callable[[Any], Size]) -> dict[str, Any]:
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
        setattr(beginnings, _KEYS, size(assumed.length("varlen", longest, even)))
    return {"packed_keys": getattr(beginnings, _KEYS)}


class Callers:
    """Which package an operator of PyTorch's is called by; a gradient is its forward pass's."""

    _now: str | None = None

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    @classmethod
    @contextmanager
    def named(cls, package: str) -> Iterator[None]:
        """What is called within, this package calls."""
        cls._now = package
        try:
            yield
        finally:
            cls._now = None

    def attrs(self, kind: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
        """`package` of an op; nothing where the program calls it."""
        if kind not in PACKING:
            return {}
        name = next((self._known[one.name] for one in inputs if one.name in self._known), self._now)
        if name is None:
            return {}
        self._known |= dict.fromkeys((one.name for one in outputs), name)
        return {"package": name}


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
    begins, longest = zip(*(_beginnings(bias, side) for side in "qk"), strict=True)
    asked = str(getattr(op[0] if isinstance(op, tuple) else op, "NAME", ""))
    even = query.shape[-1] == value.shape[-1] and query.shape[-1] <= _WIDTH
    with Callers.named("xformers"):
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


def _beginnings(bias: Any, side: str) -> tuple[torch.Tensor | None, int | None]:
    """Where packed queries ("q") or keys ("k") begin, and the longest; their lengths xFormers knows as numbers."""
    if not hasattr(bias, "q_seqinfo"):
        return None, None
    queries, keys = ([b - a for a, b in one.intervals()] for one in (bias.q_seqinfo, bias.k_seqinfo))
    own = queries if side == "q" else keys
    begins = torch.empty(len(own) + 1, dtype=torch.int32)
    met = sum(s * t for s, t in zip(queries, keys, strict=True)) / max(1, sum(queries))  # keys that a query meets
    setattr(begins, _KEYS, max(1, round(met)))
    return begins, max(own)
