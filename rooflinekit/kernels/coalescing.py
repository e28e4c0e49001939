"""What PyTorch's kernels on a GPU pay for tensors that do not lie in the order in which they are read.

An elementwise kernel (aten/src/ATen/native/cuda/Loops.cuh, MemoryAccess.cuh) walks the elements in the order of its
result, 512 to a block. Memory comes in sectors of 32 bytes: a block that reads a transposed tensor fetches one for each
element, and the rest of the sector again for other blocks, out of the L2. Kernels of rows (softmax, normalization)
first make a contiguous copy of what they are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import itemgetter

from rooflinekit.cost.rules.elementwise import SOFTMAX_GRADIENTS, SOFTMAXES
from rooflinekit.cost.rules.movement import PADS
from rooflinekit.cost.rules.optimizer import LISTS
from rooflinekit.cost.rules.reduction import GROUP_NORMS, LAYER_NORM, LAYER_NORM_GRADIENT, RMS_NORM, RMS_NORM_GRADIENT
from rooflinekit.cost.rules.resampling import UPSAMPLES
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.points import Number, integer, larger
from rooflinekit.kernels.algorithms import ceiled

SECTOR_BYTES = 32  # that are fetched from DRAM and L2 for a number
_BLOCK_ELEMENTS = 512  # 128 threads with 4 elements each

_WALKING = (Family.ELEMENTWISE, Family.MOVEMENT)
#: A softmax's gradient takes that of its result times the result, by an elementwise kernel before it
#: (softmax_backward_cuda_out of aten/src/ATen/native/cuda/SoftMax.cu).
SOFTMAX_GRADIENT = "aten._softmax_backward_data"
#: Kernels of whole lists of tensors, each of which they walk in its own order.
_OF_LISTS = frozenset((*LISTS, "aten.cat", "aten.stack"))
_PICKING, _GATHER = ("aten.index_select", "aten.embedding"), "aten.gather"
_PLACES_OF_A_DIVISION = 2  # 46 cycles
#: A quotient and a remainder name row and column; then come the places of both operands.
_PLACES_OF_A_PICK = 2 * _PLACES_OF_A_DIVISION + 2
#: By how many divisions a thread finds the place of its result, by the source (aten/src/ATen/native/cuda: UpSample*.cu,
#: ReplicationPadding.cu, ReflectionPad.cu); a quotient and a remainder by the same number are one.
_DIVISIONS = {
    **dict.fromkeys(("aten.upsample_nearest1d", "aten._upsample_nearest_exact1d"), 2),
    **dict.fromkeys(("aten.upsample_nearest3d", "aten._upsample_nearest_exact3d"), 7),
    **dict.fromkeys(("aten.replication_pad2d", "aten.reflection_pad2d"), 1),
    **dict.fromkeys(("aten.replication_pad3d", "aten.reflection_pad3d"), 3),
}
_DIVISIONS_IN_CHANNELS_LAST = dict.fromkeys(("aten.upsample_nearest2d", "aten._upsample_nearest_exact2d"), 3)
#: How many of their inputs kernels want contiguous: those of rows, and of images that are padded or interpolated.
_CONTIGUOUS = {
    **dict.fromkeys((*UPSAMPLES, *PADS), 1),
    **dict.fromkeys((*SOFTMAXES, *SOFTMAX_GRADIENTS, LAYER_NORM, RMS_NORM), 1),
    **dict.fromkeys((LAYER_NORM_GRADIENT, RMS_NORM_GRADIENT), 2),
    SOFTMAX_GRADIENT: 0,
}


def differs_on_a_gpu(op: Op, family: Family) -> bool:
    """Whether its kernels on a GPU may be others than elsewhere: some of what it reads or writes is not contiguous."""
    if op.kind in (SOFTMAX_GRADIENT, *GROUP_NORMS):
        return True
    return (family in _WALKING or op.kind in _CONTIGUOUS) and _strided(op)


def _strided(op: Op) -> bool:
    return any(tensor.stride is not None for tensor in (*op.inputs, *op.outputs))


def sector_bytes(op: Op, family: Family) -> Number:
    """Bytes that blocks of an elementwise kernel fetch beyond what it reads, as sectors hold other blocks' elements."""
    if family not in _WALKING or not op.outputs or not _strided(op):
        return 0
    result = op.outputs[0]
    return sum(_beyond(tensor, result) for tensor in op.inputs if _broadcasts(tensor, result))


