"""What an engine did, counted while requests are played through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflinekit.serving.answers import Answered, Played


@dataclass(slots=True)
class Tally:
    """Sums over the steps so far; as `Played` describes them."""

    gaps: dict[float, float] = field(default_factory=dict)
    busy_s: float = 0.0
    reading_s: float = 0.0
    running_s: float = 0.0  # sequences × seconds
    steps: int = 0
    preemptions: int = 0
    peak: float = 0.0  # tokens of the cache
    joules: float = 0.0

    def count_gap(self, seconds: float, times: float) -> None:
        """So many pairs of tokens of one sequence came so far apart."""
        if times > 0:
            self.gaps[seconds] = self.gaps.get(seconds, 0) + times

    def pass_by(self, count: int, seconds: float, running: int) -> None:
        """So many steps of so many seconds each, with so many sequences."""
        self.busy_s += count * seconds
        self.steps += count
        self.running_s += running * count * seconds

    def result(self, answers: Sequence[Answered], cache_tokens: float, joules: bool) -> Played:
        """All of it."""
        return Played(
            answers=tuple(answers),
            gaps=tuple(sorted(self.gaps.items())),
            busy_s=self.busy_s,
            reading_s=self.reading_s,
            steps=self.steps,
            preemptions=self.preemptions,
            running=self.running_s / self.busy_s if self.busy_s else 0.0,
            peak_cache=self.peak / cache_tokens,
            kernels_j=self.joules if joules else None,
        )
