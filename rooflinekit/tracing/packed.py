"""Sequences packed one behind the other: how long each is, stands in a tensor of where they begin.

What a call of attention on them does, follows from the length of a sequence's keys, which is an assumption by the name
`varlen`: all sequences equally long, or as the user says, up to the longest, which the call names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
