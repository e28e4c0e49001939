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
from rooflinekit.model.kernel_batch import Floats, Products
from rooflinekit.model.machine import Machine
from rooflinekit.model.tile_rates import Rates
from rooflinekit.model.tiling import CAUSES, Fill, tiled


def fill(products: Products, rates: Rates, traffic_s: Floats, machine: Machine) -> Fill:
    """The time of each product, beside `traffic_s` of memory traffic."""
    found = Fill.empty(products.m.size)
    shape = products.told(lambda one: one.shape)
    for tensor_core in (True, False):
        chosen = (rates.on_tensor_core == tensor_core) & (shape == "tiles")
        if chosen.any():
            here = products.where(chosen)
            found.put(chosen, tiled(here, rates.where(chosen), traffic_s[chosen], tensor_core, machine))
    for name, timed in (("threads", _in_threads), ("resident", _persistent), ("queries", attention)):
        chosen = shape == name
        if chosen.any():
            found.put(chosen, timed(products.where(chosen), rates.where(chosen), machine))
    return found


def _in_threads(p: Products, rates: Rates, machine: Machine) -> Fill:
    """A thread a result, which fetches every input and weight of its window by itself: nothing is shared in tiles."""
    value = machine.values
    all_channels = p.told(lambda one: one.sums_channels)
    taps = np.where((p.m == 1) & (p.n > 1), p.n, p.k)  # the gradient of the weight is [1, taps] over all pixels
    taps = np.where(all_channels, p.k, taps)
    outputs = p.batch * p.m * p.n * p.k / taps
    window = p.told(lambda one: value.get(one.window_cycles, 0.0))
    cycles = window + p.told(lambda one: value.get(one.tap_cycles, 0.0)) * taps
    cycles = cycles * np.where(p.told(lambda one: one.fills.cuda_cores), p.padded, 1.0)
    lanes = machine.sm_count * machine.device.lanes_per_sm
    compute_s = np.where(all_channels, np.maximum(outputs, lanes), outputs) * cycles / lanes / machine.clock
    zeros, same = np.zeros(p.m.size), np.tile(compute_s, (len(CAUSES), 1))
    return Fill(compute_s=compute_s, without_s=same, extra_bytes=zeros, extra_start_s=zeros)


def _persistent(p: Products, rates: Rates, machine: Machine) -> Fill:
    """A step of a layer whose weights stay on the SMs: each SM multiplies its rows of them with all states, [m, k].

    It has to fetch those first, from the L2. There are no tiles to fill and no waves.
    """
    itemsize = np.where(rates.on_tensor_core, HALF_BYTES, 2 * HALF_BYTES)
    fetch_s = itemsize * p.m * p.k * p.batch / (FETCHED * machine.clock)
    free_s = np.maximum(p.flop / np.minimum(rates.issued, rates.peak), fetch_s)
    zeros, same = np.zeros(p.m.size), np.tile(free_s, (len(CAUSES), 1))
    return Fill(
        compute_s=np.maximum(free_s, p.flop / rates.limit), without_s=same, extra_bytes=zeros, extra_start_s=zeros
    )
