"""Steps that nothing marks: rounds of the same calls, one after the other, at the end of a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rooflinekit.study.profile.file import Trace

REPEATED = "rounds of the same calls"  # what marks such steps
_LEAST_CALLS = 3  # of a round: layers of one or two operators repeat within a step
_LEAST_SHARE = 0.5  # of all calls, that rounds make up: what comes before them is setup and warm-up


def rounds_of(trace: Trace) -> NDArray[np.float64]:
    """When each round begins and ends, in microseconds: [rounds, 2]; without rows where no calls repeat.

    Compared are the names of the outermost calls on the thread that has most of them. A round lasts until the next.
    """
    starts, ends, names = _outermost(trace)
    length, count = period(names)
    if not count:
        return np.empty((0, 2))
    begins = starts[len(names) - length * count :: length]
    return np.column_stack((begins, np.append(begins[1:], ends[-1])))


def period(names: Sequence[int]) -> tuple[int, int]:
    """How many names are a round, and how many rounds the list ends with; (0, 0) where it has none.

    >>> period([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    (3, 3)
    >>> period([1, 2, 1, 2]), period([1, 2, 3, 4])
    ((0, 0), (0, 0))
    """
    backwards = list(names)[::-1]
    borders = [0] * len(backwards)  # of each beginning, its longest end that it begins with too (Knuth, Morris, Pratt)
    found = (0, 0)
    for place in range(1, len(backwards)):
        border = borders[place - 1]
        while border and backwards[place] != backwards[border]:
            border = borders[border - 1]
        borders[place] = border + (backwards[place] == backwards[border])
        whole = place + 1
        length = whole - borders[place]
        if length >= _LEAST_CALLS and 2 * length <= whole and whole >= _LEAST_SHARE * len(backwards):
            found = length, whole // length
    return found


def _outermost(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
    """Begin, end and name of the calls that nothing called, on the thread with most of them."""
    calls = trace.calls
    calls = calls.at(np.lexsort((-calls.end, calls.start, calls.thread)))
    best: list[int] = []
    for thread in np.unique(calls.thread).tolist():
        rows, end = [], -np.inf
        for row in np.flatnonzero(calls.thread == thread).tolist():
            if calls.start[row] >= end:
                rows.append(row)
                end = calls.end[row]
        best = max(best, rows, key=len)
    return calls.start[best], calls.end[best], calls.name[best].tolist()
