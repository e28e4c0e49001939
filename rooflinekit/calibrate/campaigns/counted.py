"""Measured rows as the ops that a trace would hold: the rules count them, and the time model lays out their kernels.

Rows that go one way through rules and kernels are counted together, with sizes that are columns: each row is a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.calibrate.campaigns.operators import OPS, STORED, ops_of
from rooflinekit.cost.table import price
from rooflinekit.hardware.device import Device
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.points import Number, Points, TooLargeError, integer
from rooflinekit.kernels.convolution import with_layout_copies
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.kernels.kernel import Kernel, Reuse
from rooflinekit.kernels.libraries import formats_channels_last
from rooflinekit.kernels.rows import Blocks, Rows
from rooflinekit.timing.families import measured_family

Sizes = Mapping[str, Number]

#: Sizes that are columns; all others, such as strides, decide what is launched, and are the same in a group.
_COLUMNS = (
    "b", "m", "n", "k", "rows", "cols", "table", "s", "t", "heads", "kv_heads", "d", "c_in", "c_out", "depth", "h", "w",
    "pad_depth", "pad_h", "pad_w",
)  # fmt: skip
_WITH_BIAS = ("aten.addmm", "aten.baddbmm")  # whose first input is the bias
_PRODUCTS = ("linear", "mm", "bmm", "mm_quantized", "mm_nvfp4")
#: Kernels of serving libraries that were measured load and store one element at a time: how many single loads an output
#: element takes. An RMS norm reads its row twice and a gain beside it, a rotation cosine or sine.
_SINGLE_LOADS = {"llm_norm": 3, "llm_act": 2, "llm_gelu": 1, "llm_rope": 2}
_HANDED_ON = (*_SINGLE_LOADS, "llm_add")  # whose input the kernel before has written
_QUANTIZED_AT_ONCE = 256 * 16  # elements of a row that a block of vLLM's quantization loads, 256 threads 16 each


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of a table that launch the same kernels, whose sizes are columns where there are several rows."""

    rows: NDArray[np.int64]  # their places in the table
    kernels: tuple[Kernel, ...]  # of each, one after another, with their alternatives
    residuals: str  # the family that their residuals are of, as `timing.families` has it


def counted(
    op: str, rows: pd.DataFrame, device: Device | None = None, like: Release | None = None
) -> tuple[Group, ...]:
    """What the rows of one op in one format launch on a device, by a release of PyTorch.

    Of no device known, families and layouts are as stated.
    """
    sizes = OPS[op].sizes
    dtype = str(rows["dtype"].iloc[0]) if len(rows) else ""
    table = {name: rows[name].fillna(0).to_numpy().astype(np.int64) for name in sizes if name in rows}
    groups: list[Group] = []
    for places, fixed in _alike(rows, [name for name in table if name not in _COLUMNS]):
        left = places
        while left.size:
            own = {name: column[left] for name, column in table.items() if name in _COLUMNS}
            alike, kernels, family = _kernels(op, dtype, fixed, own, device, like)
            groups.append(Group(rows=left[alike], kernels=kernels, residuals=family))
            left = left[~alike]
    return tuple(groups)


