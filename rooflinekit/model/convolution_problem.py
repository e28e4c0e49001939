"""A convolution as libraries see it: its sizes, and what an algorithm makes of them.

Sizes may be numbers, or numbers at points; what is made of them is of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.points import Number, larger
from rooflinekit.model.algorithms import Algorithm

Direction = Literal["forward", "data", "weight"]
VECTOR_BYTES = 16  # of channels, that kernels of a tensor core load at once
#: Channels below which they are no vector that kernels of a tensor core could load, by direction. Gradients of an
#: image, of which transposed convolutions are the common case, go through kernels of the CUDA cores up to more: 3 and 8
#: channels take the same time, as do strides of 1 and 2 (KernelBench's transposed convolutions).
FEW: dict[Direction, int] = {"forward": 4, "data": 16, "weight": 4}
_SCATTERED_CHANNELS = 8  # that such a kernel takes at once
WIDE = 7  # window above which kernels have no unrolled form


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
    """An algorithm for a problem: its products, in as many equal parts as `repeats`, and traffic beside the tensors."""

    algorithm: Algorithm
    gemm: Gemm
    possible: Any = True
    moved: Number = 0  # bytes written, and read again
    alone: Number = 0  # bytes of all its traffic that kernels of their own move, before and after its products
    added: Number = 0  # of the result, which each launch but the first reads and writes again
    repeats: Number = 1  # launches, one after the other
    calls: Number = 0  # of the library of products
    untuned: Any = False  # whether that library has no tuned kernel of these sizes in bf16


def result_sizes(image: Any, window: Any, pad: Any, stride: Any, dilation: Any) -> Any:
    """Pixels of a result along one side."""
    return (image + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def summed(p: Problem) -> tuple[Number, Number]:
    """Channels a group that are summed over, and those that come out."""
    return (p.outer, p.inner) if p.direction == "data" else (p.inner, p.outer)


def filled_up(p: Problem) -> Number:
    """By how much the channels grow that a tensor core's kernels gather, filled up to whole vectors of 16 bytes."""
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
