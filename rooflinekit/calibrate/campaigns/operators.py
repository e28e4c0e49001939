"""Measured ops as the operators that a trace would hold: the rules count them and the time model lays them out.

What is counted in `cases` a column at a time has formulas of its own there; these ops have none beside the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from rooflinekit.cost.table import price_all
from rooflinekit.ir.op import Op
from rooflinekit.ir.tensor import DType, TensorSpec
from rooflinekit.model.columns import work_of
from rooflinekit.model.kernels import plain_kernels
from rooflinekit.model.work import Recent, Work

#: How a case's number format is stored.
STORED = {
    "fp64": DType.FLOAT64,
    "fp32": DType.FLOAT32,
    "tf32": DType.FLOAT32,
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "fp8": DType.FLOAT8_E4M3FN,
    "int8": DType.INT8,
}
#: The format that a cast writes.
CASTS = {"to_fp32": "fp32", "to_fp16": "fp16", "to_bf16": "bf16"}
REDUCTIONS = ("sum", "amax", "var", "sum_first")
#: Through tensors that are there already: what a memory gives, without the system's work for a new result.
STREAMS = ("read", "write", "copy", "triad")
GATHERS = ("embedding", "index_select")

Sizes = Mapping[str, int]


def operator_work(rows: pd.DataFrame) -> Work:
    """The rows as kernels, one each. Sizes may be missing where they are optional."""
    tables = [{str(k): v for k, v in row.items() if v == v} for row in rows.to_dict("records")]
    ops = [_OPERATORS[row["op"]](row["dtype"], {k: int(row[k]) for k in _SIZES if k in row}) for row in tables]
    tf32 = bool(rows["dtype"].eq("tf32").any())
    kernels = [kernel for priced in price_all(ops) for kernel in plain_kernels(priced, tf32)]
    work = work_of(kernels)
    warm = [i for i, row in enumerate(tables) if row.get("warm")]
    if not warm:
        return work
    # One set of tensors, gone through again and again: all of it was touched one pass before.
    moved = (work.read_bytes + work.write_bytes)[warm]
    return Work(**{**_columns(work), "recent": Recent.of(warm, moved, cyclic=True)})


_SIZES = ("rows", "cols", "table", "b", "s", "t", "heads", "kv_heads", "d", "causal")


def _columns(work: Work) -> dict[str, Any]:
    return {name: getattr(work, name) for name in work.__slots__}


def _op(kind: str, inputs: tuple[TensorSpec, ...], output: TensorSpec, **attrs: Any) -> Op:
    return Op(name=kind, kind=f"aten.{kind}", inputs=inputs, outputs=(output,), attrs=MappingProxyType(attrs))


def _tensor(name: str, dtype: DType, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype)


def _reduction(op: str) -> Callable[[str, Sizes], Op]:
    def make(dtype: str, size: Sizes) -> Op:
        stored, rows, cols = STORED[dtype], size["rows"], size["cols"]
        x, kept = _tensor("x", stored, rows, cols), cols if op == "sum_first" else rows
        return _op(op.removesuffix("_first"), (x,), _tensor("y", stored, kept), dim=(0 if op == "sum_first" else -1,))

    return make


def _cast(op: str) -> Callable[[str, Sizes], Op]:
    def make(dtype: str, size: Sizes) -> Op:
        shape = size["rows"], size["cols"]
        return _op("_to_copy", (_tensor("x", STORED[dtype], *shape),), _tensor("y", STORED[CASTS[op]], *shape))

    return make


def _stream(op: str) -> Callable[[str, Sizes], Op]:
    def make(dtype: str, size: Sizes) -> Op:
        stored, shape = STORED[dtype], (size["rows"], size["cols"])
        a, b, c = (_tensor(name, stored, *shape) for name in "abc")
        if op == "read":
            return _op("sum", (a,), _tensor("y", stored), dim=None)
        if op == "write":
            return _op("fill_", (a,), a, value=1.0)
        if op == "copy":
            return _op("copy_", (a, b), a)
        return _op("add", (b, c), a, alpha=1.5)

    return make


def _transposition(dtype: str, size: Sizes) -> Op:
    stored, rows, cols = STORED[dtype], size["rows"], size["cols"]
    turned = TensorSpec(name="x", shape=(cols, rows), dtype=stored, stride=(1, cols))
    return _op("clone", (turned,), _tensor("y", stored, cols, rows))


def _gather(op: str) -> Callable[[str, Sizes], Op]:
    def make(dtype: str, size: Sizes) -> Op:
        stored, rows, cols = STORED[dtype], size["rows"], size["cols"]
        table, index = _tensor("table", stored, size["table"], cols), _tensor("index", DType.INT64, rows)
        return _op(op, (table, index), _tensor("y", stored, rows, cols), dim=0)

    return make


def _attention_backward(dtype: str, size: Sizes) -> Op:
    stored, b, heads, d = STORED[dtype], size["b"], size["heads"], size["d"]
    query = (b, heads, size["s"], d)
    key = (b, size["kv_heads"], size["t"], d)
    inputs = (
        *(_tensor(name, stored, *shape) for name, shape in (("gradient", query), ("q", query), ("k", key), ("v", key))),
        _tensor("out", stored, *query),
        _tensor("logsumexp", DType.FLOAT32, *query[:3]),
    )
    gradients = tuple(_tensor(f"d{name}", stored, *shape) for name, shape in (("q", query), ("k", key), ("v", key)))
    kind = "aten._scaled_dot_product_flash_attention_backward"
    causal = MappingProxyType({"is_causal": bool(size.get("causal"))})
    return Op(name="attention_bwd", kind=kind, inputs=inputs, outputs=gradients, attrs=causal)


_OPERATORS: Mapping[str, Callable[[str, Sizes], Op]] = MappingProxyType(
    {
        **{op: _reduction(op) for op in REDUCTIONS},
        **{op: _cast(op) for op in CASTS},
        **{op: _stream(op) for op in STREAMS},
        **{op: _gather(op) for op in GATHERS},
        "transpose": _transposition,
        "attention_bwd": _attention_backward,
    }
)
OPERATORS = tuple(_OPERATORS)
