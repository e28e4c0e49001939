"""Kernels that give each row to a block of its own: softmax and normalization along the last sizes.

How PyTorch writes them (aten/src/ATen/native/cuda: SoftMax.cu, PersistentSoftmax.cuh, layer_norm_kernel.cu):
a softmax of up to 1024 elements is one warp's, who keeps the row in registers; a longer one reads its row three times
(maximum, sum, result), its gradient twice (sum, result), with a thread for every four elements, up to 1024 of them. A
normalization takes 128 threads and reads its row twice, for the statistics and for the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.points import integer

WARP_ROW = 1024  # elements of the longest row that a warp keeps in registers
WARP = 32
SOFTMAX_PASSES = 3
GRADIENT_PASSES = 2  # of a softmax: the sum, the result
NORM_PASSES = 2
NORM_THREADS = 128
MOST_THREADS = 1024
_FP32_BYTES = 4
#: Share of a normalization's time on an element that goes with the number, not with its bytes (± 30 %): vidur's layer
#: norms in fp16 on A100 and A40 take three quarters of what fp32 takes on an element.
_BY_NUMBERS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that one block each works on."""

    count: int = 0
    length: int = 0  # elements of one
    passes: int = 1  # how often one is read
    held_bytes: int = 0  # what a block comes back to in the later passes
    threads: int = 1  # of a block
    worked: float = 1.0  # of the time that a forward pass takes on an element


NO_ROWS = Rows()


def softmax_rows(count: int, length: int, itemsize: int, *, backward: bool = False) -> Rows:
    """Softmax, or its gradient, of `count` rows of `length` elements."""
    short = length <= WARP_ROW
    passes = GRADIENT_PASSES if backward else SOFTMAX_PASSES
    return Rows(
        count=count,
        length=length,
        passes=1 if short else passes,
        worked=passes / SOFTMAX_PASSES,
        held_bytes=2 * itemsize * length,  # input and output
        threads=WARP if short else min(length // 4, MOST_THREADS),
    )


def norm_rows(count: int, length: int, itemsize: int, *, backward: bool = False) -> Rows:
    """Layer or RMS normalization, or the gradient of its input."""
    return Rows(
        count=count,
        length=length,
        passes=NORM_PASSES,
        held_bytes=itemsize * length,
        threads=NORM_THREADS,
        worked=1.0 if backward else float(normalized(itemsize)),
    )


def normalized(itemsize: Any) -> Any:
    """Of the time that a normalization takes on an element in fp32: a part goes by bytes, a part by numbers."""
    return _BY_NUMBERS + (1 - _BY_NUMBERS) * np.minimum(itemsize, _FP32_BYTES) / _FP32_BYTES


def rows_of(op: Op, cost: Cost) -> Rows:
    """The rows of an op's kernel; none for kernels of other kinds.

    Those of serving engines hold a row in the registers of one block, and stream.
    """
    if op.kind.startswith("serving."):
        return NO_ROWS
    if not op.outputs or not op.outputs[0].shape:
        return NO_ROWS
    y = op.outputs[0]
    name = op.kind.rpartition(".")[2]
    last = len(y.shape) - 1
    if "softmax" in name and op.attrs.get("dim") in (-1, last):
        length = integer(y.shape[-1])
        count = integer(y.numel) // max(length, 1)
        return softmax_rows(count, length, y.dtype.itemsize, backward="backward" in name)
    if "layer_norm" in name or "rms_norm" in name:
        if cost.label not in ("", "input gradient"):
            return NO_ROWS
        length = 1
        for size in op.attrs["normalized_shape"]:
            length *= integer(size)
        count = integer(y.numel) // max(length, 1)
        return norm_rows(count, length, y.dtype.itemsize, backward="backward" in name)
    return NO_ROWS


def reread_bytes(op: Op, cost: Cost) -> int:
    """Bytes that a batch or group normalization reads again: its statistics need the whole tensor before the result.

    Forward the input, backward the input and the gradient of the output. With fixed statistics nothing is.
    """
    name = op.kind.rpartition(".")[2]
    if "batch_norm" not in name and "group_norm" not in name:
        return 0
    training = op.attrs.get("training", op.attrs.get("train", "no_training" not in name))
    if not training or cost.label not in ("", "input gradient"):
        return 0
    return sum(integer(tensor.bytes) for tensor in op.inputs[: 2 if "backward" in name else 1])
