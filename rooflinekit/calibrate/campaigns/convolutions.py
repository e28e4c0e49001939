"""Measured convolutions as work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.columns import Candidates, column, itemsize, maths
from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math
from rooflinekit.model import cudnn, miopen
from rooflinekit.model.algorithms import CUDNN, HALF, MIOPEN, SINGLE, Algorithm
from rooflinekit.model.convolution import forms
from rooflinekit.model.convolution_layouts import SUMS_READ, SUMS_WRITTEN, gradients_in_either, odd_rows, sums_in_fp32
from rooflinekit.model.convolution_problem import FEW, Direction, Form, Problem, filled_up, result_sizes
from rooflinekit.model.depthwise import depthwise_algorithm
from rooflinekit.model.engines import on_engine
from rooflinekit.model.libraries import exists, generation_of, rated_as
from rooflinekit.model.work import Floats, Products, Work

_DIRECTIONS: dict[str, Direction] = {"conv_fwd": "forward", "conv_bwd_data": "data", "conv_bwd_weight": "weight"}
CONVOLUTIONS = tuple(_DIRECTIONS)

_SIDES = (("depth", "kernel_depth", "depth"), ("h", "r", "h"), ("w", "s", "w"))  # sizes of image, window, and the rest


def convolution(rows: pd.DataFrame, device: Device | None = None) -> Candidates:
    """Images [b, c_in, (depth,) h, w], kernel [c_out, c_in, (kernel_depth,) r, s], by every algorithm of the library.

    In `groups`, each sees c_in / groups channels. A transposed convolution is a conv_bwd_data. Where cuDNN multiplies
    on a matrix engine, it wants channels last, save where a pixel sees one pixel: images that are channels first are
    copied before and after.
    """
    cases = _Cases(rows, device)
    return [*(cases.of_miopen() if cases.library == MIOPEN else cases.of_cudnn())]


class _Cases:
    """Measurements of one direction in one format."""

    def __init__(self, rows: pd.DataFrame, device: Device | None) -> None:
        self.rows, self.device = rows, device
        self.library = CUDNN if device is None else rated_as(device)
        self.math = maths(rows)[0]
        self.problem = p = _problem(rows)
        size = itemsize(rows)
        image, result = (size * p.images * p.groups * n for n in (p.inner * _prod(p.image), p.outer * p.pixels))
        kernel = size * p.groups * p.inner * p.outer * p.taps
        read_and_written = {
            "forward": (image + kernel, result), "data": (result + kernel, image), "weight": (result + image, kernel),
        }  # fmt: skip
        self.read, self.write = read_and_written[p.direction]
        if p.direction == "data":
            self.write = self.write + p.itemsize * p.cleared
        self.copied = {"forward": (image, result), "data": (result, image), "weight": (image, result)}[p.direction]
        thin = {"forward": p.outer, "data": p.inner, "weight": np.minimum(p.outer, p.inner * p.taps)}[p.direction]
        self.depthwise = (p.groups > 1) & (thin == 1)
        self.few = self._few()
        self.padded = np.where(self.few & (p.direction == "data"), p.scattered, filled_up(p))

    def of_cudnn(self) -> Iterator[tuple[tuple[Work, ...], np.ndarray | None]]:
        """The implicit product, with copies where there are any, and what else there is."""
        p, few = self.problem, self.few
        wide = p.volume | (p.wide & self._on_engine())
        implicit = _either(wide, cudnn.WIDE_WINDOW, cudnn.IMPLICIT[p.direction])
        implicit = _either(few, self._few_algorithms(), implicit)
        implicit = _either(p.pointwise & (p.direction == "forward"), cudnn.POINTWISE, implicit)
        algorithm = _either(self.depthwise, self._in_threads(), implicit)
        direct = self._work(p.product(), algorithm, engine=~self.depthwise & ~few)
        if not self._on_engine():
            yield (direct,), None
        else:
            copied = ~((p.taps == 1) & self._either_layout()) & ~self.depthwise & ~few
            first = copied & (column(self.rows, "channels_last", 0) == 0)
            before, after = (Work.of(len(self.rows), read_bytes=n, write_bytes=n) for n in self.copied)
            yield from self._with_sums((before, direct, after), first)
            image, result = (~first & self._odd(pixels) for pixels in (_prod(p.image), p.pixels))
            for parts, where in (
                ((before, direct, after), image & result), ((before, direct), image & ~result),
                ((direct, after), result & ~image), ((direct,), ~first & ~image & ~result),
            ):  # fmt: skip
                if where.any():
                    yield from self._with_sums(parts, where)
        yield from self._others(~self.depthwise)

    def _with_sums(self, parts: tuple[Work, ...], where: np.ndarray) -> Iterator[tuple[tuple[Work, ...], np.ndarray]]:
        """And the kernels around sums of a weight's gradient in fp32 (`model.convolution_layouts`)."""
        engines = () if self.device is None else self.device.matrix_peak
        if not (self.problem.direction == "weight" and self.math in HALF and sums_in_fp32(engines)):
            yield parts, where
            return
        weight = self.problem.tensors[1] / self.problem.itemsize
        around = Work.of(len(self.rows), read_bytes=SUMS_READ * weight, write_bytes=SUMS_WRITTEN * weight)
        tiled = ~self.few & ~self.depthwise
        yield (*parts, around), where & tiled
        if (where & ~tiled).any():
            yield parts, where & ~tiled

    def of_miopen(self) -> Iterator[tuple[tuple[Work, ...], np.ndarray | None]]:
        """The implicit product, where there is one, without copies; windows by threads; and what else there is."""
        p = self.problem
        gathered = miopen.PIXELWISE_WEIGHT if p.direction == "weight" else miopen.PIXELWISE
        early = self.device is not None and generation_of(self.device) == miopen.GCN
        assembled = early | (self.math is not Math.BF16)
        way = _either(miopen.gathers_pixels(self.math, p) & assembled, gathered, miopen.IMPLICIT[p.direction])
        tiled = ~p.volume if self.math in HALF else np.ones(len(self.rows), dtype=bool)
        tiled = tiled & (early | (p.taps > 1) | miopen.has_compiled(self.math, p.direction))
        yield (self._work(p.product(), way, engine=~p.volume),), tiled
        if self.depthwise.any():
            yield (
                (self._work(p.product(), _either(self.depthwise, self._in_threads(), way), engine=False),),
                (self.depthwise & ~p.volume),
            )
        yield from self._others(np.ones(len(self.rows), dtype=bool))

    def _others(self, allowed: np.ndarray) -> Iterator[tuple[tuple[Work, ...], np.ndarray]]:
        for form in forms(self.problem):
            possible = np.broadcast_to(np.asarray(form.possible), (len(self.rows),)) & allowed
            one = form.algorithm
            here = one.library == CUDNN if self.device is None else exists(one, self.math, self.device)
            if possible.any() and here and self.math in one.formats:
                yield (self._form(form),), possible

    def _form(self, form: Form) -> Work:
        untuned = np.asarray(form.untuned) & (self.math is Math.BF16)
        algorithm = _either(untuned, replace(form.algorithm, tuned=False), form.algorithm)
        links = np.broadcast_to(np.asarray(form.repeats, dtype=float), (len(self.rows),))
        kernels = np.where(links > 1, 2 if form.algorithm.name else 1, 1)
        return self._work(
            form.gemm, algorithm, engine=not form.algorithm.cuda_cores_only, moved=form.moved + form.added,
            links=links, starts=links * kernels, waits=links - 1, calls=form.calls, alone=form.alone,
        )  # fmt: skip

    def _work(self, gemm: Any, algorithm: Any, *, moved: Any = 0.0, links: Any = 1.0, **columns: Any) -> Work:
        """The algorithm; where it is a chain, one of its links."""
        sizes = {name: getattr(gemm, name) for name in ("m", "n", "k")}
        products = Products.of(
            np.arange(len(self.rows)),
            batch=gemm.batch / links,
            **sizes,
            padded=self.padded,
            algorithm=np.broadcast_to(np.asarray(algorithm, dtype=object), (len(self.rows),)).tolist(),
        )
        return Work.of(
            len(self.rows), math=maths(self.rows), products=products, read_bytes=(self.read + moved) / links,
            write_bytes=(self.write + moved) / links, links=links, **columns,
        )  # fmt: skip

    def _few(self) -> np.ndarray:
        """Where the lanes gather channels one by one (`model.cudnn.few_channels`)."""
        p = self.problem
        if p.direction != "weight" and self.math not in SINGLE:
            return np.zeros(len(self.rows), dtype=bool)
        found: np.ndarray = (p.gathered < FEW[p.direction]) & ~p.pointwise & ~self.depthwise
        return found

    def _few_algorithms(self) -> Any:
        """How few channels are gathered (`model.cudnn.implicit`)."""
        p = self.problem
        if p.direction == "weight" and self.math in HALF:
            return cudnn.FEW_IN_HALF
        gathering = {"forward": p.volume | p.wide, "data": False, "weight": p.volume}[p.direction]
        return _either(gathering, cudnn.FEW_CHANNELS, cudnn.IMPLICIT[p.direction])

    def _odd(self, pixels: Any) -> np.ndarray:
        """Where images of so many pixels are copied (`model.convolution_layouts`): of windows of one pixel."""
        alone = (self.problem.taps == 1) & (column(self.rows, "channels_last", 0) == 0)
        found: np.ndarray = odd_rows(pixels) & alone & (self.problem.direction == "forward") & ~self.depthwise
        first_cores = self.device is not None and gradients_in_either(self.device.matrix_peak)
        return found & (first_cores and self.math in HALF)

    def _on_engine(self) -> bool:
        if self.device is None:
            return self.math in HALF
        return on_engine(self.device, self.math)

    def _either_layout(self) -> bool:
        """Whether a convolution with a window of one pixel runs in either layout."""
        engines = () if self.device is None else self.device.matrix_peak
        return self.problem.direction == "forward" or gradients_in_either(engines)

    def _in_threads(self) -> np.ndarray:
        """How each would run if it were depthwise."""
        names = ("b", "c_in", "w", "r", "s", "stride_h", "stride_w")
        columns = (column(self.rows, name, 1).astype(int) for name in names)
        last = column(self.rows, "channels_last", 0) != 0
        return _records(
            [
                depthwise_algorithm(
                    channels_last=bool(layout),
                    sixteen_bits=self.math in HALF,
                    window=(r, s),
                    plain=down == across,
                    stride=max(down, across),
                    shape=(b, c, w),
                    forward=self.problem.direction == "forward",
                    sums=self.problem.direction == "weight",
                )
                for b, c, w, r, s, down, across, layout in zip(*columns, last, strict=True)
            ]
        )


