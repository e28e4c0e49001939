"""PyTorch's operators as torch.profiler saw them, one by one: models of Hugging Face on an H100, others on an MI300X.

    python -m benchmarks.networks.tracelens DATA [--out rows.parquet] [--worst 20]

DATA/tracelens/unified_perf_summary.parquet holds, for each operator with its shapes and formats, the time of its
kernels (median of `operation_count` calls). Fits have seen some on MI300X: half of the shapes of products, softmax and
pairs of elements (`calibration/campaigns/amd-mi300x/operators.csv`). Each is traced by itself from those shapes and
strides, and predicted with nothing of what it reads in the cache; inside the model some of it was. Copies are left out,
as the strides of what they write are not told for all.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import rooflinekit as rk
from benchmarks.sources.pairs import options_of, show
from benchmarks.sources.tables import read_table
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.errors import RooflinekitError

#: By folder, with a release that has the same kernels: indexSelectLargeIndex is gone in 2.8, rows in
#: vectorized_gather_kernel and a fused RMS norm are there in 2.9. Names of MI300X's products say ISA942.
_GPUS = {"/h100/": ("nvidia-h100-sxm5-80gb", "2.7"), "/inference/|/perf_model/": ("amd-mi300x", "2.9")}
_FORMATS = {
    "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64", "int": "int32",
    "long int": "int64", "long": "int64", "bool": "bool",
}  # fmt: skip
_COPIES = ("aten::copy_", "aten::clone", "aten::contiguous")
_TOLD = ("name", "Input Dims", "Input Strides", "Input type", "Concrete Inputs")


def _scalar(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return None


def _overload(name: str, tensors: list[bool]) -> Any:
    """The first with so many arguments, tensors where tensors are. Raises KeyError where there is none."""
    packet = getattr(torch.ops.aten, name)
    for overload in map(packet.__getattr__, packet.overloads()):
        taken = ["Tensor" in str(argument.type) for argument in overload._schema.arguments]
        fits = len(taken) == len(tensors) and all(may or not is_one for may, is_one in zip(taken, tensors, strict=True))
        if fits and all("Optional" in str(a.type) or is_one or not may for a, may, is_one in zip(
            overload._schema.arguments, taken, tensors, strict=True
        )):  # fmt: skip
            return overload
    raise KeyError(name)


def graph_of(name: str, dims: str, strides: str, types: str, concrete: str, like: str) -> rk.Graph:
    """The operator alone, as a release of PyTorch runs it.

    Raises KeyError for formats, and TypeError for arguments, that are not told.
    """
    shapes, steps, kinds, words = (ast.literal_eval(text) for text in (dims, strides, types, concrete))
    given: list[Any] = []
    inputs: list[rk.Input] = []
    lies: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for shape, step, kind, word in zip(shapes, steps, kinds, words, strict=True):
        if kind in _FORMATS:
            given.append(len(inputs))
            span = 1 + sum((size - 1) * apart for size, apart in zip(shape, step, strict=True))
            contiguous = torch.empty(shape, device="meta").stride() == step
            inputs.append(rk.Input(*(shape if contiguous else (span,)), dtype=_FORMATS[kind]))
            lies.append((shape, step))
        else:
            given.append((_scalar(word),))
    function = _overload(name.removeprefix("aten::"), [isinstance(one, int) for one in given])
    named = [argument.name if argument.kwarg_only else None for argument in function._schema.arguments]

    def called(*tensors: torch.Tensor) -> Any:
        lying = [one if one.shape == at[0] else one.as_strided(*at) for one, at in zip(tensors, lies, strict=True)]
        values = [lying[one] if isinstance(one, int) else one[0] for one in given]
        plain = [value for value, word in zip(values, named, strict=True) if word is None]
        words = {word: value for value, word in zip(values, named, strict=True) if word and value is not None}
        return function(*plain, **words)

    return rk.trace(called, *inputs, name=name, like=like)


def judged(file: Path) -> pd.DataFrame:
    """A line an operator."""
    table = read_table(file)
    chosen = table[table["name"].str.fullmatch(r"aten::\w+") & ~table["name"].isin(_COPIES)]
    chosen = chosen[chosen["Kernel Time (µs)_median"] > 0]
    rows, why = [], Counter[str]()
    for folders, (gpu, like) in _GPUS.items():
        gap_s = constants_for(rk.load_device(gpu)).value("kernel_gap")
        for _, row in chosen[chosen["source_file"].str.contains(folders)].iterrows():
            try:
                timings = rk.predict(graph_of(*(row[column] for column in _TOLD), like), gpu).timings
            except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, RooflinekitError) as error:
                why[f"{row['name']}: {type(error).__name__}"] += 1
                continue
            if not timings:
                why[f"{row['name']}: launches nothing"] += 1
                continue
            rows.append(
                {
                    "gpu": gpu.partition("-")[2],
                    "op": row["name"].removeprefix("aten::"),
                    "family": max(timings, key=lambda timing: timing.total_s).kernel.family.value,
                    "shapes": row["Input Dims"],
                    "types": row["Input type"],
                    "measured_s": row["Kernel Time (µs)_median"] * 1e-6,
                    # a profiler's kernel ends before the gap to the next
                    "predicted_s": sum(timing.total_s - gap_s for timing in timings),
                }
            )
    for reason, count in why.most_common():
        print(f"left out: {count} rows: {reason}", file=sys.stderr)
    return pd.DataFrame(rows)


def main(options: argparse.Namespace) -> None:
    """Prints the tables."""
    rows = judged(options.data / "tracelens" / "unified_perf_summary.parquet")
    rows = rows.assign(size=np.where(rows["measured_s"] < 10e-6, "below 10 µs", "10 µs and more"))
    show(rows, (["gpu", "op"], ["gpu", "family", "size"], ["gpu", "size"]), options, fewest=3)


if __name__ == "__main__":
    main(options_of(__doc__))
