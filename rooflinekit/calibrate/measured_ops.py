"""The ops that measurements are of, and what their sizes are called: the vocabulary of campaigns, plans and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from rooflinekit.calibrate.cases import ELEMENTWISE, ITEMSIZE
from rooflinekit.calibrate.operator_cases import CASTS, GATHERS, REDUCTIONS, STREAMS
from rooflinekit.errors import InputError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one op. All are positive integers; `optional` ones may be missing, and 0 then stands for none."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.needed, *self.optional)


_ROWS = Sizes(needed=("rows", "cols"))
_PRODUCT = Sizes(needed=("m", "n", "k"), optional=("b",))
_CONVOLUTION = Sizes(
    needed=("b", "c_in", "c_out", "h", "w", "r", "s"),
    optional=("pad_h", "pad_w", "stride_h", "stride_w", "groups", "channels_last"),
)
_ATTENTION = ("b", "s", "t", "heads", "kv_heads", "d")

SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        **dict.fromkeys(("linear", "mm", "mm_quantized"), _PRODUCT),
        "bmm": Sizes(needed=("b", "m", "n", "k")),
        **dict.fromkeys((*ELEMENTWISE, "quantize", "softmax", "layernorm"), _ROWS),
        **dict.fromkeys(("llm_norm", "llm_act", "llm_gelu", "llm_rope", "llm_add"), _ROWS),
        **dict.fromkeys(("conv_fwd", "conv_bwd_data", "conv_bwd_weight"), _CONVOLUTION),
        **dict.fromkeys((*REDUCTIONS, *CASTS, "transpose"), _ROWS),
        **dict.fromkeys(STREAMS, Sizes(needed=("rows", "cols"), optional=("warm",))),
        **dict.fromkeys(GATHERS, Sizes(needed=("rows", "cols", "table"))),
        "attention": Sizes(needed=_ATTENTION, optional=("causal", "window")),
        "attention_bwd": Sizes(needed=_ATTENTION, optional=("causal",)),
    }
)


def check_ops(table: pd.DataFrame) -> None:
    """Raises InputError for the first column, op, format or size of a table of ops that cannot be timed."""
    missing = [name for name in ("op", "dtype") if name not in table]
    if missing:
        raise InputError(f"the table has no column {missing[0]!r}: expected op, dtype and the sizes of the ops")
    _check_words(table["op"], "op", tuple(SIZES))
    _check_words(table["dtype"], "dtype", tuple(ITEMSIZE))
    for op, rows in table.groupby("op", sort=False):
        _check_sizes(str(op), rows, SIZES[str(op)])


def _check_words(column: pd.Series, name: str, known: tuple[str, ...]) -> None:
    if column.isna().any():
        raise InputError(f"row {column.index[column.isna()][0]}: {name} is missing (known: {', '.join(known)})")
    for word in column.unique():
        if word not in known:
            raise InputError(
                f"row {column.index[column == word][0]}: {name} {word!r} is not one that can be timed"
                f"{nearest(str(word), known)} (known: {', '.join(known)})"
            )


def _check_sizes(op: str, rows: pd.DataFrame, sizes: Sizes) -> None:
    for name in sizes.needed:
        if name not in rows:
            raise InputError(f"the table has no column {name!r}: {op} has the sizes {', '.join(sizes.needed)}")
    for name in (name for name in sizes.all if name in rows):
        numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
        wrong = ~(numbers > 0) if name in sizes.needed else (numbers < 0) | (np.isnan(numbers) & rows[name].notna())
        wrong |= np.isinf(numbers) | (numbers != np.round(numbers)) & ~np.isnan(numbers)
        if wrong.any():
            first = int(np.argmax(wrong))
            given = rows[name].tolist()[first]  # as one of Python's own numbers
            raise InputError(f"row {rows.index[first]}: {name} of {op}: expected a positive integer; got {given!r}")
