"""How much of the peak a matrix product gets: tiles, waves, split-K.

An output [m, n] is cut into tiles of a×b, each the work of one block; the SMs take them in waves. A tile runs at

    rate(tile) = peak/SMs · share / (1 + tile_loss·(1/a + 1/b))

because an SM loads a + b numbers for a·b multiply-adds, and takes prologue more steps in k than the product asks for,
to fill the pipeline and to write the tile. One step in k takes latency_cycles at least, however small the tile. Where
tiles are few, s blocks share the k of a tile (split-K), which costs a pass over s·m·n partial sums in fp32 and a second
kernel. The library's choice among tiles and splits is taken as the fastest.

What it takes beyond its FLOP at the peak has causes, which are taken away one after the other (CAUSES): the board's
power; SMs without a tile in the last wave; what tiles compute beyond the edge of the output. What is left is how far
busy units are from their peak.

Few of all tiles and splits come into question. So every tile is looked at without a split first. With s ≥ 2 blocks for
the k of a tile it takes no less than

    start + max(tiles/SMs · block(k, 2·prologue), FLOP at the power limit, traffic with two partial sums)

which tiles of many waves exceed by far; where that is above the least without a split, no split is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.kernels.algorithms import SQUARE, Algorithm
from rooflinekit.published.stated import NUMBERS
from rooflinekit.timing.kernel_batch import Columns, Floats, Products
from rooflinekit.timing.machine import Machine, throttled_s
from rooflinekit.timing.memory_system import combined

# What a tile of a matrix product takes, by its size and the algorithm that it belongs to.


TILES = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (32, 32), (16, 128), (16, 64), (16, 32),
)  # fmt: skip
THIN = ((2, 64), (64, 2), (4, 32), (32, 4), (8, 32), (32, 8))  # of CUDA cores, which need no more than a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Columns):
    """The rates that limit each product, in FLOP/s."""

    on_tensor_core: NDArray[np.bool_]  # which unit does it: the tensor core, or the CUDA cores
    peak: Floats  # of that unit at the clock that the board runs at
    issued: Floats  # by tiles without loss, on an SM whose product line has not halved its units
    limit: Floats  # what the board's power sustains


#: Tiles of the CUDA cores and of the tensor core, each as two columns [tiles, 1].
SIDES = [np.array(tiles, dtype=float).T[:, :, None] for tiles in ((*TILES, *THIN), TILES)]
SIMT_LOSS = NUMBERS["simt tile loss"].value
#: Bytes of operands that a block of MIOpen's kernels stages: twice 128 + 128 numbers of fp32 for 8 steps in k.
_STAGED_BYTES = 2 * 256 * 8 * 4
_SHARED_BYTES = 64 * 1024  # of an SM, as AMD's have, where the specification is silent
_TWICE = 2.5  # rates of 16 bits, above which a format is no longer one of 8
_GRADIENT_SIDE, _GRADIENT_TILE = 64, 128 * 128  # least side and size of cuDNN's tiles of gradients
_WIDE_SIDE, _WIDE_LEAST = 128, 32  # pixels, and least channels, of cuDNN's tiles on CUDA cores
_FP32_BYTES = 4  # of a number on the CUDA cores
#: The least tile a×b that cuBLAS has on CUDA cores for a product alone and in a batch, by the first number of the
#: compute capability (those between as the one below). An A100 takes as long for 8 columns of a batch as for 128, and
#: twice as long for 129. Few blocks of a batch have no smaller tile, and no split (NeuSight's products on seven GPUs).
_LEAST = {6: ((128, 128), (64, 128)), 7: ((0, 0), (64, 64)), 8: ((0, 0), (128, 128))}
#: Hopper's for a product alone whose left matrix lies by rows, and of which such tiles fill all SMs: on the 114 of an
#: H100 PCIe 256 of them take as long as 342 would (KernelBench).
_LARGE = 256.0, 128.0
_OWN_KERNELS = (8, 6)  # CUDA's compute capability
_HOPPER = 9
_CLUSTERED = (_HOPPER, 10)  # of GPUs whose blocks run in clusters


def block_s(
    k: Floats, step_s: Floats, issue_s: Floats, prologue_s: Floats, seen_s: Floats, *, prologues: int = 1
) -> Floats:
    """Seconds of a block for so many steps in k.

    Halved units are busy with one block's products while another fills its pipeline or writes its tile, but for what is
    seen of the prologue.
    """
    return np.maximum(k * step_s + prologues * prologue_s, k * issue_s + prologues * seen_s)


def bounds_on_cuda_cores(p: Products, rates: Rates, tensor_core: bool, machine: Machine) -> tuple[Floats, Floats]:
    """What a product on the CUDA cores takes at most without a split, and at least; no bounds on the tensor core.

    Where a number of the matrix is used once, there are no tiles to fill. Each number of the larger matrix comes at
    least once, from the cache at best.
    """
    if tensor_core:
        return np.full(p.m.size, np.inf), np.zeros(p.m.size)
    vector = (p.m == 1) | (p.n == 1)
    fetched = _FP32_BYTES * p.batch * p.k * np.maximum(p.m, p.n) * p.executed
    return np.where(vector, p.flop / rates.issued, np.inf), fetched / machine.l2_bandwidth


def steps(p: Products, rates: Rates, tensor_core: bool, machine: Machine) -> tuple[Floats, Floats, Floats]:
    """Seconds of a step in k, and those between two of them: [tiles, products]; and their pace: [products]."""
    value = machine.values
    a, b = SIDES[tensor_core]
    # a step in k is as long as in 16 bit: formats of twice the rate take two numbers where those take one
    peaks = machine.device.matrix_peak if tensor_core else machine.device.vector_peak
    pace = rates.peak / (machine.clock_gain * (peaks.get("fp16" if tensor_core else "fp32") or max(peaks.values())))
    # of some, slower formats wait less for operands
    by_pace, others = p.of_algorithm(lambda one: one.loss_by_pace), 1.0 if tensor_core else SIMT_LOSS
    lost = value["matrix_tile_loss"] * np.where(by_pace, np.minimum(pace, 1.0), others)
    share = p.of_algorithm(lambda one: one.share(value, tensor_core))
    half = p.of_algorithm(lambda one: value[one.half_rate] if one.half_rate else 1.0)
    share = share * np.where(pace > 1, half, 1.0) * np.where(pace < 1, 1.0, _rate_by_layout(p, tensor_core, machine))
    loss = 1 + lost * (1 / a + 1 / b)
    per_sm = rates.issued * share / machine.sm_count
    latency = p.of_algorithm(lambda one: value[one.latency])
    # but not of four times the rate: of 4 bits, short ones take as long as of 16
    latency_s = latency / machine.clock / np.where(pace > _TWICE, 1.0, pace)
    step_s = _step_s(p, 2 * a * b * loss / per_sm, latency_s, tensor_core, machine)
    # halved units come near their peak, as operands are there in time; gradients lose by more than operands
    reached = rates.peak * np.where(p.of_algorithm(lambda one: one.gradient), np.minimum(share, 1.0), 1.0)
    return step_s, np.maximum(step_s, 2 * a * b * machine.sm_count / reached), pace


def _turns_both(p: Products, machine: Machine) -> NDArray[np.bool_] | None:
    """Which products alone on CUDA cores turn both matrices on their way into shared memory, as linear layers do.

    None on a GPU where that makes no difference. It does from compute capability 8.6 to 8.9, for which cuBLAS has
    kernels of their own: they take longer, and more energy. Why is not known; those of A100 and H100 do not.
    """
    capability = machine.device.cuda_capability
    if capability is None or not _OWN_KERNELS <= capability < (_HOPPER, 0):
        return None
    found: NDArray[np.bool_] = p.of_algorithm(lambda one: one.layout == "TN") & (p.batch == 1)
    return found


def _rate_by_layout(p: Products, tensor_core: bool, machine: Machine) -> Floats:
    """The rate of products on CUDA cores by how their matrices lie, of what the others issue."""
    if tensor_core:
        return np.ones(1)
    if (turned := _turns_both(p, machine)) is not None:
        return np.where(turned, NUMBERS["TN product"].value, 1.0)
    slots = NUMBERS["fma slots of large tiles"].value / NUMBERS["fma slots"].value
    return np.where(_in_large_tiles(p, machine), slots, 1.0)


def _energy_by_layout(p: Products, tensor_core: bool, machine: Machine) -> Floats:
    """Energy of a FLOP, of that in the time model: less where others turn both matrices, and this product does not."""
    if tensor_core or (turned := _turns_both(p, machine)) is None:
        return np.ones(1)
    other = turned | (p.batch > 1) | p.of_algorithm(lambda one: one.tiles.cuda_cores != "plain")
    return np.where(other, 1.0, NUMBERS["plain energy"].value)


def _in_large_tiles(p: Products, machine: Machine) -> NDArray[np.bool_]:
    """Whether cuBLAS multiplies on the CUDA cores of Hopper by its large tiles alone, of which no two share a k."""
    a, b = _LARGE
    filling = (p.m >= a) & (p.n >= b) & (p.m * p.n >= a * b * machine.sm_count) & (p.batch == 1)
    plain = p.of_algorithm(lambda one: one.tiles.cuda_cores == "plain" and one.layout != "NT")
    found: NDArray[np.bool_] = filling & plain & (machine.device.cuda_generation == _HOPPER)
    return found


def _step_s(p: Products, issued_s: Floats, latency_s: Floats, tensor_core: bool, machine: Machine) -> Floats:
    """Seconds of a step in k: [tiles, products].

    The next operands come while this step is computed, so the longer of the two counts. MIOpen's kernels wait for them:
    a block that is alone on its SM takes the sum, and of several one computes while others wait.
    """
    longer, waits = np.maximum(issued_s, latency_s), p.of_algorithm(lambda one: one.waits)
    if not waits.any():
        return longer
    a, b = SIDES[tensor_core]
    on_sm = np.ceil(p.batch * np.ceil(p.m / a) * np.ceil(p.n / b) / machine.sm_count)
    held = max(1, int(machine.device.shared_memory_per_sm or _SHARED_BYTES) // _STAGED_BYTES)
    waiting = np.maximum(issued_s, (issued_s + latency_s) / np.minimum(on_sm, held))
    return np.where(waits, waiting, longer)


def prologues(p: Products, tensor_core: bool, machine: Machine) -> Floats:
    """Steps in k that a tile takes beyond the product's."""

    def told(one: Algorithm) -> float:
        name = one.prologue.of(tensor_core)
        return machine.values[name] if name else 0.0

    return p.of_algorithm(told)


