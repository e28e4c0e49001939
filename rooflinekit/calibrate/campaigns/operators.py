"""Measured ops as the operators that a trace would hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.ir.points import Number
from rooflinekit.kernels.algorithms import result_sizes
from rooflinekit.timing.families import PACKED

if TYPE_CHECKING:  # every prediction reads names of ops here, and pandas takes a sixth of a second
    import pandas as pd

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
#: Element-wise ops: of two tensors, of one and a number, and of one.
_BINARY = ("add", "mul", "div", "pow")
ELEMENTWISE = (*_BINARY, *(f"{op}u" for op in _BINARY), "relu", "gelu", "tanh")
CONVOLUTIONS = ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")
_NUMBER = 1.5  # no small whole one, so that a power is raised
_GROUP = 128  # numbers of a row with a scale, of weights of 4 bits
_BLOCK = 16  # the same of products of 4 bits

Sizes = Mapping[str, Any]  # numbers, or columns of them; `kv_dtype` is a format
_Maker = Callable[[DType, Sizes], tuple[Op, ...]]


def ops_of(op: str, dtype: str, size: Sizes) -> tuple[Op, ...]:
    """The operators that a case launches, one after another; the last is the one that it is named after."""
    return OPS[op].make(STORED[dtype], size)


def _op(kind: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, **attrs: Any) -> Op:
    return Op(name=kind, kind=kind, inputs=inputs, outputs=outputs, attrs=MappingProxyType(attrs))


def _tensor(name: str, dtype: DType, *shape: Number, stride: tuple[Number, ...] | None = None) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, stride=stride)


def _written(dtype: DType) -> DType:
    """The format of a product's result, which has at least 16 bits."""
    return DType.BFLOAT16 if dtype.itemsize == 1 else dtype


# --- products --------------------------------------------------------------------------------------------------------


def _product(dtype: DType, size: Sizes, *, batched: bool = False) -> tuple[Op, ...]:
    """[m, k] × [k, n], b of them where there are several, or where they are called a batch."""
    m, n, k, b = size["m"], size["n"], size["k"], size.get("b", 0)
    batch = (b,) if batched or b > 1 else ()
    factors = _tensor("x", dtype, *batch, m, k), _tensor("weight", dtype, *batch, k, n)
    return (_op("aten.bmm" if batch else "aten.mm", factors, _tensor("y", _written(dtype), *batch, m, n)),)


