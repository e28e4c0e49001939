"""MIOpen's algorithms for a convolution, by the names of its solvers.

    ConvBinWinogradRxS, …f2x3, …f3x2      Winograd, fused: windows and, of weights, gradients in pieces
    ConvWinograd3x3MultipassWrW           Winograd of a weight: products by their library between transforms
    GemmFwd1x1, GemmBwd1x1, GemmWrw1x1    a product for each image, by the library of products
    GemmFwdRest, GemmBwdRest, GemmWrwUniversal    the same after windows were written out
    ConvHipImplicitGemmGroupFwdXdlops     channels last, from CDNA 3 on in 16 bits; each tensor is transposed before
    ConvDirectNaiveConv                   a thread a result

`benchmarks/operators/convolution_choice.py` says how often each is the fastest, and how often it is taken here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Math
from rooflinekit.ir.points import Number
from rooflinekit.kernels.algorithms import (
    HALF,
    IN_PASSES,
    MIOPEN,
    PARTS,
    PRODUCT,
    ROCBLAS,
    SINGLE,
    WINOGRAD,
    Algorithm,
    ByUnit,
    Direction,
    Form,
    Libraries,
    Problem,
    blocks,
    ceiled,
    compiled_for_amd,
    summed,
)

GCN, CDNA_3, RDNA = "GCN", "CDNA 3", "RDNA"  # generations of AMD's GPUs; CDNA goes on from GCN

_EVERY = (*SINGLE, *HALF)
#: Of the fused kernels, which are written in assembly.
_ASSEMBLY = (*SINGLE, Math.FP16)


def _compiled(name: str = "", *, lanes: str, split: bool = False, **others: Any) -> Algorithm:
    plain = Algorithm(name=name, rate=ByUnit(lanes, ""), parts=ByUnit.both(PARTS if split else 1), **others)
    return compiled_for_amd(plain, MIOPEN)


#: Implicit products, by direction.
IMPLICIT: Mapping[Direction, Algorithm] = {
    "forward": _compiled(lanes="miopen_simt"),
    "data": _compiled(lanes="miopen_simt", gradient=True),
    "weight": _compiled(lanes="miopen_simt_weight", split=True, gradient=True),
}
#: Where one pixel sees one pixel: assembly, which does not convert. Of a weight's gradient, which writes little.
PIXELWISE = _compiled("pixel by pixel", lanes="miopen_simt", converts=False)
PIXELWISE_WEIGHT = _compiled("pixel by pixel", lanes="miopen_simt", split=True, gradient=True, converts=False)
FUSED_WINOGRAD = _compiled(
    WINOGRAD, lanes="", split=True, formats=_ASSEMBLY, cuda_cores_only=True, needs_dot_products=True
)
#: Of a weight's gradient. In passes, transforms convert.
FUSED_WINOGRAD_WEIGHT = _compiled(
    WINOGRAD, lanes="miopen_simt_weight", split=True, formats=_ASSEMBLY, cuda_cores_only=True,
    needs_dot_products=True, converts=False,
)  # fmt: skip
WINOGRAD_IN_PASSES = _compiled(
    IN_PASSES, lanes="miopen_simt_weight", split=True, formats=_EVERY, cuda_cores_only=True, converts=False
)
#: By the library of products: a product for each image; every second pixel; windows that were written out.
BY_IMAGE = replace(PRODUCT, library=MIOPEN, formats=_EVERY, fills=ByUnit.both(False))
GATHERED = replace(BY_IMAGE, name="gathered")
UNFOLDED = replace(BY_IMAGE, name="unfolded")
#: Composable Kernel's and the last assembly's.
CHANNELS_LAST = replace(IMPLICIT["forward"], name="channels last", formats=HALF, generation=CDNA_3)
#: A thread a result, nothing shared.
NAIVE = Algorithm(
    name="naive", library=MIOPEN, formats=_EVERY, cuda_cores_only=True, shape="threads", tap_cycles="naive_cycles",
    sums_channels=True,
)  # fmt: skip

_EDGE, _PIECE = 2, 3  # of F(2×2, 3×3): blocks of 2×2 results, windows in pieces of 3×3
#: ConvWinograd3x3MultipassWrW<side of the window, pixels of the gradient at once>: the largest for each side.
_AT_ONCE = {3: 6, 5: 4, 7: 3}
#: Edges of what rocBLAS has tuned in bf16 (MI50: 361 pixels are 20 times as fast as 441, 700 channels as 768).
_TUNED_PIXELS, _TUNED_RATIO, _TUNED_SUM, _TUNED_RESULTS = 400, 2, 720, 2.9e6


def gathers_pixels(math: Math, p: Problem) -> bool:
    """Whether MIOpen has 1×1 kernels of its own.

    They are assembly (ConvAsm1x1U), which is there in bf16 for the weight's gradient alone (ConvAsmBwdWrW1x1).
    """
    return p.pointwise and (math is not Math.BF16 or p.direction == "weight")


def implicit(p: Problem, math: Math, threads: Algorithm | None = None) -> tuple[Algorithm, ...]:
    """The implicit product that runs; none beside what runs in threads, but of volumes.

    Of volumes there is one in fp32 alone, on CUDA cores; in bf16 on RDNA those without GCN's assembly.
    """
    if (p.volume and math not in SINGLE) or (threads is not None and not p.volume):
        return ()
    plain = replace(IMPLICIT[p.direction], cuda_cores_only=bool(p.volume))
    pixelwise = PIXELWISE_WEIGHT if p.direction == "weight" else PIXELWISE
    found = replace(pixelwise, cuda_cores_only=bool(p.volume)) if gathers_pixels(math, p) else plain
    if math not in HALF:
        return (found,)
    if p.taps > 1 or math is not Math.BF16 or p.direction == "forward":
        return (replace(found, generation=GCN), replace(found, generation=RDNA))
    others = (replace(plain, generation=RDNA),) if has_compiled(math, p.direction) else ()
    return (replace(found, generation=GCN), *others)


def has_compiled(math: Math, direction: Direction) -> bool:
    """Whether MIOpen has kernels for a window of one pixel on RDNA, for which its assembly is not written."""
    return direction != "data" or math is not Math.BF16


def forms(p: Problem) -> Iterator[Form]:
    """All algorithms beside the implicit matrix product."""
    flat = not p.volume and all(d == 1 for d in p.dilation)
    unstrided = all(s == 1 for s in p.stride)
    if flat and p.direction == "weight":
        if unstrided:
            yield from _fused_of_weight(p)
        if _has_passes(p, unstrided):
            yield _in_passes(p)
    elif flat and (unstrided or p.direction == "forward"):
        yield _fused(p)
    yield from _by_products(p)
    if not p.volume:
        yield _transposed(p)


def _transposed(p: Problem) -> Form:
    """All tensors are brought into channels last, what is written too, and that back."""
    algorithm = replace(CHANNELS_LAST, gradient=p.direction != "forward")
    moved = sum(p.tensors) + p.tensors[("data", "weight", "forward").index(p.direction)]
    return Form(algorithm=algorithm, gemm=p.product(), moved=moved, alone=2 * moved, around=len(p.tensors) + 1)


def _fused(p: Problem) -> Form:
    k, n = summed(p)
    sides = zip(p.window[1:], p.stride[1:], strict=True)
    pieces = math.prod([step * ceiled(ceiled(side, step), _PIECE) for side, step in sides])
    gemm = Gemm(batch=16 * p.groups, m=p.images * blocks(p.written, _EDGE), n=n, k=k * pieces)
    return Form(algorithm=FUSED_WINOGRAD, gemm=gemm)


def _fused_of_weight(p: Problem) -> Iterator[Form]:
    """F(2×2, 3×3) and F(3×3, 2×2): the window is the result, in blocks, and the output's gradient comes in pieces."""
    for edge, piece in ((_EDGE, _PIECE), (_PIECE, _EDGE)):
        results = ceiled(p.window[1], edge) * ceiled(p.window[2], edge)
        pieces = p.images * blocks(p.written, piece)
        gemm = Gemm(batch=16 * p.groups * results, m=p.outer, n=p.inner, k=pieces)
        yield Form(algorithm=FUSED_WINOGRAD_WEIGHT, gemm=gemm)