def packed_bytes(p: Products, machine: Machine) -> Floats:
    """What a CPU's library moves to bring matrices, or a convolution's weights, into the order of its tiles."""
    if machine.device.kind != "cpu":
        return np.zeros(p.k.shape)
    packs = p.of_algorithm(lambda one: one.packs)
    both = np.where((packs == "both") & (p.batch == 1) & (p.m > 1) & (p.n > 1), p.k * (p.m + p.n), 0.0)
    weights = np.where(packs == "weight", p.batch * p.k * p.n, 0.0)
    return 2 * _FP32_BYTES * (both + weights)


def least_tiles(p: Products, tensor_core: bool, machine: Machine) -> tuple[Floats, Floats]:
    """Rows and columns of the least tile that the library has for each product; 0 where it has all."""
    generation = machine.device.cuda_generation
    plain = p.of_algorithm(lambda one: one.tiles.of(tensor_core) == "plain")
    if not generation or not plain.any():
        return np.zeros(1), np.zeros(1)
    known = max((one for one in _LEAST if one <= generation), default=min(_LEAST))
    sides = np.array(_LEAST[known], dtype=float).T
    rows, columns = np.where(plain, sides[:, (p.batch > 1).astype(int)], 0.0)
    large = _in_large_tiles(p, machine)
    rows, columns = np.where(large, _LARGE[0], rows), np.where(large, _LARGE[1], columns)
    return rows, columns


