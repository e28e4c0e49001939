"""How much of the peak a matrix product gets: tiles, waves, split-K.

An output [m, n] is cut into tiles of a×b, each the work of one block; the SMs take them in waves. A tile runs at

    rate(tile) = peak/SMs · share / (1 + tile_loss·(1/a + 1/b))

because an SM loads a + b numbers for a·b multiply-adds, and takes prologue more steps in k than the product asks for,
to fill the pipeline and to write the tile. One step in k takes latency_cycles at least, however small the tile. Where
tiles are few, s blocks share the k of a tile (split-K), which costs a pass over s·m·n partial sums in fp32 and a second
kernel.
The library's choice among tiles and splits is taken as the fastest.

What a product takes beyond its FLOP at the peak has causes, which are taken away one after the other (CAUSES): the
board's power; SMs without a tile in the last wave; what tiles compute beyond the edge of the output, as where sizes are
no multiples of theirs. What then is left, the loss and the prologue of tiles, latency and the kernels' own rate, is how
far busy units are from their peak.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import combined
from rooflinekit.model.work import (
    ATTENTION,
    BACKWARD,
    CONVOLUTION,
    DEPTHWISE,
    DEPTHWISE_CHANNELS,
    DEPTHWISE_LOOP,
    DEPTHWISE_SHARED,
    DEPTHWISE_SUMS,
    PLAIN,
    SCALED,
    WINOGRAD,
    Floats,
    Products,
)

TILES = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (32, 32), (16, 128), (16, 64), (16, 32),
)  # fmt: skip
THIN = ((2, 64), (64, 2), (4, 32), (32, 4), (8, 32), (32, 8))  # of vector lanes, which need no more than a few rows
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_CHUNK = 128  # products looked at together: arrays of 128 · 128 options · 8 bytes stay in a core's cache

#: Tiles of the lanes and of the matrix engine, each as two columns [tiles, 1]; splits as one.
_OPTIONS = [np.array(tiles, dtype=float).T[:, :, None] for tiles in ((*TILES, *THIN), TILES)]
_SPLITS = np.array(SPLITS, dtype=float)[:, None]
_QUERIES = 128  # queries that one block of an attention kernel works on
_KEYS = 64  # keys in one of its steps
_FP32_BYTES = 4  # of a number on the lanes
_HALF_BYTES = 2  # of an element in the formats that attention is fused in
_FETCHED = 64  # bytes that one SM takes from the L2 in a clock (NVIDIA, A100 whitepaper: 5120 a clock for 80 slices)
_GRAIN = 16  # queries that the matrix engine takes at once

#: Why products miss the peak, in the order in which `Fill.without_s` takes the causes away.
CAUSES = ("power", "waves", "tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What a product takes beside its traffic."""

    compute_s: Floats
    without_s: Floats  # [causes, products]: the same without the first of CAUSES, the first two, all of them
    extra_bytes: Floats  # partial sums of split-K
    extra_start_s: Floats  # the kernel that adds them up

    @classmethod
    def empty(cls, count: int) -> Fill:
        """Zeros, to be filled in."""
        zeros = np.zeros((3 + len(CAUSES), count))
        return cls(compute_s=zeros[0], extra_bytes=zeros[1], extra_start_s=zeros[2], without_s=zeros[3:])

    def put(self, chosen: np.ndarray, part: Fill) -> None:
        """Writes the results of some of the products."""
        for name in ("compute_s", "without_s", "extra_bytes", "extra_start_s"):
            getattr(self, name)[..., chosen] = getattr(part, name)


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


