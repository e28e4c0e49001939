"""How long products take, by the way in which their algorithm shares out the work: see `algorithms.Shape`.

What is cut into tiles is in `tiling`; fused attention, a thread a result, and weights that stay on the SMs are here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rooflinekit.kernels.algorithms import HALF_BYTES
from rooflinekit.published.stated import NUMBERS
from rooflinekit.timing.kernel_batch import Floats, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.memory_system import combined
from rooflinekit.timing.tiling import Fill, Rates, tiled

# Fused attention: two products with a softmax between them, whose scores never leave the SM.


FETCHED = 64  # bytes that one SM takes from the L2 in a clock (NVIDIA, A100 whitepaper: 5120 a clock for 80 slices)
_QUERIES = 128  # queries that one block works on
_DIVISION, _POLYNOMIALS = (NUMBERS[name].value for name in ("index division", "polynomials"))
_KEYS = 64  # keys in one of its steps
_GRAIN = 16  # queries that the tensor core takes at once
#: Size of heads above which kernels come in steps of 64 in place of 32 (FlashAttention 2 and 3), and above which the
#: memory-efficient kernel's output passes memory.
_WIDE = 128
_STAGED_FROM = 8  # CUDA's compute capability
_STAGED_BYTES = HALF_BYTES * (64 + 128) * _WIDE + 3 * 1024  # with numbers of each row, and what CUDA reserves


def attention(p: Products, rates: Rates, machine: Machine) -> Fill:
    """One of the two products: a block takes up to 128 queries over the keys, 64 at a time.

    Blocks of one length come in waves. Under a causal mask their lengths differ, so that SMs end at times that are
    spread over their last block, and none before the longest. Where all queries fit into one block
    (decoding), an SM fetches all keys, or they are split among the SMs, whose parts another kernel joins. Power is no
    limit here: see `at_power_limit_s`.
    """
    keys, size = _keys_and_heads(p)
    depth = _compiled(size)
    queries = np.minimum(_QUERIES, np.ceil(p.m / _GRAIN) * _GRAIN)
    padded = np.ceil(keys / _KEYS) * _KEYS
    # on the diagonal a block of scores is computed whole
    seen = np.minimum(1.0, p.executed + np.where(p.executed < 1, _QUERIES / 2 / padded, 0.0))
    per_sm = _rate(p, size, rates, machine) / machine.sm_count
    start = machine.values["attention_block_cycles"] / 2 / machine.clock  # half with each of the two products
    fetch = HALF_BYTES * keys * size / (FETCHED * machine.clock)
    longest = np.maximum(2 * queries * padded * depth / per_sm, fetch)
    average = seen * longest
    blocks = p.batch * np.ceil(p.m / queries) / machine.sm_count
    shared = blocks * (start + average)
    last = start + np.minimum(1.0, 2 * seen) * longest  # under a window none is longer than twice the average
    uneven = np.maximum(shared + last / 2, last)
    waves = np.where(p.executed < 1, uneven, np.ceil(blocks) * (start + longest))
    alone = blocks * start + np.where(p.executed < 1, np.maximum(blocks * average, longest), np.ceil(blocks) * longest)
    few = np.minimum(alone, shared + machine.start_s / 2)  # half of the kernel that joins the parts
    free_s = np.where(p.m <= _QUERIES, few, waves)
    asked = p.m / (np.ceil(p.m / queries) * queries) * (keys / padded) * (p.executed / seen) * (size / depth)
    exact_s = blocks * (start + np.maximum(2 * queries * padded * seen * depth / per_sm * asked, fetch * seen))
    return Fill.unsplit(free_s, np.stack([free_s, np.minimum(free_s, shared), np.minimum(free_s, exact_s)]))


def _keys_and_heads(p: Products) -> tuple[Floats, Floats]:
    """How many keys each product meets, and the size of its heads.

    A kernel's first product makes scores [s, t] from queries [s, d], others [s, d] from [s, t]. Where heads of values
    have another size than d, it is taken for the shorter of the two.
    """
    _, scores, kernel = np.unique(p.kernel, return_index=True, return_inverse=True)
    d = p.k[scores][kernel]
    by_keys = (p.k == d) | ((p.n != d) & (p.k <= p.n))
    return np.where(by_keys, p.n, p.k), np.where(by_keys, p.k, p.n)


def _rate(p: Products, width: Floats, rates: Rates, machine: Machine) -> Floats:
    """FLOP/s of all SMs in full blocks; width: the size of heads.

    What a softmax and loads of operands add to products takes instructions, of which an SM issues as many whatever its
    tensor core does: `attention_share` of the rate is left where that does `warp_mma_flop` a clock or more, a larger
    one where it does less. Sums in tensor memory leave `tensor_memory_attention`. A softmax through shared memory takes
    cycles of its own a score, which other blocks on the SM hide where tensor cores multiply.
    """
    value = machine.values
    by_warps = value["warp_mma_flop"] * machine.sm_count * machine.clock
    single = rates.on_tensor_core & p.of_algorithm(lambda one: one.warp_level)
    peak = np.where(single, np.minimum(rates.peak, by_warps), rates.peak)
    share = np.minimum(rates.issued / rates.peak, value["issue_share"]) * _of_forward(p, machine)
    share = share * p.of_algorithm(lambda one: one.share(value, True))
    in_memory, others = value["tensor_memory_attention"], value["attention_share"]
    share = share * p.of_algorithm(lambda one: in_memory if one.tensor_memory else others)
    lost = np.where(rates.on_tensor_core, np.minimum(peak / by_warps, 1.0), 1.0) * np.maximum(1 / share - 1, 0.0)
    # the seconds of a FLOP beside its product's, of that
    shared = p.of_algorithm(lambda one: one.shared_softmax)
    score_s = NUMBERS["shared softmax"].value / machine.clock / machine.sm_count / _of_forward(p, machine)
    beside = lost + np.where(shared, peak * score_s / (4 * _compiled(width)), 0.0)
    hidden = shared & rates.on_tensor_core & ~_alone(width, machine)
    found: Floats = peak / np.where(hidden, combined(np.ones_like(beside), beside, value["overlap"]), 1 + beside)
    return found


def _alone(width: Floats, machine: Machine) -> NDArray[np.bool_]:
    """Whether nothing hides the softmax of a memory-efficient block with heads of so many numbers.

    Above 128 the output passes memory. Above 64 a block of Ampere and later keeps 64 queries and 128 keys, of 128
    numbers each, with which it leaves no room for a second one on some SMs (mem_eff_attention/kernel_forward.h).
    """
    room = machine.device.shared_memory_per_sm if machine.device.cuda_generation >= _STAGED_FROM else None
    return (width > _WIDE) | ((width > _WIDE // 2) & ((room or np.inf) < 2 * _STAGED_BYTES))


def _of_forward(p: Products, machine: Machine) -> Floats:
    """The rate of a gradient's products, of those in the forward pass; 1 for these."""
    return p.of_algorithm(lambda one: machine.values["attention_gradient"] if one.gradient else 1.0)


