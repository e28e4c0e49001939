"""Statistics of repeated timings that a busy machine does not fool: medians, quartiles, outliers, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 5  # samples, before anything is said about their scatter
_NOISY = 0.10  # interquartile range relative to the median, from which on a case counts as noisy
_FENCE = 3.0  # interquartile ranges beyond the quartiles: outliers
_NOTCH = 1.57  # IQR/√n times this is half the 95 % interval of a median (McGill, Tukey, Larsen 1978)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of the samples of one case, in seconds."""

    median: float
    iqr: float  # of the middle half
    error: float  # half the median's 95 % interval, relative to it
    outliers: int  # samples far outside the middle half; they stay in

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
    return Summary(median=float(median), iqr=iqr, error=error, outliers=int(outliers.sum()))


def enough(seconds: Sequence[float], precision: float) -> bool:
    """Whether the median is known to this relative precision."""
    return len(seconds) >= LEAST and summarize(seconds).error <= precision