def indexed_accesses(op: Op, family: Family, like: Release | None = None) -> Number:
    """Places of elements that a kernel works out, one by one, for what it loads and stores.

    Where operands do not all lie alike, as a broadcast one, each thread works out where every element lies
    (unrolled_elementwise_kernel with an OffsetCalculator). A single number is no operand. Rows that an index names were
    copied by elements up to PyTorch 2.7 (indexSelectLargeIndex of aten/src/ATen/native/cuda/Indexing.cu). Threads
    that pad or interpolate images divide.
    """
    if family not in _WALKING or not op.outputs or op.kind.removesuffix("_") in _OF_LISTS:
        return 0
    result = op.outputs[0]
    if op.kind in _PICKING and not (like or PRESENT).gathers_vectors:
        return integer(result.numel) * _PLACES_OF_A_PICK
    if op.kind == _GATHER and (like or PRESENT).gathers_vectors and _steps(op.inputs[1], 1)[-1] == 0:
        return 0  # an index that is expanded names whole rows (vectorized_gather_kernel)
    divisions = (_DIVISIONS_IN_CHANNELS_LAST if result.channels_last else _DIVISIONS).get(op.kind, 0)
    if divisions:
        return integer(result.numel) * divisions * _PLACES_OF_A_DIVISION
    if all((one.shape, one.stride) == (result.shape, result.stride) for one in op.inputs):
        return 0
    operands = [one for one in op.inputs if integer(one.numel) > 1 and _broadcasts(one, result)]
    lies = _steps(result, len(result.shape))
    if all(_steps(one, len(result.shape)) == lies for one in operands):
        return 0
    return integer(result.numel) * (len(operands) + 1)


def copied(op: Op) -> Iterator[tuple[TensorSpec, Number]]:
    """The inputs of which a kernel makes contiguous copies, with the bytes that such a copy fetches beyond."""
    as_is = op.kind in UPSAMPLES and op.outputs[0].channels_last
    for tensor in op.inputs[: 0 if as_is else _CONTIGUOUS.get(op.kind, 0)]:
        contiguous, dimensions = tensor.seen(*tensor.shape), len(tensor.shape)
        if _steps(tensor, dimensions) != _steps(contiguous, dimensions):
            yield tensor, _beyond(tensor, contiguous)


def _broadcasts(tensor: TensorSpec, result: TensorSpec) -> bool:
    """Whether it is read along the result's elements."""
    lengths = result.shape[len(result.shape) - len(tensor.shape) :]
    return len(lengths) == len(tensor.shape) and all(
        integer(own) in (1, integer(length)) for own, length in zip(tensor.shape, lengths, strict=True)
    )


def _steps(tensor: TensorSpec, dimensions: int) -> tuple[Number, ...]:
    """In elements, for so many dimensions; 0 along those in which the tensor is broadcast."""
    shape = tuple(map(integer, tensor.shape))
    if tensor.stride is None:
        steps = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    else:
        steps = tuple(map(integer, tensor.stride))
    own = (0 if size == 1 else step for size, step in zip(shape, steps, strict=True))
    return (0,) * (dimensions - len(shape)) + tuple(own)


def memory_order(tensor: TensorSpec) -> tuple[int, ...]:
    """The dimensions with more than one element, from the fastest on."""
    steps = _steps(tensor, len(tensor.shape))
    found = [i for i in reversed(range(len(steps))) if steps[i] != 0]
    return tuple(found if tensor.stride is None else sorted(found, key=lambda i: steps[i]))


def _beyond(tensor: TensorSpec, result: TensorSpec) -> Number:
    """Bytes of all sectors that blocks fetch of a tensor as they walk the result, less those that they read."""
    steps, itemsize = _steps(tensor, len(result.shape)), tensor.dtype.itemsize
    elements: Number = 1
    block = []
    for i in memory_order(result):
        size, room = integer(result.shape[i]), _BLOCK_ELEMENTS // elements
        if room > 1:
            size = size if size <= room else room
            block.append((size, steps[i] * itemsize))
            elements = elements * size
    fetched = SECTOR_BYTES * _sectors(block, itemsize)
    return larger(0, integer(result.numel) * (fetched - elements * itemsize) // elements)


def _sectors(block: Iterable[tuple[Number, Number]], itemsize: int) -> Number:
    """Sectors of elements that lie so many bytes apart along each size: runs without a gap of a sector, each alone."""
    run, runs = itemsize, 1
    for size, apart in sorted(block, key=itemgetter(1)):
        if apart > larger(run, SECTOR_BYTES):
            runs = runs * size
        else:
            run = run + (size - 1) * apart
    return runs * ceiled(run, SECTOR_BYTES)
