"""The algorithms that libraries have for a convolution, as matrix products with the traffic beside them.

Sizes may be numbers, numbers at points, or arrays of measured cases; what is made of them is of the same kind.

    implicit    windows are gathered as a product goes along                                      every library
    Winograd    blocks of e×e results of 3×3 windows take (e+2)² products instead of 9·e²         every library
    in passes   the same of a weight's gradient, transforms and products as kernels of their own  MIOpen
    FFT         tiles of 32×32, 32·17 complex products instead of one for each tap                cuDNN
    batched     one pixel sees one pixel: a product for each image, by the library of products    MIOpen
    unfolded    the windows of an image are written out, and the library of products is called    MIOpen
    naive       a thread a result, nothing shared                                                 MIOpen

Which exist where is read from cuDNN's developer guide (its table of algorithms and what each supports) and from the
names of MIOpen's solvers with what their `IsApplicable` asks for (`model.miopen_forms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

FEWER_FLOP = (WINOGRAD, IN_PASSES, FFT)  # than the plain product has

WINOGRAD_EDGES = (2, 4)  # of a block of outputs
WINOGRAD_UNFUSED = 4  # the edge whose transformed tensors go through memory

_FFT_TILE = 32  # cuDNN's FFT_TILING
_FFT_LEAST = 5  # window below which it is not taken (DeepBench: 5×5 and larger alone)
_REAL = 4  # real multiplications in a complex one

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
        channels = _at_least(self.outer, _SCATTERED_CHANNELS)
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
    added: Number = 0  # of the result, which each launch but the first reads and writes again
    generation: str = ""  # of the GPUs that alone have it
    repeats: Number = 1  # launches, one after the other
    calls: Number = 0  # of the library of products
    untuned: Any = False  # whether that library has no tuned kernel of these sizes, of a format that lanes emulate


def cudnn_forms(p: Problem) -> Iterator[Form]:
    """cuDNN's algorithms beside the implicit product."""
    plain = all_of(d == 1 for d in (*p.stride, *p.dilation))
    flat = (p.window[0] == 1) & (p.volume == False)  # noqa: E712 (arrays)
    square = flat & (p.window[1] == 3) & (p.window[2] == 3)
    larger = flat & (p.window[1] == 5) & (p.window[2] == 5)
    yield from _winograd(p, plain & (square | larger) & (p.groups == 1))
    if p.direction != "weight":
        yield _fourier(p, plain & (p.groups == 1))


def _winograd(p: Problem, possible: Any) -> Iterator[Form]:
    """F(2×2, 3×3) and F(4×4, 3×3), and those of 5×5 (Lavin and Gray, 2016).

    The larger keeps its transformed tensors in memory.
    So do both of a weight's gradient, whose blocks of e×e pixels come as products with those of the image.
    """
    k, n = summed(p)
    weight = p.direction == "weight"
    for edge in WINOGRAD_EDGES:
        batch, count = (edge + p.window[1] - 1) ** 2, p.images * blocks(p.written, edge)
        moved = p.itemsize * batch * count * (n + k) if edge == WINOGRAD_UNFUSED or weight else 0
        gemm = Gemm(batch=batch, m=n, n=k, k=count) if weight else Gemm(batch=batch, m=count, n=n, k=k)
        yield Form(algorithm=WINOGRAD, library=CUDNN, gemm=gemm, possible=possible, lanes=True, moved=moved)


def _fourier(p: Problem, possible: Any) -> Form:
    """Tiles of 32×32 as products of their spectra: a tile holds 33 - r results along a window of r.

    Taps along a depth stay as they are. It sums spectra over channels, so few of them are gathered instead: volumes of
    3 channels take 3 to 5 times what this would (KernelBench on T4), and what the gathered product does.
    """
    (depth, rows, columns), (taps, r, s) = p.written, p.window
    tiles = (
        p.images
        * depth
        * ceiled(rows, _at_least(_FFT_TILE + 1 - r, 1))
        * ceiled(columns, _at_least(_FFT_TILE + 1 - s, 1))
    )
    k, n = summed(p)
    batch = _FFT_TILE * (_FFT_TILE // 2 + 1)
    fits = (k >= FEW["forward"]) & (r >= _FFT_LEAST) & (s >= _FFT_LEAST) & (r <= _FFT_TILE) & (s <= _FFT_TILE)
    moved = 2 * p.itemsize * batch * (tiles * (k + n) + k * n * taps)
    gemm = Gemm(batch=batch * _REAL, m=tiles, n=n, k=k * taps)
    return Form(algorithm=FFT, library=CUDNN, gemm=gemm, possible=possible & fits, lanes=True, moved=moved)


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


def _at_least(size: Any, least: int) -> Any:
    return np.maximum(least, size) if isinstance(size, np.ndarray) else larger(least, size)


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