def _has_passes(p: Problem, unstrided: bool) -> bool:
    """Windows of 3, 5 or 7 along a side, or 1, have them; at a stride of 2 those of 3×3."""
    window = p.window[1:]
    strided = all(side == 3 for side in window) and all(step <= 2 for step in p.stride[1:])
    return bool(p.taps > 1) and all(side in (1, *_AT_ONCE) for side in window) and (unstrided or strided)


def _in_passes(p: Problem) -> Form:
    """In every format, as the transforms convert."""
    size, count = 1, p.images
    for side, step, pixels in zip(p.window[1:], p.stride[1:], p.written[1:], strict=True):
        at_once = _AT_ONCE.get(side, 1)
        size = size * (side + (at_once - 1) * (step + (side == 7)))  # its tiles of 7 take two steps
        count = count * ceiled(pixels, at_once)
    moved = p.itemsize * size * count * (p.inner + p.outer) * p.groups
    gemm = Gemm(batch=size * p.groups, m=p.outer, n=p.inner, k=count)
    return Form(algorithm=WINOGRAD_IN_PASSES, gemm=gemm, moved=moved)


def _by_products(p: Problem) -> Iterator[Form]:
    """Algorithms that call the library of products (MIOpen's gemm.cpp), and the naive kernel as a last resort.

    Of a weight's gradient the images' parts are added up, one call after the other: each reads and writes all of it.
    Where one pixel sees every second one, all images are one product, with channels brought to the front and back.
    """
    weight, data = p.direction == "weight", p.direction == "data"
    added = p.itemsize * p.groups * p.inner * p.outer * p.taps * (p.images - 1) if weight else 0
    if p.pointwise:
        yield Form(
            algorithm=BY_IMAGE, gemm=p.by_image(), added=added,
            repeats=p.images if weight else 1, calls=0 if weight else 1,
            untuned=data and _untuned(p, p.pixels, images=p.images),
        )  # fmt: skip
    else:
        if p.taps == 1 and not weight:
            moved = p.itemsize * p.groups * p.images * (p.inner + p.outer) * p.pixels
            yield Form(
                algorithm=GATHERED, gemm=p.product(), moved=moved, calls=1,
                untuned=data and _untuned(p, p.images * p.pixels),
            )  # fmt: skip
        windows = p.itemsize * p.groups * p.images * p.inner * p.taps * p.pixels
        yield Form(
            algorithm=UNFOLDED, gemm=p.by_image(), moved=windows, added=added, repeats=p.images, calls=p.images,
            untuned=data and _untuned(p, p.pixels),
        )  # fmt: skip
    yield Form(algorithm=NAIVE, gemm=p.product())


def _untuned(p: Problem, pixels: Number, images: Number = 1) -> bool:
    """Whether rocBLAS has no tuned kernel for an image's gradient in bf16, of so many pixels and images in a call.

    The edges are MI50's (docs/model.md, "Products that rocBLAS has not tuned").
    """
    channels = p.inner * p.taps
    wide = pixels > _TUNED_PIXELS and channels <= _TUNED_RATIO * pixels
    return bool(wide or (p.outer > _TUNED_SUM and pixels * channels * images < _TUNED_RESULTS))


def generation_of(target: str) -> str:
    """As algorithms name it, by the compiler's target: gfx942."""
    return CDNA_3 if target.startswith(("gfx94", "gfx95")) else GCN if target.startswith("gfx9") else RDNA


LIBRARIES = Libraries(
    products=ROCBLAS, convolutions=MIOPEN, rates=MIOPEN, implicit=implicit, forms=forms, channels_last=False,
    whole_recurrent=True, unpacks_half=True,
    generation=lambda device: generation_of(device.compute_capability or ""),
)  # fmt: skip
