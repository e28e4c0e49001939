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
from itertools import product
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
_CHUNK = 4096  # products looked at together: 4096 · 128 candidates · 8 bytes are 4 MB an array

#: Tiles and splits of the lanes and of the matrix engine, as three rows.
_OPTIONS = [np.array([(a, b, s) for (a, b), s in product(t, SPLITS)], dtype=float).T for t in ((*TILES, *THIN), TILES)]
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
    attends, depthwise = products.way == ATTENTION, products.way == DEPTHWISE
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
    value = machine.values
    kind = "matrix" if engine else "lanes"
    a, b, s = _OPTIONS[engine]
    batch, m, n, k = (column[:, None] for column in (p.batch, p.m, p.n, p.k))
    blocks = batch * np.ceil(m / a) * np.ceil(n / b) * s
    waves = np.ceil(blocks / machine.sm_count)
    depth = np.ceil(k / s)
    loss = 1 + value[f"{kind}_tile_loss"] * (1 / a + 1 / b)
    way = np.where(p.way == CONVOLUTION, value[f"{kind}_convolution"], 1.0)
    way = np.where(p.way == BACKWARD, value["matrix_backward" if engine else "lanes_convolution"], way)
    way = np.where(p.way == WINOGRAD, value["lanes_winograd"], way)  # libraries run it on the lanes alone
    per_sm = (rates.issued * way / machine.sm_count)[:, None]
    # a step in k is as long as in 16 bit: formats of twice the rate take two numbers where those take one
    pace = (rates.peak / machine.reference_peak(engine=engine))[:, None]
    step_s = np.maximum(2 * a * b * loss / per_sm, value[f"{kind}_latency_cycles"] / machine.clock / pace)
    # halved units come near their peak, as operands are there in time; gradients lose by more than operands
    reached = rates.peak * np.where(p.way == BACKWARD, np.minimum(way, 1.0), 1.0)
    issue_s = np.maximum(step_s, 2 * a * b * machine.sm_count / reached[:, None])
    tiled_s = waves * (depth * issue_s + value[f"{kind}_prologue"] * pace * step_s) * p.executed[:, None]
    vector = (s == 1) & ((p.m == 1) | (p.n == 1))[:, None]  # each number of the matrix is used once: no tiles
    powered_s = np.maximum(tiled_s, (p.flop / rates.limit)[:, None])
    compute_s = powered_s if engine else _on_lanes(powered_s, vector, p, rates, machine)
    split = s > 1
    extra = np.where(split, 2 * 4 * s * batch * m * n, 0.0) + _packed_bytes(p, machine)[:, None]
    start = np.where(split, machine.start_s, 0.0)
    total = start + combined(
        compute_s, traffic_s[:, None] + extra / (machine.bandwidth * value["product_memory_share"]), machine
    )
    possible_s = np.where(_possible(p, a, b, s), total, np.inf)
    # where power makes many alike, the one that would be the fastest without its limit
    alike = possible_s <= possible_s.min(axis=1, keepdims=True)
    best = np.argmin(np.where(alike, tiled_s, np.inf), axis=1)
    rows = np.arange(p.m.size)
    busy = (blocks / (waves * machine.sm_count))[rows, best]  # share of the SMs, over all waves
    asked = ((m / (np.ceil(m / a) * a)) * (n / (np.ceil(n / b) * b)))[rows, best]  # share of what tiles compute
    freed_s = tiled_s[rows, best][:, None] * np.stack([np.ones_like(busy), busy, busy * asked], axis=1)
    freed_s = freed_s if engine else _on_lanes(freed_s, vector[rows, best][:, None], p, rates, machine)
    return Fill(
        compute_s=compute_s[rows, best],
        without_s=freed_s.T,
        extra_bytes=extra[rows, best],
        extra_start_s=np.broadcast_to(start, total.shape)[rows, best],
    )


def _on_lanes(tiled_s: Floats, vector: NDArray[np.bool_], p: Products, rates: Rates, machine: Machine) -> Floats:
    """Products of a vector need no tiles, but none is faster than the cache: [products, …]."""
    seconds = np.where(vector, np.minimum(tiled_s, (p.flop / rates.issued)[:, None]), tiled_s)
    return np.maximum(seconds, _fetch_s(p, machine)[:, None])


def _fetch_s(p: Products, machine: Machine) -> Floats:
    """Each number of the larger matrix comes at least once, from the cache at best."""
    return _FP32_BYTES * p.batch * p.k * np.maximum(p.m, p.n) * p.executed / machine.l2_bandwidth


def _packed_bytes(p: Products, machine: Machine) -> Floats:
    """What a CPU's library writes and reads to bring both matrices into the order of its tiles, before one product."""
    packs = (machine.device.kind == "cpu") & (p.way == PLAIN) & (p.batch == 1) & (p.m > 1) & (p.n > 1)
    return np.where(packs, 2 * _FP32_BYTES * p.k * (p.m + p.n), 0.0)


def _possible(p: Products, a: Floats, b: Floats, s: Floats) -> NDArray[np.bool_]:
    """Which tiles a×b and splits s the library of each product has: [products, options].

    For scaled products of 8 bits serving libraries have one tile for few rows, one for more and one for many, and no
    split (vLLM, csrc/quantization/cutlass_w8a8, sm90: 64×64, 64×128 above 64 rows, 128×128 above 128).
    """
    m = p.m[:, None]
    one = (s == 1) & (a == np.where(m <= 128, 64, 128)) & (b == np.where(m <= 64, 64, 128))
    possible: NDArray[np.bool_] = one | (p.way != SCALED)[:, None]
    return possible


def _depthwise(p: Products, machine: Machine) -> Fill:
    """A thread an output, which fetches every input and weight of its window by itself: nothing is shared in tiles."""
    value = machine.values
    taps = np.where((p.m == 1) & (p.n > 1), p.n, p.k)  # the gradient of the weight is [1, taps] over all pixels
    outputs = p.batch * p.m * p.n * p.k / taps
    lanes = machine.sm_count * machine.device.lanes_per_sm
    compute_s = outputs * (value["window_cycles"] + value["tap_cycles"] * taps) / lanes / machine.clock
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
