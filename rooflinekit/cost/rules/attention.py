"""Fused scaled dot-product attention: query [b, h, s, d], key [b, h', t, d], value [b, h', t, e]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.cost.table import aten, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, product, quotient, smaller, total


def score_pairs(s: Size, t: Size, causal: bool) -> Size:
    """Pairs of query and key that take part, for one head.

    Causal, the mask aligned at the upper left as in PyTorch: query i sees min(i + 1, t) keys. With r = min(s, t)
    that is r(r+1)/2 + (s-r)·t.

    >>> score_pairs(4, 4, causal=True)
    10
    >>> score_pairs(5, 3, causal=True)
    12
    """
    if not causal:
        return product((s, t))
    r = smaller(s, t)
    triangle = quotient(product((r, total((r, 1)))), 2)
    return total((triangle, product((total((s, product((-1, r)))), t))))


def _products(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, causal: bool, left: Size | None
) -> tuple[Gemm, Gemm, Size]:
    """Scores, weighted values, and the pairs of all heads together; `left`: those that a mask leaves, None for all.

    Where each head has one query (decoding), those of heads that share keys are worked on together, as rows of one
    product: flash attention and cuDNN read such keys once.
    """
    b, h, s, d = query.shape
    t, e = key.shape[2], value.shape[3]
    pairs = product((b, h, score_pairs(s, t, causal))) if left is None else left
    shared = quotient(h, key.shape[1]) if s == 1 and isinstance(key.shape[1], int) and not causal else 1
    batch, rows = product((b, h if shared == 1 else key.shape[1])), product((s, shared))

    def needed(width: Size) -> Size | None:
        return product((pairs, width)) if causal or left is not None else None

    return (
        Gemm(batch=batch, m=rows, n=t, k=d, needed=needed(d)),
        Gemm(batch=batch, m=rows, n=e, k=t, needed=needed(e)),
        pairs,
    )


def _masked(op: Op) -> bool:
    return any(op.attrs.get(name) is not None for name in ("attn_bias", "attn_mask", "bias"))


def forward_work(op: Op, scores: Gemm, weighted: Gemm, pairs: Size) -> Cost:
    """A score costs scale, maximum, subtraction, sum and one exp, an output one division; a mask 1 a score."""
    done = work(pairs, 4 + _masked(op), 1) + work(op.outputs[0].numel, 0, 1)
    return Cost(gemms=(scores, weighted)) + done


_SCALED = aten(
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu"
)
_SCALED_GRADIENTS = tuple(f"{kind}_backward" for kind in _SCALED)
_HEADS_LAST = aten(
    "flash_attn._flash_attn_forward flash_attn._flash_attn_varlen_forward torch_attn._varlen_attn "
    "_flash_attention_forward _efficient_attention_forward"
)
_HEADS_LAST_GRADIENTS = aten(
    "flash_attn._flash_attn_backward flash_attn._flash_attn_varlen_backward torch_attn._varlen_attn_backward "
    "_flash_attention_backward _efficient_attention_backward"
)
_FLEX, _FLEX_GRADIENT = "higher_order.flex_attention", "higher_order.flex_attention_backward"
GRADIENTS = (*_SCALED_GRADIENTS, *_HEADS_LAST_GRADIENTS, _FLEX_GRADIENT)


@rule(*_SCALED, _FLEX, timed_as=Family.ATTENTION)
def attention(op: Op) -> Cost:
    """Two products, 2·b·h·p·(d + e), p pairs of query and key: s·t, or what causality or a mask's function leaves.

    A score costs scale, maximum, subtraction, sum and one exp, an output one division. A mask is added to each score.
    """
    return forward_work(op, *_of_heads(op, 0)) + traffic(op)


@rule(*_SCALED_GRADIENTS, _FLEX_GRADIENT, timed_as=Family.ATTENTION)
def attention_backward(op: Op) -> Cost:
    """Five products, 2·b·h·p·(3d + 2e): the scores again, then the gradients of value, weights, query and key.

    A score costs scale, mask where there is one, subtraction, one exp, and three operations for its gradient; an
    output two for the sum of gradient times output.
    """
    # of flexible attention it comes after query, key, value, output and its scores' logarithm
    query, grad = (0, 5) if op.kind == _FLEX_GRADIENT else (1, 0)
    return _gradient(op, *_of_heads(op, query), op.inputs[grad])


def _of_heads(op: Op, place: int) -> tuple[Gemm, Gemm, Size]:
    """The products of query, key and value, the first of which is the input at this place."""
    query, key, value = op.inputs[place : place + 3]
    kept = op.attrs.get("pairs")  # of one head
    left = None if kept is None else product((*query.shape[:2], kept))
    return _products(query, key, value, bool(op.attrs.get("is_causal")), left)


def _gradient(op: Op, scores: Gemm, weighted: Gemm, pairs: Size, grad: TensorSpec) -> Cost:
    batch, s, t, d, e = scores.batch, scores.m, scores.n, scores.k, weighted.n
    gemms = (
        scores,
        Gemm(batch=batch, m=t, n=e, k=s, needed=weighted.needed),  # gradient of the value
        Gemm(batch=batch, m=s, n=t, k=e, needed=weighted.needed),  # of the weights
        Gemm(batch=batch, m=s, n=d, k=t, needed=scores.needed),  # of the query
        Gemm(batch=batch, m=t, n=d, k=s, needed=scores.needed),  # of the key
    )
    return Cost(gemms=gemms) + work(pairs, 5 + _masked(op), 1) + work(grad.numel, 2) + traffic(op)


@rule(*_HEADS_LAST, timed_as=Family.ATTENTION)
def heads_last_attention(op: Op) -> Cost:
    """PyTorch's attention on tensors [b, s, h, d], or packed sequences [tokens, h, d]; with a window s·w pairs.

    Packed sequences are a batch of equal ones with `packed_keys` keys each. A causal mask ends with the last key: query
    i of s sees t - s + i + 1 of t keys.
    """
    (query, key, value), left = _sequences(op, op.inputs[:3])
    done = forward_work(op, *_products(query, key, value, False, left)) + writes(op.outputs)
    if op.attrs.get("block_table") is None:
        return done + reads(op.inputs)
    pages = Cost(read_bytes=total((key.bytes, value.bytes)))
    return done + reads((query, *op.inputs[3:])) + pages


@rule(*_HEADS_LAST_GRADIENTS, timed_as=Family.ATTENTION)
def heads_last_attention_backward(op: Op) -> Cost:
    """The gradient of PyTorch's attention, of [b, s, h, d] or packed; flash-attn writes into tensors it is given."""
    (grad, query, key, value), left = _sequences(op, op.inputs[:4])
    found = _gradient(op, *_products(query, key, value, False, left), grad)
    made = [op.attrs[name] for name in ("dq", "dk", "dv") if op.attrs.get(name) is not None]
    read = [one for one in op.inputs if one not in made]
    return replace(found, read_bytes=reads(read).read_bytes, write_bytes=writes(made or op.outputs).write_bytes)