def fill(products: Products, rates: Rates, traffic_s: Floats, machine: Machine) -> Fill:
    """The time of each product, beside `traffic_s` of memory traffic."""
    found = Fill.empty(products.m.size)
    attends, depthwise = products.way == ATTENTION, products.way >= DEPTHWISE
    for engine in (True, False):
        chosen = (rates.on_engine == engine) & ~attends & ~depthwise
        for index in np.array_split(np.flatnonzero(chosen), -(-int(chosen.sum()) // _CHUNK) or 1):
            if index.size:
                part = products.where(index), rates.where(index)
                found.put(index, _tiled(*part, traffic_s[index], engine, machine))
    if depthwise.any():
        found.put(depthwise, _depthwise(products.where(depthwise), machine))
    if attends.any():
        found.put(attends, _attention(products.where(attends), rates.where(attends), machine))
    return found


def _tiled(p: Products, rates: Rates, traffic_s: Floats, engine: bool, machine: Machine) -> Fill:
    """Every tile with every split: arrays are [tiles, splits, products], or without one of the first two."""
    value = machine.values
    kind = "matrix" if engine else "lanes"
    (a, b), s = _OPTIONS[engine], _SPLITS
    step_s, issue_s, pace = _steps(p, rates, engine, machine)
    tiles = p.batch * np.ceil(p.m / a) * np.ceil(p.n / b)
    waves = tiles[:, None] * s
    waves /= machine.sm_count
    np.ceil(waves, out=waves)
    steps = np.ceil(p.k / s)
    prologue = value[f"{kind}_prologue"] * pace
    tiled_s = (steps + prologue) * step_s[:, None]
    # halved units are busy with one block's products while another fills its pipeline or writes its tile
    hidden = np.where(p.way == BACKWARD, prologue * step_s, 0.0)
    np.maximum(tiled_s, steps * issue_s[:, None] + hidden[:, None], out=tiled_s)
    tiled_s *= waves
    tiled_s *= p.executed
    compute_s = np.maximum(tiled_s, p.flop / rates.limit)
    vector_s, fetch_s = _bounds_on_lanes(p, rates, engine, machine)
    np.minimum(compute_s[:, 0], vector_s, out=compute_s[:, 0])
    np.maximum(compute_s, fetch_s, out=compute_s)
    extra = np.where(s > 1, 2 * 4 * s * p.batch * p.m * p.n, 0.0) + _packed_bytes(p, machine)
    start_s = np.where(s > 1, machine.start_s, 0.0)
    memory_s = traffic_s + extra / (machine.bandwidth * value["product_memory_share"])
    best = _fastest(p, start_s, compute_s, tiled_s, memory_s, engine, machine)
    every, tile, split = np.arange(p.m.size), best // s.size, best % s.size
    busy = tiles[tile, every] * s[split, 0] / (waves[tile, split, every] * machine.sm_count)  # share of SMs, all waves
    asked = _share_asked(p.m, a[tile, 0]) * _share_asked(p.n, b[tile, 0])
    freed_s = tiled_s[tile, split, every] * np.stack([np.ones_like(busy), busy, busy * asked])
    return Fill(
        compute_s=compute_s[tile, split, every],
        without_s=np.maximum(np.minimum(freed_s, np.where(split == 0, vector_s, np.inf)), fetch_s),
        extra_bytes=extra[split, every],
        extra_start_s=start_s[split, 0],
    )


def _share_asked(size: Floats, tile: Floats) -> Floats:
    """Of what tiles compute along one size."""
    return size / (np.ceil(size / tile) * tile)


def _bounds_on_lanes(p: Products, rates: Rates, engine: bool, machine: Machine) -> tuple[Floats, Floats]:
    """What a product on the lanes takes at most without a split, and at least; no bounds on the engine.

    Where a number of the matrix is used once, there are no tiles to fill. Each number of the larger matrix comes at
    least once, from the cache at best.
    """
    if engine:
        return np.full(p.m.size, np.inf), np.zeros(p.m.size)
    vector = (p.m == 1) | (p.n == 1)
    fetched = _FP32_BYTES * p.batch * p.k * np.maximum(p.m, p.n) * p.executed
    return np.where(vector, p.flop / rates.issued, np.inf), fetched / machine.l2_bandwidth


def _steps(p: Products, rates: Rates, engine: bool, machine: Machine) -> tuple[Floats, Floats, Floats]:
    """Seconds of a step in k, and those between two of them: [tiles, products]; and their pace: [products]."""
    value = machine.values
    kind = "matrix" if engine else "lanes"
    a, b = _OPTIONS[engine]
    loss = 1 + value[f"{kind}_tile_loss"] * (1 / a + 1 / b)
    way = np.where(p.way == CONVOLUTION, value[f"{kind}_convolution"], 1.0)
    way = np.where(p.way == BACKWARD, value["matrix_backward" if engine else "lanes_convolution"], way)
    way = np.where(p.way == WINOGRAD, value["lanes_winograd"], way)  # libraries run it on the lanes alone
    per_sm = rates.issued * way / machine.sm_count
    # a step in k is as long as in 16 bit: formats of twice the rate take two numbers where those take one
    pace = rates.peak / machine.reference_peak(engine=engine)
    step_s = np.maximum(2 * a * b * loss / per_sm, value[f"{kind}_latency_cycles"] / machine.clock / pace)
    # halved units come near their peak, as operands are there in time; gradients lose by more than operands
    reached = rates.peak * np.where(p.way == BACKWARD, np.minimum(way, 1.0), 1.0)
    return step_s, np.maximum(step_s, 2 * a * b * machine.sm_count / reached), pace


def _fastest(
    p: Products,
    start_s: Floats,
    compute_s: Floats,
    tiled_s: Floats,
    memory_s: Floats,
    engine: bool,
    machine: Machine,
) -> NDArray[np.int64]:
    """Which option takes least, of each product: counted through tiles and, within a tile, splits.

    Where the board's power makes many alike, it is the one that takes least without it (`tiled_s`).
    Both at once take no less than the longer of the two. So the p-norm, which is slow, is worked out for the option
    whose bound is lowest, and then for those alone whose bound is not above that.
    """
    count = p.m.size
    least = np.maximum(compute_s, memory_s)
    least += start_s
    if (p.way == SCALED).any():
        least[~_possible(p, engine)] = np.inf
    least = least.reshape(-1, count)

    def total_s(options: NDArray[np.int64], products: NDArray[np.int64]) -> Floats:
        split = options % len(start_s)
        compute = compute_s.reshape(-1, count)[options, products]
        total: Floats = start_s[split, 0] + combined(compute, memory_s[split, products], machine)
        return total

    best: NDArray[np.int64] = np.argmin(least, axis=0)
    lowest = total_s(best, np.arange(count))
    options, products = np.nonzero(least <= lowest * (1 + 1e-12))
    totals = total_s(options, products)
    np.minimum.at(lowest, products, totals)
    alike = np.flatnonzero(totals == lowest[products])
    free_s = tiled_s.reshape(-1, count)[options[alike], products[alike]]
    last = alike[np.lexsort((-alike, -free_s))]  # what is written last stays: the least, and the first of equals
    best[products[last]] = options[last]
    return best


def _packed_bytes(p: Products, machine: Machine) -> Floats:
    """What a CPU's library writes and reads to bring both matrices into the order of its tiles, before one product."""
    packs = (machine.device.kind == "cpu") & (p.way == PLAIN) & (p.batch == 1) & (p.m > 1) & (p.n > 1)
    return np.where(packs, 2 * _FP32_BYTES * p.k * (p.m + p.n), 0.0)


def _possible(p: Products, engine: bool) -> NDArray[np.bool_]:
    """Which tiles a×b and splits s the library of each product has: [tiles, splits, products].

    For scaled products of 8 bits serving libraries have one tile for few rows, one for more and one for many, and no
    split (vLLM, csrc/quantization/cutlass_w8a8, sm90: 64×64, 64×128 above 64 rows, 128×128 above 128).
    """
    a, b = _OPTIONS[engine]
    one = (a == np.where(p.m <= 128, 64, 128)) & (b == np.where(p.m <= 64, 64, 128))
    possible: NDArray[np.bool_] = (one[:, None] & (_SPLITS == 1)) | (p.way != SCALED)
    return possible


def _depthwise(p: Products, machine: Machine) -> Fill:
    """A thread a result, which fetches every input and weight of its window by itself: nothing is shared in tiles.

    Libraries of CPUs have unrolled kernels alone.
    """
    value = machine.values
    taps = np.where((p.m == 1) & (p.n > 1), p.n, p.k)  # the gradient of the weight is [1, taps] over all pixels
    outputs = p.batch * p.m * p.n * p.k / taps
    way = np.where(machine.device.kind == "cpu", DEPTHWISE, p.way)
    of_tap = [value[name] for name in ("loop_tap_cycles", "sum_tap_cycles", "channel_tap_cycles")]
    slow = [way == w for w in (DEPTHWISE_LOOP, DEPTHWISE_SUMS, DEPTHWISE_CHANNELS)]
    shared = value["shared_window_cycles"] + value["shared_tap_cycles"] * taps
    unrolled = np.where(way == DEPTHWISE_SHARED, shared, value["window_cycles"] + value["tap_cycles"] * taps)
    cycles = np.select(slow, [c * taps for c in of_tap], unrolled)
    lanes = machine.sm_count * machine.device.lanes_per_sm
    compute_s = outputs * cycles / lanes / machine.clock
    zeros, same = np.zeros(p.m.size), np.tile(compute_s, (len(CAUSES), 1))
    return Fill(compute_s=compute_s, without_s=same, extra_bytes=zeros, extra_start_s=zeros)


def _attention(p: Products, rates: Rates, machine: Machine) -> Fill:
    """One of the two products of fused attention: a block takes up to 128 queries over the keys, 64 at a time.

    Blocks of one length come in waves. Under a causal mask their lengths differ: the SMs share them evenly, but none
    ends before the block that sees all keys. For a few queries alone (decoding) an SM fetches all keys, or they are
    split among the SMs, whose parts another kernel joins.
    """
    first = p.k <= p.n  # scores [s, t] from [s, d]; the other is [s, e] from [s, t]
    keys, depth = np.where(first, p.n, p.k), np.where(first, p.k, p.n)
    queries = np.minimum(_QUERIES, np.ceil(p.m / _GRAIN) * _GRAIN)
    padded = np.ceil(keys / _KEYS) * _KEYS
    # on the diagonal a block of scores is computed whole
    seen = np.minimum(1.0, p.executed + np.where(p.executed < 1, _QUERIES / 2 / padded, 0.0))
    rate = np.minimum(rates.issued, rates.peak)
    per_sm = rate / machine.sm_count * machine.values["attention_share"]
    start = machine.values["attention_block_cycles"] / 2 / machine.clock  # half with each of the two products
    fetch = _HALF_BYTES * keys * depth / (_FETCHED * machine.clock)
    longest = np.maximum(2 * queries * padded * depth / per_sm, fetch)
    average = np.maximum(2 * queries * padded * seen * depth / per_sm, fetch)
    blocks = p.batch * np.ceil(p.m / queries) / machine.sm_count
    shared = blocks * (start + average)
    waves = np.where(p.executed < 1, np.maximum(shared, start + longest), np.ceil(blocks) * (start + longest))
    alone = blocks * start + np.where(p.executed < 1, np.maximum(blocks * average, longest), np.ceil(blocks) * longest)
    few = np.minimum(alone, shared + machine.start_s / 2)  # half of the kernel that joins the parts
    free_s = np.where(p.m <= _QUERIES / 2, few, waves)
    asked = p.m / (np.ceil(p.m / queries) * queries) * (keys / padded) * (p.executed / seen)
    exact_s = blocks * (start + np.maximum(2 * queries * padded * seen * depth / per_sm * asked, fetch))
    zeros = np.zeros(p.m.size)
    return Fill(
        compute_s=np.maximum(free_s, p.flop / rates.limit),
        without_s=np.stack([free_s, np.minimum(free_s, shared), np.minimum(free_s, exact_s)]),
        extra_bytes=zeros,
        extra_start_s=zeros,
    )
