"""What a collective takes from the kernels that run beside it: SMs for its channels, and bandwidth of the memory.

Stated defaults, from NCCL's source and log (`NCCL_DEBUG=INFO` prints "24 coll channels, 16 nvls channels" on eight GPUs
behind NVSwitch), not fitted: no measurement here has a kernel beside a collective.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.hardware.device import Device
from rooflinekit.model.collectives import CollectiveTiming

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
    known = [CHANNELS.get(link.technology, 0) for link in timing.route.links]
    return CHANNELS["nvls"] if timing.algorithm == "nvls" else max(known)


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
