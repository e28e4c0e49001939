"""Kernels that give each row to a block of its own: softmax and normalization.

How PyTorch and cuDNN write them (aten/src/ATen/native/cuda: SoftMax.cu, PersistentSoftmax.cuh, layer_norm_kernel.cu;
cuDNN's bn_fw_tr_1C11 and bn_bw_1C11) says how many threads have a row and how often they read it; docs/model.md,
"Rows", tells it. A softmax over another dimension than the last gives each column to a thread, which walks it three
times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import numpy as np

from rooflinekit.cost.rules.convolution import AVERAGE_POOLS, MAX_POOLS
from rooflinekit.cost.rules.elementwise import SOFTMAX_GRADIENTS, SOFTMAXES
from rooflinekit.cost.rules.movement import PADS
from rooflinekit.cost.rules.reduction import (
    BATCH_NORM_GRADIENTS,
    BATCH_NORMS,
    GROUP_NORM,
    GROUP_NORM_GRADIENT,
    GROUP_NORMS,
    LAYER_NORM,
    LAYER_NORM_GRADIENT,
    NO_TRAINING,
    RMS_NORM,
    RMS_NORM_GRADIENT,
)
from rooflinekit.cost.rules.resampling import UPSAMPLES
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.op import Op, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import Size
from rooflinekit.published.stated import NUMBERS

_SOFTMAXES = frozenset((*SOFTMAXES, *SOFTMAX_GRADIENTS))
_ROW_NORMS = frozenset((LAYER_NORM, RMS_NORM, LAYER_NORM_GRADIENT, RMS_NORM_GRADIENT))
_ALL_GRADIENTS = frozenset((*BATCH_NORM_GRADIENTS, GROUP_NORM_GRADIENT))
_OF_ONE = (*PADS, *(kind for kind in UPSAMPLES if "nearest" in kind))  # a window of one element
_WINDOWS = frozenset((*MAX_POOLS, *AVERAGE_POOLS, *_OF_ONE))
_OVER_ALL = _ALL_GRADIENTS | {*BATCH_NORMS, GROUP_NORM}

WARP_ROW = 1024  # elements of the longest row that a warp keeps in registers
SOFTMAX_PASSES = 3
GRADIENT_PASSES = 2  # of a softmax: the sum, the result
NORM_PASSES = 2
NORM_WARPS = 4
MOST_THREADS = 1024
_LOADED_BYTES = 16  # at once, by a thread of a softmax
_SHARED_BYTES = 48 * 1024  # of shared memory that a block gets unasked
_FP32_BYTES = 4
_BY_NUMBERS = NUMBERS["norm by numbers"].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that one block each works on."""

    count: int = 0
    length: int = 0  # elements of one
    passes: int = 1  # how often one is read
    held_bytes: int = 0  # that a block reads of one, and comes back to in the later passes
    threads: int = 0  # of a block; 0 where it has so many warps of whatever size
    warps: int = 1
    worked: float = 1.0  # of the time that a forward pass takes on an element


NO_ROWS = Rows()


