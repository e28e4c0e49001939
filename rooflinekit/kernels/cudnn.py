"""cuDNN's algorithms for a convolution: implicit products, and Winograd in one kernel and in passes.

Which there are and what each supports is read from its developer guide; what they do, from Lavin and Gray (2016) and
from the names and grids of the kernels that NeuSight's profiler saw: `scudnn_winograd_128x128_…_tile148t` has a block
for 1 image, 4×8 blocks of 2×2 results and 32 channels, and `sgemm` beside three other kernels is F(4×4) in passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import (
    CUBLAS,
    CUDNN,
    FEW,
    HALF,
    IN_PASSES,
    OWN_PRODUCT,
    PARTS,
    SINGLE,
    SQUARE,
    WINOGRAD,
    Algorithm,
    ByUnit,
    Direction,
    Form,
    Libraries,
    Problem,
    blocks,
    ceiled,
    least_of,
    summed,
)

#: Images, rows and columns of 2×2 results that a block of the fused kernels has: the tile in their names.
_FUSED_BLOCKS = ((1, 4, 8), (2, 2, 8), (2, 4, 4), (4, 1, 8), (4, 2, 4), (4, 4, 2))
_FUSED_CHANNELS = 32  # that come out of it
_PRODUCTS = 16  # of a 2×2 block and a 3×3 window; more for larger ones count as more channels
_FUSED_EDGE, _UNFUSED_EDGE = 2, 4  # of a block of results


_IMPLICIT = Algorithm(library=CUDNN, holds_clock=True)
#: Implicit products, by direction. On CUDA cores their tiles are 128 pixels by at least 32 channels.
FORWARD = replace(
    _IMPLICIT, rate=ByUnit("simt_convolution", ""), tiles=ByUnit("wide", "every"),
    parts=ByUnit(1, PARTS),
)  # fmt: skip
#: On tensor cores they are not split either: 8 images of 7×7 take as long as 16 (DeepBench).
DATA = replace(
    _IMPLICIT, rate=ByUnit("simt_convolution", ""), tiles=ByUnit("wide", "by name"),
    parts=ByUnit.both(1), fills=ByUnit.both(True), gradient=True,
)  # fmt: skip
#: Its k are the pixels of all images, of which tensor cores share out as many parts as fill the SMs.
WEIGHT = replace(
    _IMPLICIT, rate=ByUnit("simt_weight", ""), tiles=ByUnit("every", "by name"), parts=ByUnit(PARTS, 64), gradient=True,
)  # fmt: skip
IMPLICIT: Mapping[Direction, Algorithm] = {"forward": FORWARD, "data": DATA, "weight": WEIGHT}
#: One pixel sees one pixel: a product.
POINTWISE = replace(OWN_PRODUCT, library=CUDNN)
#: Of volumes, and of windows of more than 7 pixels along one side, for which nothing is unrolled.
WIDE_WINDOW = Algorithm(name="wide window", library=CUDNN, rate=ByUnit.both("untuned_convolution"))
#: Channels that are no vector are gathered one by one, on CUDA cores.
FEW_CHANNELS = Algorithm(
    name="few channels", library=CUDNN, rate=ByUnit.both("untuned_convolution"), cuda_cores_only=True
)
#: The same of the gradient of a weight in 16 bits: a multiply-add takes what it does in an unrolled window.
FEW_IN_HALF = replace(FEW_CHANNELS, name="few channels in 16 bits", cycles="tap_cycles")

_FEWER_FLOP = Algorithm(library=CUDNN, formats=SINGLE, cuda_cores_only=True, instead_of_tensor_cores=True)
#: F(2×2) in one kernel, which transforms what it reads and writes.
FUSED_WINOGRAD = replace(
    _FEWER_FLOP, name=WINOGRAD, rate=ByUnit.both("simt_convolution"), prologue=ByUnit.both("matrix_prologue"),
    tiles=ByUnit("square", "every"), parts=ByUnit.both(1),
)  # fmt: skip
WINOGRAD_IN_PASSES = replace(_FEWER_FLOP, name=IN_PASSES, rate=ByUnit.both("simt_convolution"))


def few_channels(p: Problem, math: Math) -> bool:
    """Whether CUDA cores gather channels one by one: kernels of tensor cores load vectors of 4 numbers of 32 bits.

    Of 16 bits the forward pass fills channels up; the gradient of the weight has no such kernels.
    """
    return bool(p.gathered < FEW[p.direction]) and (p.direction == "weight" or math in SINGLE)


def on_cuda_cores(algorithm: Algorithm) -> Algorithm:
    """The algorithm on CUDA cores, even where tensor cores have the format."""
    return replace(algorithm, cuda_cores_only=True)


def implicit(p: Problem, math: Math, threads: Algorithm | None = None) -> tuple[Algorithm, ...]:
    """The implicit product that runs, where it depends on tensor cores one for each case; or what runs in threads.

    A weight's gradient of few channels runs as others do in fp32, in 16 bits at any window as none does. Wide windows
    of images have kernels of their own on tensor cores alone; volumes have them on either unit.
    """
    if threads is not None:
        return (threads,)
    plain = IMPLICIT[p.direction]
    if p.pointwise:
        return (POINTWISE,) if p.direction == "forward" else (plain,)
    if few_channels(p, math):
        if p.direction == "weight" and math in HALF:
            return (FEW_IN_HALF,)
        gathering = p.direction != "data" and (p.volume or (p.wide and p.direction == "forward"))
        return (FEW_CHANNELS if gathering else on_cuda_cores(plain),)
    if p.volume:
        return (WIDE_WINDOW,)
    if p.wide:
        return (replace(WIDE_WINDOW, needs_tensor_cores=True), replace(plain, instead_of_tensor_cores=True))
    return (plain,)


def forms(p: Problem) -> Iterator[Form]:
    """cuDNN's algorithms beside the implicit product."""
    plain = p.groups == 1 and all(d == 1 for d in (*p.stride, *p.dilation))
    if not plain or p.volume or p.window not in ((1, 3, 3), (1, 5, 5)):
        return
    if p.direction != "weight":
        yield _fused_winograd(p)
    yield _winograd_in_passes(p)


