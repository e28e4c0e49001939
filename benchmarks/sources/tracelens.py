"""TraceLens's operators of PyTorch on an MI300X as cases of a campaign: what torch.profiler saw in diffusion models."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.sources.tables import read_table

SOURCE = (
    "github.com/AMD-AGI/TraceLens 171dd74",
    "MIT, (c) Advanced Micro Devices, Inc.; changed: operators of six profiles as one table",
)
#: Profiles of AMD's, whose products are Tensile's of gfx942 with 304 units: those of an MI300X.
_FOLDERS = "/inference/"
_FORMATS = {"c10::BFloat16": "bf16", "float": "fp32", "c10::Half": "fp16"}
_PRODUCTS = {"aten::mm": "mm", "aten::bmm": "bmm", "aten::addmm": "linear"}
_PAIRS = {"aten::add": "add", "aten::mul": "mul", "aten::div": "div"}  # of two tensors, or of one and a number


def cases(data: Path) -> Iterator[pd.DataFrame]:
    """One table, where the folder has it: op, dtype, sizes, seconds."""
    for file in sorted(data.glob("tracelens/unified_perf_summary.parquet")):
        table = read_table(file)
        table = table[table["source_file"].str.contains(_FOLDERS)]
        rows = pd.DataFrame(filter(None, map(_case, table.to_dict("records"))))
        keys = [name for name in rows if name != "seconds"]
        yield rows.groupby(keys, dropna=False, as_index=False)["seconds"].median()


def _case(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """An operator's; None where campaigns have no such op, or it has tensors of several formats or with gaps."""
    name, seconds = row["name"], row["Kernel Time (µs)_median"] * 1e-6
    if name not in {**_PRODUCTS, **_PAIRS, "aten::_softmax": ""} or not seconds > 0:
        return None
    read = (ast.literal_eval(row[key]) for key in ("Input Dims", "Input Strides", "Input type"))
    tensors = [(shape, stride, kind) for shape, stride, kind in zip(*read, strict=True) if shape and kind]
    if len({kind for _, _, kind in tensors}) != 1 or tensors[0][2] not in _FORMATS:
        return None
    found = {"gpu": "MI300X", "dtype": _FORMATS[tensors[0][2]], "seconds": seconds}
    if name in _PRODUCTS:
        (*batch, m, k), (*_, n) = [shape for shape, _, _ in tensors if len(shape) > 1][:2]
        return found | {"op": _PRODUCTS[name], "m": m, "n": n, "k": k} | ({"b": batch[0]} if batch else {})
    if any(shape != tensors[0][0] or not _dense(shape, stride) for shape, stride, _ in tensors):
        return None
    op = _PAIRS.get(name, "softmax") + ("u" if name in _PAIRS and len(tensors) == 1 else "")
    cols = tensors[0][0][-1]
    return found | {"op": op, "rows": int(np.prod(tensors[0][0])) // cols, "cols": cols}


def _dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    return stride == tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
