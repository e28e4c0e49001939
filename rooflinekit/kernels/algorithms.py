"""What a library runs for a product, a convolution or an attention: one record for each algorithm.

A record says which unit multiplies, which constant of the time model is its rate, how it is tiled and split, in which
formats and on which GPUs it exists. The libraries' own records are in `cudnn`, `miopen`, `onednn` and `depthwise`;
`libraries` says which of them a device has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Math
from rooflinekit.ir.points import Number, larger

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByUnit(Generic[T]):
    """One value where CUDA cores multiply, and one where tensor cores do."""

    cuda_cores: T
    tensor_cores: T

    @classmethod
    def both(cls, value: T) -> ByUnit[T]:
        """The same value for both units."""
        return cls(value, value)

    def of(self, tensor_cores: bool) -> T:
        """The value of one of the two units."""
        return self.tensor_cores if tensor_cores else self.cuda_cores


#: How the work is shared out: `tiles` of the result, a block each; `queries`, blocks of fused attention; `threads`, one
#: for each result; `resident`, one matrix kept on the SMs for many steps.
Shape = Literal["tiles", "queries", "threads", "resident"]

#: Which tiles there are; the rules are in `tiling.where_tiled`.
Tiles = Literal["every", "by name", "wide", "square", "plain"]
#: How the matrices of a product lie, as BLAS names it: N by rows, T by columns. TN is x·Wᵀ of a linear layer: the
#: numbers of a sum lie side by side in both. NT, as a weight's gradient has it, stands for both that have the left
#: matrix by columns.
Layout = Literal["NN", "TN", "NT"]
SQUARE = 128  # side of that of a fused Winograd: 4·4 products of 32 blocks by 32 channels

# Libraries
CUBLAS, CUDNN, ROCBLAS, MIOPEN, ONEDNN, ATEN = "cuBLAS", "cuDNN", "rocBLAS", "MIOpen", "oneDNN", "ATen"

PARTS = 16  # of a plain product's k, at most

_STEP = 32  # channels of a step in k of a convolution's kernels in 16 bits (cutlass_…fprop_optimized_bf16_256x64_32x4)
_FIRST_CHANNELS = 4
HALF = (Math.FP16, Math.BF16)  # formats of 16 bits
HALF_BYTES = 2  # of their elements
SINGLE = (Math.FP32, Math.TF32)

WINOGRAD, IN_PASSES = "Winograd", "Winograd in passes"
FEWER_FLOP = (WINOGRAD, IN_PASSES)  # names of algorithms that execute fewer FLOP than the plain product


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Algorithm:
    """One algorithm of one library. Constants are given by their names in the table of constants."""

    name: str = ""  # as it is shown; "" for the plain one
    library: str = ""  # that has it; "" for every one
    # where it exists
    formats: tuple[Math, ...] = ()  # none for all
    generation: str = ""  # of the GPUs that alone have it, as `libraries.generation_of` says it
    cuda_cores_only: bool = False
    needs_tensor_cores: bool = False  # exists only where tensor cores have the format
    instead_of_tensor_cores: bool = False  # exists only where they do not
    needs_dot_products: bool = False  # in fp16: sums of pairs in fp32
    # how fast it is
    shape: Shape = "tiles"
    rate: ByUnit[str] = ByUnit("", "")  # constant, of a product's rate; "" for that rate itself
    cycles: str = ""  # constant: of a CUDA core for a multiply-add, in place of `rate`; "" for none
    half_rate: str = ""  # constant: a further share in formats of more than the reference rate; "" for none
    latency: str = "latency_cycles"  # constant: least cycles of a step in k
    prologue: ByUnit[str] = ByUnit("", "matrix_prologue")  # constant: steps in k beyond the product's; "" for none
    tiles: ByUnit[Tiles] = ByUnit("every", "every")
    parts: ByUnit[int] = ByUnit(PARTS, PARTS)  # blocks that may share a k, at most; 1 for no split
    clusters: bool = False  # whether two tiles, one below the other, are a cluster of blocks where GPUs have these
    fills: ByUnit[bool] = ByUnit(False, True)  # whether channels that are filled up are computed as well
    loss_by_pace: bool = False  # whether the loss of tiles goes by the format's rate alone, on either unit
    waits: bool = False  # whether a block that is alone on its SM waits for operands and computes in turn
    gradient: bool = False  # whether it is the gradient of a convolution, or of attention
    sums_in_memory: bool = False  # whether attention's gradient sums that of the query in fp32 in memory
    holds_clock: bool = False  # whether a board at its power limit runs it at the clock that it has for products
    converts: bool = True  # whether CUDA cores without the format unpack and round around each multiply-add
    tuned: bool = True  # whether the library has a tuned kernel for its sizes
    shared_softmax: bool = False  # whether attention's softmax passes shared memory
    tensor_memory: bool = False  # whether attention's sums are in tensor memory, and some exponentials polynomials
    joins_heads: bool = False  # whether blocks of attention, as engines call it, have queries of all heads of a key
    computes_again: bool = False  # whether it takes that sum in a kernel of its own, which computes the scores again
    warp_level: bool = False  # whether it multiplies by instructions of single warps
    packs: Literal["", "both", "weight"] = ""  # which matrices a CPU's library brings into another order first
    layout: Layout = "NN"  # of a product's matrices
    window_cycles: str = ""  # constant: cycles of a thread for its window, of `threads`
    window_divisions: int = 0  # of integers beside
    tap_cycles: str = ""  # constant: cycles for each tap of that window
    tap_divisions: int = 0
    sharers: float = 1.0  # threads that share what the windows of each ask for, and so the cycles
    sums_channels: bool = False  # whether such a thread goes through all channels, and not its own alone

    def __repr__(self) -> str:
        return f"<{self.name or self.shape} of {self.library or 'any library'}>"

    def share(self, values: Mapping[str, float], tensor_core: bool) -> float:
        """Its rate on that unit, as a share of a matrix product's rate there."""
        if self.cycles:
            return 1 / (values[self.cycles] * values["issue_share"])
        name = self.rate.of(tensor_core)
        return values[name] if name else 1.0


