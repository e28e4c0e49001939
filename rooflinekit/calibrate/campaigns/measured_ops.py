"""The ops that measurements are of, and what their sizes are called: the vocabulary of campaigns, plans and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.operators import (
    CASTS,
    CONVOLUTIONS,
    ELEMENTWISE,
    GATHERS,
    REDUCTIONS,
    STORED,
    STREAMS,
)
from rooflinekit.errors import InputError, nearest
from rooflinekit.model.families import PACKED


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOp:
    """What an op is, and its sizes: positive integers, of which `optional` ones may be missing or 0, for none.

    family: ops that behave alike, and are reported together; their residuals tell the spread of such kernels.
    """

    family: str
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.needed, *self.optional)


_ROWS = ("rows", "cols")
_AGAIN = ("copies",)  # sets of tensors that calls go through in turn, of a product of weights; 0: they come from memory
_ALONG_ROWS = MeasuredOp(family="serving", needed=_ROWS, optional=_AGAIN)
_PRODUCT = ("m", "n", "k")
_IMAGE = MeasuredOp(
    family="convolution",
    needed=("b", "c_in", "c_out", "h", "w", "r", "s"),
    optional=(
        "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups", "channels_last",
        "depth", "kernel_depth", "pad_depth", "stride_depth", "dilation_depth",
    ),
)  # fmt: skip
_ATTENTION = ("b", "s", "t", "heads", "kv_heads", "d")

OPS: Mapping[str, MeasuredOp] = MappingProxyType(
    {
        **dict.fromkeys(("linear", "mm"), MeasuredOp(family="product", needed=_PRODUCT, optional=("b", "copies"))),
        "mm_quantized": MeasuredOp(family="quantized product", needed=_PRODUCT, optional=_AGAIN),
        **dict.fromkeys(("mm_int8", "mm_int4"), MeasuredOp(family=PACKED, needed=_PRODUCT)),
        "mm_nvfp4": MeasuredOp(family="four-bit product", needed=_PRODUCT, optional=_AGAIN),
        "bmm": MeasuredOp(family="product", needed=("b", *_PRODUCT), optional=_AGAIN),
        **dict.fromkeys((*ELEMENTWISE, "quantize", "llm_add"), replace(_ALONG_ROWS, family="elementwise")),
        "softmax": replace(_ALONG_ROWS, family="softmax"),
        "layernorm": replace(_ALONG_ROWS, family="normalization"),
        **dict.fromkeys(("llm_norm", "llm_act", "llm_gelu", "llm_rope"), _ALONG_ROWS),
        **dict.fromkeys(CONVOLUTIONS, _IMAGE),
        **dict.fromkeys(REDUCTIONS, MeasuredOp(family="reduction", needed=_ROWS)),
        **dict.fromkeys((*CASTS, "transpose"), MeasuredOp(family="movement", needed=_ROWS)),
        **dict.fromkeys(STREAMS, MeasuredOp(family="stream", needed=_ROWS, optional=("warm",))),
        **dict.fromkeys(GATHERS, MeasuredOp(family="movement", needed=(*_ROWS, "table"))),
        **dict.fromkeys(
            ("attention", "attention_call"),
            MeasuredOp(family="attention", needed=_ATTENTION, optional=("causal", "window", *_AGAIN)),
        ),
        "attention_bwd": MeasuredOp(family="attention", needed=_ATTENTION, optional=("causal",)),
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
