"""Bytes → time: DRAM and L2, and what a kernel's own rows cost that a block works on alone.

    DRAM    (bytes that miss the L2) / (bandwidth · memory_share); where error codes lie among the data (inline ECC) a
            16th of the traffic is theirs, and each byte written adds as much again
    cache   (bytes that an earlier kernel left there) / (its bandwidth), l2_bytes_per_clock an SM; what was touched last
            is still there as far as the traffic since then has not filled cache_share of the last level
    rows    an element of a normalization or softmax costs the SM that has its row column_cycles
    access  a load of one element at a time costs access_cycles of an SM, twice as many of one of AMD's
    waiting blocks that sum a part of a tensor each, and are few, wait load_cycles for each of their loads

A row that is read more than once finds itself in the L1, as far as the rows of all blocks on the SM fit there, or in
the L2, as far as those of all SMs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.hardware.device import Device
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.rows import MOST_THREADS, SUM_THREADS
from rooflinekit.published.stated import NUMBERS
from rooflinekit.timing.collectives import CollectiveTiming, Route
from rooflinekit.timing.kernel_batch import Floats, KernelBatch, work_of
from rooflinekit.timing.machine import Machine

_SMALL_L1 = 24 * 1024.0  # bytes, where the specification is silent: the smallest of any GPU since 2014

_PER_LOAD = 4  # elements that a thread of a block loads at once

_EDGE = NUMBERS["cache edge"].value
_PLACE_CYCLES = NUMBERS["place of an operand"].value

# A CPU's allocator gives results of more than this back to the system, which has to find and clear their pages anew at
# the next step: glibc's largest threshold (DEFAULT_MMAP_THRESHOLD_MAX).
_GIVEN_BACK_BYTES = 32 * 2**20
_PAGE_BYTES, _FAULT_S = 4096, NUMBERS["page fault"].value


def combined(compute_s: Floats, memory_s: Floats, p: float) -> Floats:
    """The norm of arithmetic and traffic with p = a machine's overlap, a sharp maximum where p is large."""
    high = np.maximum(compute_s, memory_s)
    low = np.minimum(compute_s, memory_s)
    ratio = np.divide(low, high, out=np.zeros_like(high), where=high > 0)
    return high * (1 + ratio**p) ** (1 / p)


def traffic_s(work: KernelBatch, machine: Machine) -> Floats:
    """Seconds of memory traffic, of waiting for it where too few blocks ask for it, and of working out its places."""
    return _with_places(*_passed_and_waited_s(work, machine), work, machine)


def _with_places(passed_s: Floats, waited_s: Floats, work: KernelBatch, machine: Machine) -> Floats:
    return combined(passed_s + waited_s, _placing_s(work, machine), machine.values["overlap"])


def _placing_s(work: KernelBatch, machine: Machine) -> Floats:
    """Seconds in which a GPU's threads work out where each element of operands lies that do not lie alike."""
    if machine.device.kind == "cpu":
        return np.zeros(len(work))
    return work.indexed * _PLACE_CYCLES / (machine.sm_count * machine.device.lanes_per_sm * machine.clock)


def placed_shares(kernels: Sequence[Kernel], machine: Machine) -> Floats:
    """Of each kernel's seconds of traffic the part that is such places and no bandwidth shortens, by the norm."""
    if not any(kernel.indexed for kernel in kernels):
        return np.zeros(len(kernels))
    work, p = work_of(kernels), machine.values["overlap"]
    passed_s, placed_s = sum(_passed_and_waited_s(work, machine)) ** p, _placing_s(work, machine) ** p
    shares: Floats = placed_s / np.maximum(passed_s + placed_s, np.finfo(float).tiny)
    return shares