def softmax_rows(
    count: int, length: int, itemsize: int, *, backward: bool = False, like: Release | None = None
) -> Rows:
    """Softmax, or its gradient, of `count` rows of `length` elements, by a release of PyTorch.

    Before PyTorch 2.2 a block had as many threads as load half of its row at once, up to 512; a gradient's still has.
    Since then it has 1024, and keeps rows of whole 16 bytes in shared memory, as far as they fit.
    """
    passes, read = (GRADIENT_PASSES, 2) if backward else (SOFTMAX_PASSES, 1)
    row = Rows(count=count, length=length, held_bytes=read * itemsize * length)
    row = replace(row, worked=passes / SOFTMAX_PASSES * float(normalized(itemsize)))
    if length <= WARP_ROW:
        return row
    if backward or not (like or PRESENT).holds_softmax_rows:
        wanted = length * itemsize // _LOADED_BYTES // 2
        some = next((some for some in (32, 64, 128, 256) if wanted <= some), MOST_THREADS // 2)
        return replace(row, threads=some, passes=passes)
    if length * itemsize % _LOADED_BYTES == 0 and length * itemsize < _SHARED_BYTES:
        return replace(row, threads=MOST_THREADS)
    return replace(row, threads=MOST_THREADS, passes=passes)


def softmax_accesses(rows: Rows, op: Op) -> int:
    """What a softmax's passes load number by number, less what those numbers would have taken 16 bytes at a time.

    Of rows that all threads of a block read again; where they are fewer, before PyTorch 2.2, nothing of it is seen.
    """
    if (rows.threads, rows.passes) != (MOST_THREADS, SOFTMAX_PASSES):
        return 0
    at_once = _LOADED_BYTES // op.inputs[0].dtype.itemsize
    alone = rows.length % (at_once * MOST_THREADS)
    return rows.count * alone * SOFTMAX_PASSES * (at_once - 1) // at_once


def norm_rows(count: int, length: int, itemsize: int, *, backward: bool = False) -> Rows:
    """Layer or RMS normalization, or the gradient of its input."""
    return Rows(
        count=count,
        length=length,
        passes=NORM_PASSES,
        held_bytes=(1 + backward) * itemsize * length,
        warps=NORM_WARPS,
        worked=1.0 if backward else float(normalized(itemsize)),
    )


def normalized(itemsize: Any) -> Any:
    """The share of fp32's time on a row's element: a part goes by bytes, a part by numbers."""
    return _BY_NUMBERS + (1 - _BY_NUMBERS) * np.minimum(itemsize, _FP32_BYTES) / _FP32_BYTES


def rows_of(op: Op, cost: Cost, like: Release | None = None) -> Rows:
    """The rows of an op's kernel; none for other kinds. Engines' kernels keep a row in registers, and stream."""
    if not op.outputs or not op.outputs[0].shape:
        return NO_ROWS
    y = op.outputs[0]
    if op.kind in _SOFTMAXES and op.attrs.get("dim") in (-1, len(y.shape) - 1):
        length = integer(y.shape[-1])
        count = integer(y.numel) // max(length, 1)
        itemsize, backward = op.inputs[0].dtype.itemsize, op.kind in SOFTMAX_GRADIENTS
        return softmax_rows(count, length, itemsize, backward=backward, like=like)
    if op.kind in _ROW_NORMS and cost.label in ("", "input gradient"):
        length = math.prod(map(integer, op.attrs["normalized_shape"]))
        count = integer(y.numel) // max(length, 1)
        return norm_rows(count, length, y.dtype.itemsize, backward=op.kind not in (LAYER_NORM, RMS_NORM))
    if op.kind == GROUP_NORM:  # a group's statistics; a warp has a short one (RowwiseMoments of group_norm_kernel.cu)
        count = integer(op.outputs[1].numel)
        length = integer(y.numel) // max(count, 1)
        threads, itemsize = SUM_THREADS if length >= SUM_THREADS else 0, y.dtype.itemsize
        worked = float(normalized(itemsize))
        return Rows(count=count, length=length, held_bytes=itemsize * length, threads=threads, worked=worked)
    return NO_ROWS


def reread_bytes(op: Op, cost: Cost) -> int:
    """Bytes that are read again. A batch or group normalization's statistics need the whole tensor before the result.

    Forward the input, backward the input and the gradient of the output. With fixed statistics nothing is. A softmax
    over columns reads them three times, its gradient twice.
    """
    if columns_length(op):
        passes = GRADIENT_PASSES if op.kind in SOFTMAX_GRADIENTS else SOFTMAX_PASSES
        return (passes - 1) * sum(integer(tensor.bytes) for tensor in op.inputs)
    if not _over_all(op, cost):
        return 0
    return sum(integer(tensor.bytes) for tensor in op.inputs[: 2 if op.kind in _ALL_GRADIENTS else 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What a pointwise loop reads over and over: tensors as large as the last dimensions of its result."""

    bytes: int = 0  # that it reads beyond the first time
    span: int = 0  # bytes that pass from one time to the next


NO_REPEATS = Repeats()
_LEAST_REPEATED = 2**18  # bytes of a tensor; smaller ones stay in any cache


def repeats_of(read: Iterable[tuple[TensorSpec, int]], written: Sequence[tuple[TensorSpec, int]]) -> Repeats:
    """The operands that a loop repeats over what it writes; tensors come with the bytes that it moves of them."""
    if not written:
        return NO_REPEATS
    given, shape = list(read), written[0][0].shape
    small = [(spec, size) for spec, size in given if size >= _LEAST_REPEATED and _is_repeated(spec.shape, shape)]
    if not small:
        return NO_REPEATS
    largest = max(integer(spec.numel) for spec, _ in small)
    passed = sum(size * largest // max(largest, integer(spec.numel)) for spec, size in (*given, *written))
    times = integer(written[0][0].numel) // largest
    return Repeats(bytes=(times - 1) * sum(size for spec, size in small if integer(spec.numel) == largest), span=passed)


def _is_repeated(part: Sequence[Size], whole: Sequence[Size]) -> bool:
    """Whether a tensor has the last dimensions of another, and not all of them."""
    inner = tuple(dropwhile(lambda size: bool(size == 1), part))
    return 0 < len(inner) < len(whole) and inner == tuple(whole[-len(inner) :]) and bool(whole[-len(inner) - 1] != 1)


def columns_length(op: Op) -> int:
    """Elements of a column that one thread's softmax walks; 0 for other ops, and along the last size."""
    if op.kind not in _SOFTMAXES or not op.outputs or not op.outputs[0].shape:
        return 0
    shape = op.outputs[0].shape
    dim = op.attrs.get("dim", -1) % len(shape)
    return 0 if dim == len(shape) - 1 else integer(shape[dim])


def _over_all(op: Op, cost: Cost) -> bool:
    """Whether it is a batch or group normalization, or its input's gradient, by statistics of what it is given."""
    if op.kind not in _OVER_ALL:
        return False
    training = op.attrs.get("training", op.attrs.get("train", op.kind != NO_TRAINING))
    return bool(training) and cost.label in ("", "input gradient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks that sum one part of a tensor each: where they are few, they wait for what they load."""

    count: int = 0
    loads: int = 0  # of a thread, one after the other
    bytes: int = 0  # that pass meanwhile, of all blocks


NO_BLOCKS = Blocks()
SUM_THREADS = 512
_SUMMED_BYTES = 8  # at once, by a thread of cuDNN's kernels; PyTorch's own take one number


#: How many loads a thread waits for, one after the other, for a target: of the target, and of what it names.
_OF_A_TARGET = {"aten.nll_loss_forward": 2, "aten.nll_loss_backward": 1}
_WARP = 32


def blocks_of(op: Op, cost: Cost, like: Release | None = None) -> Blocks:
    """The blocks of a channel or group each; none for other kernels, and where channels lie next to each other.

    Up to PyTorch 2.7 a single warp takes all targets of a loss that is summed up: its binaries launch
    nll_loss_forward_reduce_cuda_kernel_2d, and the gradient's, with one block of 32 threads.
    """
    if op.kind in _OF_A_TARGET and op.attrs["reduction"] and not (like or PRESENT).shares_targets:
        return Blocks(count=1, loads=-(-integer(op.attrs["target"].numel) // _WARP) * _OF_A_TARGET[op.kind])
    if not op.inputs or len(op.inputs[0].shape) < 3 or not _over_all(op, cost):
        return NO_BLOCKS
    x = op.inputs[0]
    if x.channels_last:
        return NO_BLOCKS
    backward, of_groups = op.kind in _ALL_GRADIENTS, op.kind in GROUP_NORMS
    tensors = 2 if backward else 1
    if of_groups:  # a group, backward a channel of an image
        count = integer(x.shape[0]) * integer(x.shape[1]) if backward else integer(op.outputs[1].numel)
    else:
        count = integer(x.shape[1])
    steps = integer(x.numel) // (count * SUM_THREADS)
    if of_groups or op.attrs.get("weight") is None:  # the result is another kernel's
        return Blocks(count=count, loads=steps, bytes=tensors * integer(x.bytes))
    passes = NORM_PASSES * tensors
    loads = steps * passes * x.dtype.itemsize // _SUMMED_BYTES
    return Blocks(count=count, loads=loads, bytes=(passes + 1) * integer(x.bytes))


_PLACE = int(NUMBERS["average place"].value)  # a maximum's thread takes no longer than its taps


def window_accesses(op: Op) -> int:
    """Loads of single elements by the threads of a pooling or resampling, each of which walks a result's window."""
    if op.kind not in _WINDOWS:
        return 0
    sizes = tuple(op.attrs.get("kernel_size") or ())
    dimensions = len(op.outputs[0].shape) - 2
    taps = math.prod(map(integer, sizes * dimensions if len(sizes) == 1 else sizes))
    return integer(op.outputs[0].numel) * (taps + (_PLACE if op.kind in AVERAGE_POOLS else 0))
