"""Measured ops as work: the columns of a campaign → the columns that the time model takes.

One function an op. Counts follow the conventions of `ir.cost`; the tests hold them against the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.columns import ITEMSIZE, Candidates, column, itemsize, maths
from rooflinekit.calibrate.campaigns.convolutions import CONVOLUTIONS, convolution
from rooflinekit.calibrate.campaigns.operators import OPERATORS, operator_work
from rooflinekit.calibrate.campaigns.repeated import again, product_again, repeated
from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math
from rooflinekit.model.algorithms import ATTENTION, SCALED, SCALED_FOUR
from rooflinekit.model.rows import (
    MOST_THREADS,
    NORM_PASSES,
    NORM_THREADS,
    SOFTMAX_PASSES,
    WARP,
    WARP_ROW,
    normalized,
)
from rooflinekit.model.work import Products, Recent, Work

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

_CASES: dict[str, Callable[[pd.DataFrame], Candidates]] = {}


def candidates(op: str, rows: pd.DataFrame, device: Device | None = None) -> Candidates:
    """The algorithms that may run the measurements of one op, each with where it can (None for everywhere).

    device: whose libraries they are of; without one those of NVIDIA's GPUs.
    """
    return convolution(rows, device) if op in CONVOLUTIONS else _CASES[op](rows)


def _case(*ops: str) -> Callable[[Callable[[pd.DataFrame], Candidates]], Callable[[pd.DataFrame], Candidates]]:
    def register(function: Callable[[pd.DataFrame], Candidates]) -> Callable[[pd.DataFrame], Candidates]:
        _CASES.update(dict.fromkeys(ops, function))
        return function

    return register


@_case(*OPERATORS)
def operator(rows: pd.DataFrame) -> Candidates:
    """What the rules count of the operator that it is in a trace."""
    return [((operator_work(rows),), None)]


@_case("linear", "mm", "bmm")
def product(rows: pd.DataFrame) -> Candidates:
    """b products [m, k] × [k, n], the weight shared where b is 1; `linear` has a bias."""
    b, m, n, k = column(rows, "b", 1), *(column(rows, name) for name in "mnk")
    size = itemsize(rows)
    out = np.maximum(size, 2)  # products of 8 bits are written in 16
    bias = rows["op"].eq("linear").to_numpy() * n
    work = Work.of(
        len(rows),
        math=maths(rows),
        products=Products.of(np.arange(len(rows)), batch=b, m=m, n=n, k=k),
        vector_flop=bias * m,
        read_bytes=size * (b * (m * k + k * n) + bias),
        write_bytes=out * b * m * n,
        recent=product_again(rows, size * b * m * k, size * (b * k * n + bias), out * b * m * n),
    )
    return [((work,), None)]


@_case("mm_quantized")
def quantized_product(rows: pd.DataFrame) -> Candidates:
    """An 8-bit product [m, k] × [k, n] of a 16-bit input: its largest value, its scaling to 8 bits, the product."""
    m, n, k = column(rows, "m"), column(rows, "n"), column(rows, "k")
    count = len(rows)
    # the product before has passed since the last round
    recent = Recent.of(np.arange(count), 2 * m * k, np.where(column(rows, "copies", 0) > 0, k * n + 2 * m * n, 0.0))
    largest = Work.of(count, vector_flop=2 * m * k, read_bytes=2 * m * k, recent=recent)
    scaled = Work.of(count, vector_flop=m * k, read_bytes=2 * m * k, write_bytes=m * k, recent=recent)
    [((work,), _)] = product(rows)
    products = Products.of(np.arange(count), m=m, n=n, k=k, algorithm=SCALED)
    return [((largest, scaled, replace(work, products=products)), None)]


#: Bits of a weight, by the op's name; scales have 16, one a row or one for 128 numbers of it.
_PACKED = {"mm_int8": 8, "mm_int4": 4}
_GROUP = 128


@_case(*_PACKED)
def packed_product(rows: pd.DataFrame) -> Candidates:
    """[m, k] × a weight of [n, k] integers of 8 or 4 bits, which become numbers of the input's format on their way."""
    m, n, k = (column(rows, name) for name in "mnk")
    bits = rows["op"].map(_PACKED).to_numpy(dtype=float)
    scales = np.where(bits == 8, n, n * np.ceil(k / _GROUP))
    work = Work.of(
        len(rows),
        math=maths(rows),
        products=Products.of(np.arange(len(rows)), m=m, n=n, k=k),
        vector_flop=n * k,
        read_bytes=2 * m * k + n * k * bits / 8 + 2 * scales,
        write_bytes=2 * m * n,
    )
    return [((work,), None)]


@_case("mm_nvfp4")
def four_bit_product(rows: pd.DataFrame) -> Candidates:
    """A 4-bit product [m, k] × [k, n] of a 16-bit input: its blocks of 16 numbers get scales, then the product."""
    m, n, k = (column(rows, name) for name in "mnk")
    count, weight = len(rows), n * k * (1 / 2 + 1 / 16)
    recent = Recent.of(np.arange(count), 2 * m * k, np.where(column(rows, "copies", 0) > 0, weight + 2 * m * n, 0.0))
    scaled = Work.of(count, vector_flop=3 * m * k, read_bytes=2 * m * k, write_bytes=m * k / 2, recent=recent)
    product_work = Work.of(
        count,
        math=Math.FP4,
        products=Products.of(np.arange(count), m=m, n=n, k=k, algorithm=SCALED_FOUR),
        read_bytes=m * k / 2 + weight,
        write_bytes=2 * m * n,
        recent=product_again(rows, m * k / 2, weight, 2 * m * n),
    )
    return [((scaled, product_work), None)]