#: A matrix product, by whichever library.
PRODUCT = Algorithm(packs="both", tiles=ByUnit("plain", "every"))
#: The same by how its matrices lie.
BY_LAYOUT: dict[Layout, Algorithm] = {
    "NN": PRODUCT,
    "TN": replace(PRODUCT, layout="TN"),
    "NT": replace(PRODUCT, layout="NT"),
}
#: One that a library of convolutions and recurrent layers does by itself, with any tile.
OWN_PRODUCT = replace(PRODUCT, tiles=ByUnit.both("every"))
#: Fused attention.
ATTENTION = Algorithm(shape="queries")
#: A step of a recurrent layer whose weights stay on the SMs (cuDNN).
PERSISTENT = Algorithm(name="persistent", shape="resident")

#: Products of 8 and 4 bits with scales, of serving libraries: in clusters of two tiles, without a split (vLLM,
#: csrc/quantization/cutlass_w8a8, sm90).
SCALED = Algorithm(library=CUBLAS, parts=ByUnit.both(1), clusters=True)


def compiled_for_amd(algorithm: Algorithm, library: str) -> Algorithm:
    """A kernel as AMD's libraries compile it: a step in k waits for its operands."""
    return replace(
        algorithm,
        library=library,
        half_rate="miopen_half",
        latency="miopen_latency_cycles",
        fills=ByUnit.both(False),
        loss_by_pace=True,
        waits=algorithm.parts == ByUnit.both(1),
    )


#: Scaled products by whichever library.
SCALED_PRODUCTS = SCALED, compiled_for_amd(SCALED, ROCBLAS)


