"""The algorithms that libraries have for a convolution, as matrix products with the traffic beside them.

Sizes may be numbers, numbers at points, or arrays of measured cases; what is made of them is of the same kind.

    implicit    windows are gathered as a product goes along                                      every library
    Winograd    blocks of e×e results of 3×3 windows take (e+2)² products instead of 9·e²         every library
    in passes   the same, transforms and products as kernels of their own                         every library
    FFT         tiles of 32×32, 32·17 complex products instead of one for each tap                cuDNN
    batched     one pixel sees one pixel: a product for each image, by the library of products    MIOpen
    unfolded    the windows of an image are written out, and the library of products is called    MIOpen
    naive       a thread a result, nothing shared                                                 MIOpen

Which exist where is read from cuDNN's developer guide (its table of algorithms and what each supports) and from the
names of MIOpen's solvers with what their `IsApplicable` asks for (`model.cudnn_forms`, `model.miopen_forms`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.points import Number, larger
from rooflinekit.ir.tensor import Math
from rooflinekit.model.kernel import MIOPEN

Direction = Literal["forward", "data", "weight"]
CUDNN = "cuDNN"
WINOGRAD, FFT, UNFOLDED, NAIVE = "Winograd", "FFT", "unfolded", "naive"
GATHERED = "gathered"  # every second pixel, by the library of products
IN_PASSES = "Winograd in passes"  # its products by the library of products, between transforms

#: Implicit products that no unrolled kernel of the matrix engine does.
FEW_CHANNELS = "few channels"  # on the lanes, element by element
FEW_IN_HALF = "few channels in 16 bits"  # the gradient of a weight, whose sums are in 32
PIXELWISE = "pixel by pixel"  # MIOpen's where a pixel sees one pixel
WIDE_WINDOW = "wide window"  # of a volume, or of more than 7 pixels along one side

HALF = (Math.FP16, Math.BF16)  # formats of 16 bits
FEWER_FLOP = (WINOGRAD, IN_PASSES, FFT)  # than the plain product has

VECTOR_BYTES = 16  # of channels, that kernels of a matrix engine load at once
#: Channels below which they are no vector that kernels of a matrix engine could load, by direction. Gradients of an
#: image, of which transposed convolutions are the common case, go through kernels of the lanes up to more: 3 and 8
#: channels take the same time, as do strides of 1 and 2 (KernelBench's transposed convolutions).
FEW: dict[Direction, int] = {"forward": 4, "data": 16, "weight": 4}
_SCATTERED_CHANNELS = 8  # that such a kernel takes at once
WIDE = 7  # window above which kernels have no unrolled form


def library_of(device: Device) -> str:
    """The library that runs a device's convolutions; on CPUs oneDNN, which stands with cuDNN, whoever made the CPU."""
    return MIOPEN if device.vendor == "AMD" and device.kind == "gpu" else CUDNN


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A convolution, or one of its gradients. A transposed one is the data gradient of the plain one."""

    direction: Direction
    images: Number
    groups: Number
    inner: Number  # channels a group of the plain convolution's image
    outer: Number  # and of its result
    image: tuple[Number, ...]  # depth, height and width; 1 where it has none
    result: tuple[Number, ...]
    window: tuple[Any, ...]
    stride: tuple[Any, ...]
    dilation: tuple[Any, ...]
    itemsize: Number
    volume: Any = False  # whether tensors have a depth, even if it is 1

    @property
    def taps(self) -> Number:
        """Pixels of the window."""
        return product_of(self.window)

    @property
    def pixels(self) -> Number:
        """Of the result, of one image."""
        return product_of(self.result)

    @property
    def gathered(self) -> Number:
        """Channels a group that lie behind each other in what is gathered."""
        return self.outer if self.direction == "data" else self.inner

    @property
    def tensors(self) -> tuple[Number, Number, Number]:
        """Bytes of the image, the weight and the result."""
        channels = self.inner, self.inner * self.outer, self.outer
        counts = self.images * product_of(self.image), self.taps, self.images * self.pixels
        image, weight, result = (self.itemsize * self.groups * c * n for c, n in zip(channels, counts, strict=True))
        return image, weight, result

    @property
    def pointwise(self) -> Any:
        """Whether each output pixel sees one input pixel."""
        return (self.taps == 1) & all_of(s == 1 for s in self.stride)

    @property
    def wide(self) -> Any:
        """Whether libraries have no kernels that are unrolled for its window: volumes, and windows above 7."""
        return (self.window[0] > 1) | (self.window[1] > WIDE) | (self.window[2] > WIDE)

    @property
    def cleared(self) -> Number:
        """Numbers of an image's gradient that are set to 0 before: of all, where no window sees some of its pixels."""
        unseen = any_of(w < s for w, s in zip(self.window, self.stride, strict=True))
        return self.images * self.groups * self.inner * product_of(self.image) * unseen

    @property
    def written(self) -> tuple[Number, ...]:
        """Sizes of what is written, of a weight's gradient of what is read with the windows."""
        return self.image if self.direction == "data" else self.result

    def product(self) -> Gemm:
        """All of it as one implicit product."""
        return self._product(self.images, 1)

    def by_image(self) -> Gemm:
        """A product for each image."""
        return self._product(1, self.images)

    @property
    def scattered(self) -> Number:
        """By how much FLOP grow where a data gradient of few channels takes every tap at every pixel.

        It does so whether the stride meets the tap or not.
        """
        channels = at_least(self.outer, _SCATTERED_CHANNELS)
        return product_of(self.image) * channels / (self.pixels * self.outer)

    def _product(self, images: Number, batch: Number) -> Gemm:
        pixels, of_window = images * self.pixels, self.taps * self.inner
        if self.direction == "weight":
            return Gemm(batch=self.groups * batch, m=self.outer, n=of_window, k=pixels)
        if self.direction == "data":
            return Gemm(batch=self.groups * batch, m=pixels, n=self.inner, k=self.outer * self.taps)
        return Gemm(batch=self.groups * batch, m=pixels, n=self.outer, k=of_window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One algorithm: its products, in as many equal parts as `repeats`, and its traffic beside the tensors' own."""

    algorithm: str
    library: str  # that has it
    gemm: Gemm
    possible: Any = True
    lanes: bool = False  # whether it is for the vector lanes alone
    formats: tuple[Math, ...] = (Math.FP32, Math.TF32)
    moved: Number = 0  # bytes written, and read again
    alone: Number = 0  # bytes of all its traffic that kernels of their own move, before and after its products
    added: Number = 0  # of the result, which each launch but the first reads and writes again
    generation: str = ""  # of the GPUs that alone have it
    repeats: Number = 1  # launches, one after the other
    calls: Number = 0  # of the library of products
    untuned: Any = False  # whether that library has no tuned kernel of these sizes, of a format that lanes emulate


def result_sizes(image: Any, window: Any, pad: Any, stride: Any, dilation: Any) -> Any:
    """Pixels of a result along one side."""
    return (image + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def summed(p: Problem) -> tuple[Number, Number]:
    """Channels a group that are summed over, and those that come out."""
    return (p.outer, p.inner) if p.direction == "data" else (p.inner, p.outer)


def filled_up(p: Problem) -> Number:
    """By how much the channels grow that a matrix engine's kernels gather, filled up to whole vectors of 16 bytes."""
    vector = VECTOR_BYTES // p.itemsize
    return ceiled(p.gathered, vector) * vector / p.gathered


def blocks(sizes: tuple[Number, ...], edge: int) -> Number:
    """Blocks of so many pixels along a side that cover an image, in each slice along its depth."""
    return sizes[0] * ceiled(sizes[1], edge) * ceiled(sizes[2], edge)


def ceiled(size: Any, piece: Any) -> Any:
    """How many pieces cover a size."""
    return -(-size // piece)


def at_least(size: Any, least: int) -> Any:
    """The size, or the least that it may be."""
    return np.maximum(least, size) if isinstance(size, np.ndarray) else larger(least, size)


def least_of(numbers: Iterable[Any]) -> Any:
    """The least of several, case by case where they are arrays."""

    def smaller(a: Any, b: Any) -> Any:
        return np.minimum(a, b) if isinstance(a, np.ndarray) else a + b - larger(a, b)

    return functools.reduce(smaller, numbers)


def product_of(sizes: Sequence[Any]) -> Any:
    """Of all sizes."""
    found: Any = 1
    for size in sizes:
        found = found * size
    return found


def all_of(conditions: Iterable[Any]) -> Any:
    """Whether all hold: case by case where they are arrays."""
    found: Any = True
    for condition in conditions:
        found = found & condition
    return found


def any_of(conditions: Iterable[Any]) -> Any:
    """Whether one holds."""
    found: Any = False
    for condition in conditions:
        found = found | condition
    return found