_ROW_LOAD = 256 * 16  # elements that a block loads at once (vLLM's kernel: 256 threads, 16 each; from memory)


@_case("quantize")
def quantize(rows: pd.DataFrame) -> Candidates:
    """[rows, cols] in 16 bits → 8 bits with a given scale: one multiplication an element, a block a row."""
    blocks, loads = column(rows, "rows"), np.ceil(column(rows, "cols") / _ROW_LOAD)
    n = blocks * column(rows, "cols")
    work = Work.of(
        len(n), vector_flop=n, read_bytes=2 * n, write_bytes=n, blocks=blocks, loads=loads, block_bytes=3 * n
    )
    return [((repeated(rows, work),), None)]


@_case(*ELEMENTWISE)
def elementwise(rows: pd.DataFrame) -> Candidates:
    """[rows, cols], one kernel."""
    reads, vector, special = (
        rows["op"].map(lambda op, i=i: ELEMENTWISE[op][i]).to_numpy(dtype=float) for i in range(3)
    )
    n, size = column(rows, "rows") * column(rows, "cols"), itemsize(rows)
    work = Work.of(
        len(rows),
        vector_flop=vector * n,
        special_flop=special * n,
        powers=np.where(rows["op"].isin(["pow", "powu"]), n, 0.0),
        read_bytes=reads * size * n,
        write_bytes=size * n,
    )
    return [((repeated(rows, work),), None)]


@_case("softmax")
def softmax(rows: pd.DataFrame) -> Candidates:
    """Over the last of [rows, cols]: maximum, difference, sum; exp and division. Long rows are read three times."""
    r, c, size = column(rows, "rows"), column(rows, "cols"), itemsize(rows)
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
    )
    return [((repeated(rows, work),), None)]


@_case("layernorm")
def layer_norm(rows: pd.DataFrame) -> Candidates:
    """Over the last of [rows, cols], with gain and shift; statistics in fp32 are written beside."""
    r, c, size = column(rows, "rows"), column(rows, "cols"), itemsize(rows)
    work = Work.of(
        len(rows),
        vector_flop=7 * r * c,
        special_flop=r,
        read_bytes=size * (r * c + 2 * c),
        write_bytes=size * r * c + 8 * r,
        rows=r,
        columns=c * normalized(size),
        passes=NORM_PASSES,
        row_bytes=size * c,
        threads=NORM_THREADS,
    )
    return [((repeated(rows, work),), None)]


@_case("llm_norm", "llm_act", "llm_gelu", "llm_rope", "llm_add")
def serving(rows: pd.DataFrame) -> Candidates:
    """Kernels of serving libraries on [rows, cols]: RMS norm, gated activation, rotary embedding, residual sum.

    They load and store one element at a time, save for the sum, which is PyTorch's.
    """
    r, c, size = column(rows, "rows"), column(rows, "cols"), itemsize(rows)
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
        rows=np.where(rows["op"].eq("llm_gelu"), 0, r),  # whose blocks take elements of any row
        accesses=single * n,
    )
    return [((repeated(rows, work),), None)]


#: Tensors read and written, vector and special operations, and single loads, an element. Nothing waits for a store.
_SERVING = {
    "llm_norm": (1, 1, 4, 0, 3),  # a row is read twice, and a weight beside each element
    "llm_act": (2, 1, 4, 2, 2),
    "llm_gelu": (1, 1, 4, 1, 1),
    "llm_rope": (1, 1, 3, 0, 2),  # cosine or sine beside each element
    "llm_add": (2, 1, 1, 0, 0),
}


@_case("attention")
def attention(rows: pd.DataFrame) -> Candidates:
    """b sequences of s queries over t keys, `heads` of queries, `kv_heads` of keys, head size d; causal or not.

    Causal queries are the last s of the t positions.
    """
    b, s, t, d = (column(rows, name) for name in ("b", "s", "t", "d"))
    heads, kv_heads, causal = column(rows, "heads"), column(rows, "kv_heads"), column(rows, "causal", 0)
    size, kv_size = itemsize(rows), rows.get("kv_dtype", rows["dtype"]).map(ITEMSIZE).to_numpy(dtype=float)
    window = column(rows, "window", 0)
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
        algorithm=ATTENTION,
    )
    pairs = b * heads * s * limited
    work = Work.of(
        count,
        math=maths(rows),
        products=scores_and_values,
        vector_flop=4 * pairs,
        special_flop=pairs + b * heads * s * d,
        read_bytes=size * b * heads * s * d
        + 2 * kv_size * b * kv_heads * np.minimum(t, np.where(window > 0, window + s, t)) * d,
        write_bytes=size * b * heads * s * d,
    )
    return [((repeated(rows, work),), None)]


@_case("attention_call")
def attention_call(rows: pd.DataFrame) -> Candidates:
    """Attention as a serving library calls it, which first rotates new queries and keys, and fills the cache."""
    b, s, heads, kv_heads, d = (column(rows, name) for name in ("b", "s", "heads", "kv_heads", "d"))
    moved = itemsize(rows) * b * s * (heads + 2 * kv_heads) * d
    put = Work.of(len(rows), read_bytes=moved, write_bytes=moved, recent=Recent.of(np.arange(len(rows)), moved))
    [((work,), _)] = attention(rows)
    return [((put, replace(work, recent=again(rows, work, 2 * moved))), None)]