# A convolution as libraries see it: its sizes, and what an algorithm makes of them.


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
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    itemsize: int
    volume: bool = False  # whether tensors have a depth, even if it is 1

    @property
    def taps(self) -> Number:
        """Pixels of the window."""
        return math.prod(self.window)

    @property
    def pixels(self) -> Number:
        """Pixels of the result of one image."""
        return math.prod(self.result)

    @property
    def gathered(self) -> Number:
        """Channels per group that are contiguous in what a kernel gathers."""
        return self.outer if self.direction == "data" else self.inner

    @property
    def tensors(self) -> tuple[Number, Number, Number]:
        """Bytes of the image, the weight and the result."""
        channels = self.inner, self.inner * self.outer, self.outer
        counts = self.images * math.prod(self.image), self.taps, self.images * self.pixels
        image, weight, result = (self.itemsize * self.groups * c * n for c, n in zip(channels, counts, strict=True))
        return image, weight, result

    @property
    def pointwise(self) -> bool:
        """Whether each output pixel sees one input pixel."""
        return all(size == 1 for size in (self.taps, *self.stride))

    @property
    def wide(self) -> bool:
        """Whether libraries have no kernels that are unrolled for its window: volumes, and windows above 7."""
        return self.volume or max(self.window) > WIDE

    @property
    def cleared(self) -> Number:
        """Elements of an image's gradient that are set to 0 first: all of them, where no window covers some pixels."""
        unseen = any(w < s for w, s in zip(self.window, self.stride, strict=True))
        return self.images * self.groups * self.inner * math.prod(self.image) * unseen

    @property
    def written(self) -> tuple[Number, ...]:
        """Sizes of what is written; of a weight's gradient those of the result, which is read with the windows."""
        return self.image if self.direction == "data" else self.result

    def product(self) -> Gemm:
        """The whole convolution as one implicit matrix product."""
        return self._product(self.images, 1)

    def by_image(self) -> Gemm:
        """A matrix product for each image."""
        return self._product(1, self.images)

    @property
    def scattered(self) -> Number:
        """Factor by which FLOP grow where a data gradient of few channels computes every tap at every pixel."""
        channels = larger(self.outer, _SCATTERED_CHANNELS)
        return math.prod(self.image) * channels / (self.pixels * self.outer)

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
    moved: Number = 0  # bytes written, and read again
    alone: Number = 0  # bytes of all its traffic that kernels of their own move, before and after its products
    added: Number = 0  # of the result, which each launch but the first reads and writes again
    repeats: Number = 1  # launches, one after the other
    around: int = 0  # kernels before and after it
    calls: Number = 0  # of the library of products
    untuned: bool = False  # whether that library has no tuned kernel of these sizes in bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """The libraries that PyTorch calls on a vendor's devices, and the algorithms of the one for convolutions."""

    products: str  # name of the library
    convolutions: str
    own: tuple[str, ...] = (ATEN,)  # whose kernels run beside
    rates: str  # the library whose constants its convolutions have
    #: The implicit products that come into question in a format, given what runs in threads where nothing is to tile.
    implicit: Callable[[Problem, Math, Algorithm | None], Iterable[Algorithm]]
    #: All other algorithms that it has for a convolution.
    forms: Callable[[Problem], Iterable[Form]] = lambda _: ()
    channels_last: bool = True  # whether convolutions on tensor cores want them; channels first need no copies else
    side_by_side: bool = False  # whether layers and directions of recurrent networks run beside each other
    whole_recurrent: bool = False  # whether products of recurrent layers are in fp32 where others may be in tf32
    unpacks_half: bool = False  # whether fp16 is unpacked and rounded on CUDA cores without dot products
    generation: Callable[[Device], str] = lambda _: ""  # of a GPU, as `Algorithm.generation` names it

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, each once."""
        return tuple(dict.fromkeys((self.products, self.convolutions, *self.own)))


def result_sizes(image: Any, window: Any, pad: Any, stride: Any, dilation: Any) -> Any:
    """Pixels of a result along one side."""
    return (image + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def summed(p: Problem) -> tuple[Number, Number]:
    """Channels per group that the product sums over, and those that it produces."""
    return (p.outer, p.inner) if p.direction == "data" else (p.inner, p.outer)


def filled_up(p: Problem) -> Number:
    """Factor by which channels grow when a tensor core's kernels pad them to whole vectors of 16 bytes.

    In 16 bits a step in k lies within one tap of a window, so channels are padded to whole steps of 32 in the forward
    pass. The first layer, of up to 4 channels, has kernels of its own, but not for wide windows.
    """
    first = p.gathered <= _FIRST_CHANNELS and not p.wide
    in_steps = p.itemsize == HALF_BYTES and p.direction == "forward" and p.groups == 1 and p.taps > 1 and not first
    vector = _STEP if in_steps else VECTOR_BYTES // p.itemsize
    return ceiled(p.gathered, vector) * vector / p.gathered


def blocks(sizes: tuple[Number, ...], edge: int) -> Number:
    """Number of blocks of edge × edge pixels that cover an image, in all slices along its depth."""
    return sizes[0] * ceiled(sizes[1], edge) * ceiled(sizes[2], edge)


def ceiled(size: Any, piece: Any) -> Any:
    """The quotient, rounded up: how many pieces cover a size."""
    return -(-size // piece)


def least_of(numbers: Iterable[Number]) -> Any:
    """The smallest of several numbers, for each point of a sweep by itself."""
    return functools.reduce(lambda a, b: a + b - larger(a, b), numbers)
