"""A profiler's trace: its events one by one, as tables, and the calls and kernels of a step in them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ijson
import numpy as np
from numpy.typing import NDArray

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp
from rooflinekit.errors import CampaignError
from rooflinekit.files import opened

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[float], None]  # gets the share of the file that is read

#: What is kept, by the category of an event; stacks of Python functions, most of a large file, are not.
_CATEGORIES = {
    "kernel": "kernels",
    "gpu_memcpy": "kernels",
    "gpu_memset": "kernels",
    "cpu_op": "calls",
    "user_annotation": "marks",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
}
#: What `record_shapes=True` notes of a call.
INPUTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_LATEST = 1e18  # µs: no clock shows as much
_GZIP = b"\x1f\x8b"
_EXPECTED = "expected JSON of torch.profiler's export_chrome_trace"


#: Columns of events of one sort, in the order of the file, with their kind as `array` says it.
_COLUMNS = {
    "name": "q",  # index into `Trace.names`
    "start": "d",  # microseconds
    "end": "d",
    "thread": "q",  # index of process and thread; of a kernel, its device
    "correlation": "q",  # equal for a kernel and its launch; 0 or below where the file has none
    "inputs": "q",  # of a call, index into `Trace.inputs`; -1 where its shapes were not recorded
}
_MOST_DEEPER = 1000  # at the end of a piece that is read at once, than at its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A profiler's trace; events have the columns of `_COLUMNS`."""

    file: str
    devices: tuple[str, ...]  # names of the GPUs, by number
    names: tuple[str, ...]
    kernels: pd.DataFrame  # and copies and fills on the GPU
    calls: pd.DataFrame  # of operators, on the CPU
    launches: pd.DataFrame  # of kernels, by the CPU
    marks: pd.DataFrame  # of the profiler's steps, and of record_function
    inputs: tuple[str, ...] = ()  # of calls, each once, as JSON: sizes, types, strides, values; see `Inputs.read`

    @property
    def span(self) -> tuple[float, float]:
        """When the first event begins and the last one ends, in microseconds."""
        kept = [events for events in (self.kernels, self.calls, self.launches, self.marks) if len(events)]
        return min(float(events.start.min()) for events in kept), max(float(events.end.max()) for events in kept)


def read_trace(file: str | Path, progress: Progress | None = None) -> Trace:
    """The events of a trace, also of a compressed one (.json.gz).

    Raises CampaignError for a file that cannot be read, ends early, is no JSON or no trace of torch.profiler.
    """
    found = read_events(Path(file), progress)
    if not (len(found.kernels) or len(found.calls)):
        raise CampaignError(f"{file}: {_EXPECTED}; got no kernel and no operator in it")
    return found


def read_events(path: Path, progress: Progress | None = None) -> Trace:
    """A trace that may hold no kernels. Raises CampaignError as `read_trace` does."""
    with opened(path, CampaignError) as raw:
        try:
            devices, events, _ = _head(_Watched(raw))
            found = _Events(ijson.items(_Watched(raw, progress), events, use_float=True, buf_size=1 << 18))
        except (ijson.JSONError, ValueError) as error:  # ValueError: letters or numbers that Python cannot hold
            raise CampaignError(f"{path}: {_EXPECTED}; {_reason(error)}") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CampaignError(
                f"{path}: the compressed file is damaged or ends early; copy or export it again"
            ) from error
    return Trace(
        file=path.name, devices=devices, names=tuple(found.names), inputs=tuple(found.inputs), **found.frames()
    )  # fmt: skip


class _Watched:
    """A file from its beginning, unpacked where it is compressed, that says how far it has been read."""

    def __init__(self, raw: IO[bytes], progress: Progress | None = None) -> None:
        self.raw, self.progress, self.size = raw, progress, raw.seek(0, os.SEEK_END)
        raw.seek(0)
        compressed = raw.read(2) == _GZIP
        raw.seek(0)
        self.stream: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if compressed else raw

    def read(self, count: int = -1) -> bytes:
        if self.progress is not None:
            self.progress(self.raw.tell() / self.size if self.size else 1.0)
        chunk = self.stream.read(count)
        # The parser's time grows with the square of the depth. An event has many texts for each bracket of its own.
        deeper = chunk.count(b"[") + chunk.count(b"{") - chunk.count(b"]") - chunk.count(b"}")
        if deeper > _MOST_DEEPER and chunk.count(b'"') <= 4 * deeper:
            raise ValueError("it nests too deep")
        return chunk


def rank_in(file: Path) -> int | None:
    """The rank that a trace says it is of, before its events; None where it does not, or is no trace."""
    try:
        with file.open("rb") as raw:
            return _head(_Watched(raw))[2]
    except (ijson.JSONError, ValueError, EOFError, zlib.error, OSError):  # reading all of it says what is wrong
        return None


