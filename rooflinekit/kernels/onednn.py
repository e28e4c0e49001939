"""oneDNN's algorithms for a convolution: the direct one alone, which PyTorch asks for on CPUs.

(aten/src/ATen/native/mkldnn/Conv.cpp.) It has every tile, shares k among cores, and brings weights into the order of
its blocks. Its rates are those of cuDNN's implicit products: nothing measured tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooflinekit.ir.op import Math
from rooflinekit.kernels import cudnn, depthwise
from rooflinekit.kernels.algorithms import CUDNN, ONEDNN, PARTS, PRODUCT, Algorithm, ByUnit, Libraries, Problem

#: A thread for each result.
DEPTHWISE = replace(depthwise.UNROLLED, library=ONEDNN)


def direct(algorithm: Algorithm) -> Algorithm:
    """The algorithm of a CPU instead of one of a GPU."""
    if algorithm.shape == "threads":
        return DEPTHWISE
    if algorithm == cudnn.POINTWISE:
        return replace(PRODUCT, library=ONEDNN)
    packs = algorithm.rate == cudnn.FORWARD.rate
    return replace(
        algorithm, library=ONEDNN, tiles=ByUnit.both("every"), parts=ByUnit.both(PARTS),
        packs="weight" if packs else "",
    )  # fmt: skip


def implicit(p: Problem, math: Math, threads: Algorithm | None) -> Iterator[Algorithm]:
    """oneDNN's algorithm for each that cuDNN would run."""
    return map(direct, cudnn.implicit(p, math, threads))


LIBRARIES = Libraries(products=ONEDNN, convolutions=ONEDNN, own=(), rates=CUDNN, implicit=implicit)
