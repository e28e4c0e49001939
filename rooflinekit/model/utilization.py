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

import numpy as np

from rooflinekit.model.fused_attention import FETCHED, HALF_BYTES, attention
from rooflinekit.model.machine import Machine
from rooflinekit.model.tile_rates import Rates
from rooflinekit.model.tiling import CAUSES, Fill, tiled
from rooflinekit.model.work import (
    ATTENTION,
    DEPTHWISE,
    DEPTHWISE_CHANNELS,
    DEPTHWISE_GROUPS,
    DEPTHWISE_LOOP,
    DEPTHWISE_SHARED,
    DEPTHWISE_SINGLE,
    DEPTHWISE_SINGLE_LOOP,
    DEPTHWISE_SUMS,
    NAIVE,
    PERSISTENT,
    Floats,
    Products,
)


def fill(products: Products, rates: Rates, traffic_s: Floats, machine: Machine) -> Fill:
    """The time of each product, beside `traffic_s` of memory traffic."""
    found = Fill.empty(products.m.size)
    attends, depthwise, stays = products.way == ATTENTION, products.way >= DEPTHWISE, products.way == PERSISTENT
    for engine in (True, False):
        chosen = (rates.on_engine == engine) & ~attends & ~depthwise & ~stays
        if chosen.any():
            found.put(chosen, tiled(products.where(chosen), rates.where(chosen), traffic_s[chosen], engine, machine))
    if depthwise.any():
        found.put(depthwise, _depthwise(products.where(depthwise), machine))
    if stays.any():
        found.put(stays, _persistent(products.where(stays), rates.where(stays), machine))
    if attends.any():
        found.put(attends, attention(products.where(attends), rates.where(attends), machine))
    return found


def _depthwise(p: Products, machine: Machine) -> Fill:
    """A thread a result, which fetches every input and weight of its window by itself: nothing is shared in tiles.

    Libraries of CPUs have unrolled kernels alone.
    """
    value = machine.values
    taps = np.where((p.m == 1) & (p.n > 1), p.n, p.k)  # the gradient of the weight is [1, taps] over all pixels
    outputs = p.batch * p.m * p.n * p.k / np.where(p.way == NAIVE, p.k, taps)
    way = np.where(machine.device.kind == "cpu", DEPTHWISE, p.way)
    taps = np.where(p.way == NAIVE, p.k, taps)
    names = ("loop_tap_cycles", "sum_tap_cycles", "channel_tap_cycles", "naive_cycles", "group_tap_cycles")
    of_tap = [value[name] for name in names]
    slow = [way == w for w in (DEPTHWISE_LOOP, DEPTHWISE_SUMS, DEPTHWISE_CHANNELS, NAIVE, DEPTHWISE_GROUPS)]
    shared = value["shared_window_cycles"] + value["shared_tap_cycles"] * taps
    unrolled = np.where(way == DEPTHWISE_SHARED, shared, value["window_cycles"] + value["tap_cycles"] * taps)
    single = np.where(way == DEPTHWISE_SINGLE, value["tap_cycles"], value["single_tap_cycles"]) * taps
    found_alone = (way == DEPTHWISE_SINGLE) | (way == DEPTHWISE_SINGLE_LOOP)
    unrolled = np.where(found_alone, value["single_window_cycles"] + single, unrolled)
    cycles = np.select(slow, [c * taps for c in of_tap], unrolled) * np.where(way == DEPTHWISE_GROUPS, p.padded, 1.0)
    lanes = machine.sm_count * machine.device.lanes_per_sm
    compute_s = np.where(way == NAIVE, np.maximum(outputs, lanes), outputs) * cycles / lanes / machine.clock
    zeros, same = np.zeros(p.m.size), np.tile(compute_s, (len(CAUSES), 1))
    return Fill(compute_s=compute_s, without_s=same, extra_bytes=zeros, extra_start_s=zeros)


def _persistent(p: Products, rates: Rates, machine: Machine) -> Fill:
    """A step of a layer whose weights stay on the SMs: each SM multiplies its rows of them with all states, [m, k].

    It has to fetch those first, from the L2. There are no tiles to fill and no waves.
    """
    itemsize = np.where(rates.on_engine, HALF_BYTES, 2 * HALF_BYTES)
    fetch_s = itemsize * p.m * p.k * p.batch / (FETCHED * machine.clock)
    free_s = np.maximum(p.flop / np.minimum(rates.issued, rates.peak), fetch_s)
    zeros, same = np.zeros(p.m.size), np.tile(free_s, (len(CAUSES), 1))
    return Fill(
        compute_s=np.maximum(free_s, p.flop / rates.limit), without_s=same, extra_bytes=zeros, extra_start_s=zeros
    )
