"""How sure a prediction is: seconds with what they may be off by, which adds up, and the bounds that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from rooflinekit.ir.sizes import finite, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds, and by how much they may be off: numbers, or columns of them.

    What has one cause, such as the constants of a family of kernels, is off together: standard deviations add up. What
    is off by itself adds up in squares, and so do the causes.
    """

    seconds: Any = 0.0
    shared: Mapping[str, Any] = field(default_factory=dict)  # standard deviation by cause, s
    own: Any = 0.0  # variance of what is off by itself, s²
    joules: Any = None  # None where nobody knows or asks

    def __add__(self, other: Estimate) -> Estimate:
        joules = None if self.joules is None or other.joules is None else self.joules + other.joules
        causes = dict.fromkeys((*self.shared, *other.shared))
        return Estimate(
            seconds=self.seconds + other.seconds,
            shared={cause: self.shared.get(cause, 0.0) + other.shared.get(cause, 0.0) for cause in causes},
            own=self.own + other.own,
            joules=joules,
        )

    def __mul__(self, times: Any) -> Estimate:
        """The estimate of `times` equal calls, which are all off by the same error."""
        return Estimate(
            seconds=times * self.seconds,
            shared={cause: times * deviation for cause, deviation in self.shared.items()},
            own=times**2 * self.own,
            joules=None if self.joules is None else times * self.joules,
        )

    __rmul__ = __mul__

    @property
    def variance(self) -> Any:
        """Variance of the seconds, in s²."""
        return self.own + sum(deviation**2 for deviation in self.shared.values())

    @property
    def deviation(self) -> Any:
        """Standard deviation of the logarithm; 0 of nothing."""
        seconds = np.asarray(self.seconds, dtype=float)
        return plain(np.divide(np.sqrt(self.variance), seconds, out=np.zeros(seconds.shape), where=seconds > 0))

    def interval(self, level: float = 0.9) -> tuple[Any, Any]:
        """Bounds in seconds that hold the true time with this probability. Raises ValueError for one outside (0, 1)."""
        return around(self.seconds, deviations(level) * self.deviation)


def deviations(level: float) -> float:
    """How many standard deviations of a normal distribution hold a share `level` of it.

    Raises ValueError for a level outside (0, 1).

    >>> round(deviations(0.9), 3)
    1.645
    """
    if not (finite(level) and 0 < level < 1):
        raise ValueError(f"level: expected a probability between 0 and 1; got {shown(level)}")
    return NormalDist().inv_cdf((1 + level) / 2)


def around(middle: Any, *parts: Any) -> tuple[Any, Any]:
    """Bounds about a number, or columns of them, that independent parts move: their logarithms add up in squares.

    parts: by how much each moves the logarithm to either side, or (below, above).

    >>> [round(bound, 4) for bound in around(1.0, 0.3, (0.4, 0.0))]  # exp(-0.5), exp(0.3)
    [0.6065, 1.3499]
    """
    pairs = [one if isinstance(one, tuple) else (one, one) for one in parts]
    below, above = (np.sqrt(sum(np.square(one[side]) for one in pairs)) for side in (0, 1))
    return plain(middle * np.exp(-below)), plain(middle * np.exp(above))


def away(middle: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    """How far bounds are from a number above 0 in logarithms, below and above; what `around` takes.

    >>> away(1.0, (0.0, 1.0))
    (inf, 0.0)
    """
    low, high = bounds
    with np.errstate(divide="ignore"):
        return plain(np.log(middle) - np.log(low)), plain(np.log(high) - np.log(middle))


def plain(value: Any) -> Any:
    """A single number as a Python float, columns as they are."""
    return value.item() if np.ndim(value) == 0 and isinstance(value, np.generic | np.ndarray) else value
