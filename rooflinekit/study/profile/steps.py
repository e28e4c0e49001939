"""Finds the steps in a profiler's trace, and what the GPU did in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step
from rooflinekit.errors import InputError, nearest
from rooflinekit.study.profile.file import Trace
from rooflinekit.study.profile.profile import Profile

Windows = NDArray[np.float64]  # [steps, 2]: begin and end of each, in microseconds
Rows = NDArray[np.int64]  # of each event the row of something else; -1 for none

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
    kernels, devices = _busiest(launched_kernels(trace))
    windows = marks[["start", "end"]].to_numpy()
    if not len(marks) and mark is None and len(windows := rounds_of(trace)):
        name = REPEATED
    windows = windows if len(windows) else np.array([trace.span])
    windows = windows[np.argsort(windows[:, 0], kind="stable")]
    kernels = kernels.assign(step=_steps_of(kernels["launched"].fillna(kernels["start"]), windows))
    kernels = kernels[kernels["step"] >= 0]
    count = len(windows)
    number = int(kernels["thread"].iloc[0]) if len(kernels) else 0
    return Profile(
        file=trace.file, mark=name, steps=count, devices=devices,
        device=trace.devices[number] if 0 <= number < len(trace.devices) else "",
        launched=len(kernels) / count,
        median_s=float(_seconds(kernels).median()) if len(kernels) else 0.0,
        kernels=_by_name(kernels, trace.names, count),
        ops=_ops(trace, kernels, windows),
        **{name: value / count for name, value in _gpu_time(kernels, windows).items()},
    )  # fmt: skip


def launched_kernels(trace: Trace) -> pd.DataFrame:
    """The kernels of a trace, with the time `launched` and the thread `by` of their launch; NaN without one."""
    launches = trace.launches[trace.launches["correlation"] > 0].drop_duplicates("correlation", keep="last")
    launches = launches.set_index("correlation")[["start", "thread"]].set_axis(["launched", "by"], axis=1)
    return trace.kernels.join(launches, on="correlation")


def _seconds(events: pd.DataFrame) -> pd.Series[float]:
    return (events["end"] - events["start"]) * _MICROSECOND


def _marks(trace: Trace, wanted: str | None) -> tuple[str, pd.DataFrame]:
    """What marks the steps, and each time that it does."""
    marks = trace.marks.assign(name=np.array([trace.names[i] for i in trace.marks["name"]], dtype=str))
    by_profiler = marks["name"].str.startswith(_PROFILER)
    if wanted == "":
        return "", marks[:0]
    if wanted is not None:
        chosen = marks[marks["name"] == wanted]
        if chosen.empty:
            known = marks["name"][~by_profiler].unique()
            raise InputError(f"{trace.file}: no mark {wanted!r} in it{nearest(wanted, known)}")
        return wanted, chosen
    if by_profiler.any():
        return _PROFILER.rstrip("#"), marks[by_profiler]
    own = marks[~marks["name"].str.startswith(_OWN_MARKS)]
    if own.empty:
        return "", own
    name = _seconds(own).groupby(own["name"], sort=False).sum().idxmax()
    return str(name), own[own["name"] == name]


def _busiest(kernels: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The kernels of the GPU that works longest, by time, and on how many there are kernels."""
    if kernels.empty:
        return kernels, 0
    length = _seconds(kernels).groupby(kernels["thread"]).sum()
    chosen = kernels[kernels["thread"] == length.idxmax()]
    return chosen.sort_values("start", kind="stable"), len(length)


def _steps_of(times: ArrayLike, windows: Windows) -> Rows:
    """The step within which each time lies; -1 for none."""
    at = np.asarray(times, dtype=float)
    step = np.searchsorted(windows[:, 0], at, side="right") - 1
    inside = (step >= 0) & (at <= windows[np.maximum(step, 0), 1])
    return np.where(inside, step, -1)


def _lasting(windows: Windows, kernels: pd.DataFrame) -> Windows:
    """The steps until their last kernel has ended; those that then meet, as one."""
    ends = windows[:, 1].copy()
    np.maximum.at(ends, kernels["step"].to_numpy(), kernels["end"].to_numpy())
    ends = np.maximum.accumulate(ends)
    first = np.append(True, windows[1:, 0] > ends[:-1])
    return np.column_stack((windows[first, 0], ends[np.append(first[1:], True)]))


def _gpu_time(kernels: pd.DataFrame, windows: Windows) -> dict[str, float]:
    """What a `Profile` says of a step's wall time, of all steps together."""
    begins, ends = _lasting(windows, kernels).T
    found = {"wall_s": float((ends - begins).sum()) * _MICROSECOND}
    kernels = kernels[kernels["start"] < ends[-1]]
    if kernels.empty:
        return {**found, **dict.fromkeys(("busy_s", "gaps", "late_s", "unknown_s"), 0.0)}
    place = np.searchsorted(ends, kernels["start"], side="right")
    # The end of each step is an event too: before it there may be a gap, and only then does the CPU go on.
    step = np.append(place, np.arange(len(ends)))
    start = np.append(np.maximum(kernels["start"], begins[place]), ends)
    order = np.lexsort((start, step))
    step, start = step[order], start[order]
    end, issued = np.append(kernels["end"], ends)[order], np.append(kernels["launched"], ends)[order]
    free = np.maximum(begins[step], np.append(-np.inf, np.maximum.accumulate(end)[:-1]))
    gap = np.maximum(start - free, 0.0)
    busy = np.maximum(end - np.maximum(free, start), 0.0)
    return {
        **found,
        "busy_s": float(busy.sum()) * _MICROSECOND,
        "gaps": float((gap > 0).sum()),
        "late_s": float(gap[issued >= free].sum()) * _MICROSECOND,
        "unknown_s": float(gap[np.isnan(issued)].sum()) * _MICROSECOND,
    }


