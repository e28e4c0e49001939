"""A step under torch's profiler: its calls as a tree with the device's time of each, and a GPU's kernels."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step

_MARK = "rooflinekit: a step"
_MICROSECOND = 1e-6
_LOG_LEVEL = "KINETO_LOG_LEVEL"

Run = Callable[[], object]


def profile_step(
    run: Run, wait: Run, *, cuda: bool, steps: int
) -> tuple[tuple[ProfiledOp, ...], tuple[KernelTime, ...]]:
    """Calls and kernels of a step, each with the median of its times over so many steps.

    run: one step. wait: returns when the device has done it. Seconds are those of the GPU's kernels, or on a CPU those
    of the calls, to which the profiler adds about a microsecond each.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with _silent(), profile(activities=activities) as profiler:
        for _ in range(1 + steps):  # the first one sets the profiler up
            with record_function(_MARK):
                run()
                wait()
    parts = _by_step(list(profiler.events()))[1:]
    return median_step([_calls(events, cuda) for events in parts]), _kernels(parts) if cuda else ()


def _by_step(events: Sequence[Any]) -> list[list[Any]]:
    """The events of each step, by the time of its mark: autograd's thread for a GPU does not stand below it."""
    marks = _by_start(event for event in events if event.name == _MARK and _is_call(event))
    starts = [mark.time_range.start for mark in marks]
    found: list[list[Any]] = [[] for _ in marks]
    for event in events:
        i = bisect_right(starts, event.time_range.start) - 1
        if i >= 0 and event.name != _MARK:
            found[i].append(event)
    return found


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the lines that the profiler's library writes to standard error at each start and end."""
    level = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, "6")  # above all that it says
    try:
        yield
    finally:
        if level is None:
            del os.environ[_LOG_LEVEL]


def _calls(events: Sequence[Any], cuda: bool) -> tuple[ProfiledOp, ...]:
    """The tree of calls in the order of their beginning; on a GPU, then the kernels that belong to none."""
    roots = [e for e in events if _is_call(e) and (e.cpu_parent is None or e.cpu_parent.name == _MARK)]
    kernels = {str(event.name) for event in events if _is_kernel(event)} if cuda else None
    found = [op for root in _by_start(roots) for op in _tree(root, 0, kernels)]
    if kernels is not None:
        launched = _seconds_by_name((k.name, k.duration) for event in events for k in event.kernels)
        whole = _seconds_by_name((e.name, e.time_range.elapsed_us()) for e in events if _is_kernel(e))
        left = {name: seconds - launched.get(name, 0.0) for name, seconds in whole.items()}
        found += [ProfiledOp(name=n, depth=0, seconds=s) for n, s in left.items() if s > _MICROSECOND / 100]
    return tuple(found)


def _tree(event: Any, depth: int, kernels: Collection[str] | None) -> list[ProfiledOp]:
    """A call and all below it; on a GPU, where the names of its kernels are given, only what launches some."""
    below = [op for child in _by_start(event.cpu_children) for op in _tree(child, depth + 1, kernels)]
    if kernels is None:
        seconds = float(event.time_range.elapsed_us()) * _MICROSECOND
    else:  # annotations count among the kernels of a call, and span those of all calls within
        own = sum(float(kernel.duration) for kernel in event.kernels if kernel.name in kernels)
        seconds = own * _MICROSECOND + sum(op.seconds for op in below if op.depth == depth + 1)
    return (
        [ProfiledOp(name=str(event.name), depth=depth, seconds=seconds), *below] if seconds or kernels is None else []
    )


def _by_start(events: Iterable[Any]) -> list[Any]:
    return sorted(events, key=lambda event: float(event.time_range.start))


def _is_call(event: Any) -> bool:
    return bool(event.device_type == DeviceType.CPU and not event.is_async)


def _is_kernel(event: Any) -> bool:
    """Annotations of the CPU are drawn on the GPU's time line too."""
    return bool(event.device_type == DeviceType.CUDA and not event.is_user_annotation)


def _seconds_by_name(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, micros in times:
        found[str(name)] += float(micros) * _MICROSECOND
    return dict(found)


def _kernels(steps: Sequence[Sequence[Any]]) -> tuple[KernelTime, ...]:
    """Kernels, copies and fills of a step by name."""
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for event in (event for events in steps for event in events if _is_kernel(event)):
        counts[str(event.name)] += 1
        seconds[str(event.name)] += float(event.time_range.elapsed_us()) * _MICROSECOND
    names = sorted(seconds, key=lambda name: -seconds[name])
    return tuple(
        KernelTime(name=name, count=round(counts[name] / len(steps)), seconds=seconds[name] / len(steps))
        for name in names
    )
