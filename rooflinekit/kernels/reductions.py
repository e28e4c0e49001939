"""How PyTorch shares out a sum, a maximum or a norm among blocks: setReduceConfig of ATen/native/cuda/Reduce.cuh.

Few results mean few blocks, and each thread of them waits for its loads, four numbers at once, one round after the
other. So eight blocks take as long as a hundred.
"""

from __future__ import annotations

from typing import Any

from rooflinekit.cost.table import aten
from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import Op, TensorSpec
from rooflinekit.ir.points import Number, integer
from rooflinekit.kernels.algorithms import ceiled
from rooflinekit.kernels.coalescing import memory_order
from rooflinekit.kernels.rows import NO_BLOCKS, SUM_THREADS, Blocks

#: Operators whose only kernel is `reduce_kernel`.
SUMS = frozenset(
    aten(
        "sum nansum mean prod amax amin aminmax max min argmax argmin any all count_nonzero var std var_mean std_mean "
        "linalg_vector_norm norm"
    )
)
_WARP = 32
_AT_ONCE = 4  # numbers that a thread loads, or results that it sums, at once (vt0, input_vec_size, output_vec_size)
_LEAST_EACH, _MOST_EACH = 16, 256  # numbers of a thread: more warps share a result, or more blocks
_LEAST_VECTOR = 128  # numbers of a sum that is loaded in vectors
_JOINED_LOADS = 3  # where blocks share a result: the part is written, counted, and read by the last block


def sum_blocks(op: Op, device: Device | None = None) -> Blocks:
    """The blocks of a sum, as many as if each had SUM_THREADS, and the loads that a thread of one waits for.

    device: whose warps have so many threads; None for 32.
    """
    warp = device.warp if device else _WARP
    x, results = op.inputs[0], integer(op.outputs[0].numel)
    numbers = integer(x.numel)
    if results == 0 or numbers <= results:
        return NO_BLOCKS
    each = numbers // results
    if _sums_along_memory(x, op.attrs.get("dim")):
        at_once = 1 if results == 1 and each > _LEAST_VECTOR else _AT_ONCE  # a vector is one load
        each = each * at_once // _AT_ONCE
        width, height = _block(each, results, SUM_THREADS, warp)
        each, held = ceiled(each, width), 1
    else:
        vector = next(many for many in (_AT_ONCE, 2, 1) if results % many == 0)
        at_once = _AT_ONCE
        width, height = _block(results // vector, each, SUM_THREADS // vector, warp)
        held = vector * width
    shares = bool(each >= min(_LEAST_EACH * height, _MOST_EACH))
    each, held = (ceiled(each, height), held) if shares else (each, held * height)
    blocks, loads = ceiled(results, held), ceiled(each, at_once)
    if shares and each >= _MOST_EACH:
        blocks, loads = blocks * ceiled(each, _LEAST_EACH), ceiled(_LEAST_EACH, at_once) + _JOINED_LOADS
    return Blocks(count=ceiled(blocks * width * height, SUM_THREADS), loads=loads, bytes=integer(x.bytes))


def _sums_along_memory(x: TensorSpec, dims: Any) -> bool:
    """Whether numbers that lie next to each other are summed."""
    order = memory_order(x)
    if dims is None or dims == () or dims == [] or not order:
        return True
    several = (dims,) if isinstance(dims, int) else dims
    return order[0] in {dim % len(x.shape) for dim in several}


def _block(wide: Number, high: Number, most: int, warp: int) -> tuple[int, int]:
    """Threads side by side and on top of each other: powers of two, a warp wide where there are rows enough."""
    width = min(_power(wide, most), warp)
    height = min(_power(high, most), most // width)
    return min(_power(wide, most), most // height), height


def _power(number: Number, most: int) -> int:
    """The largest power of two up to a number and `most`; each comparison is of all points of a sweep."""
    power = 1
    while power < most and number >= 2 * power:
        power *= 2
    return power
