"""Two GPUs beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflinekit.ir.tensor import Math
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.ratio import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs, the first faster, and what the second loses to it."""

    faster: Prediction
    slower: Prediction
    faster_peak: float  # FLOP/s stated for the format that the workload mostly computes in
    slower_peak: float
    faster_math: Math  # that each does it in
    slower_math: Math
    bounds: Ratio  # how many times as long the slower one takes, with 90 %

    @property
    def ratio(self) -> float:
        """How many times as long the slower one takes."""
        return self.bounds.times

    @property
    def certain(self) -> bool:
        """Whether it is the slower one, with 90 %."""
        return self.bounds.certain

    def terms(self) -> dict[str, float]:
        """Seconds by which each term of the slower one is above the faster one's; the largest difference first."""
        fast, slow = self.faster.terms(), self.slower.terms()
        return dict(sorted(((name, slow[name] - fast[name]) for name in slow), key=lambda item: -abs(item[1])))

    def to_dict(self) -> dict[str, Any]:
        """Its numbers, ready for JSON."""
        return {
            "faster": self.faster.machine.name,
            "slower": self.slower.machine.name,
            "ratio": self.ratio,
            "ratio_low": self.bounds.low,
            "ratio_high": self.bounds.high,
            "certain": self.certain,
            "terms": self.terms(),
        }
