"""Bytes → time: DRAM and L2, and what a kernel's own rows cost that a block works on alone.

    DRAM    (bytes that miss the L2) / (bandwidth · memory_share)
    L2      (bytes that an earlier kernel left there) / (L2 bandwidth), l2_bytes_per_clock an SM; what was touched last
            is still there as far as the traffic since then has not filled it
    rows    an element of a normalization or softmax costs the SM that has its row column_cycles
    access  a load or store of one element at a time costs access_cycles of an SM

A row that is read more than once finds itself in the L1, as far as the rows of all blocks on the SM fit there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooflinekit.model.columns import work_of
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.machine import Machine
from rooflinekit.model.rows import WARP
from rooflinekit.model.work import Floats, Work

# Rows of the blocks on an SM, relative to its L1: all hit below the first, and the second further on none does.
_L1_HELD = 0.5
_L1_FADING = 0.7

# A tensor with the traffic since it was touched, relative to the L2: all of it is still there below the first, none
# above the second. Found on the residual sums of vidur, A100 (40 MB), A40 (6 MB) and A30 (24 MB).
_L2_HELD = 0.25
_L2_GONE = 0.7


def combined(compute_s: Floats, memory_s: Floats, machine: Machine) -> Floats:
    """Both at once: the p-norm with p = overlap, a sharp maximum where p is large."""
    p = machine.values["overlap"]
    high = np.maximum(compute_s, memory_s)
    low = np.minimum(compute_s, memory_s)
    ratio = np.divide(low, high, out=np.zeros_like(high), where=high > 0)
    return high * (1 + ratio**p) ** (1 / p)


def traffic_s(work: Work, machine: Machine) -> Floats:
    """Seconds of memory traffic."""
    again = np.where(work.rows > 0, work.read_bytes * (work.passes - 1) * _missed(work, machine), 0.0)
    cached = cached_bytes(work, machine)
    streamed = work.read_bytes + again + work.reread_bytes + work.write_bytes - cached
    return streamed / sustained_bandwidth(work, machine) + cached / machine.l2_bandwidth


def cached_bytes(work: Work, machine: Machine) -> Floats:
    """Bytes that a kernel reads and finds in the L2: left there by kernels before it, or by itself."""
    later = work.reread_bytes * _l2_share(work.reread_bytes, machine)
    return np.minimum(_held(work, machine), work.read_bytes) + later


def levels(kernels: Sequence[Kernel], memory_s: Sequence[float], machine: Machine) -> list[tuple[float, float]]:
    """For each kernel the bytes that pass DRAM, and those that pass the L2, of which the former are a part.

    memory_s: the seconds of traffic that each was timed with, fetches of tiles that find no room in the L2 included.
    """
    if not kernels:
        return []
    work = work_of(kernels)
    cached = cached_bytes(work, machine)
    dram = (np.asarray(memory_s) - cached / machine.l2_bandwidth) * sustained_bandwidth(work, machine)
    dram = np.maximum(dram, 0.0)
    return [(float(a), float(b)) for a, b in zip(dram, dram + cached, strict=True)]


def sustained_bandwidth(work: Work, machine: Machine) -> Floats:
    """byte/s of DRAM by kernel: product kernels fetch tiles, all others stream."""
    share = np.full(len(work), machine.bandwidth_share)
    share[work.products.kernel] = machine.values["product_memory_share"]
    return machine.bandwidth * share


def _held(work: Work, machine: Machine) -> Floats:
    """Bytes that a kernel reads, and finds in the L2 because one before it has touched them."""
    recent = work.recent
    share = _l2_share(recent.bytes + recent.distance, machine)
    found: Floats = np.bincount(recent.kernel, weights=recent.bytes * share, minlength=len(work)).astype(float)
    return found


def _l2_share(filled: Floats, machine: Machine) -> Floats:
    """How much of something is still in the L2 after so many bytes, its own among them."""
    return np.clip((_L2_GONE - filled / machine.l2_bytes) / (_L2_GONE - _L2_HELD), 0.0, 1.0)


def _missed(work: Work, machine: Machine) -> Floats:
    """Share of a row that is gone from the L1 when its block comes back to it."""
    blocks = np.minimum(machine.threads_per_sm / work.threads, np.ceil(work.rows / machine.sm_count))
    filled = blocks * work.row_bytes / machine.l1_bytes
    return np.clip((filled - _L1_HELD) / _L1_FADING, 0.0, 1.0)


def rows_s(work: Work, machine: Machine) -> Floats:
    """Seconds that the SMs spend on rows: on their elements, and on starting, joining and ending each row's threads."""
    value = machine.values
    once = value["row_cycles"] * (work.threads > WARP)  # a warp needs no other to find its row's sum
    return np.ceil(work.rows / machine.sm_count) * (value["column_cycles"] * work.columns + once) / machine.clock


def accesses_s(work: Work, machine: Machine) -> Floats:
    """Seconds that the SMs spend on accesses of single elements; rows are shared among the SMs as wholes."""
    share = np.ceil(work.rows / machine.sm_count) / np.maximum(work.rows, 1)
    busiest = work.accesses * np.where(work.rows > 0, share, 1 / machine.sm_count)
    return busiest * machine.values["access_cycles"] / machine.clock
