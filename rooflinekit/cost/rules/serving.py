"""Kernels of engines that serve language models: fused, or over a cache of keys and values.

The constants of such kernels are fitted on measurements that are counted by these rules.
"""

from __future__ import annotations

from rooflinekit.cost.rules.attention import forward_work
from rooflinekit.cost.table import family, per_input, per_output, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import DType, Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, product, quotient, smaller, total


@rule("serving.paged_attention", timed_as=Family.ATTENTION)
def paged_attention(op: Op) -> Cost:
    """New queries over cached keys and values of `kv_heads`: 2·b·h·p·(d + dv), p pairs of query and key that take part.

    One query a sequence (decoding) sees the whole cache, or the `window` behind it; queries that share keys are worked
    on together. More queries (prefill) are the last of the tokens, and causal, unless `is_causal` says otherwise. A
    score costs 4 and one exp, an output one division. Of the cache is read what lies in the windows; values that are a
    part of the keys (latent attention) are read with them.
    """
    query, key, value = op.inputs[:3]
    b, heads, s, d = query.shape
    kv_heads, t, dv = key.shape[1], key.shape[2], value.shape[3]
    width = smaller(t, op.attrs["window"] or t)
    shared = quotient(heads, kv_heads) if s == 1 else 1
    batch, rows = product((b, quotient(heads, shared))), product((s, shared))
    masked = s != 1 and op.attrs.get("is_causal", True)
    pairs = product((b, heads, _pairs(s, t, width) if masked else product((s, width))))
    scores = Gemm(batch=batch, m=rows, n=width, k=d, needed=product((pairs, d)) if masked else None)
    weighted = Gemm(batch=batch, m=rows, n=dv, k=width, needed=product((pairs, dv)) if masked else None)
    # a window of prefill slides over all tokens
    seen = width if s == 1 else t if s == t else smaller(t, total((width, s, -1)))
    apart = dv * value.dtype.itemsize if value.memory != key.memory else 0
    cached = Cost(read_bytes=product((b, kv_heads, seen, d * key.dtype.itemsize + apart)))
    return forward_work(op, scores, weighted, pairs) + cached + reads((query,)) + writes(op.outputs)


def _pairs(s: Size, t: Size, width: Size) -> Size:
    """Pairs of the last s of t positions, causal, each with at most `width` keys: min(t - s + i, width) of the i-th.

    >>> _pairs(4, 4, 2), _pairs(2, 6, 3), _pairs(3, 5, 4)  # 1 + 2 + 2 + 2, 3 + 3, 3 + 4 + 4
    (7, 6, 11)
    """
    before = total((t, product((-1, s))))
    free = total((width, product((-1, before))))  # queries that see fewer than `width` keys, and all before them
    if s != t and free < 0:
        return product((s, width))
    growing = smaller(s, free)
    triangle = quotient(product((growing, total((growing, 1)))), 2)
    return total((product((growing, before)), triangle, product((total((s, product((-1, growing)))), width))))


_NORM = "Square, sum, scale and gain, 4 an element, and one for each element of a residual that is added before."
family(
    per_input,
    {"serving.rms_norm": (4, _NORM), "serving.add_rms_norm": (5, _NORM)},
    timed_as=Family.NORMALIZATION,
)
family(
    traffic,
    {
        "serving.rope_and_cache": (
            "New queries and keys rotated, keys and values put into the cache: its traffic, as it was measured.",
        ),
    },
)  # fmt: skip
family(
    per_output,
    {
        "serving.gated_activation": (
            4, 2, "Halves a, b of each row → a·sigmoid(a)·b: 4 and 2 special functions an output element.",
        ),
        "serving.activation": (4, 1, "GELU: 4 and 1 special function an element."),
    },
)  # fmt: skip