def _alike(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Places of the rows that are equal in these columns, and what stands there."""
    names = [*names, *(["kv_dtype"] if "kv_dtype" in rows else [])]
    if not names or rows.empty:
        yield np.arange(len(rows)), {}
        return
    keys = rows[names].reset_index(drop=True)
    keys = keys.fillna({name: 0 for name in names if name != "kv_dtype"})
    for values, places in keys.groupby(names, sort=False, dropna=False).indices.items():
        several = values if isinstance(values, tuple) else (values,)
        yield np.asarray(places), {k: v if k == "kv_dtype" else int(v) for k, v in zip(names, several, strict=True)}


def _kernels(
    op: str, dtype: str, fixed: Mapping[str, Any], columns: Mapping[str, NDArray[np.int64]], device: Device | None,
    like: Release | None,
) -> tuple[NDArray[np.bool_], tuple[Kernel, ...], str]:  # fmt: skip
    """Which of the rows launch what the first does, their kernels, and the family of these."""
    among = np.ones(len(next(iter(columns.values()))), dtype=bool)
    while True:
        points = Points({name: column[among] for name, column in columns.items()})
        alone = points.count == 1  # then its sizes are numbers
        sizes = {name: int(own[0]) if alone else points.column(own) for name, own in points.sizes.items()}
        try:
            with np.errstate(all="ignore"):  # rows that are crossed out may be anything
                kernels = _launched(op, dtype, {**fixed, **sizes}, device, like)
                main = next((kernel for kernel in reversed(kernels) if kernel.cost.gemms), kernels[-1])  # its product
                family = measured_family(main, device)
        except TooLargeError:  # fewer at once; one alone has Python's own numbers, which hold all
            among &= np.cumsum(among) <= among.sum() // 2
            continue
        if points.alike.all():
            return among, kernels, family
        among[among] = points.alike  # once more for those that go this way


def _launched(op: str, dtype: str, size: Sizes, device: Device | None, like: Release | None) -> tuple[Kernel, ...]:
    kernels: list[Kernel] = []
    ops, tensor_formats = ops_of(op, dtype, size), () if device is None else formats_channels_last(device)
    for one in ops:
        priced = price(one, on_unknown="raise")
        # attention was measured as engines run it, by kernels that differ by the GPU
        own = device if priced.timed_as is Family.ATTENTION else None
        found = plain_kernels(priced, dtype == "tf32", own, like)
        kernels += with_layout_copies(one, found, tensor_formats) if priced.timed_as is Family.CONVOLUTION else found
    return _repeated(op, size, ops[-1], _as_measured(op, dtype, size, kernels))


def _as_measured(op: str, dtype: str, size: Sizes, kernels: list[Kernel]) -> list[Kernel]:
    """The kernels with what a campaign says of the ones that ran."""
    *before, last = kernels
    if op in _SINGLE_LOADS:
        elements = size["rows"] * size["cols"]
        rows = Rows() if op == "llm_gelu" else Rows(count=size["rows"])  # its blocks take elements of any row
        last = replace(last, accesses=_SINGLE_LOADS[op] * elements, rows=rows, ramps=1)
        if op == "llm_rope":
            last = replace(last, cost=replace(last.cost, vector_flop=3 * elements))
    elif op in _PRODUCTS:
        last = replace(last, accesses=0)
    elif op == "quantize":
        loads, stored = -(-size["cols"] // _QUANTIZED_AT_ONCE), STORED[dtype].itemsize
        moved = (stored + 1) * size["rows"] * size["cols"]
        last = replace(last, blocks=Blocks(count=size["rows"], loads=loads, bytes=moved))
    return [*before, last]


def _repeated(op: str, size: Sizes, last_op: Op, kernels: list[Kernel]) -> tuple[Kernel, ...]:
    """The kernels with what each finds of its tensors in the cache.

    `copies` sets of tensors (of a product: of its right side, the weight) are gone through in turn, or with `warm` one;
    0 where the inputs come from memory, or nobody says.
    """
    *before, last = kernels
    copies = size.get("copies", 0)
    if op in _HANDED_ON:
        return (_finding(last, Reuse(bytes=last.cost.write_bytes, distance=0)),)
    if op in _PRODUCTS:
        left, written = integer(last_op.inputs[last_op.kind in _WITH_BIAS].bytes), last.cost.write_bytes
        right = last.cost.read_bytes - left
        passed = right + written if copies else 0  # by the product of the round before
        given = (_finding(one, Reuse(bytes=one.cost.read_bytes, distance=passed)) for one in before)
        if not copies:
            return (*given, _finding(last))
        own = Reuse(bytes=left, distance=right + written, cyclic=True)
        weight = Reuse(bytes=right, distance=left + written + (copies - 1) * right, cyclic=True)
        return (*given, _finding(last, own, weight, Reuse(bytes=written, distance=left + right, cyclic=True)))
    if op == "attention_call":
        before = [_finding(one, Reuse(bytes=one.cost.read_bytes, distance=0)) for one in before]
    if copies == 1 or size.get("warm", 0):
        beside = sum(one.cost.bytes for one in before)
        last = _finding(last, Reuse(bytes=last.cost.bytes, distance=beside, cyclic=True))
    return (*before, last)


def _finding(kernel: Kernel, *found: Reuse) -> Kernel:
    others = tuple(replace(one, recent=found) for one in kernel.alternatives)
    return replace(kernel, recent=found, alternatives=others)
