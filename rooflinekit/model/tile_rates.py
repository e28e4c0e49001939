"""What a tile of a matrix product takes, by its size, the way of the product and the library that runs it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.convolution_forms import library_of
from rooflinekit.model.cudnn_forms import FUSED_SIDE
from rooflinekit.model.kernel import MIOPEN
from rooflinekit.model.machine import Machine
from rooflinekit.model.work import (
    BACKWARD,
    CONVOLUTION,
    FEW,
    FEW_WEIGHT,
    FOURIER,
    PIXEL,
    PIXEL_WEIGHT,
    PLAIN,
    SCALED,
    SCALED_FOUR,
    UNTUNED,
    VOLUME,
    WEIGHT,
    WINOGRAD,
    WINOGRAD_WEIGHT,
    Floats,
    Products,
)

TILES = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (32, 32), (16, 128), (16, 64), (16, 32),
)  # fmt: skip
THIN = ((2, 64), (64, 2), (4, 32), (32, 4), (8, 32), (32, 8))  # of vector lanes, which need no more than a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What limits each product, in FLOP/s."""

    on_engine: NDArray[np.bool_]  # which unit does it: the matrix engine, or the vector lanes
    peak: Floats  # of that unit at the clock that the board runs at
    issued: Floats  # by tiles without loss, on an SM whose product line has not halved its units
    limit: Floats  # what the board's power sustains

    def where(self, chosen: NDArray[Any]) -> Rates:
        """The rates of some of the products."""
        return Rates(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


#: Tiles of the lanes and of the matrix engine, each as two columns [tiles, 1].
SIDES = [np.array(tiles, dtype=float).T[:, :, None] for tiles in ((*TILES, *THIN), TILES)]
_AT_ONCE = 4  # blocks of MIOpen's kernels that an SM's 64 KiB of shared memory hold; 2 and 8 predict as well
_TWICE = 2.5  # rates of 16 bits, above which a format is no longer one of 8
_LEAST_SIDE = 16  # of a tile that is not thin
_GRADIENT_SIDE, _GRADIENT_TILE = 64, 128 * 128  # least side and size of cuDNN's tiles of gradients
_ON_LANES = (CONVOLUTION, BACKWARD, WINOGRAD)  # by kernels of cuDNN that have few tiles, and no split
_IMPLICIT = (CONVOLUTION, BACKWARD, WEIGHT)  # by kernels of cuDNN that are busy whatever they reach
_LANES_SIDE, _LANES_LEAST = 128, 32  # pixels, and least channels, of cuDNN's tiles on the lanes
_FP32_BYTES = 4  # of a number on the lanes


def block_s(
    k: Floats, step_s: Floats, issue_s: Floats, prologue_s: Floats, seen_s: Floats, *, prologues: int = 1
) -> Floats:
    """Seconds of a block for so many steps in k.

    Halved units are busy with one block's products while another fills its pipeline or writes its tile, but for what is
    seen of the prologue.
    """
    found: Floats = np.maximum(k * step_s + prologues * prologue_s, k * issue_s + prologues * seen_s)
    return found


def bounds_on_lanes(p: Products, rates: Rates, engine: bool, machine: Machine) -> tuple[Floats, Floats]:
    """What a product on the lanes takes at most without a split, and at least; no bounds on the engine.

    Where a number of the matrix is used once, there are no tiles to fill. Each number of the larger matrix comes at
    least once, from the cache at best.
    """
    if engine:
        return np.full(p.m.size, np.inf), np.zeros(p.m.size)
    vector = ((p.m == 1) | (p.n == 1)) & ~_by_miopen(p, machine)
    fetched = _FP32_BYTES * p.batch * p.k * np.maximum(p.m, p.n) * p.executed
    return np.where(vector, p.flop / rates.issued, np.inf), fetched / machine.l2_bandwidth


def steps(p: Products, rates: Rates, engine: bool, machine: Machine) -> tuple[Floats, Floats, Floats]:
    """Seconds of a step in k, and those between two of them: [tiles, products]; and their pace: [products]."""
    value = machine.values
    kind = "matrix" if engine else "lanes"
    a, b = SIDES[engine]
    # a step in k is as long as in 16 bit: formats of twice the rate take two numbers where those take one
    pace = rates.peak / machine.reference_peak(engine=engine)
    lost: Any = value[f"{kind}_tile_loss"]
    way = _shares(p, engine, machine)
    if library_of(machine.device) == MIOPEN:
        theirs = _by_miopen(p, machine)
        # slower formats wait less for operands
        lost = lost * np.where(theirs & engine, np.minimum(pace, 1.0), 1.0)
        way = way * np.where(theirs & (pace > 1), value["miopen_half"], 1.0)
    loss = 1 + lost * (1 / a + 1 / b)
    per_sm = rates.issued * way / machine.sm_count
    # but not of four times the rate: of 4 bits, short ones take as long as of 16
    latency_s = _latency_cycles(p, kind, machine) / machine.clock / np.where(pace > _TWICE, 1.0, pace)
    step_s = _step_s(p, 2 * a * b * loss / per_sm, latency_s, engine, machine)
    # halved units come near their peak, as operands are there in time; gradients lose by more than operands
    reached = rates.peak * np.where(is_gradient(p), np.minimum(way, 1.0), 1.0)
    return step_s, np.maximum(step_s, 2 * a * b * machine.sm_count / reached), pace


def _step_s(p: Products, issued_s: Floats, latency_s: Floats, engine: bool, machine: Machine) -> Floats:
    """Seconds of a step in k: [tiles, products].

    The operands of the next step come while this one is computed, so that the longer of the two counts. MIOpen's
    kernels wait for them: a block that is alone on its SM takes the sum, and where there are several one computes while
    others wait. Where sums are split there always are several.
    """
    longer = np.maximum(issued_s, latency_s)
    if library_of(machine.device) != MIOPEN:
        return longer
    a, b = SIDES[engine]
    on_sm = np.ceil(p.batch * np.ceil(p.m / a) * np.ceil(p.n / b) / machine.sm_count)
    waiting = np.maximum(issued_s, (issued_s + latency_s) / np.minimum(on_sm, _AT_ONCE))
    return np.where(_by_miopen(p, machine) & never_split(p, engine, machine), waiting, longer)


def _latency_cycles(p: Products, kind: str, machine: Machine) -> Floats:
    value = machine.values
    return np.where(_by_miopen(p, machine), value["miopen_latency_cycles"], value[f"{kind}_latency_cycles"])


def prologues(p: Products, kind: str, machine: Machine) -> Any:
    """Steps in k that a tile takes beyond the product's; cuDNN's Winograd transforms what it reads and writes."""
    plain = machine.values[f"{kind}_prologue"]
    if kind == "matrix" or library_of(machine.device) == MIOPEN or not (p.way == WINOGRAD).any():
        return plain
    return np.where(p.way == WINOGRAD, machine.values["winograd_prologue"], plain)


def never_split(p: Products, engine: bool, machine: Machine) -> NDArray[np.bool_]:
    """Whether k is never split: in scaled products, in MIOpen's convolutions but for the weight's gradient, and in
    cuDNN's gradients of an image on matrix engines, which take as long for 8 images of 7×7 as for 16 (DeepBench).
    """
    found: NDArray[np.bool_] = (p.way == SCALED) | (p.way == SCALED_FOUR)
    if library_of(machine.device) == MIOPEN:
        return found | np.isin(p.way, (CONVOLUTION, BACKWARD, PIXEL))
    unsplit = (BACKWARD,) if engine else _ON_LANES if machine.device.kind == "gpu" else ()
    return found | np.isin(p.way, unsplit)


def is_gradient(p: Products) -> NDArray[np.bool_]:
    """Whether it is a convolution's gradient."""
    found: NDArray[np.bool_] = (p.way == BACKWARD) | (p.way == WEIGHT) | (p.way == PIXEL_WEIGHT)
    return found


#: The constant of a way's rate, on the lanes and on the matrix engine; Winograd and FFT run on the lanes alone.
_OF_CUDNN = {
    CONVOLUTION: ("lanes_convolution", "matrix_convolution"),
    BACKWARD: ("lanes_backward", "matrix_backward"),
    WEIGHT: ("lanes_weight", "matrix_weight"),
    VOLUME: ("lanes_volume", "matrix_volume"),
    FEW: ("lanes_few", "lanes_few"),
    FEW_WEIGHT: ("lanes_few_weight", "lanes_few_weight"),
    WINOGRAD: ("lanes_winograd", "lanes_winograd"),
    WINOGRAD_WEIGHT: ("lanes_winograd_weight", "lanes_winograd_weight"),
    FOURIER: ("lanes_fourier", "lanes_fourier"),
}
_OF_MIOPEN = {
    PIXEL: ("miopen_lanes_pixel", "miopen_matrix"),
    CONVOLUTION: ("miopen_lanes", "miopen_matrix"),
    BACKWARD: ("miopen_lanes", "miopen_matrix"),
    WEIGHT: ("miopen_lanes_weight", "miopen_matrix_weight"),
    PIXEL_WEIGHT: ("miopen_lanes_pixel_weight", "miopen_matrix_weight"),
    WINOGRAD: ("miopen_winograd", "miopen_winograd"),
    WINOGRAD_WEIGHT: ("miopen_winograd_weight", "miopen_winograd_weight"),
}


def _shares(p: Products, engine: bool, machine: Machine) -> Floats:
    """The rate of each way, of a product's."""
    found = np.ones(p.way.size)
    for way, names in (_OF_MIOPEN if library_of(machine.device) == MIOPEN else _OF_CUDNN).items():
        found[p.way == way] = machine.values[names[engine]]
    return found


def sustained_share(p: Products, engine: bool, machine: Machine) -> Floats:
    """The FLOP/s that the board's power sustains in each product, of those in a plain one.

    cuDNN's implicit products reach less at the same clock, as they find their pixels beside multiplying, and a board
    that is held by its power has them at the clock that it has for products. Winograd's and FFT's wait for what they
    transform, and MIOpen's for operands; who waits draws less.
    """
    found = np.ones(p.way.size)
    if library_of(machine.device) != MIOPEN:
        for way in _IMPLICIT:
            found[p.way == way] = min(machine.values[_OF_CUDNN[way][engine]], 1.0)
    return found


def packed_bytes(p: Products, machine: Machine) -> Floats:
    """What a CPU's library writes and reads to bring matrices into the order of its tiles, before one product.

    Of a convolution these are its weights, whose order in memory is another than that of oneDNN's blocks.
    """
    if machine.device.kind != "cpu":
        return np.zeros(p.k.shape)
    packs = (p.way == PLAIN) & (p.batch == 1) & (p.m > 1) & (p.n > 1)
    both = np.where(packs, p.k * (p.m + p.n), 0.0)
    weights = np.where(p.way == CONVOLUTION, p.batch * p.k * p.n, 0.0)
    return 2 * _FP32_BYTES * (both + weights)


def restricted(p: Products, engine: bool, machine: Machine) -> bool:
    """Whether not all products have all tiles."""
    told = is_gradient(p) if engine else np.isin(p.way, _ON_LANES) | _by_miopen(p, machine)
    return bool(((p.way == SCALED) | told).any())


def possible(p: Products, engine: bool, machine: Machine) -> NDArray[np.bool_]:
    """Which tiles a×b the library of each product has: [tiles, products].

    For scaled products of 8 bits serving libraries have one tile for few rows, one for more and one for many, and no
    split (vLLM, csrc/quantization/cutlass_w8a8, sm90: 64×64, 64×128 above 64 rows, 128×128 above 128). Gradients of
    cuDNN's convolutions on matrix engines have the tiles in their kernels' names: 128×128, 256×64 and 256×128, and for
    fewer channels, as in groups, narrower ones. MIOpen's convolutions have no thin ones.
    """
    a, b = SIDES[engine]
    one = (a == np.where(p.m <= 128, 64, 128)) & (b == np.where(p.m <= 64, 64, 128))
    found: NDArray[np.bool_] = one | (p.way != SCALED)
    if library_of(machine.device) == MIOPEN:
        found = found & ~((np.minimum(a, b) < _LEAST_SIDE) & _by_miopen(p, machine))
    elif engine:
        narrow = np.minimum(p.m, p.n) < _GRADIENT_SIDE
        small = (a < np.minimum(p.m, _GRADIENT_SIDE)) | (b < np.minimum(p.n, _GRADIENT_SIDE))
        small = small | (~narrow & (a * b < _GRADIENT_TILE))
        found = found & ~(small & is_gradient(p))
    elif machine.device.kind == "gpu":
        square = (a == FUSED_SIDE) & (b == FUSED_SIDE)
        wide = (a == _LANES_SIDE) & (b >= _LANES_LEAST) & (b <= _LANES_SIDE)
        found = found & (square | (p.way != WINOGRAD)) & (wide | ((p.way != CONVOLUTION) & (p.way != BACKWARD)))
    return found


def _by_miopen(p: Products, machine: Machine) -> NDArray[np.bool_]:
    """Which products are MIOpen's own kernels, and none of the library of products."""
    found: NDArray[np.bool_] = (p.way != PLAIN) & (p.way != UNTUNED) & (library_of(machine.device) == MIOPEN)
    return found