def _fused_winograd(p: Problem) -> Form:
    """F(2×2): a kernel transforms the weight, another does all else."""
    k, n = summed(p)
    products = (_FUSED_EDGE + p.window[1] - 1) ** 2
    rows, columns = (ceiled(size, _FUSED_EDGE) for size in p.written[1:])
    counts = (ceiled(p.images, i) * ceiled(rows, h) * ceiled(columns, w) for i, h, w in _FUSED_BLOCKS)
    count = p.written[0] * least_of(counts)
    gemm = Gemm(batch=1, m=SQUARE * count, n=SQUARE * ceiled(n, _FUSED_CHANNELS), k=k * products // _PRODUCTS)
    weight, moved = p.tensors[1], p.itemsize * products * k * n
    return Form(algorithm=FUSED_WINOGRAD, gemm=gemm, moved=moved, alone=weight + moved)


def _winograd_in_passes(p: Problem) -> Form:
    """F(4×4): all three tensors are transformed by kernels of their own.

    Of a weight's gradient, blocks of pixels come as products with those of the image.
    """
    k, n = summed(p)
    batch, count = (_UNFUSED_EDGE + p.window[1] - 1) ** 2, p.images * blocks(p.written, _UNFUSED_EDGE)
    moved = p.itemsize * batch * (count * (n + k) + n * k)
    weight = p.direction == "weight"
    gemm = Gemm(batch=batch, m=n, n=k, k=count) if weight else Gemm(batch=batch, m=count, n=n, k=k)
    return Form(algorithm=WINOGRAD_IN_PASSES, gemm=gemm, moved=moved, alone=sum(p.tensors) + moved)


LIBRARIES = Libraries(
    products=CUBLAS, convolutions=CUDNN, rates=CUDNN, implicit=implicit, forms=forms, side_by_side=True
)
