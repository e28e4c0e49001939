"""What a tile of a matrix product takes, by its size and the algorithm that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.kernel_batch import Floats, Products
from rooflinekit.model.machine import Machine

FUSED_SIDE = 128  # of the tile of a fused Winograd: 4·4 products of 32 blocks by 32 channels
TILES = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (32, 32), (16, 128), (16, 64), (16, 32),
)  # fmt: skip
THIN = ((2, 64), (64, 2), (4, 32), (32, 4), (8, 32), (32, 8))  # of CUDA cores, which need no more than a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What limits each product, in FLOP/s."""

    on_tensor_core: NDArray[np.bool_]  # which unit does it: the tensor core, or the CUDA cores
    peak: Floats  # of that unit at the clock that the board runs at
    issued: Floats  # by tiles without loss, on an SM whose product line has not halved its units
    limit: Floats  # what the board's power sustains

    def with_columns(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Rates:
        """With each column changed."""
        return Rates(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def where(self, chosen: NDArray[Any]) -> Rates:
        """The rates of some of the products."""
        return self.with_columns(lambda column: column[chosen])


#: Tiles of the CUDA cores and of the tensor core, each as two columns [tiles, 1].
SIDES = [np.array(tiles, dtype=float).T[:, :, None] for tiles in ((*TILES, *THIN), TILES)]
_AT_ONCE = 4  # blocks of MIOpen's kernels that an SM's 64 KiB of shared memory hold; 2 and 8 predict as well
_TWICE = 2.5  # rates of 16 bits, above which a format is no longer one of 8
_LEAST_SIDE = 16  # of a tile that is not thin
_GRADIENT_SIDE, _GRADIENT_TILE = 64, 128 * 128  # least side and size of cuDNN's tiles of gradients
_WIDE_SIDE, _WIDE_LEAST = 128, 32  # pixels, and least channels, of cuDNN's tiles on CUDA cores
_FP32_BYTES = 4  # of a number on the CUDA cores


def block_s(
    k: Floats, step_s: Floats, issue_s: Floats, prologue_s: Floats, seen_s: Floats, *, prologues: int = 1
) -> Floats:
    """Seconds of a block for so many steps in k.

    Halved units are busy with one block's products while another fills its pipeline or writes its tile, but for what is
    seen of the prologue.
    """
    found: Floats = np.maximum(k * step_s + prologues * prologue_s, k * issue_s + prologues * seen_s)
    return found


def bounds_on_cuda_cores(p: Products, rates: Rates, tensor_core: bool, machine: Machine) -> tuple[Floats, Floats]:
    """What a product on the CUDA cores takes at most without a split, and at least; no bounds on the tensor core.

    Where a number of the matrix is used once, there are no tiles to fill. Each number of the larger matrix comes at
    least once, from the cache at best.
    """
    if tensor_core:
        return np.full(p.m.size, np.inf), np.zeros(p.m.size)
    vector = ((p.m == 1) | (p.n == 1)) & p.told(lambda one: one.vectors)
    fetched = _FP32_BYTES * p.batch * p.k * np.maximum(p.m, p.n) * p.executed
    return np.where(vector, p.flop / rates.issued, np.inf), fetched / machine.l2_bandwidth


def steps(p: Products, rates: Rates, tensor_core: bool, machine: Machine) -> tuple[Floats, Floats, Floats]:
    """Seconds of a step in k, and those between two of them: [tiles, products]; and their pace: [products]."""
    value = machine.values
    kind = "matrix" if tensor_core else "simt"
    a, b = SIDES[tensor_core]
    # a step in k is as long as in 16 bit: formats of twice the rate take two numbers where those take one
    pace = rates.peak / machine.reference_peak(tensor_core=tensor_core)
    # of some, slower formats wait less for operands
    by_pace = p.told(lambda one: tensor_core and one.loss_by_pace)
    lost = value[f"{kind}_tile_loss"] * np.where(by_pace, np.minimum(pace, 1.0), 1.0)
    share = p.told(lambda one: value[one.rate.of(tensor_core)] if one.rate.of(tensor_core) else 1.0)
    half = p.told(lambda one: value[one.half_rate] if one.half_rate else 1.0)
    share = share * np.where(pace > 1, half, 1.0)
    loss = 1 + lost * (1 / a + 1 / b)
    per_sm = rates.issued * share / machine.sm_count
    latency = p.told(lambda one: value[one.latency])
    # but not of four times the rate: of 4 bits, short ones take as long as of 16
    latency_s = latency / machine.clock / np.where(pace > _TWICE, 1.0, pace)
    step_s = _step_s(p, 2 * a * b * loss / per_sm, latency_s, tensor_core, machine)
    # halved units come near their peak, as operands are there in time; gradients lose by more than operands
    reached = rates.peak * np.where(is_gradient(p), np.minimum(share, 1.0), 1.0)
    return step_s, np.maximum(step_s, 2 * a * b * machine.sm_count / reached), pace


def _step_s(p: Products, issued_s: Floats, latency_s: Floats, tensor_core: bool, machine: Machine) -> Floats:
    """Seconds of a step in k: [tiles, products].

    The operands of the next step come while this one is computed, so that the longer of the two counts. MIOpen's
    kernels wait for them: a block that is alone on its SM takes the sum, and where there are several one computes while
    others wait. Where sums are split there always are several.
    """
    longer, waits = np.maximum(issued_s, latency_s), p.told(lambda one: one.waits)
    if not waits.any():
        return longer
    a, b = SIDES[tensor_core]
    on_sm = np.ceil(p.batch * np.ceil(p.m / a) * np.ceil(p.n / b) / machine.sm_count)
    waiting = np.maximum(issued_s, (issued_s + latency_s) / np.minimum(on_sm, _AT_ONCE))
    return np.where(waits, waiting, longer)


def prologues(p: Products, tensor_core: bool, machine: Machine) -> Floats:
    """Steps in k that a tile takes beyond the product's."""
    return p.told(lambda one: machine.values[one.prologue.of(tensor_core)] if one.prologue.of(tensor_core) else 0.0)


def never_split(p: Products, tensor_core: bool) -> NDArray[np.bool_]:
    """Whether k is never split."""
    return p.told(lambda one: not one.splits.of(tensor_core))


def is_gradient(p: Products) -> NDArray[np.bool_]:
    """Whether it is a convolution's gradient."""
    return p.told(lambda one: one.gradient)


def sustained_share(p: Products, tensor_core: bool, machine: Machine) -> Floats:
    """The FLOP/s that the board's power sustains in each product, of those in a plain one.

    cuDNN's implicit products reach less at the same clock, as they find their pixels beside multiplying, and a board
    that is held by its power has them at the clock that it has for products. Winograd's and FFT's wait for what they
    transform, and MIOpen's for operands; who waits draws less.
    """
    value = machine.values
    return p.told(lambda one: min(value[one.rate.of(tensor_core)], 1.0) if one.holds_clock else 1.0)


def packed_bytes(p: Products, machine: Machine) -> Floats:
    """What a CPU's library writes and reads to bring matrices into the order of its tiles, before one product.

    Of a convolution these are its weights, whose order in memory is another than that of oneDNN's blocks.
    """
    if machine.device.kind != "cpu":
        return np.zeros(p.k.shape)
    packs = p.told(lambda one: one.packs)
    both = np.where((packs == "both") & (p.batch == 1) & (p.m > 1) & (p.n > 1), p.k * (p.m + p.n), 0.0)
    weights = np.where(packs == "weight", p.batch * p.k * p.n, 0.0)
    return 2 * _FP32_BYTES * (both + weights)


def restricted(p: Products, tensor_core: bool) -> bool:
    """Whether not all products have all tiles."""
    return any(one.tiles.of(tensor_core) != "every" for one in p.algorithms)


def has_tiles(p: Products, tensor_core: bool) -> NDArray[np.bool_]:
    """Which tiles a×b each product's algorithm has: [tiles, products].

    by rows: one tile for few rows, one for more and one for many. by name: 128×128, 256×64 and 256×128, as in the names
    of cuDNN's kernels for gradients on tensor cores; for fewer channels, as in groups, narrower ones. wide: of 128
    pixels. square: that of a fused Winograd.
    """
    a, b = SIDES[tensor_core]
    kinds = p.told(lambda one: one.tiles.of(tensor_core))
    found = np.ones((a.size, kinds.size), dtype=bool)
    by_rows = (a == np.where(p.m <= 128, 64, 128)) & (b == np.where(p.m <= 64, 64, 128))
    narrow = np.minimum(p.m, p.n) < _GRADIENT_SIDE
    small = (a < np.minimum(p.m, _GRADIENT_SIDE)) | (b < np.minimum(p.n, _GRADIENT_SIDE))
    by_name = ~(small | (~narrow & (a * b < _GRADIENT_TILE)))
    wide = (a == _WIDE_SIDE) & (b >= _WIDE_LEAST) & (b <= _WIDE_SIDE)
    square = (a == FUSED_SIDE) & (b == FUSED_SIDE)
    tiles = {"no thin ones": np.minimum(a, b) >= _LEAST_SIDE, "by rows": by_rows, "by name": by_name, "wide": wide,
             "square": square}  # fmt: skip
    for kind in set(kinds.tolist()) - {"every"}:
        found = found & (tiles[kind] | (kinds != kind))
    return found
