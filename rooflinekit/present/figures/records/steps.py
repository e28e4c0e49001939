"""Whole steps as marks of a roofline figure, as records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Kernels are never bound by overhead; communication is of steps on several devices.
PointBound = Literal["compute", "memory", "latency", "overhead", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A whole step as one mark on a path: its FLOP, its bytes, its wall time."""

    label: str
    device: str
    flop: float
    bytes: float
    time_s: float
    bound: PointBound
    link_bytes: tuple[tuple[str, float], ...] = ()  # that a device sends, by the name of the link's roof

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flop / self.bytes

    @property
    def intensities(self) -> tuple[float, ...]:
        """FLOP per byte of each level: of links, the slowest first, and then of DRAM."""
        return (*(self.flop / sent for _, sent in self.link_bytes), self.intensity)

    @property
    def performance(self) -> float:
        """FLOP/s of the wall time."""
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """How a step moves as one thing about it changes."""

    name: str  # what tells it from other paths; "" for the only one
    over: str  # what changes: "batch", "device", "execution"
    stops: tuple[Stop, ...]  # in order