def _by_name(kernels: pd.DataFrame, names: Sequence[str], steps: int) -> tuple[KernelTime, ...]:
    found = _seconds(kernels).groupby(kernels["name"]).agg(["size", "sum"])
    rows = sorted(zip(found.index, found["size"], found["sum"], strict=True), key=lambda row: (-row[2], names[row[0]]))
    return tuple(KernelTime(name=names[n], count=round(count / steps), seconds=s / steps) for n, count, s in rows)


def _ops(trace: Trace, kernels: pd.DataFrame, windows: Windows) -> tuple[ProfiledOp, ...]:
    of_call, count = _steps_of(trace.calls["start"], windows), len(windows)
    return median_step([
        calls_of(trace.calls[of_call == i], kernels[kernels["step"] == i], trace)
        for i in range(max(0, count - _MEDIANS), count)
    ])  # fmt: skip


# The calls of a trace as trees, each with the time of its device; and which call launched a kernel.


def in_order(calls: pd.DataFrame) -> pd.DataFrame:
    """By thread and time, so that each call stands before those within it."""
    return calls.sort_values(["thread", "start", "end"], ascending=[True, True, False], ignore_index=True)


def calls_of(calls: pd.DataFrame, kernels: pd.DataFrame, trace: Trace) -> tuple[ProfiledOp, ...]:
    """Calls in the order of their beginning, each before those that it makes.

    With kernels, a call has the seconds of those that it launched, itself or through others, and only such calls are
    given; then the kernels of no call. Without, it has its own duration.
    """
    calls = in_order(calls)
    parent, seconds = _parents(calls), _seconds(calls).tolist()
    left: list[tuple[Any, float]] = []
    if len(kernels):
        caller, length = callers(kernels, calls, parent), _seconds(kernels)
        own = length[caller >= 0].groupby(caller[caller >= 0]).sum()
        seconds = own.reindex(range(len(calls)), fill_value=0.0).tolist()
        for i in reversed(range(len(calls))):
            if parent[i] >= 0:
                seconds[parent[i]] += seconds[i]
        alone = caller < 0
        left = list(length[alone].groupby(kernels["name"][alone], sort=False).sum().items())
    depth, root = [0] * len(calls), list(range(len(calls)))
    for i, above in enumerate(parent):
        if above >= 0:
            depth[i], root[i] = depth[above] + 1, root[above]
    names, inputs, start = (calls[name].tolist() for name in ("name", "inputs", "start"))
    # trees of all threads in the order of their beginning; within one, calls stand as they are
    order = sorted(range(len(calls)), key=lambda i: (start[root[i]], root[i], i))
    found = []
    for i in order:
        if seconds[i] or not len(kernels):
            shapes, kind = _recorded(trace.inputs[inputs[i]]) if 0 <= inputs[i] < len(trace.inputs) else ((), "")
            found.append(
                ProfiledOp(name=trace.names[names[i]], depth=depth[i], seconds=seconds[i], shapes=shapes, format=kind)
            )
    return (*found, *(ProfiledOp(name=trace.names[name], depth=0, seconds=s) for name, s in left))


def _parents(calls: pd.DataFrame) -> list[int]:
    """The row of the call that each was made by; -1 for none."""
    found, within = list[int](), list[int]()
    threads, starts, ends = (calls[name].tolist() for name in ("thread", "start", "end"))
    for i, (thread, start) in enumerate(zip(threads, starts, strict=True)):
        while within and (threads[within[-1]] != thread or ends[within[-1]] <= start):
            within.pop()
        found.append(within[-1] if within else -1)
        within.append(i)
    return found


def callers(kernels: pd.DataFrame, calls: pd.DataFrame, parents: Sequence[int] | None = None) -> Rows:
    """Of each kernel the row of the innermost call around its launch; -1 for none. calls: as `in_order` has them."""
    above = np.append(_parents(calls) if parents is None else parents, -1).astype(np.int64)
    ends = np.append(calls["end"], np.inf)
    found = np.full(len(kernels), -1)
    for thread, rows in calls.groupby("thread")["start"]:
        here = np.flatnonzero(kernels["by"] == thread)
        place = np.searchsorted(rows, kernels["launched"].to_numpy()[here], side="right") - 1
        found[here] = np.where(place >= 0, rows.index[0] + place, -1)
    launched = kernels["launched"].to_numpy()
    while (over := (found >= 0) & (ends[found] < launched)).any():
        found[over] = above[found[over]]
    return found


@lru_cache(maxsize=4096)
def _recorded(inputs: str) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Shapes of the tensors among a call's arguments, those of lists left out, and the format of the first."""
    dims, types, *_ = json.loads(inputs)
    listed = [one for one in dims if isinstance(one, list)] if isinstance(dims, list) else []
    shapes = tuple(tuple(one) for one in listed if one and all(isinstance(size, int) for size in one))
    return shapes, str(types[0]) if isinstance(types, list) and types else ""


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
    calls = in_order(trace.calls)
    calls = calls[np.array(_parents(calls), dtype=int) < 0]
    if len(calls):
        calls = calls[calls["thread"] == calls["thread"].value_counts(sort=False).idxmax()]
    return calls["start"].to_numpy(), calls["end"].to_numpy(), calls["name"].tolist()