def _passed_and_waited_s(work: KernelBatch, machine: Machine) -> tuple[Floats, Floats]:
    """Seconds in which the bandwidth lets all bytes pass, and those beyond.

    Blocks of sums wait for their loads: an SM holds several at once, which wait together. A CPU's system finds pages.
    """
    cached = cached_bytes(work, machine)
    moved = work.read_bytes + _again_bytes(work, machine) + work.reread_bytes + work.write_bytes
    beyond = moved - cached + work.repeated_bytes * (1 - _kept(work.repeated_span, 0.0, machine))
    if machine.code_bytes:  # in what is written of the traffic that the cache does not hold
        beyond = beyond * (1 + machine.code_bytes * work.write_bytes / np.maximum(moved, 1.0))
    passed_s = beyond / sustained_bandwidth(work, machine) + cached / cache_bandwidth(work, machine)
    if machine.device.kind == "cpu":  # whose cores are no blocks, and fetch ahead
        # and whose system has to find the pages of large results
        fresh = np.where(work.write_bytes > _GIVEN_BACK_BYTES, work.write_bytes, 0.0)
        return passed_s, fresh / _PAGE_BYTES * _FAULT_S
    held = max(1, machine.threads_per_sm // SUM_THREADS)
    rounds = np.ceil(work.blocks / (machine.sm_count * held))
    loads = np.maximum(rounds * work.loads, (work.read_bytes > 0) & ~work.multiplies)  # a product's are in its ramp
    alone_s = loads * machine.values["load_cycles"] / machine.clock
    share = np.divide(work.block_bytes, moved, out=np.ones(len(work)), where=(moved > 0) & (work.blocks > 0))
    waited_s = np.maximum(alone_s - np.minimum(share, 1.0) * passed_s, 0.0)
    return passed_s, waited_s


def cached_bytes(work: KernelBatch, machine: Machine) -> Floats:
    """Bytes that a kernel reads and finds in the L2: left there by kernels before it, or by itself."""
    return _found(work, machine) + _again_bytes(work, machine) * _kept(_rows_bytes(work, machine), 0.0, machine)


def _found(work: KernelBatch, machine: Machine) -> Floats:
    """Bytes of rereads that the cache serves, without rows that a block reads again."""
    walked = work.column > 0
    filled = np.where(walked, work.column * machine.threads_per_sm * machine.sm_count, work.reread_bytes)
    later = work.reread_bytes * _kept(filled, np.where(walked, 0.0, work.write_bytes), machine)
    return _cached(work, machine) + later


def levels(kernels: Sequence[Kernel], memory_s: Sequence[float], machine: Machine) -> list[tuple[float, float]]:
    """For each kernel the bytes that pass DRAM, and those with what passes the L2, by its seconds of traffic."""
    if not kernels:
        return []
    dram, both = passed_bytes(work_of(kernels), np.asarray(memory_s), machine)
    return [(float(a), float(b)) for a, b in zip(dram, both, strict=True)]


def passed_bytes(work: KernelBatch, memory_s: Floats, machine: Machine) -> tuple[Floats, Floats]:
    """The bytes of each kernel that pass DRAM, and those that pass the L2, told from its seconds of traffic."""
    cached = work.links * cached_bytes(work, machine)
    passed_s, waited_s = _passed_and_waited_s(work, machine)
    elsewhere_s = _with_places(passed_s, waited_s, work, machine) - passed_s + cached / cache_bandwidth(work, machine)
    dram = (memory_s - elsewhere_s) * sustained_bandwidth(work, machine)
    dram = np.maximum(dram, 0.0)
    return dram, dram + cached


def sustained_bandwidth(work: KernelBatch, machine: Machine) -> Floats:
    """byte/s of DRAM by kernel: those of products fetch tiles, all others stream."""
    share = np.where(_fetches_tiles(work, machine), machine.product_bandwidth_share, machine.bandwidth_share)
    return machine.bandwidth * share * work.streamed


def cache_bandwidth(work: KernelBatch, machine: Machine) -> Floats:
    """byte/s of the last-level cache by kernel: those that fetch tiles get the same share of it as of DRAM."""
    share = np.where(_fetches_tiles(work, machine), machine.values["product_memory_share"], 1.0)
    return np.maximum(machine.l2_bandwidth * share * work.streamed, sustained_bandwidth(work, machine))


def _fetches_tiles(work: KernelBatch, machine: Machine) -> NDArray[np.bool_]:
    """Whether a kernel fetches tiles of matrices; fused attention reads keys and values as they lie.

    A CPU's streams fetch what they write before, which its attention hardly does.
    """
    if machine.device.kind == "cpu":
        return work.multiplies
    return np.bincount(work.products.kernel[~work.products.attend], minlength=len(work)) > 0


def _cached(work: KernelBatch, machine: Machine) -> Floats:
    """Bytes that a kernel finds in the cache because one before it, or the same in the round before, touched them.

    What it reads of a tensor's end, it reads after the rest of its own traffic has passed too; where the whole call
    comes again, the distance of every number is the same, and what it writes is overwritten before it leaves the cache.
    """
    recent, moved = work.recent, work.read_bytes + work.write_bytes
    passing = np.where(recent.cyclic, 0.0, np.maximum(moved[recent.kernel] - recent.bytes, 0.0))
    found = recent.bytes * _kept(recent.bytes + recent.distance, passing, machine)
    before, around = (
        np.bincount(recent.kernel, weights=found * chosen, minlength=len(work)).astype(float)
        for chosen in (~recent.cyclic, recent.cyclic)
    )
    held: Floats = np.minimum(np.minimum(before, work.read_bytes) + around, moved)
    return held


def _kept(filled: Floats, passing: Floats | float, machine: Machine) -> Floats:
    """Share of a tensor that is still in the cache: its first number after `filled` bytes, its last `passing` later."""
    edge = _EDGE * machine.cache_bytes
    return np.clip((machine.cache_bytes + edge - filled) / (passing + 2 * edge), 0.0, 1.0)


def _again_bytes(work: KernelBatch, machine: Machine) -> Floats:
    """Bytes of rows that their blocks read again and do not find in the L1."""
    return np.where(work.rows > 0, work.read_bytes * (work.passes - 1) * _missed(work, machine), 0.0)


def _missed(work: KernelBatch, machine: Machine) -> Floats:
    """Share of a row that is gone from the L1 when its block comes back to it.

    None is while the rows of all blocks fill less than half of it, as results pass it too; all is where they fill it.
    """
    filled = _rows_bytes(work, machine) / machine.sm_count / (machine.device.l1_capacity_per_sm or _SMALL_L1)
    return np.clip(filled - 1, 0.0, 1.0)


def _rows_bytes(work: KernelBatch, machine: Machine) -> Floats:
    """Bytes that pass the caches before a block comes back to its row: the rows of all blocks, and as many results."""
    blocks = np.minimum(machine.threads_per_sm / _threads(work, machine), np.ceil(work.rows / machine.sm_count))
    return 2 * blocks * work.row_bytes * machine.sm_count


def _threads(work: KernelBatch, machine: Machine) -> Floats:
    """Threads of a block that works on a row."""
    return np.where(work.threads > 0, work.threads, work.warps * machine.device.warp)


def rows_s(work: KernelBatch, machine: Machine) -> Floats:
    """Seconds that the SMs spend on rows: on their elements, and on starting, joining and ending each row's threads."""
    value, threads = machine.values, _threads(work, machine)
    # a warp needs no other to find its row's sum
    once = value["thread_cycles"] * threads * (threads > machine.device.warp) * _joined(work, machine)
    busy = np.ceil(work.rows / machine.sm_count) * (value["column_cycles"] * work.columns + once)
    # a block alone waits for its row: it asks for its next elements when the last have come from DRAM
    own = work.rows * work.row_bytes  # not what rows share: else more of them would wait less for it
    far = 1 - np.divide(_found(work, machine), own, out=np.zeros(len(work)), where=own > 0)
    loads = work.columns / (_PER_LOAD * threads) * (1 + (work.passes - 1) * _missed(work, machine))
    waits = (work.rows > 0) & (threads > machine.device.warp)
    chain = loads * value["load_cycles"] * np.maximum(far, 0.0) + value["kernel_ramp_cycles"]  # its code is long
    longer: Floats = np.maximum(busy, np.where(waits, chain, 0.0))
    return longer / machine.clock


def _joined(work: KernelBatch, machine: Machine) -> Floats | float:
    """The share of a thread's time to start, join and end that counts: NVIDIA's blocks of 1024 join by shuffles.

    There `thread_cycles` is measured of older blocks, which add up through shared memory, one warp after another; on
    AMD's of such blocks. Threads of an SM that no whole block fills do nothing meanwhile: a third of 1536.
    """
    if machine.device.vendor != "NVIDIA":
        return 1.0
    idle = max(1.0, machine.threads_per_sm / MOST_THREADS / max(1, machine.threads_per_sm // MOST_THREADS))
    return np.where(work.threads == MOST_THREADS, NUMBERS["join by shuffles"].value * idle, 1.0)


def accesses_s(work: KernelBatch, machine: Machine) -> Floats:
    """Seconds that the SMs spend on loads of single elements; rows are shared among the SMs as wholes."""
    share = np.ceil(work.rows / machine.sm_count) / np.maximum(work.rows, 1)
    busiest = work.accesses * np.where(work.rows > 0, share, 1 / machine.sm_count)
    return busiest * machine.access_cycles / machine.clock


# What a collective takes from the kernels that run beside it: SMs for its channels, and bandwidth of the memory.
#
# Stated defaults, from NCCL's source and log (`NCCL_DEBUG=INFO` prints "24 coll channels, 16 nvls channels" on eight
# GPUs behind NVSwitch), not fitted: no measurement here has a kernel beside a collective.


#: Channels of NCCL, a thread block and so at most an SM each.
CHANNELS = {
    "nvls": 16,
    "nvlink": 24,
    "pcie-peer": 4,
    "pcie-host": 4,
    "pcie-sockets": 4,
    "ethernet": 4,
    "infiniband": 16,
}

# Bytes that cross a GPU's memory for a byte on the wire. To reduce: what came in is written and read, one's own part is
# read. To gather: what came in is written, and read once more to be sent on.
_REDUCING, _GATHERING = 3.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How many times as long kernels take while a collective runs: 1 is undisturbed."""

    compute: float  # those that arithmetic limits
    memory: float  # those that DRAM limits


def channels_of(timing: CollectiveTiming) -> int:
    """How many SMs the collective holds on each device; 0 on a CPU, and for one device."""
    if timing.ranks == 1:
        return 0
    return CHANNELS["nvls"] if timing.algorithm == "nvls" else _channels(timing.route)


def _channels(route: Route) -> int:
    return max(CHANNELS.get(link.technology, 0) for link in route.links)


#: Of NCCL's buffers for a connection of a channel, those of its protocols simple, LL and LL128 by default (src/init.cc,
#: DEFAULT_BUFFSIZE, DEFAULT_LL_BUFFSIZE, DEFAULT_LL128_BUFFSIZE; src/transport/p2p.cc has all three for each receiver).
_CONNECTION_BYTES = 2**22 + 512 * 8 * 8 * 16 + 640 * 120 * 8 * 8
_CONNECTIONS = NUMBERS["nccl connections"].value


def buffers_of(routes: Iterable[Route]) -> int:
    """Bytes that NCCL allocates past PyTorch's allocator for these groups of several devices, a communicator each."""
    on_nccl = (route for route in routes if all(device.vendor == "NVIDIA" for device in route.devices))
    return round(sum(map(_channels, on_nccl)) * _CONNECTIONS * _CONNECTION_BYTES)


def slowdown_of(timing: CollectiveTiming, device: Device) -> Slowdown:
    """What kernels on `device` suffer while the collective runs."""
    if timing.total_s == 0:
        return Slowdown(compute=1.0, memory=1.0)
    channels = min(channels_of(timing), device.sm_count - 1)
    per_byte = {"all-reduce": (_REDUCING + _GATHERING) / 2, "reduce-scatter": _REDUCING}.get(
        timing.collective, _GATHERING
    )
    taken = min(0.9, per_byte * timing.wire_bytes / timing.total_s / device.dram.bandwidth)
    return Slowdown(compute=device.sm_count / (device.sm_count - channels), memory=1 / (1 - taken))