def where_tiled(p: Products, seconds: Floats, tensor_core: bool, least: tuple[Floats, Floats]) -> Floats:
    """Infinite seconds for tiles a×b that a product's algorithm does not have: [tiles, products].

    by name: 128×128, 256×64 and 256×128, as in the names of cuDNN's kernels for gradients on tensor cores; for fewer
    channels, as in groups, narrower ones. wide: of 128 pixels. square: that of a fused Winograd. plain: from
    `least` on, as `least_tiles` tells it.
    """
    rows, columns = least
    all_there = ("every",) if rows.any() else ("every", "plain")
    if all(one.tiles.of(tensor_core) in all_there for one in p.algorithms):
        return seconds
    a, b = SIDES[tensor_core]
    kinds = p.of_algorithm(lambda one: one.tiles.of(tensor_core))
    narrow = np.minimum(p.m, p.n) < _GRADIENT_SIDE
    small = (a < np.minimum(p.m, _GRADIENT_SIDE)) | (b < np.minimum(p.n, _GRADIENT_SIDE))
    by_name = ~(small | (~narrow & (a * b < _GRADIENT_TILE)))
    wide = (a == _WIDE_SIDE) & (b >= _WIDE_LEAST) & (b <= _WIDE_SIDE)
    square = (a == SQUARE) & (b == SQUARE)
    plain = (a >= rows) & (b >= columns)
    tiles = {"by name": by_name, "wide": wide, "square": square, "plain": plain}
    for kind in set(kinds.tolist()) - {"every"}:
        seconds = np.where(tiles[kind] | (kinds != kind), seconds, np.inf)
    return seconds


