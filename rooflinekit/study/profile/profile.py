"""A step as torch.profiler saw it: what the GPU did, what it waited for, and which regime that is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflinekit.calibrate.local_hardware import trace as traces
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step
from rooflinekit.calibrate.local_hardware.trace import Progress, Trace
from rooflinekit.errors import AmbiguousDeviceError, ComparisonError, DeviceNotFoundError, InputError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir import keyed
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import Matched, OpTime, by_kind, match, table_of
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd


Regime = Literal["GPU-bound", "CPU-bound", "waiting", "CPU only"]

BUSY_SHARE = 0.8  # of the time: from here on the GPU sets the pace, and what lies between its kernels matters little
SMALL_S = 5e-6  # of a median kernel: about what its launch costs the CPU, so that the CPU can hardly keep ahead
#: Of a step in the mean over ranks.
_MEANS = ("wall_s", "busy_s", "gaps", "late_s", "unknown_s", "launched")
_TRACES = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
#: As HTA, TraceLens and people name them: rank0.json.gz, model_rank_0.json, rank-12.pt.trace.json, rank3/trace.json.
_RANK = re.compile(r"(?<![a-z])rank[-_. ]?(\d+)(?!\d)", re.IGNORECASE)
REPEATED = "rounds of the same calls"  # what marks such steps
_LEAST_CALLS = 3  # of a round: layers of one or two operators repeat within a step
_LEAST_SHARE = 0.5  # of all calls, that rounds make up: what comes before them is setup and warm-up


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Profile(FirstLine):
    """One step of a profiled run, in the mean over the steps of the trace. All times are seconds.

    A gap is a time in which the GPU executes nothing. It is late where the kernel after it was launched only after the
    gap had begun, or none follows: the GPU waited for the CPU.
    """

    file: str
    mark: str  # what marks steps in the trace; "" where nothing does, and the whole trace counts as one
    steps: int
    device: str  # the GPU, as its driver calls it; "" where the trace does not say
    devices: int  # GPUs with kernels in the trace; the busiest is read
    wall_s: float
    busy_s: float  # in which the GPU executes kernels, copies or fills, at least one
    gaps: float
    late_s: float  # of gaps: the GPU waits for the CPU
    unknown_s: float  # of gaps before a kernel whose launch is not in the trace
    launched: float  # kernels, copies and fills
    median_s: float  # of a kernel, copy or fill
    kernels: tuple[KernelTime, ...]  # by name, the longest together first
    ops: tuple[ProfiledOp, ...]  # of one step in order, with medians over steps that made the same calls

    @property
    def idle_s(self) -> float:
        """Seconds in which the GPU executes nothing; 0 where there is none."""
        return self.wall_s - self.busy_s if self.on_gpu else 0.0

    @property
    def on_gpu(self) -> bool:
        """Whether the trace holds kernels."""
        return bool(self.kernels)

    @property
    def busy_share(self) -> float:
        """Share of the step in which the GPU executes something."""
        return self.busy_s / self.wall_s if self.wall_s else 0.0

    @property
    def regime(self) -> Regime:
        """What sets the pace.

        "GPU-bound": the GPU is busy for 80 % of the time or more. "CPU-bound": half of what it idles, or more, it
        waits for the CPU. "waiting": it idles with work in its queue, or for reasons that the trace does not show.
        "CPU only": the trace has no kernels.
        """
        if not self.on_gpu:
            return "CPU only"
        if self.busy_share >= BUSY_SHARE:
            return "GPU-bound"
        return "CPU-bound" if self.late_s >= self.idle_s / 2 else "waiting"

    @property
    def small_kernels(self) -> bool:
        """Whether the step is a sea of small kernels: half of them take less than 5 µs."""
        return self.on_gpu and self.median_s < SMALL_S

    def by_kernel(self) -> pd.DataFrame:
        """A row a kernel, the longest together first: count, seconds of a step and of one, share of the busy time."""
        import pandas as pd

        total = sum(kernel.seconds for kernel in self.kernels)
        rows = [(k.name, k.count, k.seconds, k.seconds / max(k.count, 1), k.seconds / total) for k in self.kernels]
        return pd.DataFrame(rows, columns=["kernel", "count", "total_s", "each_s", "share"]).set_index("kernel")

    def by_call(self) -> pd.DataFrame:
        """A row a kind of call, the longest first: count, and the seconds that it spends itself, not its callees."""
        found = by_kind(table_of(match(self.ops, ())))[["count", "measured_s"]]
        return found.rename(columns={"measured_s": "total_s"})

    def to_dict(self) -> Mapping[str, object]:
        """Everything but the calls, ready for JSON."""
        plain = ("file", "mark", "steps", "device", "devices", "wall_s", "busy_s", "idle_s", "gaps", "late_s")
        named = (*plain, "unknown_s", "launched", "median_s", "busy_share", "regime", "small_kernels")
        kernels = [{"name": k.name, "count": k.count, "seconds": k.seconds} for k in self.kernels]
        return {**{name: getattr(self, name) for name in named}, "kernels": kernels}

    @classmethod
    def read(
        cls, path: str | Path, *, rank: int | None = None, mark: str | None = None, progress: Progress | None = None
    ) -> Profile:
        """The steps of a file that `export_chrome_trace` wrote, also of a .json.gz; or of a folder with one a rank.

        rank: of a folder; by default the mean over all. mark: the `record_function` that marks a step; by default the
        profiler's own `ProfilerStep#`, else the mark that takes the most time, else rounds of the same calls, else the
        whole trace, which "" takes for one step, too. progress: called with the share that is read. Raises
        CampaignError for another file, InputError for a mark that is not in it, and for a folder whose ranks nothing
        tells.
        """
        files = trace_files(path, rank)
        parts = (traces.part(progress, i, len(files)) for i in range(len(files)))
        read = [profile_of(traces.read_trace(file, advance), mark) for file, advance in zip(files, parts, strict=True)]
        return read[0] if len(read) == 1 else _together(Path(path).name, read)

    def beside(self, prediction: Prediction) -> ProfileComparison:
        """The measured step beside a predicted one: calls matched with ops, by kind and order, see `match`.

        Raises ComparisonError for a GPU beside a CPU.
        """
        device = prediction.machine.device
        if self.on_gpu != (device.kind == "gpu"):
            seen = "kernels of a GPU" if self.on_gpu else "no kernels of a GPU"
            raise ComparisonError(
                f"{self.file}: the trace holds {seen}, and {device.name} is a {device.kind.upper()}; predict for what "
                "was profiled"
            )
        return ProfileComparison(profile=self, prediction=prediction, ops=match(self.ops, prediction.timings))

    def __str__(self) -> str:
        text = partial(format_quantity, unit="s")
        first = f"{self.file}: {text(self.wall_s)} a step, {self.regime}"
        if not self.on_gpu:
            return first
        return (
            f"{first}: the GPU is busy {self.busy_share:.0%} of the time with {self.launched:.0f} kernels, half of "
            f"them under {text(self.median_s)}; {self.gaps:.0f} gaps, {text(self.late_s)} of them for the CPU"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileComparison(Matched):
    """A profile beside a prediction of the same step. All times are seconds.

    Times of ops on a GPU are those of their kernels; on a CPU those of their calls, to which the profiler adds about a
    microsecond each.
    """

    profile: Profile
    prediction: Prediction
    ops: tuple[OpTime, ...]

    @property
    def measured_s(self) -> float:
        """Measured time of a step."""
        return self.profile.wall_s

    @property
    def predicted_s(self) -> float:
        """Predicted time of a step."""
        return self.prediction.total_s

    @property
    def gpu_error(self) -> float:
        """Predicted over measured time in which the device computes, less 1."""
        measured = sum(op.measured_s for op in self.ops)
        return self.prediction.gpu_s / measured - 1 if measured else float("inf")

    def to_dict(self) -> Mapping[str, object]:
        """The profile, the prediction and their ops, ready for JSON."""
        both = {name: getattr(self, name).to_dict() for name in ("profile", "prediction")}
        return {**both, "error": self.error, "ops": self.by_op().reset_index().to_dict("records")}


def device_note(profile: Profile, device: Device) -> str:
    """A sentence where the trace names another device than this; "" where it does not, or names none that is known."""
    if not profile.device:
        return ""
    try:
        seen = load_device(profile.device, allow_draft=True)
    except (DeviceNotFoundError, AmbiguousDeviceError):
        return ""
    return f"the trace is of {profile.device}, and {device.name} is another device" if seen.name != device.name else ""


def _together(folder: str, ranks: Sequence[Profile]) -> Profile:
    named = {one.device for one in ranks}
    kernels = [kernel for one in ranks for kernel in one.kernels]
    seconds = keyed.sums((kernel.name, kernel.seconds / len(ranks)) for kernel in kernels)
    counts = keyed.sums((kernel.name, kernel.count) for kernel in kernels)
    longest = sorted(seconds, key=lambda name: (-seconds[name], name))
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in ranks) for name in _MEANS}
    together = tuple(
        KernelTime(name=name, count=round(counts[name] / len(ranks)), seconds=seconds[name]) for name in longest
    )
    return replace(
        ranks[0], file=f"{folder} ({len(ranks)} ranks)", steps=min(one.steps for one in ranks),
        device=named.pop() if len(named) == 1 else "", devices=sum(one.devices for one in ranks),
        median_s=median(one.median_s for one in ranks), kernels=together, ops=median_step([one.ops for one in ranks]),
        **means,
    )  # fmt: skip


# Which file is meant, and of which rank it is.


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
    return int(named[-1]) if named else traces.rank_in(file)


# The steps in a trace, and what the GPU did in them.


Windows = NDArray[np.float64]  # [steps, 2]: begin and end of each, in microseconds

_MICROSECOND = 1e-6
_PROFILER = "ProfilerStep#"
_MEDIANS = 16  # steps of which the calls are compared: as good as a thousand, in little memory
#: Marks that PyTorch sets itself, within a step.
_OWN_MARKS = (
    "Optimizer.", "enumerate(DataLoader)", "## ", "Torch-Compiled Region", "autograd::", "nccl:", "record_param",
)  # fmt: skip


def profile_of(trace: Trace, mark: str | None = None) -> Profile:
    """The steps of a trace in the mean; see `Profile.read`. Raises InputError for a mark that is not in it."""
    name, marks = _marks(trace, mark)
    kernels = traces.launched_kernels(trace)
    working = traces.seconds_of(kernels).groupby(kernels["thread"]).sum()  # of each GPU
    if len(working):  # the one that works longest, by time
        kernels = kernels[kernels["thread"] == working.idxmax()].sort_values("start", kind="stable")
    windows = marks[["start", "end"]].to_numpy()
    if not len(marks) and mark is None and len(windows := rounds_of(trace)):
        name = REPEATED
    windows = windows if len(windows) else np.array([trace.span])
    windows = windows[np.argsort(windows[:, 0], kind="stable")]
    kernels = kernels.assign(step=_steps_of(kernels["launched"].fillna(kernels["start"]), windows))
    kernels = kernels[kernels["step"] >= 0]
    count = len(windows)
    number = int(kernels["thread"].iloc[0]) if len(kernels) else 0
    of_call = _steps_of(trace.calls["start"], windows)
    return Profile(
        file=trace.file, mark=name, steps=count, devices=len(working),
        device=trace.devices[number] if 0 <= number < len(trace.devices) else "",
        launched=len(kernels) / count,
        median_s=float(traces.seconds_of(kernels).median()) if len(kernels) else 0.0,
        kernels=traces.by_name(kernels, trace.names, count),
        ops=median_step([
            traces.calls_of(trace.calls[of_call == i], kernels[kernels["step"] == i], trace)
            for i in range(max(0, count - _MEDIANS), count)
        ]),
        **{name: value / count for name, value in _gpu_time(kernels, windows).items()},
    )  # fmt: skip


def _marks(trace: Trace, wanted: str | None) -> tuple[str, pd.DataFrame]:
    """The name of the marks that delimit the steps, and their times."""
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
    name = traces.seconds_of(own).groupby(own["name"], sort=False).sum().idxmax()
    return str(name), own[own["name"] == name]


def _steps_of(times: ArrayLike, windows: Windows) -> traces.Rows:
    """The step within which each time lies; -1 for none."""
    at = np.asarray(times, dtype=float)
    step = np.searchsorted(windows[:, 0], at, side="right") - 1
    inside = (step >= 0) & (at <= windows[np.maximum(step, 0), 1])
    return np.where(inside, step, -1)


def _gpu_time(kernels: pd.DataFrame, windows: Windows) -> dict[str, float]:
    """What a `Profile` says of a step's wall time, of all steps together."""
    # Steps last until their last kernel has ended; those that then meet are one.
    ends = windows[:, 1].copy()
    np.maximum.at(ends, kernels["step"].to_numpy(), kernels["end"].to_numpy())
    ends = np.maximum.accumulate(ends)
    first = np.append(True, windows[1:, 0] > ends[:-1])
    begins, ends = windows[first, 0], ends[np.append(first[1:], True)]
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
    spent = {"busy_s": busy, "late_s": gap[issued >= free], "unknown_s": gap[np.isnan(issued)]}
    seconds = {name: float(each.sum()) * _MICROSECOND for name, each in spent.items()}
    return {**found, **seconds, "gaps": float((gap > 0).sum())}


# Steps that nothing marks: rounds of the same calls, one after the other, at the end of a trace.


def rounds_of(trace: Trace) -> NDArray[np.float64]:
    """When each round begins and ends, in microseconds: [rounds, 2]; without rows where no calls repeat.

    Compared are the names of the outermost calls on the thread that has most of them. A round lasts until the next.
    """
    calls = traces.in_order(trace.calls)
    calls = calls[np.array(traces.parents_of(calls), dtype=int) < 0]
    if len(calls):
        calls = calls[calls["thread"] == calls["thread"].value_counts(sort=False).idxmax()]
    length, count = period(calls["name"].tolist())
    if not count:
        return np.empty((0, 2))
    begins = calls["start"].to_numpy()[len(calls) - length * count :: length]
    return np.column_stack((begins, np.append(begins[1:], calls["end"].iloc[-1])))


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
