"""Measured ops as work: the columns of a campaign → the columns that the time model takes.

One function an op. Counts follow the conventions of `ir.cost`; the tests hold them against the rules.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from rooflinekit.ir.tensor import Math
from rooflinekit.model.kernels import WINOGRAD_EDGES, WINOGRAD_UNFUSED
from rooflinekit.model.rows import (
    MOST_THREADS,
    NORM_PASSES,
    NORM_THREADS,
    SOFTMAX_PASSES,
    VECTOR_BYTES,
    WARP,
    WARP_ROW,
)
from rooflinekit.model.work import ATTENTION, CONVOLUTION, PLAIN, WINOGRAD, Floats, Products, Recent, Work

#: How many bytes an element has, by the name of its format.
ITEMSIZE = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

#: Element-wise ops: tensors read, vector operations and special functions an element. As in `cost.rules`.
ELEMENTWISE = {
    "add": (2, 1, 0),
    "mul": (2, 1, 0),
    "div": (2, 0, 1),
    "pow": (2, 0, 1),
    "addu": (1, 1, 0),
    "mulu": (1, 1, 0),
    "divu": (1, 0, 1),
    "powu": (1, 0, 1),
    "relu": (1, 1, 0),
    "gelu": (1, 4, 1),
    "tanh": (1, 0, 1),
}

#: Algorithms: the kernels of each in turn, and the rows that it can run (None for all).
Candidates = list[tuple[tuple[Work, ...], "np.ndarray | None"]]
_CASES: dict[str, Callable[[pd.DataFrame], Candidates]] = {}


def candidates(op: str, rows: pd.DataFrame) -> Candidates:
    """The algorithms that may run the measurements of one op, each with where it can (None for everywhere)."""
    return _CASES[op](rows)


def _case(*ops: str) -> Callable[[Callable[[pd.DataFrame], Candidates]], Callable[[pd.DataFrame], Candidates]]:
    def register(function: Callable[[pd.DataFrame], Candidates]) -> Callable[[pd.DataFrame], Candidates]:
        _CASES.update(dict.fromkeys(ops, function))
        return function

    return register


def _column(rows: pd.DataFrame, name: str, default: float | None = None) -> Floats:
    if name not in rows and default is not None:
        return np.full(len(rows), default)
    found: Floats = rows[name].to_numpy(dtype=float)
    return found if default is None else np.where(np.isnan(found), default, found)


def _itemsize(rows: pd.DataFrame) -> Floats:
    return np.array([ITEMSIZE[name] for name in rows["dtype"]], dtype=np.float64)


def _math(rows: pd.DataFrame) -> list[Math]:
    return [Math(name) for name in rows["dtype"]]


@_case("linear", "mm", "bmm")
def product(rows: pd.DataFrame) -> Candidates:
    """b products [m, k] × [k, n], the weight shared where b is 1; `linear` has a bias."""
    b, m, n, k = _column(rows, "b", 1), *(_column(rows, name) for name in "mnk")
    size = _itemsize(rows)
    out = np.maximum(size, 2)  # products of 8 bits are written in 16
    bias = rows["op"].eq("linear").to_numpy() * n
    work = Work.of(
        len(rows),
        math=_math(rows),
        products=Products.of(np.arange(len(rows)), batch=b, m=m, n=n, k=k),
        vector_flop=bias * m,
        read_bytes=size * (b * (m * k + k * n) + bias),
        write_bytes=out * b * m * n,
    )
    return [((work,), None)]


@_case("mm_quantized")
def quantized_product(rows: pd.DataFrame) -> Candidates:
    """An 8-bit product [m, k] × [k, n] of a 16-bit input: its largest value, its scaling to 8 bits, the product."""
    m, k = _column(rows, "m"), _column(rows, "k")
    count = len(rows)
    largest = Work.of(count, vector_flop=2 * m * k, read_bytes=2 * m * k)
    scaled = Work.of(
        count, vector_flop=m * k, read_bytes=2 * m * k, write_bytes=m * k, recent=Recent.of(np.arange(count), 2 * m * k)
    )
    [((product_,), _)] = product(rows)
    return [((largest, scaled, product_), None)]


@_case("quantize")
def quantize(rows: pd.DataFrame) -> Candidates:
    """[rows, cols] in 16 bits → 8 bits with a given scale: one multiplication an element."""
    n = _column(rows, "rows") * _column(rows, "cols")
    work = Work.of(len(rows), vector_flop=n, read_bytes=2 * n, write_bytes=n)
    return [((work,), None)]


@_case(*ELEMENTWISE)
def elementwise(rows: pd.DataFrame) -> Candidates:
    """[rows, cols], one kernel."""
    reads, vector, special = (
        rows["op"].map(lambda op, i=i: ELEMENTWISE[op][i]).to_numpy(dtype=float) for i in range(3)
    )
    n, size = _column(rows, "rows") * _column(rows, "cols"), _itemsize(rows)
    work = Work.of(
        len(rows),
        vector_flop=vector * n,
        special_flop=special * n,
        read_bytes=reads * size * n,
        write_bytes=size * n,
    )
    return [((work,), None)]


@_case("softmax")
def softmax(rows: pd.DataFrame) -> Candidates:
    """Over the last of [rows, cols]: maximum, difference, sum; exp and division. Long rows are read three times.

    Rows that do not start at a multiple of 16 bytes are loaded and stored element by element.
    """
    r, c, size = _column(rows, "rows"), _column(rows, "cols"), _itemsize(rows)
    passes = np.where(c > WARP_ROW, SOFTMAX_PASSES, 1)
    work = Work.of(
        len(rows),
        vector_flop=3 * r * c,
        special_flop=2 * r * c,
        read_bytes=size * r * c,
        write_bytes=size * r * c,
        rows=r,
        columns=c,
        passes=passes,
        row_bytes=2 * size * c,
        threads=np.where(c > WARP_ROW, np.minimum(c // 4, MOST_THREADS), WARP),
        accesses=np.where(c * size % VECTOR_BYTES > 0, (passes + 1) * r * c, 0),
    )
    return [((work,), None)]


@_case("layernorm")
def layer_norm(rows: pd.DataFrame) -> Candidates:
    """Over the last of [rows, cols], with gain and shift; statistics in fp32 are written beside."""
    r, c, size = _column(rows, "rows"), _column(rows, "cols"), _itemsize(rows)
    work = Work.of(
        len(rows),
        vector_flop=7 * r * c,
        special_flop=r,
        read_bytes=size * (r * c + 2 * c),
        write_bytes=size * r * c + 8 * r,
        rows=r,
        columns=c,
        passes=NORM_PASSES,
        row_bytes=size * c,
        threads=NORM_THREADS,
    )
    return [((work,), None)]


@_case("llm_norm", "llm_act", "llm_gelu", "llm_rope", "llm_add")
def serving(rows: pd.DataFrame) -> Candidates:
    """Kernels of serving libraries on [rows, cols]: RMS norm, gated activation, rotary embedding, residual sum.

    They load and store one element at a time, save for the sum, which is PyTorch's.
    """
    r, c, size = _column(rows, "rows"), _column(rows, "cols"), _itemsize(rows)
    read, write, vector, special, single = (
        rows["op"].map(lambda op, i=i: _SERVING[op][i]).to_numpy(dtype=float) for i in range(5)
    )
    n = r * c
    work = Work.of(
        len(rows),
        vector_flop=vector * n,
        special_flop=special * n,
        read_bytes=read * size * n,
        write_bytes=write * size * n,
        recent=Recent.of(np.arange(len(rows)), size * n),
        accesses=single * n,
    )
    return [((work,), None)]


#: Tensors read and written, vector and special operations, and single loads and stores, an element.
_SERVING = {
    "llm_norm": (1, 1, 4, 0, 3),  # a row is read twice
    "llm_act": (2, 1, 4, 2, 3),
    "llm_gelu": (1, 1, 4, 1, 2),
    "llm_rope": (1, 1, 3, 0, 3),  # cosine or sine beside each element
    "llm_add": (2, 1, 1, 0, 0),
}


@_case("conv_fwd", "conv_bwd_data", "conv_bwd_weight")
def convolution(rows: pd.DataFrame) -> Candidates:
    """Images [b, c_in, h, w], kernel [c_out, c_in, r, s]: implicit product, or Winograd with 2×2 or 4×4 outputs."""
    b, c, o, h, w, r, s = (_column(rows, name) for name in ("b", "c_in", "c_out", "h", "w", "r", "s"))
    p = (h + 2 * _column(rows, "pad_h", 0) - r) // _column(rows, "stride_h", 1) + 1
    q = (w + 2 * _column(rows, "pad_w", 0) - s) // _column(rows, "stride_w", 1) + 1
    size, pixels = _itemsize(rows), b * p * q
    image, kernel, output = size * b * c * h * w, size * o * c * r * s, size * pixels * o
    op = rows["op"].to_numpy()
    data, weight = op == "conv_bwd_data", op == "conv_bwd_weight"
    read = np.select([data, weight], [output + kernel, output + image], image + kernel)
    write = np.select([data, weight], [image, kernel], output)
    count, index = len(rows), np.arange(len(rows))

    def work(products: Products, extra: Floats | float = 0.0) -> Work:
        return Work.of(count, math=_math(rows), products=products, read_bytes=read + extra, write_bytes=write + extra)

    direct = Products.of(
        index,
        m=np.where(weight, o, pixels),
        n=np.select([data, weight], [c, c * r * s], o),
        k=np.select([data, weight], [o * r * s, pixels], c * r * s),
        way=np.where(r * s == 1, PLAIN, CONVOLUTION),
    )
    found: Candidates = [((work(direct),), None)]
    plain = (r == 3) & (s == 3) & (_column(rows, "stride_h", 1) == 1) & (_column(rows, "stride_w", 1) == 1) & ~weight
    if plain.any() and rows["dtype"].iloc[0] == "fp32":
        for edge in WINOGRAD_EDGES:
            blocks = b * np.ceil(np.where(data, h, p) / edge) * np.ceil(np.where(data, w, q) / edge)
            batch = float((edge + 2) ** 2)
            inner, outer = np.where(data, o, c), np.where(data, c, o)
            products = Products.of(index, batch=batch, m=blocks, n=outer, k=inner, way=WINOGRAD)
            moved = size * batch * blocks * (inner + outer) if edge == WINOGRAD_UNFUSED else 0.0
            found.append(((work(products, moved),), plain))
    return found


@_case("attention")
def attention(rows: pd.DataFrame) -> Candidates:
    """b sequences of s queries over t keys, `heads` of queries, `kv_heads` of keys, head size d; causal or not.

    Causal queries are the last s of the t positions.
    """
    b, s, t, d = (_column(rows, name) for name in ("b", "s", "t", "d"))
    heads, kv_heads, causal = _column(rows, "heads"), _column(rows, "kv_heads"), _column(rows, "causal", 0)
    size, kv_size = _itemsize(rows), rows.get("kv_dtype", rows["dtype"]).map(ITEMSIZE).to_numpy(dtype=float)
    window = _column(rows, "window", 0)
    width = np.where(window > 0, window, t)
    # Σ min(t - s + i, width) over the queries i = 1 … s: growing for the first of them, then as wide as the window
    growing = np.clip(width - (t - s), 0, s)
    visible = growing * (t - s) + growing * (growing + 1) / 2 + (s - growing) * width
    limited = np.where(causal > 0, visible / s, t)  # keys that a query sees, on average
    index, count = np.arange(len(rows)), len(rows)
    # queries that share their keys are worked on together where they are few
    group = np.where(s == 1, heads / kv_heads, 1)
    batch, queries, executed = b * heads / group, s * group, limited / t
    scores_and_values = Products.of(
        np.tile(index, 2),
        batch=np.tile(batch, 2),
        m=np.tile(queries, 2),
        n=np.concatenate([t, d]),
        k=np.concatenate([d, t]),
        executed=np.tile(executed, 2),
        way=ATTENTION,
    )
    pairs = b * heads * s * limited
    work = Work.of(
        count,
        math=_math(rows),
        products=scores_and_values,
        vector_flop=4 * pairs,
        special_flop=pairs + b * heads * s * d,
        read_bytes=size * b * heads * s * d
        + 2 * kv_size * b * kv_heads * np.minimum(t, np.where(window > 0, window + s, t)) * d,
        write_bytes=size * b * heads * s * d,
    )
    return [((work,), None)]