def rows_of_tiles(p: Products, a: Floats, machine: Machine) -> Floats:
    """How many tiles of a rows cover each product's: [tiles, products].

    On GPUs of the data centre from Hopper on, scaled products of more than 64 rows have clusters of two tiles, which
    both run where one alone has rows. On Hopper each row of a cluster beyond the last one takes as long as two: vLLM's
    and SGLang's products of 257 rows take as long on H100 as of 767, those of 1025 as of 1535, at any n and k. Why is
    not known.
    """
    found: Floats = np.ceil(p.m / a)
    generation = machine.device.cuda_generation
    if generation not in _CLUSTERED:
        return found
    pairs = 2 * np.ceil(p.m / (2 * a))
    beyond = pairs - p.m / a if generation == _HOPPER else 0.0
    return np.where(p.of_algorithm(lambda one: one.clusters) & (p.m > 64), pairs + beyond, found)


SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SPLITS = np.array(SPLITS, dtype=float)

#: Why products miss the peak, in the order in which `Fill.without_s` takes the causes away.
CAUSES = ("power", "waves", "tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """The time of a product beside its traffic."""

    compute_s: Floats
    without_s: Floats  # [causes, products]: the same without the first of CAUSES, the first two, all of them
    extra_bytes: Floats  # partial sums of split-K
    extra_start_s: Floats  # the kernel that adds them up

    @classmethod
    def unsplit(cls, compute_s: Floats, without_s: Floats) -> Fill:
        """Products whose k no blocks share; without_s: as above, or one column for all causes."""
        zeros, several = np.zeros(compute_s.size), np.broadcast_to(without_s, (len(CAUSES), compute_s.size))
        return cls(compute_s=compute_s, without_s=several, extra_bytes=zeros, extra_start_s=zeros)

    @classmethod
    def empty(cls, count: int) -> Fill:
        """Zeros, to be filled in."""
        zeros = np.zeros((3 + len(CAUSES), count))
        return cls(compute_s=zeros[0], extra_bytes=zeros[1], extra_start_s=zeros[2], without_s=zeros[3:])

    def put(self, chosen: np.ndarray, part: Fill) -> None:
        """Writes the results of some of the products."""
        for name in ("compute_s", "without_s", "extra_bytes", "extra_start_s"):
            getattr(self, name)[..., chosen] = getattr(part, name)


_CHUNK = 1024  # products looked at together: arrays of 512 by 22 tiles stay in a core's cache
_CLOSE = 1 + 1e-12  # beyond this factor a bound is above another number, whatever their rounding
_ROUNDING = 1e-9  # the same of a bound that is worked out in another way

_Ints = NDArray[np.int64]


def tiled(products: Products, rates: Rates, beside_s: Floats, tensor_core: bool, machine: Machine) -> Fill:
    """The time of each product on the tensor core or on the CUDA cores.

    beside_s: [2, products], seconds of memory traffic and of other arithmetic of its kernel.
    """
    found = Fill.empty(products.m.size)
    for start in range(0, products.m.size, _CHUNK):
        some: Any = slice(start, start + _CHUNK)
        one = _Tiled(products.where(some), rates.where(some), beside_s[:, some], tensor_core, machine)
        found.put(some, one.fill())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Columns):
    """Products with tiles and splits that come into question: columns."""

    product: _Ints
    tile: _Ints
    split: _Ints
    total_s: Floats
    compute_s: Floats
    tiled_s: Floats  # the same where the board's power is no limit
    extra_bytes: Floats

    def least(self, count: int) -> _Options:
        """The one of each product that takes least; of equals that without the limit; of equals the first tile."""
        lowest = np.full(count, np.inf)
        np.minimum.at(lowest, self.product, self.total_s)
        alike = np.flatnonzero(self.total_s == lowest[self.product])
        if alike.size > count:
            keys = self.split[alike], self.tile[alike], self.tiled_s[alike]
            alike = alike[np.lexsort(keys)[::-1]]  # what is written last stays
        found = np.empty(count, dtype=np.int64)
        found[self.product[::-1]] = np.arange(self.product.size)[::-1]  # where a time is no number, any
        found[self.product[alike]] = alike
        return self.where(found)


class _Tiled:
    """Products by every tile: arrays are [tiles, products]. What is the same for all products stays a single column."""

    def __init__(self, p: Products, rates: Rates, beside_s: Floats, tensor_core: bool, machine: Machine) -> None:
        self.count, self.tensor_core, self.machine = p.m.size, tensor_core, machine
        self.traffic_s, self.others_s = beside_s
        p = replace(p, k=np.where(p.of_algorithm(lambda one: one.fills.of(tensor_core)), p.k * p.padded, p.k))
        p, rates = p.with_columns(_shortened), rates.with_columns(_shortened)
        a, b = SIDES[tensor_core]
        step_s, issue_s, pace = steps(p, rates, tensor_core, machine)
        prologue_s = prologues(p, tensor_core, machine) * pace * step_s
        seen_s = np.where(p.of_algorithm(lambda one: one.gradient), prologue_s, 0.0)
        self.p, self.steps = p, (step_s, issue_s, prologue_s, seen_s)
        self.tiles = p.batch * rows_of_tiles(p, a, machine) * np.ceil(p.n / b)
        # cuDNN's implicit products find their pixels beside multiplying: a board that its power holds has them at the
        # clock that it has for plain ones. Winograd's wait for transforms, MIOpen's for operands; who waits draws less.
        value = machine.values
        share = p.of_algorithm(lambda one: min(one.share(value, tensor_core), 1.0) if one.holds_clock else 1.0)
        self.least = rows, columns = least_tiles(p, tensor_core, machine)
        # what the least tile computes beyond the edge takes power, too
        asked = _share_asked(p.m, rows) * _share_asked(p.n, columns)
        self.limit_s = p.flop * _energy_by_layout(p, tensor_core, machine) / (rates.limit * share * asked)
        self.packed_bytes = packed_bytes(p, machine)
        self.vector_s, self.fetch_s = bounds_on_cuda_cores(p, rates, tensor_core, machine)
        self.bandwidth = machine.bandwidth * machine.product_bandwidth_share

    def fill(self) -> Fill:
        """What each product takes with the option that takes least."""
        unsplit = self._unsplit().least(self.count)
        split = self._split(unsplit.total_s)
        o = unsplit.and_also(split).least(self.count) if split.product.size else unsplit
        blocks, (a, b) = _of(self.tiles, o.product, o.tile) * _SPLITS[o.split], SIDES[self.tensor_core]
        busy = blocks / (np.ceil(blocks / self.machine.sm_count) * self.machine.sm_count)  # share of SMs, all waves
        asked = _share_asked(self.p.m, a[o.tile, 0]) * _share_asked(self.p.n, b[o.tile, 0])
        freed_s = o.tiled_s * np.stack([np.ones_like(busy), busy, busy * asked])
        return Fill(
            compute_s=o.compute_s,
            without_s=np.maximum(np.minimum(freed_s, np.where(o.split == 0, self.vector_s, np.inf)), self.fetch_s),
            extra_bytes=o.extra_bytes,
            extra_start_s=np.where(o.split > 0, self.machine.start_s, 0.0),
        )

    def _unsplit(self) -> _Options:
        """Tiles that take least without a split, as far as their bounds tell.

        Arithmetic and traffic at once take no less than the longer of the two. So the p-norm, which is slow, is worked
        out for the tile whose bound is lowest, and then for those alone whose bound is not above that.
        """
        p, every = self.p, np.arange(self.count)
        tiled_s = np.ceil(self.tiles / self.machine.sm_count)
        tiled_s = tiled_s * block_s(np.ceil(p.k), *self.steps) * p.executed
        compute_s = np.maximum(np.minimum(self._throttled_s(tiled_s, self.limit_s), self.vector_s), self.fetch_s)
        extra = np.broadcast_to(self.packed_bytes, (self.count,))
        memory_s = self.traffic_s + extra / self.bandwidth
        least_s = where_tiled(p, np.maximum(compute_s, memory_s), self.tensor_core, self.least)
        first = np.argmin(least_s, axis=0)
        lowest_s = self._busy_s(_of(compute_s, every, first), memory_s, every)
        close = least_s <= lowest_s * _CLOSE
        close[first, every] = False
        tile, product = np.nonzero(close)
        others_s = self._busy_s(_of(compute_s, product, tile), memory_s[product], product)
        tile, product = np.concatenate((first, tile)), np.concatenate((every, product))
        return _Options(
            product=product, tile=tile, split=np.zeros_like(tile), compute_s=_of(compute_s, product, tile),
            total_s=np.concatenate((lowest_s, others_s)), tiled_s=_of(tiled_s, product, tile),
            extra_bytes=extra[product],
        )  # fmt: skip

    def _split(self, lowest_s: Floats) -> _Options:
        """Tiles over several blocks that might take no longer than `lowest_s`."""
        start_s, most_s = self.machine.start_s, lowest_s * _CLOSE
        tile, product = self._worth_splitting(most_s - start_s)
        count, splits = tile.size, len(_SPLITS) - 1
        tile, product, split = np.tile(tile, splits), np.tile(product, splits), np.repeat(np.arange(splits) + 1, count)
        few = _SPLITS[split] <= _of(self._parts(), product)
        tile, product, split = tile[few], product[few], split[few]
        s, k, executed = _SPLITS[split], _of(self.p.k, product), _of(self.p.executed, product)
        tiled_s = np.ceil(_of(self.tiles, product, tile) * s / self.machine.sm_count)
        tiled_s = tiled_s * block_s(np.ceil(k / s), *(_of(part, product, tile) for part in self.steps)) * executed
        compute_s = np.maximum(self._throttled_s(tiled_s, _of(self.limit_s, product)), _of(self.fetch_s, product))
        extra = self._extra_bytes(s, product)
        memory_s = self.traffic_s[product] + extra / self.bandwidth
        kept = np.flatnonzero(start_s + np.maximum(compute_s, memory_s) <= most_s[product])
        total_s = start_s + self._busy_s(compute_s[kept], memory_s[kept], product[kept])
        return _Options(
            product=product[kept], tile=tile[kept], split=split[kept], compute_s=compute_s[kept], total_s=total_s,
            tiled_s=tiled_s[kept], extra_bytes=extra[kept],
        )  # fmt: skip

    def _throttled_s(self, free_s: Floats, limit_s: Floats) -> Any:
        """The seconds at the clock that the board's power sustains."""
        window_s, calls, before = self.machine.values["power_window"], self.machine.calls, self.machine.warm_calls
        return throttled_s(free_s, limit_s, window_s=window_s, calls=calls, before=before)

    def _busy_s(self, compute_s: Floats, memory_s: Floats, product: _Ints) -> Floats:
        """A product with what its kernel does beside it: as in `roofline`, so that the kernel has the tile it needs."""
        others_s, overlap = self.others_s[product], self.machine.values["overlap"]
        if not others_s.any():
            return combined(compute_s, memory_s, overlap)
        if self.tensor_core:
            return combined(compute_s, combined(memory_s, others_s, overlap), overlap)
        return combined(compute_s + others_s, memory_s, overlap)

    def _worth_splitting(self, most_s: Floats) -> tuple[_Ints, _Ints]:
        """Tiles, each with a product, of which the bound above is not more than this without the start."""
        p, every = self.p, np.arange(self.count)
        most_s = np.where(self._parts() > 1, most_s * (1 + _ROUNDING), -1.0)
        least_s = self.tiles * (block_s(p.k, *self.steps, prologues=2) * p.executed / self.machine.sm_count)
        least_s = np.maximum(self._throttled_s(least_s, self.limit_s), self.fetch_s)
        least_s = where_tiled(p, least_s, self.tensor_core, self.least)
        memory_s = self.traffic_s + self._extra_bytes(_SPLITS[1], every) / self.bandwidth
        tile, product = np.nonzero(np.maximum(least_s, memory_s) <= most_s)
        both_s = self._busy_s(_of(least_s, product, tile), memory_s[product], product)
        worth = both_s <= most_s[product]
        return tile[worth], product[worth]

    def _parts(self) -> Any:
        """How many blocks may share a k, at most."""
        whole = (self.least[0] > 0) & ((self.p.batch > 1) | (self.least[0] == _LARGE[0]))
        return np.where(whole, 1, self.p.of_algorithm(lambda one: one.parts.of(self.tensor_core)))

    def _extra_bytes(self, s: Any, product: _Ints) -> Floats:
        """Partial sums of so many splits, and what is packed."""
        batch, m, n = (_of(values, product) for values in (self.p.batch, self.p.m, self.p.n))
        found: Floats = 2 * 4 * s * batch * m * n + _of(self.packed_bytes, product)
        return found


def _shortened(column: NDArray[Any]) -> NDArray[Any]:
    """The column, shortened to one number where all are equal."""
    return column[:1] if (column == column[0]).all() else column


def _of(values: NDArray[Any], product: _Ints, tile: _Ints | None = None) -> Any:
    """The numbers of products, or of products by tiles."""
    column: Any = product if values.shape[-1] > 1 else 0
    return values[column] if tile is None else values[tile, column]


def _share_asked(size: Floats, tile: Floats) -> Floats:
    """The share of the computed tiles that was asked for along one size; 1 where no tile is named."""
    tile = np.where(tile > 0, tile, size)
    found: Floats = size / (np.ceil(size / tile) * tile)
    return found