family(
    per_input,
    {
        "serving.largest": (
            lambda op: work(op.inputs[0].numel, 2) + reads(op.inputs),
            "The largest absolute value, for the scale of 8-bit numbers: 2 an element; one number a tensor is written.",
        ),
        "serving.scale_to_eight_bits": (1, "Times the scale, rounded into 8 bits: 1 an element."),
        "serving.scale_blocks": (
            3, "Blocks of a row, each times a scale of its own, rounded into 8 or 4 bits: for its largest value 2, "
            "and 1.",
        ),
        "serving.combine_experts": (2, "Weighted sum of each token's results of its experts: 2 an input element."),
    },
)  # fmt: skip


@rule("serving.scaled_mm")
def scaled_mm(op: Op) -> Cost:
    """[m, k] × [k, n] of 8-bit numbers, or of 4-bit ones, two in an element along k, written in 16: 2·m·k·n."""
    m, n = op.outputs[0].shape
    return Cost(gemms=(Gemm(m=m, n=n, k=_length(op.inputs[0])),)) + traffic(op)


def _length(x: TensorSpec) -> Size:
    return product((2, x.shape[-1])) if x.dtype is DType.FLOAT4_E2M1FN_X2 else x.shape[-1]


@rule("serving.weight_only_mm")
def weight_only_mm(op: Op) -> Cost:
    """[m, k] × a packed weight of [n, k] numbers of 4 or 8 bits: 2·m·k·n, and 1 a weight for its scale.

    Kernels unpack pairs of numbers with logical operations, and scale them as pairs.
    """
    m, k = op.inputs[0].shape
    n = op.outputs[0].shape[1]
    return Cost(gemms=(Gemm(m=m, n=n, k=k),), vector_flop=product((n, k))) + traffic(op)


@rule("serving.grouped_mm")
def grouped_mm(op: Op) -> Cost:
    """Tokens of each of g experts × its [k, n]: 2·rows·k·n, `rows` of all experts together, m at most of each.

    Weights are read at their packed size; those of fewer bits are made numbers of 16 before the product, 2 an element.
    """
    x = op.inputs[0]
    g, m, k = *x.shape[:2], _length(x)
    n = op.outputs[0].shape[2]
    gemm = Gemm(batch=g, m=m, n=n, k=k, needed=product((op.attrs["rows"], n, k)))
    return Cost(gemms=(gemm,)) + work(product((g, n, k)), 2 * bool(op.attrs["weight_only"])) + traffic(op)


# Links are no part of it: `rooflinekit.serve` puts the collective's time in its place.
family(
    per_input,
    {
        "serving.all_reduce": (
            1, "This GPU's own part in a sum over GPUs: it reads and writes its tensor once, and adds 1 an element.",
        ),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip


#: Bytes of a number, its place with its row's, and both; passes over the digits of a number.
_KEY, _PLACE, _DIGITS = 4, 8, 4


@rule("serving.sort_rows", timed_as=Family.MOVEMENT)
def sort_rows(op: Op) -> list[Cost]:
    """PyTorch's sort of rows of more than 4096 numbers, by CUB (aten/src/ATen/native/cuda/Sort.cu, by full sort).

    Places are written down, digits counted; four passes move numbers and places by a digit of 8 bits each; one that
    counts and one that moves bring the rows together again; the last gathers the numbers. From 128 rows on PyTorch
    sorts each row by itself in six passes that read numbers twice, which takes 168 bytes a number and not 156.
    """
    n = op.inputs[0].numel

    def kernel(label: str, read: int, written: int) -> Cost:
        return Cost(read_bytes=product((n, read)), write_bytes=product((n, written)), label=label)

    return [
        kernel("places", 0, _PLACE), kernel("digits counted", _KEY, 0),
        *[kernel("a digit", _KEY + _PLACE, _KEY + _PLACE)] * _DIGITS,
        kernel("rows counted", _PLACE, 0), kernel("rows", _PLACE, _PLACE),
        kernel("gathered", _PLACE + _KEY, _PLACE + _KEY),
    ]  # fmt: skip
