"""What a device's program consists of: ops with their kernels, collectives, copies to the host, and waits."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.collectives import CollectiveTiming
from rooflinekit.model.roofline import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An op on its way: what the CPU spends before its first kernel, and the kernels. `gap_s`: in the place of the
    CPU's time, how long the device stands idle before it, where that does not depend on when it starts."""

    what: str
    cpu_s: float = 0.0
    kernels: tuple[Timing, ...] = ()
    between_s: float = 0.0  # of the CPU, before each further kernel
    gaps_s: tuple[float, ...] | None = None  # before each kernel
    syncs: bool = False  # whether the CPU waits for its result
    waits: bool = False  # whether the device stands idle meanwhile, having done all before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    """A collective on its way."""

    key: str
    timing: CollectiveTiming
    group: str = "data"
    blocking: bool = False
    cpu_s: float = 0.0
    on_host: bool = False  # whether it leaves the devices' SMs and memory alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The device computes nothing before these are over."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Tensors on their way between the device and its host, by the engine of that direction."""

    key: str
    seconds: float
    inward: bool
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The device computes nothing before such a copy is over."""

    key: str


Item = Work | Transmission | Barrier | HostCopy | HostWait
