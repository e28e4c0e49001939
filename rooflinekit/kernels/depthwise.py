"""Convolutions without tiles: how each thread walks the window of its result by itself.

So it is where there is nothing to tile (a channel a group), or a library has no tiled kernel. PyTorch has such kernels
of its own (aten/src/ATen/native/cuda/DepthwiseConv2d.cu); cuDNN takes over where aten/src/ATen/native/Convolution.cpp
(use_cudnn_depthwise) says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.points import Number
from rooflinekit.kernels.algorithms import ATEN, Algorithm, ByUnit
from rooflinekit.published.stated import NUMBERS

_THREADS = Algorithm(library=ATEN, shape="threads", cuda_cores_only=True)
#: Unrolled, in 16 bits.
UNROLLED = replace(_THREADS, window_cycles="window_cycles", tap_cycles="tap_cycles")
#: The compiler does not know the window's size.
WINDOW_LOOP = replace(_THREADS, name="window loop", tap_cycles="loop_tap_cycles")
#: PyTorch's in fp32, where cuDNN has none: four divisions for image, channel, row and column. In a loop a tap takes as
#: long as in an unrolled window, for nothing is converted.
SINGLE_WINDOW = replace(UNROLLED, name="window in fp32", window_divisions=4)
#: Threads whose windows overlap fetch what they share once.
SHARED_WINDOWS = replace(UNROLLED, name="shared windows", sharers=NUMBERS["window sharers"].value)
#: Of a weight's gradient: for each of its numbers once over all pixels, each found anew.
TAP_SUMS = replace(_THREADS, name="sums by tap", tap_cycles="loop_tap_cycles", tap_divisions=1)
#: A thread a result, over the channels of its group too.
GROUP_SUMS = replace(_THREADS, name="sums in groups", tap_cycles="loop_tap_cycles", fills=ByUnit.both(True))
#: As of any other grouped convolution, each of one channel.
CHANNEL_PRODUCTS = replace(_THREADS, name="a product a channel", tap_cycles="channel_tap_cycles")

_UNROLLED = (1, 3, 5)  # square windows, of PyTorch's kernels and of cuDNN's with channels first
_UNROLLED_LAST = 7  # squares of cuDNN's with channels last: timm's benchmark sees no fall (ConvNeXt, ConvMixer)
_LEAST_CHANNELS = 32  # of a line's, of any window, that cuDNN takes


def is_depthwise(cost: Cost) -> bool:
    """Whether each group has one channel in and one out: only the window is left to contract."""
    return any(gemm.batch != 1 and 1 in (gemm.n, gemm.m) for gemm in cost.gemms)


def depthwise_algorithm(
    *,
    channels_last: bool,
    sixteen_bits: bool,
    window: Sequence[int],
    dense: bool,
    channels: Number,
    forward: bool,
    sums: bool,
) -> Algorithm:
    """How a GPU runs a depthwise convolution. dense: no stride, no dilation. sums: the gradient of the weight.

    Of what cuDNN takes with channels first (check_cudnn_depthwise_workload), PyTorch unrolls all squares by itself, so
    lines alone are told apart.
    """
    if channels_last:
        if max(window) > _UNROLLED_LAST or len(set(window)) > 1:
            return CHANNEL_PRODUCTS
        return SHARED_WINDOWS if forward else UNROLLED
    if sums:
        return TAP_SUMS
    if not sixteen_bits:
        return SINGLE_WINDOW
    unrolled = len(set(window)) == 1 and window[0] in _UNROLLED
    by_library = len(window) == 1 and dense and channels >= _LEAST_CHANNELS
    return UNROLLED if unrolled or by_library else WINDOW_LOOP
