"""What a library runs for a product, a convolution or an attention: one record for each algorithm.

A record says which unit multiplies, which constant of the time model is its rate, how it is tiled and split, in which
formats and on which GPUs it exists. The libraries' own records are in `cudnn`, `miopen`, `onednn` and `depthwise`;
`libraries` says which library a device has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from rooflinekit.ir.tensor import Math

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByUnit(Generic[T]):
    """One value where CUDA cores multiply, and one where tensor cores do."""

    cuda_cores: T
    tensor_cores: T

    @classmethod
    def both(cls, value: T) -> ByUnit[T]:
        """The same on either unit."""
        return cls(value, value)

    def of(self, tensor_cores: bool) -> T:
        """The value of one of the two units."""
        return self.tensor_cores if tensor_cores else self.cuda_cores


#: How the work is shared out: `tiles` of the result, a block each; `queries`, blocks of fused attention; `threads`, one
#: for each result; `resident`, one matrix kept on the SMs for many steps.
Shape = Literal["tiles", "queries", "threads", "resident"]

#: Which tiles there are; the rules are in `tile_rates.has_tiles`.
Tiles = Literal["every", "no thin ones", "by rows", "by name", "wide", "square"]

# Libraries
CUBLAS, CUDNN, ROCBLAS, MIOPEN, ONEDNN, ATEN = "cuBLAS", "cuDNN", "rocBLAS", "MIOpen", "oneDNN", "ATen"

HALF = (Math.FP16, Math.BF16)  # formats of 16 bits
SINGLE = (Math.FP32, Math.TF32)

WINOGRAD, IN_PASSES, FFT = "Winograd", "Winograd in passes", "FFT"
FEWER_FLOP = (WINOGRAD, IN_PASSES, FFT)  # names of algorithms that execute fewer FLOP than the plain product


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
    half_rate: str = ""  # constant: a further share in formats of more than the reference rate; "" for none
    latency: str = "latency_cycles"  # constant: least cycles of a step in k
    prologue: ByUnit[str] = ByUnit("", "matrix_prologue")  # constant: steps in k beyond the product's; "" for none
    tiles: ByUnit[Tiles] = ByUnit("every", "every")
    splits: ByUnit[bool] = ByUnit(True, True)  # whether k may be shared by several blocks
    fills: ByUnit[bool] = ByUnit(False, True)  # whether channels that are filled up are computed as well
    vectors: bool = True  # whether it has kernels without tiles where each number of a matrix is used once
    loss_by_pace: bool = False  # whether formats below the reference rate lose less in tiles
    waits: bool = False  # whether a block that is alone on its SM waits for operands and computes in turn
    gradient: bool = False  # whether it is the gradient of a convolution, or of attention
    sums_in_memory: bool = False  # whether attention's gradient sums that of the query in fp32 in memory
    holds_clock: bool = False  # whether a board at its power limit runs it at the clock that it has for products
    converts: bool = True  # whether CUDA cores without the format unpack and round around each multiply-add
    tuned: bool = True  # whether the library has a tuned kernel for its sizes
    polynomials: bool = False  # whether attention works out some of its exponentials on the CUDA cores
    computes_again: bool = False  # whether it takes that sum in a kernel of its own, which computes the scores again
    warp_level: bool = False  # whether it multiplies by instructions of single warps
    packs: Literal["", "both", "weight"] = ""  # which matrices a CPU's library brings into another order first
    window_cycles: str = ""  # constant: cycles of a thread for its window, of `threads`
    tap_cycles: str = ""  # constant: cycles for each tap of that window
    sums_channels: bool = False  # whether such a thread goes through all channels, and not its own alone

    def __repr__(self) -> str:
        return f"<{self.name or self.shape} of {self.library or 'any library'}>"

    @property
    def runs_in_threads(self) -> bool:
        """Whether there are no tiles, but a thread for each result."""
        return self.shape == "threads"


#: A matrix product, by whichever library.
PRODUCT = Algorithm(packs="both")
#: The same where the library has no kernel that was tuned for its sizes.
UNTUNED_PRODUCT = replace(PRODUCT, tuned=False)
#: Fused attention.
ATTENTION = Algorithm(shape="queries")
#: A step of a recurrent layer whose weights stay on the SMs (cuDNN).
PERSISTENT = Algorithm(name="persistent", shape="resident")

#: Products of 8 bits with scales. Serving libraries have one tile for few rows, one for more and one for many, and no
#: split (vLLM, csrc/quantization/cutlass_w8a8, sm90: 64×64, 64×128 above 64 rows, 128×128 above 128).
SCALED = Algorithm(library=CUBLAS, tiles=ByUnit.both("by rows"), splits=ByUnit.both(False))
#: The same in 4 bits, with every tile.
SCALED_FOUR = replace(SCALED, tiles=ByUnit.both("every"))


def compiled_for_amd(algorithm: Algorithm, library: str) -> Algorithm:
    """A kernel as AMD's libraries compile it: a step in k waits for its operands, and tiles are not thin."""
    thick: ByUnit[Tiles] = ByUnit.both("no thin ones")
    return replace(
        algorithm,
        library=library,
        half_rate="miopen_half",
        latency="miopen_latency_cycles",
        tiles=algorithm.tiles if algorithm.tiles.tensor_cores == "by rows" else thick,
        fills=ByUnit.both(False),
        vectors=False,
        loss_by_pace=True,
        waits=not (algorithm.splits.cuda_cores or algorithm.splits.tensor_cores),
    )


#: Scaled products by whichever library.
SCALED_PRODUCTS = {
    False: (SCALED, compiled_for_amd(SCALED, ROCBLAS)), True: (SCALED_FOUR, compiled_for_amd(SCALED_FOUR, ROCBLAS)),
}  # fmt: skip