def _sequences(op: Op, tensors: Sequence[TensorSpec]) -> tuple[list[TensorSpec], Size | None]:
    """[gradient of the output,] query, key and value as [b, h, s, d]; the pairs of all heads, None for every one."""
    keys, table = op.attrs.get("packed_keys"), op.attrs.get("block_table")
    if keys is None:
        shapes = [(one.shape[0], one.shape[2], one.shape[1], one.shape[3]) for one in tensors]
        whole = shapes[-3][2]
        queries = product((shapes[-3][0], whole))
    else:
        rows = [product(one.shape[:-2]) for one in tensors]  # tokens
        batch = ceil_div(rows[-1], keys) if table is None else table.shape[0]  # which has a row for each sequence
        lengths = [*(ceil_div(row, batch) for row in rows[:-2]), keys, keys]
        shapes = [(batch, one.shape[-2], length, one.shape[-1]) for one, length in zip(tensors, lengths, strict=True)]
        # as many queries as keys: sequences with themselves, which do not quite fill a batch of equal ones
        queries, whole = rows[-3], keys if table is None and rows[-3] == rows[-1] else lengths[-3]
    b, h, s, _ = shapes[-3]
    left = product((h, _pairs(op, queries, whole, shapes[-1][2])))
    found = [replace(one, shape=shape, stride=None) for one, shape in zip(tensors, shapes, strict=True)]
    return found, None if left == product((b, h, s, shapes[-1][2])) else left


def _pairs(op: Op, queries: Size, s: Size, t: Size) -> Size:
    """Pairs of one head of so many queries, s in a sequence of t keys, that a causal mask or a window leaves."""
    causal = any(op.attrs.get(name) for name in ("causal", "is_causal", "custom_mask_type"))
    ends = op.attrs.get("window_size")
    if isinstance(ends, int):  # of a memory-efficient kernel: keys, a query's own among them
        ends = ends - 1, 0
    left, right = ends or [op.attrs.get(f"window_size_{side}") for side in ("left", "right")]
    if isinstance(left, int) and left >= 0:
        width = left + 1 + (max(0, right) if isinstance(right, int) and not causal else 0)
        return product((queries, smaller(width, t)))
    if not causal:
        return product((queries, t))
    if op.attrs.get("custom_mask_type") == 1 and op.attrs.get("packed_keys") is None:  # from the upper left
        return product((op.inputs[0].shape[0], score_pairs(s, t, causal=True)))
    return floor_div(product((queries, total((t, t, product((-1, s)), 1)))), 2)