def _head(stream: _Watched) -> tuple[tuple[str, ...], str, int | None]:
    """What stands before the events: names of GPUs, and where the events are; and the rank."""
    devices: list[str] = []
    rank: int | None = None
    for prefix, event, value in ijson.parse(stream):
        if (prefix, event) == ("", "start_array"):
            return (), "item", None
        if (prefix, event) == ("traceEvents", "start_array"):
            break
        if prefix == "deviceProperties.item.name":
            devices.append(str(value))
        if prefix == "distributedInfo.rank" and isinstance(value, int):
            rank = value
    return tuple(devices), "traceEvents.item", rank


class _Events:
    """Events of all sorts as numbers in columns, and each name once."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.columns = {sort: {name: array(kind) for name, kind in _COLUMNS.items()} for sort in _CATEGORIES.values()}
        self.names: dict[str, int] = {}
        self.inputs: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
        column: Any
        for event in (one for one in events if isinstance(one, dict) and one.get("ph") == "X"):
            sort = _CATEGORIES.get(str(event.get("cat", "")).lower())
            start, length = _time(event.get("ts")), _time(event.get("dur"))
            if sort is not None and start is not None and length is not None and length >= 0:
                row = self._row(event, sort, start, start + length)
                for column, value in zip(self.columns[sort].values(), row, strict=True):
                    column.append(value)

    def _row(self, event: dict[str, Any], sort: str, start: float, end: float) -> tuple[float, ...]:
        given = event.get("args")
        args = given if isinstance(given, dict) else {}
        if sort == "kernels":
            thread = _integer(args.get("device"), 0)
        else:
            thread = self.threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(self.threads))
        inputs = -1
        if sort == "calls" and INPUTS[0] in args:
            inputs = self.inputs.setdefault(json.dumps([args.get(key) for key in INPUTS]), len(self.inputs))
        name = self.names.setdefault(str(event.get("name")), len(self.names))
        return name, start, end, thread, _integer(args.get("correlation"), -1), inputs

    def frames(self) -> dict[str, pd.DataFrame]:
        import pandas as pd

        return {
            sort: pd.DataFrame({name: np.array(column, dtype=column.typecode) for name, column in columns.items()})
            for sort, columns in self.columns.items()
        }


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < _LATEST else None


def _integer(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else otherwise


def _reason(error: Exception) -> str:
    """ijson has one class for files that end early and for letters that no JSON has, and other words a back end."""
    text = str(error).lower()
    if "too deep" in text:
        return "it nests too deep"
    if "premature" in text or "incomplete" in text:
        return "the file ends early: export it again, or copy it whole"
    return "got no JSON"


def part(progress: Progress | None, place: int, count: int) -> Progress | None:
    """The progress of one of so many files, as that of all."""
    return None if progress is None else lambda share: progress((place + share) / count)


# The calls and kernels of a step.


Rows = NDArray[np.int64]  # of each event the row of something else; -1 for none

_MICROSECOND = 1e-6


def launched_kernels(trace: Trace) -> pd.DataFrame:
    """The kernels of a trace, with the time `launched` and the thread `by` of their launch; NaN without one."""
    launches = trace.launches[trace.launches["correlation"] > 0].drop_duplicates("correlation", keep="last")
    launches = launches.set_index("correlation")[["start", "thread"]].set_axis(["launched", "by"], axis=1)
    return trace.kernels.join(launches, on="correlation")


def seconds_of(events: pd.DataFrame) -> pd.Series[float]:
    """How long each lasts."""
    return (events["end"] - events["start"]) * _MICROSECOND


def by_name(kernels: pd.DataFrame, names: Sequence[str], steps: int) -> tuple[KernelTime, ...]:
    """Kernels by name, the longest together first, in the mean over so many steps."""
    found = seconds_of(kernels).groupby(kernels["name"]).agg(["size", "sum"])
    rows = sorted(zip(found.index, found["size"], found["sum"], strict=True), key=lambda row: (-row[2], names[row[0]]))
    return tuple(KernelTime(name=names[n], count=round(count / steps), seconds=s / steps) for n, count, s in rows)


def in_order(calls: pd.DataFrame) -> pd.DataFrame:
    """By thread and time, so that each call stands before those within it."""
    return calls.sort_values(["thread", "start", "end"], ascending=[True, True, False], ignore_index=True)


def calls_of(calls: pd.DataFrame, kernels: pd.DataFrame, trace: Trace) -> tuple[ProfiledOp, ...]:
    """Calls in the order of their beginning, each before those that it makes.

    With kernels, a call has the seconds of those that it launched, itself or through others, and only such calls are
    given; then the kernels of no call. Without, it has its own duration.
    """
    calls = in_order(calls)
    parent, seconds = parents_of(calls), seconds_of(calls).tolist()
    left: list[tuple[Any, float]] = []
    if len(kernels):
        caller, length = callers(kernels, calls, parent), seconds_of(kernels)
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


def parents_of(calls: pd.DataFrame) -> list[int]:
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
    """The row of the innermost call around each kernel's launch; -1 for none. calls: as `in_order` has them."""
    above = np.append(parents_of(calls) if parents is None else parents, -1).astype(np.int64)
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