def _linear(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """[b·m, k] × a weight of [n, k], and a bias."""
    m, n, k = size["m"], size["n"], size["k"]
    rows = m * b if (b := size.get("b", 0)) > 1 else m
    weight = _tensor("weight", dtype, k, n, stride=(1, k))
    inputs = _tensor("bias", dtype, n), _tensor("x", dtype, rows, k), weight
    return (_op("aten.addmm", inputs, _tensor("y", _written(dtype), rows, n)),)


def _quantized_product(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """A product whose input of 16 bits is scaled to 8: its largest value, the scaling, the product."""
    m, n, k = (size[name] for name in "mnk")
    given, x = _tensor("given", DType.BFLOAT16, m, k), _tensor("x", dtype, m, k)
    return (
        _op("serving.largest", (given,), _tensor("largest", DType.FLOAT32, 1)),
        _op("serving.scale_to_eight_bits", (given,), x),
        _op("serving.scaled_mm", (x, _tensor("weight", dtype, k, n)), _tensor("y", DType.BFLOAT16, m, n)),
    )


def _four_bit_product(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """A product whose input of 16 bits is scaled to 4 in blocks of 16 numbers: the scales, then the product."""
    m, n, k = (size[name] for name in "mnk")
    x, weight = (_tensor(*one, k // 2) for one in (("x", DType.FLOAT4_E2M1FN_X2, m), ("w", DType.FLOAT4_E2M1FN_X2, n)))
    scales = _tensor("scales", DType.FLOAT8_E4M3FN, n, k // _BLOCK)
    return (
        _op("serving.scale_blocks", (_tensor("given", dtype, m, k),), x),
        _op("serving.scaled_mm", (x, weight, scales), _tensor("y", dtype, m, n)),
    )


def _packed_product(bits: int, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """By a weight of [n, k] integers, with a scale of 16 bits a row, or for 128 numbers of it."""
    m, n, k = (size[name] for name in "mnk")
    weight = _tensor("weight", DType.INT8, n, k * bits // 8)
    scales = _tensor("scales", dtype, n, 1 if bits == 8 else -(-k // _GROUP))
    return (_op("serving.weight_only_mm", (_tensor("x", dtype, m, k), weight, scales), _tensor("y", dtype, m, n)),)


# --- along rows ------------------------------------------------------------------------------------------------------


def _elementwise(op: str, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    x, other, y = (_tensor(name, dtype, size["rows"], size["cols"]) for name in ("x", "other", "y"))
    kind, attrs = f"aten.{op}", {}
    if op.removesuffix("u") in _BINARY and op not in _BINARY:
        kind, attrs = kind.removesuffix("u"), {"exponent" if op == "powu" else "other": _NUMBER}
    return (_op(kind, (x, other) if op in _BINARY else (x,), y, **attrs),)


def _plain(
    kind: str, dtype: DType, size: Sizes, *, halves: int = 1, out: DType | None = None, **attrs: Any
) -> tuple[Op, ...]:
    """[rows, cols] of one tensor of as many halves of each row, in the format `out`."""
    rows, cols = size["rows"], size["cols"]
    return (_op(kind, (_tensor("x", dtype, rows, halves * cols),), _tensor("y", out or dtype, rows, cols), **attrs),)


def _layer_norm(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """A layer norm with gain and shift, which also writes its statistics in fp32."""
    rows, cols = size["rows"], size["cols"]
    x, y = (_tensor(name, dtype, rows, cols) for name in "xy")
    gain, shift = (_tensor(name, dtype, cols) for name in ("gain", "shift"))
    statistics = (_tensor(name, DType.FLOAT32, rows) for name in ("mean", "rstd"))
    attrs = {"normalized_shape": (cols,), "weight": gain, "bias": shift}
    return (_op("aten.native_layer_norm", (x, gain, shift), y, *statistics, **attrs),)


def _reduction(op: str, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    rows, cols = size["rows"], size["cols"]
    x, kept = _tensor("x", dtype, rows, cols), cols if op == "sum_first" else rows
    dim = (0 if op == "sum_first" else -1,)
    return (_op(f"aten.{op.removesuffix('_first')}", (x,), _tensor("y", dtype, kept), dim=dim),)


def _stream(op: str, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    a, b, c = (_tensor(name, dtype, size["rows"], size["cols"]) for name in "abc")
    if op == "read":
        return (_op("aten.sum", (a,), _tensor("y", dtype), dim=None),)
    if op == "write":
        return (_op("aten.fill_", (a,), a, value=1.0),)
    if op == "copy":
        return (_op("aten.copy_", (a, b), a),)
    return (_op("aten.add", (b, c), a, alpha=1.5),)


def _transposition(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    rows, cols = size["rows"], size["cols"]
    return (_op("aten.clone", (_tensor("x", dtype, cols, rows, stride=(1, cols)),), _tensor("y", dtype, cols, rows)),)


def _gather(op: str, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    rows, cols = size["rows"], size["cols"]
    table, index = _tensor("table", dtype, size["table"], cols), _tensor("index", DType.INT64, rows)
    return (_op(f"aten.{op}", (table, index), _tensor("y", dtype, rows, cols), dim=0),)


# --- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(op: str, dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """Images [b, c_in, (depth,) h, w], kernel [c_out, c_in, (kernel_depth,) r, s]; in `groups`, each of c_in / groups.

    A transposed convolution is a conv_bwd_data.
    """
    groups, last = max(size.get("groups", 0), 1), bool(size.get("channels_last", 0))
    sides = ("depth", "h", "w") if size.get("depth", 0) > 0 else ("h", "w")
    window = tuple(max(size.get(_WINDOW[side], 0), 1) for side in sides)
    stride, dilation = (tuple(max(size.get(f"{what}_{side}", 0), 1) for side in sides) for what in _STEPS)
    pixels = tuple(size[side] for side in sides)
    pads = tuple(size.get(f"pad_{side}", 0) for side in sides)
    results = tuple(result_sizes(*one) for one in zip(pixels, window, pads, stride, dilation, strict=True))
    image = _image("image", dtype, (size["b"], size["c_in"], *pixels), last)
    result = _image("result", dtype, (size["b"], size["c_out"], *results), last)
    weight = _image("weight", dtype, (size["c_out"], size["c_in"] // groups, *window), last)
    attrs = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups, "transposed": False}
    if op == "conv_fwd":
        return (_op("aten.convolution", (image, weight), result, bias=None, **attrs),)
    mask, written = ((True, False, False), image) if op == "conv_bwd_data" else ((False, True, False), weight)
    gradient = TensorSpec(name="gradient", shape=written.shape, dtype=dtype, stride=written.stride)
    kind = "aten.convolution_backward"
    return (_op(kind, (result, image, weight), gradient, output_mask=mask, **attrs),)


_WINDOW = {"depth": "kernel_depth", "h": "r", "w": "s"}
_STEPS = ("stride", "dilation")


def _image(name: str, dtype: DType, shape: tuple[Number, ...], channels_last: bool) -> TensorSpec:
    if not channels_last:
        return _tensor(name, dtype, *shape)
    channels, sides = shape[1], shape[2:]
    steps = (channels * math.prod(sides[i + 1 :]) for i in range(len(sides)))
    return _tensor(name, dtype, *shape, stride=(channels * math.prod(sides), 1, *steps))


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(dtype: DType, size: Sizes, called: bool = False) -> tuple[Op, ...]:
    """b sequences of s queries over t keys, `heads` of queries, `kv_heads` of keys, head size d; causal or not.

    Causal queries are the last s of the t positions. called: by a serving library.
    """
    b, heads, d = size["b"], size["heads"], size["d"]
    query, out = (_tensor(name, dtype, b, heads, size["s"], d) for name in ("query", "out"))
    stored = STORED[kv] if isinstance(kv := size.get("kv_dtype"), str) else dtype
    key, value = (_tensor(name, stored, b, size["kv_heads"], size["t"], d) for name in ("key", "value"))
    window, causal = size.get("window", 0) or None, bool(size.get("causal", 0))
    attrs = {"window": window, "is_causal": causal, "called": called}
    return (_op("serving.paged_attention", (query, key, value), out, **attrs),)


def _attention_call(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    """Attention as engines call their kernels: new keys and values are put into the cache first.

    What rotates queries and keys runs before, but for TensorRT-LLM: campaigns have none of its prompts.
    """
    b, s, kv_heads, d = (size[name] for name in ("b", "s", "kv_heads", "d"))
    own = _tensor("own", dtype, b, s, 2 * kv_heads * d)
    put = (_tensor(name, dtype, b, kv_heads, s, d) for name in ("keys", "values"))
    return (_op("serving.rope_and_cache", (own,), *put), *_attention(dtype, size, called=True))


def _attention_backward(dtype: DType, size: Sizes) -> tuple[Op, ...]:
    b, heads, d = size["b"], size["heads"], size["d"]
    query = (b, heads, size["s"], d)
    key = (b, size["kv_heads"], size["t"], d)
    inputs = (
        *(_tensor(name, dtype, *shape) for name, shape in (("gradient", query), ("q", query), ("k", key), ("v", key))),
        _tensor("out", dtype, *query),
        _tensor("logsumexp", DType.FLOAT32, *query[:3]),
    )
    gradients = (_tensor(f"d{name}", dtype, *shape) for name, shape in (("q", query), ("k", key), ("v", key)))
    kind = "aten._scaled_dot_product_flash_attention_backward"
    return (_op(kind, inputs, *gradients, is_causal=bool(size.get("causal", 0))),)


# The ops that measurements are of, and what their sizes are called: the vocabulary of campaigns, plans and tables.


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """What an op is, and its sizes: positive integers, of which `optional` ones may be missing or 0, for none.

    family: ops that behave alike, and are reported together; their residuals tell the spread of such kernels.
    """

    family: str
    make: _Maker = lambda dtype, size: ()  # its operators in a format and at sizes; of what is no kernel none
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of all its sizes."""
        return (*self.needed, *self.optional)


_ROWS = ("rows", "cols")
_AGAIN = ("copies",)  # sets of tensors that calls go through in turn, of a product of weights; 0: they come from memory
_PRODUCT = ("m", "n", "k")
_IMAGE = ("b", "c_in", "c_out", "h", "w", "r", "s")
_OF_IMAGES = (
    "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups", "channels_last",
    "depth", "kernel_depth", "pad_depth", "stride_depth", "dilation_depth",
)  # fmt: skip
_ATTENTION, _MASKS = ("b", "s", "t", "heads", "kv_heads", "d"), ("causal", "window", *_AGAIN)
_to_eight_bits = partial(_plain, "serving.scale_to_eight_bits", out=DType.INT8)

OPS: Mapping[str, MeasuredOp] = MappingProxyType(
    {
        "linear": MeasuredOp("product", _linear, _PRODUCT, ("b", "copies")),
        "mm": MeasuredOp("product", _product, _PRODUCT, ("b", "copies")),
        "mm_quantized": MeasuredOp("quantized product", _quantized_product, _PRODUCT, _AGAIN),
        "mm_int8": MeasuredOp(PACKED, partial(_packed_product, 8), _PRODUCT),
        "mm_int4": MeasuredOp(PACKED, partial(_packed_product, 4), _PRODUCT),
        "mm_nvfp4": MeasuredOp("four-bit product", _four_bit_product, _PRODUCT, _AGAIN),
        "bmm": MeasuredOp("product", partial(_product, batched=True), ("b", *_PRODUCT), _AGAIN),
        **{op: MeasuredOp("elementwise", partial(_elementwise, op), _ROWS, _AGAIN) for op in ELEMENTWISE},
        "quantize": MeasuredOp("elementwise", _to_eight_bits, _ROWS, _AGAIN),
        "llm_add": MeasuredOp("elementwise", partial(_elementwise, "add"), _ROWS, _AGAIN),
        "softmax": MeasuredOp("softmax", partial(_plain, "aten._softmax", dim=-1), _ROWS, _AGAIN),
        "layernorm": MeasuredOp("normalization", _layer_norm, _ROWS, _AGAIN),
        "llm_norm": MeasuredOp("serving", partial(_plain, "serving.rms_norm"), _ROWS, _AGAIN),
        "llm_act": MeasuredOp("serving", partial(_plain, "serving.gated_activation", halves=2), _ROWS, _AGAIN),
        "llm_gelu": MeasuredOp("serving", partial(_plain, "serving.activation"), _ROWS, _AGAIN),
        "llm_rope": MeasuredOp("serving", partial(_plain, "serving.rope_and_cache"), _ROWS, _AGAIN),
        **{op: MeasuredOp("convolution", partial(_convolution, op), _IMAGE, _OF_IMAGES) for op in CONVOLUTIONS},
        **{op: MeasuredOp("reduction", partial(_reduction, op), _ROWS) for op in REDUCTIONS},
        **{
            op: MeasuredOp("movement", partial(_plain, "aten._to_copy", out=STORED[written]), _ROWS)
            for op, written in CASTS.items()
        },
        "transpose": MeasuredOp("movement", _transposition, _ROWS),
        **{op: MeasuredOp("stream", partial(_stream, op), _ROWS, ("warm",)) for op in STREAMS},
        **{op: MeasuredOp("movement", partial(_gather, op), (*_ROWS, "table")) for op in GATHERS},
        "attention": MeasuredOp("attention", _attention, _ATTENTION, _MASKS),
        "attention_call": MeasuredOp("attention", _attention_call, _ATTENTION, _MASKS),
        "attention_encoder": MeasuredOp("attention", partial(_attention, called=True), _ATTENTION, _MASKS),
        "attention_bwd": MeasuredOp("attention", _attention_backward, _ATTENTION, ("causal",)),
    }
)


def check_ops(table: pd.DataFrame) -> None:
    """Raises InputError for the first column, op, format or size of a table of ops that cannot be timed."""
    missing = [name for name in ("op", "dtype") if name not in table]
    if missing:
        raise InputError(f"the table has no column {missing[0]!r}: expected op, dtype and the sizes of the ops")
    _check_words(table["op"], "op", tuple(OPS))
    _check_words(table["dtype"], "dtype", tuple(STORED))
    for op, rows in table.groupby("op", sort=False):
        _check_sizes(str(op), rows, OPS[str(op)])


def _check_words(column: pd.Series, name: str, known: tuple[str, ...]) -> None:
    if column.isna().any():
        raise InputError(f"row {column.index[column.isna()][0]}: {name} is missing (known: {', '.join(known)})")
    for word in column.unique():
        if word not in known:
            raise InputError(
                f"row {column.index[column == word][0]}: {name} {word!r} is not one that can be timed"
                f"{nearest(str(word), known)} (known: {', '.join(known)})"
            )


def _check_sizes(op: str, rows: pd.DataFrame, about: MeasuredOp) -> None:
    import pandas as pd

    for name in about.needed:
        if name not in rows:
            raise InputError(f"the table has no column {name!r}: {op} has the sizes {', '.join(about.needed)}")
    for name in (name for name in about.sizes if name in rows):
        numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
        wrong = ~(numbers > 0) if name in about.needed else (numbers < 0) | (np.isnan(numbers) & rows[name].notna())
        wrong |= np.isinf(numbers) | (numbers != np.round(numbers)) & ~np.isnan(numbers)
        if wrong.any():
            first = int(np.argmax(wrong))
            given = rows[name].tolist()[first]  # as one of Python's own numbers
            raise InputError(f"row {rows.index[first]}: {name} of {op}: expected a positive integer; got {given!r}")
