"""The calls of a trace as trees, each with the time of its device; and which call launched a kernel."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.study.profile.file import Events

_MICROSECOND = 1e-6
_FOREST = -1  # the parent of calls that nothing called


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """When and on which thread the CPU launched a kernel."""

    start: float
    thread: int


def launches_of(launches: Events) -> dict[int, Launch]:
    """Launches by the number that they share with their kernels."""
    rows = zip(launches.correlation.tolist(), launches.start.tolist(), launches.thread.tolist(), strict=True)
    return {number: Launch(start=start, thread=thread) for number, start, thread in rows if number > 0}


def calls_of(
    calls: Events, kernels: Events, launches: Mapping[int, Launch], names: Sequence[str], inputs: Sequence[str] = ()
) -> tuple[ProfiledOp, ...]:
    """Calls in the order of their beginning, each before those that it makes.

    With kernels, a call has the seconds of those that it launched, itself or through others, and only such calls are
    given; then the kernels of no call. Without, it has its own duration. inputs: see `Trace.inputs`.
    """
    order = np.lexsort((-calls.end, calls.start, calls.thread))
    forest = Forest(calls.at(order))
    own, left = forest.seconds_of(kernels, launches) if len(kernels) else (None, {})
    found = list(forest.ops(own, names, inputs))
    return (*found, *(ProfiledOp(name=names[name], depth=0, seconds=seconds) for name, seconds in left.items()))


@lru_cache(maxsize=4096)
def _recorded(inputs: str) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Shapes of the tensors among a call's arguments, those of lists left out, and the format of the first."""
    dims, types, *_ = json.loads(inputs)
    listed = [one for one in dims if isinstance(one, list)] if isinstance(dims, list) else []
    shapes = tuple(tuple(one) for one in listed if one and all(isinstance(size, int) for size in one))
    return shapes, str(types[0]) if isinstance(types, list) and types else ""


class Forest:
    """Calls by thread and time, so that each stands before those within it."""

    def __init__(self, calls: Events) -> None:
        self.name, self.thread, self.inputs = calls.name.tolist(), calls.thread.tolist(), calls.inputs.tolist()
        self.start, self.end = calls.start.tolist(), calls.end.tolist()
        self.starts = {
            int(thread): (int(first), calls.start[calls.thread == thread])
            for thread, first in zip(*np.unique(calls.thread, return_index=True), strict=True)
        }
        self.parent = list(self._parents())

    def _parents(self) -> Iterator[int]:
        open_calls: list[int] = []
        for i, (thread, start) in enumerate(zip(self.thread, self.start, strict=True)):
            while open_calls and (self.thread[open_calls[-1]] != thread or self.end[open_calls[-1]] <= start):
                open_calls.pop()
            yield open_calls[-1] if open_calls else _FOREST
            open_calls.append(i)

    def caller(self, launch: Launch) -> int:
        """The innermost call around a launch."""
        if launch.thread not in self.starts:
            return _FOREST
        first, starts = self.starts[launch.thread]
        i = first + int(np.searchsorted(starts, launch.start, side="right")) - 1
        if i < first:
            return _FOREST
        while i != _FOREST and self.end[i] < launch.start:
            i = self.parent[i]
        return i

    def seconds_of(self, kernels: Events, launches: Mapping[int, Launch]) -> tuple[list[float], dict[int, float]]:
        """Seconds of the kernels that each call launched itself, and by name of those that none did."""
        own, left = [0.0] * len(self.name), defaultdict[int, float](float)
        length = (kernels.end - kernels.start).tolist()
        for name, micros, number in zip(kernels.name.tolist(), length, kernels.correlation.tolist(), strict=True):
            launch = launches.get(number)
            i = _FOREST if launch is None else self.caller(launch)
            if i == _FOREST:
                left[name] += micros * _MICROSECOND
            else:
                own[i] += micros * _MICROSECOND
        return own, dict(left)

    def launched_by(self, kernels: Events, launches: Mapping[int, Launch]) -> dict[int, list[int]]:
        """Which kernels each call launched itself: rows of both."""
        found = defaultdict[int, list[int]](list)
        for row, number in enumerate(kernels.correlation.tolist()):
            launch = launches.get(number)
            i = _FOREST if launch is None else self.caller(launch)
            if i != _FOREST:
                found[i].append(row)
        return found

    def ops(self, own: list[float] | None, names: Sequence[str], inputs: Sequence[str] = ()) -> Iterator[ProfiledOp]:
        """All calls, or with `own` those with kernels, each with the seconds of what it calls."""
        seconds = self._durations() if own is None else self._with_children(own)
        depth = [0] * len(seconds)
        for i, parent in enumerate(self.parent):
            depth[i] = 0 if parent == _FOREST else depth[parent] + 1
        for i in self._by_start():
            if seconds[i] or own is None:
                place = self.inputs[i]
                shapes, format_ = _recorded(inputs[place]) if 0 <= place < len(inputs) else ((), "")
                yield ProfiledOp(
                    name=names[self.name[i]], depth=depth[i], seconds=seconds[i], shapes=shapes, format=format_
                )

    def _durations(self) -> list[float]:
        return [(end - start) * _MICROSECOND for start, end in zip(self.start, self.end, strict=True)]

    def _with_children(self, own: list[float]) -> list[float]:
        total = list(own)
        for i in reversed(range(len(total))):
            if self.parent[i] != _FOREST:
                total[self.parent[i]] += total[i]
        return total

    def _by_start(self) -> list[int]:
        """Trees of all threads in the order of their beginning; within one, calls stand as they are."""
        root = [0] * len(self.parent)
        for i, parent in enumerate(self.parent):
            root[i] = i if parent == _FOREST else root[parent]
        return sorted(range(len(root)), key=lambda i: (self.start[root[i]], root[i], i))
