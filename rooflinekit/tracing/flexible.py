"""Flexible attention: which pairs of query and key take part, its mask says by a function, and that is asked.

A mask that looks at the model's data cannot be asked: how much it keeps is then an assumption with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from rooflinekit.ir.sizes import Size
from rooflinekit.tracing.assumed import Assumed

#: Where query, key and the block mask stand among the arguments of an operator.
_PLACES = {"flex_attention": (0, 1, 4), "flex_attention_backward": (0, 1, 9)}
_PAIRS = "_rooflinekit_pairs"  # of a query: what was found, for the backward pass
_MOST = 2**22  # pairs that are asked about, of one head
_HEADS = 16  # that are asked about


def masked_pairs(name: str, args: Sequence[Any], assumed: Assumed, size: Callable[[Any], Size]) -> dict[str, Any]:
    """What a mask leaves, as attributes of the op: `is_causal`, or `pairs` of one head; nothing where all take part."""
    if name not in _PLACES:
        return {}
    query, key, mask = (args[place] for place in _PLACES[name])
    function = mask[-1]
    known = getattr(query, _PAIRS, {})
    if function not in known:
        known[function] = _asked(function, query, key, assumed, size)
        setattr(query, _PAIRS, known)
    found: dict[str, Any] = known[function]
    return found


def _asked(
    function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, assumed: Assumed, size: Callable[[Any], Size]
) -> dict[str, Any]:
    s, t = query.shape[2], key.shape[2]
    example = [int(n) if isinstance(n, int) else n.node.hint for n in (*query.shape[:2], s, t)]
    answer = _answered(function, *example)
    if answer is None:
        return {"pairs": size(assumed.elements("flex_mask", s * t))}
    share, causal, whole = answer
    if share == 1:
        return {}
    if causal:
        return {"is_causal": True}
    if whole and isinstance(s, int) and isinstance(t, int):
        return {"pairs": int(share * s * t)}
    return {"pairs": size(assumed.elements("flex_mask", s * t, share=share))}


def _answered(function: Callable[..., Any], b: int, h: int, s: int, t: int) -> tuple[Fraction, bool, bool] | None:
    """The share of pairs kept, whether just those with key ≤ query are, and whether every pair was asked about.

    None where the function cannot be asked outside of the trace.
    """
    heads = [(i, j) for i in range(b) for j in range(h)]
    heads, every_head = heads[:: -(-len(heads) // _HEADS)], len(heads) <= _HEADS
    step = -(-s * t // _MOST)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        rows, columns = torch.arange(0, s, step), torch.arange(t)
        over_keys = torch.vmap(function, in_dims=(None, None, None, 0))
        over_all = torch.vmap(over_keys, in_dims=(None, None, 0, None))
        try:
            kept = [over_all(torch.tensor(i), torch.tensor(j), rows, columns) for i, j in heads]
            counts = [int(one.sum()) for one in kept]
            causal = all(torch.equal(one, rows[:, None] >= columns) for one in kept)
        except Exception:  # a user's function, which may hold tensors of the trace
            return None
    share = Fraction(sum(counts), len(heads) * len(rows) * t)
    # An average over heads that is no whole number of pairs is a share as any other.
    return share, causal, every_head and step == 1 and (share * s * t).denominator == 1
