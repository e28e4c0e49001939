"""Statistics of repeated timings that a busy machine does not fool: medians, quartiles, outliers, drift."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 5  # samples, before anything is said about their scatter
_NOISY = 0.10  # interquartile range relative to the median, from which on a case counts as noisy
_FENCE = 3.0  # interquartile ranges beyond the quartiles: outliers
_FEW = 3  # samples whose median is compared with that of as many before
_AT_REST = 0.05  # by which they may differ
_NOTCH = 1.57  # IQR/√n times this is half the 95 % interval of a median (McGill, Tukey, Larsen 1978)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of the samples of one case, in seconds."""

    median: float
    low: float  # end of the first quarter
    high: float  # beginning of the last
    error: float  # half the median's 95 % interval, relative to it
    outliers: int  # samples far outside the middle half; they stay in

    @property
    def iqr(self) -> float:
        """Over how much the middle half is spread."""
        return self.high - self.low

    @property
    def noisy(self) -> bool:
        """Whether the middle half of the samples is spread over more than a tenth of their median."""
        return self.iqr > _NOISY * self.median


def summarize(seconds: Sequence[float]) -> Summary:
    """The statistics of one or more samples."""
    values = np.asarray(seconds, dtype=float)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    iqr = float(high - low)
    outliers = (values < low - _FENCE * iqr) | (values > high + _FENCE * iqr)
    error = _NOTCH * iqr / float(np.sqrt(len(values))) / float(median)
    return Summary(median=float(median), low=float(low), high=float(high), error=error, outliers=int(outliers.sum()))


def repeats(together_s: float, once_s: float, least: int = 1, most: float = math.inf) -> int:
    """How many calls of so long last as long together, within bounds."""
    return max(least, int(min(most, math.ceil(together_s / max(1e-9, once_s)))))


def collect(
    sample: Callable[[], float],
    most: int,
    precision: float,
    *,
    within_s: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float, ...]:
    """Samples until their median is this precise, at most `most`; none begins after `within_s` once LEAST are there."""
    seconds: list[float] = []
    start = clock()
    while len(seconds) < most and not enough(seconds, precision):
        if len(seconds) >= LEAST and clock() - start > within_s:
            break
        seconds.append(sample())
    return tuple(seconds)


def settled(seconds: Sequence[float]) -> bool:
    """Whether a warm-up has come to rest: the last few samples take as long as the few before them."""
    if len(seconds) < 2 * _FEW:
        return False
    before, last = (float(np.median(part)) for part in (seconds[-2 * _FEW : -_FEW], seconds[-_FEW:]))
    return abs(last - before) <= _AT_REST * before


def enough(seconds: Sequence[float], precision: float) -> bool:
    """Whether the median is known to this relative precision."""
    return len(seconds) >= LEAST and summarize(seconds).error <= precision
