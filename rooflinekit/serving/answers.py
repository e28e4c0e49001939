"""What became of the requests of an open loop, and what the engine did."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflinekit.serving.traffic import Request


@dataclass(slots=True, kw_only=True)
class Answered:
    """What became of one request, in seconds from the start of the log."""

    request: Request
    scheduled_s: float = math.nan  # the step that first read of its prompt began
    first_s: float = math.nan  # its first token came
    last_s: float = math.nan
    preempted: int = 0

    @property
    def queue_s(self) -> float:
        """From its arrival to the step that first read of its prompt."""
        return self.scheduled_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token."""
        return self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Between its tokens, on average; not a number where it has one."""
        further = self.request.output - 1
        return (self.last_s - self.first_s) / further if further else math.nan

    @property
    def e2e_s(self) -> float:
        """From its arrival to its last token."""
        return self.last_s - self.request.arrival_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The requests, in order of arrival, and what the engine did."""

    answers: tuple[Answered, ...]
    gaps: tuple[tuple[float, float], ...]  # seconds between two tokens of a sequence, and how many such gaps
    busy_s: float  # steps
    reading_s: float  # of these, beyond what sequences that go on take alone: reading prompts
    steps: int
    preemptions: int
    running: float  # sequences, on average over the steps' time
    peak_cache: float  # most of the cache that was in use, as a share
    engines: int = 1  # whose times and steps these are, summed
    kernels_j: float | None = None  # joules of one GPU's kernels, on average over all, where they are asked for

    @property
    def end_s(self) -> float:
        """When the last token came."""
        return max(answer.last_s for answer in self.answers)
