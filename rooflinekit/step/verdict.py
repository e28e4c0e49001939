"""How much of a GPU's memory a step takes, in three numbers with intervals, and how likely it is that it fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

from rooflinekit.step.allocator import DEFAULT, Settings
from rooflinekit.step.memory import STEPS, Blocks, MemoryUse, listed, room_of
from rooflinekit.timing.estimate import deviations
from rooflinekit.units import format_bytes

#: Stated standard deviations, as shares: of blocks (peaks of single GPUs are within 3.4 % of measured ones in
#: benchmarks/memory/sam.py, closer in benchmarks/memory/liger.py), of segments, whose order of blocks other steps and
#: releases change, and of the context, for which 300 to 800 MiB are commonly seen: 90 % of them in 500 ± 250.
_ALLOCATED, _RESERVED, _CONTEXT = 0.02, 0.03, 0.3
_UNSURE = 3e-7  # probability, of 5 deviations, beyond which the allocator's ways near the end of memory do not matter
_HARDLY = 0.01  # probability of being wrong that is not told beside "fits" and "does not fit"
_NEAR = 2 * 2**20  # bytes to which the least room is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Bytes of a GPU's memory by one way of counting them, with bounds."""

    bytes: int
    low_bytes: int
    high_bytes: int

    @classmethod
    def of(cls, size: float, spread: float, deviations: float) -> Level:
        """`size` bytes, with `spread` of them as a standard deviation."""
        away = deviations * spread
        return cls(bytes=round(size), low_bytes=round(max(size - away, 0)), high_bytes=round(size + away))

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes)} ({format_bytes(self.low_bytes)} to {format_bytes(self.high_bytes)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a step fits the memory, and by how much."""

    allocated: Level  # tensors, torch.cuda.max_memory_allocated()
    reserved: Level  # segments that the caching allocator holds, torch.cuda.max_memory_reserved()
    process: Level  # and what no segment holds: the process in nvidia-smi
    beside: Mapping[str, int]  # bytes of that, by what they are for
    least_bytes: int  # of room at which the allocator still finds a place for every block
    usable_bytes: int  # of the device's memory, for this process
    probability: float  # that it fits

    @classmethod
    def of(
        cls, *, allocated: float, reserved: float, least: float, beside: Mapping[str, int], capacity: float,
        level: float = 0.9, spread: float = _ALLOCATED, gpu: bool = True,
    ) -> Verdict:  # fmt: skip
        """The verdict on so many bytes, with bounds that hold each with this probability.

        least: of room at which the step still runs; spread: the standard deviation of what is allocated, as a share.
        Raises ValueError for a level outside (0, 1).
        """
        usable, context, wide = room_of(capacity, {}) if gpu else capacity, sum(beside.values()), deviations(level)
        held = max(spread, _RESERVED) if gpu else spread
        return cls(
            allocated=Level.of(allocated, spread * allocated, wide),
            reserved=Level.of(reserved, held * reserved, wide),
            process=Level.of(reserved + context, _spread(reserved, held, context), wide),
            beside=beside, least_bytes=round(least), usable_bytes=round(usable),
            probability=NormalDist().cdf((usable - context - least) / _spread(least, spread, context)),
        )  # fmt: skip

    @property
    def likely(self) -> str:
        """How likely it is that it fits: "73% likely to fit", at the ends "under 1%" or "over 99%"."""
        p = self.probability
        share = "under 1%" if p <= _HARDLY else "over 99%" if p >= 1 - _HARDLY else f"{p:.0%}"
        return f"{share} likely to fit"

    @property
    def doubt(self) -> str:
        """The same, as what follows "fits" or "does not fit"; "" where that is hardly in doubt."""
        return f", {self.likely}" if _HARDLY < self.probability < 1 - _HARDLY else ""

    def __str__(self) -> str:
        return (
            f"allocated {self.allocated}, reserved {self.reserved}, in nvidia-smi {self.process}: the allocator's "
            f"segments and {listed(self.beside)}; of {format_bytes(self.usable_bytes)}, {self.likely}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Every number, in bytes, ready for JSON."""
        return asdict(self)


def verdict_of(m: MemoryUse, blocks: Blocks, level: float, settings: Settings, *, gpu: bool) -> Verdict:
    """The verdict on a step with this memory and these blocks, see `Verdict.of`.

    settings: of the allocator, where they are not what `m` is of. Near the end of memory the allocator gives back what
    it keeps, so a step may fit whose segments would otherwise be too large, and convolutions do with smaller
    workspaces: what counts is the least room in which it runs.
    """
    if settings != DEFAULT:
        m = _set(m, blocks, settings)
    found = verdict_in(m, m.reserved_bytes if gpu else m.peak_bytes, level, gpu=gpu)
    if m.refused:
        return replace(found, probability=0.0)
    if not gpu or (m.fits and found.probability > 1 - _UNSURE):
        return found
    least = max(blocks.levels(least=True))
    if verdict_in(m, least, level).probability > _UNSURE:
        least = _least_room(m, blocks, least, settings)
    return verdict_in(m, least, level)


def verdict_in(m: MemoryUse, least: int, level: float, *, gpu: bool = True) -> Verdict:
    """The verdict on a step that needs so many bytes of room at least."""
    return Verdict.of(
        allocated=m.peak_bytes, reserved=m.reserved_bytes, least=least, beside=m.beside, capacity=m.capacity,
        level=level, gpu=gpu,
    )  # fmt: skip


def _spread(size: float, share: float, context: float) -> float:
    return math.hypot(share * size, _CONTEXT * context) or 1.0


def _set(m: MemoryUse, blocks: Blocks, settings: Settings) -> MemoryUse:
    """The memory where the allocator is set so."""
    reserved = blocks.reserved(settings=settings)
    if reserved is not None and reserved > m.room:
        reserved = blocks.reserved(m.room, STEPS, blocks.optional, settings)
    return replace(m, reserved_bytes=m.peak_bytes if reserved is None else reserved, fits=reserved is not None)


def _least_room(m: MemoryUse, blocks: Blocks, least: int, settings: Settings) -> int:
    """The least capacity near the device's in which the step runs; a cut into pieces may fall otherwise there."""
    too_little, enough = least - 1, m.reserved_bytes
    if not m.fits:
        too_little, enough = max(too_little, int(m.room)), blocks.reserved(math.inf, STEPS, settings=settings) or 0
    while enough - too_little > _NEAR:
        middle = (enough + too_little) // 2
        found = blocks.reserved(middle, STEPS, blocks.optional, settings)
        too_little, enough = (middle, enough) if found is None else (too_little, found)
    return enough