def at_power_limit_s(products: Products, rates: Rates, machine: Machine) -> Floats:
    """Seconds for which a board at its power limit has energy for each product of attention; 0 for other products.

    A FLOP takes a product's, in a gradient more, as operands pass through shared memory more often. Unlike other
    products, calls of less than a millisecond in a row were not measured to escape the limit.
    """
    found: Floats = np.zeros(products.m.size)
    attends = products.attend
    if attends.any():
        p = products.where(attends)
        _, size = _keys_and_heads(p)
        found[attends] = p.flop * _compiled(size) / size / rates.limit[attends] / _of_forward(p, machine)
    return found


def exponential_s(special: Floats, products: Products, machine: Machine) -> Floats:
    """Seconds of each kernel's special functions; in attention one instruction a score, beside some polynomials."""
    found: Floats = special / (machine.device.exponentials_per_sm * machine.sm_count * machine.clock)
    attends = products.attend
    if machine.device.kind == "gpu" and attends.any():
        which = products.kernel[attends]
        polynomials = _POLYNOMIALS * products.of_algorithm(lambda one: one.tensor_memory)[attends]
        rate = machine.device.exponentials_per_sm / (1 - polynomials)
        found[which] = special[which] / (rate * machine.sm_count * machine.clock)
    return found


def _compiled(size: Floats) -> Floats:
    """The size of heads that a kernel is compiled for, which fills up a smaller one with zeros."""
    step = np.where(size <= _WIDE, 32, 64)
    return np.ceil(size / step) * step


def fill(products: Products, rates: Rates, beside_s: Floats, machine: Machine) -> Fill:
    """The time of each product; beside_s: see `tiling.tiled`."""
    found = Fill.empty(products.m.size)
    shape = products.of_algorithm(lambda one: one.shape)
    for tensor_core in (True, False):
        chosen = (rates.on_tensor_core == tensor_core) & (shape == "tiles")
        if chosen.any():
            here = products.where(chosen)
            found.put(chosen, tiled(here, rates.where(chosen), beside_s[:, chosen], tensor_core, machine))
    for name, timed in (("threads", _in_threads), ("resident", _persistent), ("queries", attention)):
        chosen = shape == name
        if chosen.any():
            found.put(chosen, timed(products.where(chosen), rates.where(chosen), machine))
    return found


def _in_threads(p: Products, rates: Rates, machine: Machine) -> Fill:
    """A thread a result, which fetches every input and weight of its window by itself: nothing is shared in tiles."""
    value = machine.values
    all_channels = p.of_algorithm(lambda one: one.sums_channels)
    taps = np.where((p.m == 1) & (p.n > 1), p.n, p.k)  # the gradient of the weight is [1, taps] over all pixels
    taps = np.where(all_channels, p.k, taps)
    outputs = p.batch * p.m * p.n * p.k / taps
    window = p.of_algorithm(lambda one: value.get(one.window_cycles, 0.0) + one.window_divisions * _DIVISION)
    cycles = window + p.of_algorithm(lambda one: value.get(one.tap_cycles, 0.0) + one.tap_divisions * _DIVISION) * taps
    padded = np.where(p.of_algorithm(lambda one: one.fills.cuda_cores), p.padded, 1.0)
    cycles = cycles * padded / p.of_algorithm(lambda one: one.sharers)
    lanes = machine.sm_count * machine.device.lanes_per_sm
    compute_s = np.where(all_channels, np.maximum(outputs, lanes), outputs) * cycles / lanes / machine.clock
    return Fill.unsplit(compute_s, compute_s)


def _persistent(p: Products, rates: Rates, machine: Machine) -> Fill:
    """A step of a layer whose weights stay on the SMs: no tiles or waves, but states [m, k] to fetch from the L2."""
    itemsize = np.where(rates.on_tensor_core, HALF_BYTES, 2 * HALF_BYTES)
    fetch_s = itemsize * p.m * p.k * p.batch / (FETCHED * machine.clock)
    free_s = np.maximum(p.flop / np.minimum(rates.issued, rates.peak), fetch_s)
    return Fill.unsplit(np.maximum(free_s, p.flop / rates.limit), free_s)
