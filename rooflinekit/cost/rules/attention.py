"""Fused scaled dot-product attention: query [b, h, s, d], key [b, h', t, d], value [b, h', t, e]."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, product, quotient, smaller, total


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
    query: TensorSpec, key: TensorSpec, value: TensorSpec, causal: bool, kept: Size | None = None
) -> tuple[Gemm, Gemm, Size]:
    """Scores, weighted values, and the pairs of all heads together; `kept`: what a mask leaves of one head's.

    Where each head has one query (decoding), those of heads that share keys are worked on together, as rows of one
    product: flash attention and cuDNN read such keys once.
    """
    b, h, s, d = query.shape
    t, e = key.shape[2], value.shape[3]
    pairs = product((b, h, score_pairs(s, t, causal) if kept is None else kept))
    shared = quotient(h, key.shape[1]) if s == 1 and isinstance(key.shape[1], int) and not causal else 1
    batch, rows = product((b, h if shared == 1 else key.shape[1])), product((s, shared))

    def needed(width: Size) -> Size | None:
        return product((pairs, width)) if causal or kept is not None else None

    return (
        Gemm(batch=batch, m=rows, n=t, k=d, needed=needed(d)),
        Gemm(batch=batch, m=rows, n=e, k=t, needed=needed(e)),
        pairs,
    )


def _masked(op: Op) -> bool:
    return any(op.attrs.get(name) is not None for name in ("attn_bias", "attn_mask"))


@rule(
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    timed_as=Family.ATTENTION,
)
def attention(op: Op) -> Cost:
    """Two products, 2·b·h·p·(d + e), p pairs of query and key: s·t, or those that causality leaves.

    A score costs scale, maximum, subtraction, sum and one exp, an output one division. A mask is added to each score.
    """
    query, key, value = op.inputs[:3]
    scores, weighted, pairs = _products(query, key, value, bool(op.attrs["is_causal"]))
    output = op.outputs[0]
    work = Cost(
        gemms=(scores, weighted),
        vector_flop=product((4 + _masked(op), pairs)),
        special_flop=total((pairs, output.numel)),
    )
    return work + traffic(op)


@rule(
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    timed_as=Family.ATTENTION,
)
def attention_backward(op: Op) -> Cost:
    """Five products, 2·b·h·p·(3d + 2e): the scores again, then the gradients of value, weights, query and key.

    A score costs scale, mask where there is one, subtraction, one exp, and three operations for its gradient; an
    output two for the sum of gradient times output.
    """
    grad, query, key, value = op.inputs[:4]
    return _gradient(op, *_products(query, key, value, bool(op.attrs["is_causal"])), grad)


def _gradient(op: Op, scores: Gemm, weighted: Gemm, pairs: Size, grad: TensorSpec) -> Cost:
    batch, s, t, d, e = scores.batch, scores.m, scores.n, scores.k, weighted.n
    gemms = (
        scores,
        Gemm(batch=batch, m=t, n=e, k=s, needed=weighted.needed),  # gradient of the value
        Gemm(batch=batch, m=s, n=t, k=e, needed=weighted.needed),  # of the weights
        Gemm(batch=batch, m=s, n=d, k=t, needed=scores.needed),  # of the query
        Gemm(batch=batch, m=t, n=d, k=s, needed=scores.needed),  # of the key
    )
    vector = total((product((5 + _masked(op), pairs)), product((2, grad.numel))))
    return Cost(gemms=gemms, vector_flop=vector, special_flop=pairs) + reads(op.inputs) + writes(op.outputs)


def _heads_first(spec: TensorSpec) -> TensorSpec:
    """[b, s, h, d], as the package flash-attn takes its tensors, as [b, h, s, d]."""
    b, s, h, d = spec.shape
    return replace(spec, shape=(b, h, s, d), stride=None)


@rule("flash_attn._flash_attn_forward", timed_as=Family.ATTENTION)
def package_attention(op: Op) -> Cost:
    """The package flash-attn's: as PyTorch's flash attention, of tensors [b, s, h, d]; with a window s·w pairs."""
    query, key, value = (_heads_first(spec) for spec in op.inputs[:3])
    scores, weighted, pairs = _products(query, key, value, bool(op.attrs.get("causal")), _windowed(op, query, key))
    output = op.outputs[0]
    work = Cost(gemms=(scores, weighted), vector_flop=product((4, pairs)), special_flop=total((pairs, output.numel)))
    return work + traffic(op)


@rule("flash_attn._flash_attn_backward", timed_as=Family.ATTENTION)
def package_attention_backward(op: Op) -> Cost:
    """As the gradient of PyTorch's flash attention, of [b, s, h, d]; it writes into tensors that it is given."""
    grad, query, key, value = (_heads_first(spec) for spec in op.inputs[:4])
    products = _products(query, key, value, bool(op.attrs.get("causal")), _windowed(op, query, key))
    made = [op.attrs[name] for name in ("dq", "dk", "dv") if op.attrs.get(name) is not None]
    work = _gradient(op, *products, grad)
    return replace(work, read_bytes=reads(op.inputs[:6]).read_bytes, write_bytes=writes(made or op.outputs).write_bytes)


def _windowed(op: Op, query: TensorSpec, key: TensorSpec) -> Size | None:
    """Pairs of one head inside a sliding window that is shorter than the keys; None without one."""
    left, right = (op.attrs.get(f"window_size_{side}", -1) for side in ("left", "right"))
    if not isinstance(left, int) or left < 0:
        return None
    width = left + 1 + (max(0, right) if isinstance(right, int) and not op.attrs.get("causal") else 0)
    return product((query.shape[2], smaller(width, key.shape[2])))


@rule("higher_order.flex_attention", timed_as=Family.ATTENTION)
def flex_attention(op: Op) -> Cost:
    """As attention, 2·b·h·p·(d + e), p pairs of query and key: those that the mask's function keeps.

    Of the arguments query, key and value are read; further tensors are those of the mask.
    """
    scores, weighted, pairs = _flexible(op)
    output = op.outputs[0]
    work = Cost(gemms=(scores, weighted), vector_flop=product((4, pairs)), special_flop=total((pairs, output.numel)))
    return work + traffic(op)


@rule("higher_order.flex_attention_backward", timed_as=Family.ATTENTION)
def flex_attention_backward(op: Op) -> Cost:
    """As attention's gradient, 2·b·h·p·(3d + 2e), p pairs of query and key: those that the mask's function keeps."""
    grad = op.inputs[5]  # after query, key, value, output and its scores' logarithm
    return _gradient(op, *_flexible(op), grad)


def _flexible(op: Op) -> tuple[Gemm, Gemm, Size]:
    query, key, value = op.inputs[:3]
    return _products(query, key, value, bool(op.attrs.get("is_causal")), op.attrs.get("pairs"))