def _problem(rows: pd.DataFrame) -> Problem:
    groups = np.maximum(column(rows, "groups", 1), 1)

    def sides(prefix: str, default: float) -> tuple[Floats, ...]:
        found = (column(rows, f"{prefix}_{side}", default) for _, _, side in _SIDES)
        return tuple(np.maximum(values, default) for values in found)

    image = tuple(np.maximum(column(rows, name, 1), 1) for name, _, _ in _SIDES)
    window = tuple(np.maximum(column(rows, name, 1), 1) for _, name, _ in _SIDES)
    stride, dilation = sides("stride", 1), sides("dilation", 1)
    each = zip(image, window, sides("pad", 0), stride, dilation, strict=True)
    return Problem(
        direction=_DIRECTIONS[str(rows["op"].iloc[0])],
        images=column(rows, "b"),
        groups=groups,
        inner=column(rows, "c_in") / groups,
        outer=column(rows, "c_out") / groups,
        image=image,
        result=tuple(result_sizes(*sizes) for sizes in each),
        window=window,
        stride=stride,
        dilation=dilation,
        itemsize=itemsize(rows),
        volume=column(rows, "depth", 0) > 0,
    )


def _records(algorithms: Sequence[Algorithm]) -> np.ndarray:
    found = np.empty(len(algorithms), dtype=object)
    found[:] = algorithms
    return found


def _either(chosen: Any, first: Any, second: Any) -> Any:
    """One of two algorithms, case by case."""
    return np.where(chosen, np.asarray(first, dtype=object), np.asarray(second, dtype=object))


def _prod(sizes: tuple[Floats, ...]) -> Floats:
    return sizes[0] * sizes[1] * sizes[2]
