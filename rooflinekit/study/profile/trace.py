"""A profiler's trace: which file is meant, its events one by one, the steps in it, and what the GPU did in them."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ijson
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step
from rooflinekit.errors import CampaignError, InputError, nearest
from rooflinekit.files import read_bytes
from rooflinekit.study.profile.profile import Profile

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
    path = Path(file)
    if not os.path.isfile(path):  # a device or a pipe might never end
        read_bytes(path, CampaignError)
    try:
        with path.open("rb") as raw:
            size = path.stat().st_size
            devices, events, _ = _head(_Watched(_stream(raw), raw, size, None))
            raw.seek(0)
            stream = _Watched(_stream(raw), raw, size, progress)
            found = _Events(ijson.items(stream, events, use_float=True, buf_size=1 << 18))
    except (ijson.JSONError, ValueError) as error:  # ValueError: letters or numbers that Python cannot hold
        raise CampaignError(f"{path}: {_EXPECTED}; {_reason(error)}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CampaignError(f"{path}: the compressed file is damaged or ends early; copy or export it again") from error
    except OSError as error:
        raise CampaignError(f"{path}: cannot be read: {error.strerror or error}") from error
    frames = found.frames()
    if not any(len(frames[sort]) for sort in ("kernels", "calls")):
        raise CampaignError(f"{path}: {_EXPECTED}; got no kernel and no operator in it")
    return Trace(file=path.name, devices=devices, names=tuple(found.names), inputs=tuple(found.inputs), **frames)


def _stream(raw: IO[bytes]) -> IO[bytes]:
    compressed = raw.read(2) == _GZIP
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[return-value]


class _Watched:
    """A stream that says how far it has been read."""

    def __init__(self, stream: IO[bytes], raw: IO[bytes], size: int, progress: Progress | None) -> None:
        self.stream, self.raw, self.size, self.progress = stream, raw, size, progress

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
            return _head(_Watched(_stream(raw), raw, file.stat().st_size, None))[2]
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


_TRACES = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
#: As HTA, TraceLens and people name them: rank0.json.gz, model_rank_0.json, rank-12.pt.trace.json, rank3/trace.json.
_RANK = re.compile(r"(?<![a-z])rank[-_. ]?(\d+)(?!\d)", re.IGNORECASE)


def rank_files(folder: Path) -> dict[int, Path]:
    """The trace of each rank: by the name of its file, else by what the trace itself says.

    A folder with a single trace that says nothing is of rank 0. Raises InputError for a folder without traces, for one
    whose rank nothing tells, and for two of one rank.
    """
    below = (*folder.glob("*"), *folder.glob("*/*"))
    files = sorted(file for file in below if file.is_file() and _TRACES.search(file.name))
    if not files:
        raise InputError(f"{folder}: expected traces of torch.profiler (.json, .json.gz); the folder has none")
    found: dict[int, Path] = {}
    for file in files:
        rank = _rank_of(file, file.relative_to(folder).as_posix())
        if rank is None and len(files) == 1:
            rank = 0
        if rank is None:
            raise InputError(f"{file}: neither its name nor the trace says which rank it is; call it rank0.json, …")
        if rank in found:
            raise InputError(f"{folder}: {found[rank].name} and {file.name} are both of rank {rank}; move one away")
        found[rank] = file
    return dict(sorted(found.items()))


def trace_files(path: str | Path, rank: int | None = None) -> list[Path]:
    """The traces that are meant: a file itself; of a folder that of one rank, or all.

    "sample" is a small trace that is shipped: three training steps of a small network on a CPU. Raises InputError for
    no rank.
    """
    path = Path(path)
    if str(path) == "sample" and not os.path.exists(path):
        path = Path(__file__).with_name("sample.json.gz")
    if not os.path.isdir(path):
        own = _rank_of(path, path.name) if rank is not None and os.path.isfile(path) else rank
        if own not in (rank, None):
            raise InputError(f"rank {rank}: {path.name} is the trace of rank {own}")
        return [path]
    found = rank_files(path)
    if rank is not None and rank not in found:
        listed = ", ".join(map(str, found))
        raise InputError(f"rank {rank}: {path} has no trace of it, but of {listed}")
    return list(found.values()) if rank is None else [found[rank]]


def _rank_of(file: Path, name: str) -> int | None:
    named = _RANK.findall(name)
    return int(named[-1]) if named else rank_in(file)


def part(progress: Progress | None, place: int, count: int) -> Progress | None:
    """The progress of one of so many files, as that of all."""
    return None if progress is None else lambda share: progress((place + share) / count)


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
