"""Finds the steps in a profiler's trace, and what the GPU did in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step
from rooflinekit.errors import InputError, nearest
from rooflinekit.study.profile.calls import Launch, calls_of, launches_of
from rooflinekit.study.profile.file import Events, Trace
from rooflinekit.study.profile.profile import Profile

Windows = NDArray[np.float64]  # [steps, 2]: begin and end of each, in microseconds
Steps = NDArray[np.int64]  # the step of each event; -1 for none

_MICROSECOND = 1e-6
_PROFILER = "ProfilerStep#"
_MEDIANS = 16  # steps of which the calls are compared: as good as a thousand, in little memory
#: Marks that PyTorch sets itself, within a step.
_OWN_MARKS = (
    "Optimizer.",
    "enumerate(DataLoader)",
    "## ",
    "Torch-Compiled Region",
    "autograd::",
    "nccl:",
    "record_param",
)


def profile_of(trace: Trace, mark: str | None = None) -> Profile:
    """The steps of a trace in the mean; see `Profile.read`. Raises InputError for a mark that is not in it."""
    name, marks = _marks(trace, mark)
    kernels, devices = _busiest(trace.kernels)
    launches = launches_of(trace.launches)
    whole = np.array([trace.span])
    windows = np.column_stack((marks.start, marks.end))
    if not len(marks) and mark is None and len(windows := rounds_of(trace)):
        name = REPEATED
    windows = windows if len(windows) else whole
    windows = windows[np.argsort(windows[:, 0], kind="stable")]
    step = _steps_of(_issued(kernels, launches), windows)
    kernels, step = kernels.at(step >= 0), step[step >= 0]
    gpu = _gpu_time(kernels, launches, _lasting(windows, kernels, step))
    count, length = len(windows), kernels.end - kernels.start
    return Profile(
        file=trace.file,
        mark=name,
        steps=count,
        device=_name_of(trace, kernels),
        devices=devices,
        wall_s=gpu.wall * _MICROSECOND / count,
        busy_s=gpu.busy * _MICROSECOND / count,
        gaps=gpu.gaps / count,
        late_s=gpu.late * _MICROSECOND / count,
        unknown_s=gpu.unknown * _MICROSECOND / count,
        launched=len(kernels) / count,
        median_s=float(np.median(length)) * _MICROSECOND if len(kernels) else 0.0,
        kernels=_by_name(kernels, trace.names, count),
        ops=_ops(trace, kernels, step, windows, launches),
    )


def _marks(trace: Trace, wanted: str | None) -> tuple[str, Events]:
    """What marks the steps, and each time that it does."""
    names, marks = trace.names, trace.marks
    found = [names[i] for i in marks.name.tolist()]
    if wanted == "":
        return "", marks.at(slice(0, 0))
    if wanted is not None:
        if wanted not in found:
            known = list(dict.fromkeys(name for name in found if not name.startswith(_PROFILER)))
            raise InputError(f"{trace.file}: no mark {wanted!r} in it{nearest(wanted, known)}")
        return wanted, marks.at(np.array([name == wanted for name in found]))
    by_profiler = np.array([name.startswith(_PROFILER) for name in found], dtype=bool)
    if by_profiler.any():
        return _PROFILER.rstrip("#"), marks.at(by_profiler)
    seconds: dict[str, float] = defaultdict(float)
    for name, start, end in zip(found, marks.start.tolist(), marks.end.tolist(), strict=True):
        if not name.startswith(_OWN_MARKS):
            seconds[name] += end - start
    if not seconds:
        return "", marks.at(slice(0, 0))
    name = max(seconds, key=seconds.__getitem__)
    return name, marks.at(np.array([one == name for one in found]))


def _busiest(kernels: Events) -> tuple[Events, int]:
    """The kernels of the GPU that works longest, by time, and on how many there are kernels."""
    if not len(kernels):
        return kernels, 0
    numbers = np.unique(kernels.thread)
    length = kernels.end - kernels.start
    best = max(numbers.tolist(), key=lambda number: float(length[kernels.thread == number].sum()))
    chosen = kernels.at(kernels.thread == best)
    return chosen.at(np.argsort(chosen.start, kind="stable")), len(numbers)


def _name_of(trace: Trace, kernels: Events) -> str:
    number = int(kernels.thread[0]) if len(kernels) else 0
    return trace.devices[number] if 0 <= number < len(trace.devices) else ""


def _issued(kernels: Events, launches: dict[int, Launch]) -> list[float]:
    """When each kernel was launched; when it began, where the trace has no launch of it."""
    rows = zip(kernels.correlation.tolist(), kernels.start.tolist(), strict=True)
    return [launches[number].start if number in launches else start for number, start in rows]


def _steps_of(times: Sequence[float], windows: Windows) -> Steps:
    """The step within which each time lies; -1 for none."""
    at = np.asarray(times, dtype=float)
    step = np.searchsorted(windows[:, 0], at, side="right") - 1
    inside = (step >= 0) & (at <= windows[np.maximum(step, 0), 1])
    return np.where(inside, step, -1)


def _lasting(windows: Windows, kernels: Events, step: Steps) -> list[tuple[float, float]]:
    """The steps until their last kernel has ended; those that then meet, as one."""
    ends = windows[:, 1].copy()
    np.maximum.at(ends, step, kernels.end)
    found: list[tuple[float, float]] = []
    for start, end in zip(windows[:, 0].tolist(), ends.tolist(), strict=True):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


@dataclass(slots=True)
class _GpuTime:
    """Microseconds of all steps together."""

    wall: float = 0.0
    busy: float = 0.0
    gaps: int = 0
    late: float = 0.0
    unknown: float = 0.0


def _gpu_time(kernels: Events, launches: dict[int, Launch], windows: Sequence[tuple[float, float]]) -> _GpuTime:
    found = _GpuTime(wall=sum(end - start for start, end in windows))
    rows = list(zip(kernels.start.tolist(), kernels.end.tolist(), kernels.correlation.tolist(), strict=True))
    i = 0
    for begin, end in windows if rows else ():
        free = begin
        while i < len(rows) and rows[i][0] < end:
            start, done, number = rows[i]
            _gap(found, free, start, launches[number].start if number in launches else None)
            found.busy += max(0.0, done - max(free, start))
            free, i = max(free, done), i + 1
        _gap(found, free, end, end)
    return found


def _gap(found: _GpuTime, begin: float, end: float, launched: float | None) -> None:
    if end <= begin:
        return
    found.gaps += 1
    if launched is None:
        found.unknown += end - begin
    elif launched >= begin:
        found.late += end - begin


def _by_name(kernels: Events, names: Sequence[str], steps: int) -> tuple[KernelTime, ...]:
    counts: dict[int, int] = defaultdict(int)
    micros: dict[int, float] = defaultdict(float)
    for name, length in zip(kernels.name.tolist(), (kernels.end - kernels.start).tolist(), strict=True):
        counts[name] += 1
        micros[name] += length
    order = sorted(micros, key=lambda name: (-micros[name], names[name]))
    return tuple(
        KernelTime(name=names[n], count=round(counts[n] / steps), seconds=micros[n] * _MICROSECOND / steps)
        for n in order
    )


def _ops(
    trace: Trace, kernels: Events, step: Steps, windows: Windows, launches: dict[int, Launch]
) -> tuple[ProfiledOp, ...]:
    of_call, count = _steps_of(trace.calls.start.tolist(), windows), len(windows)
    found = []
    for i in range(max(0, count - _MEDIANS), count):
        calls = trace.calls.at(of_call == i)
        found.append(calls_of(calls, kernels.at(step == i), launches, trace.names, trace.inputs))
    return median_step(found)


# Steps that nothing marks: rounds of the same calls, one after the other, at the end of a trace.


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
