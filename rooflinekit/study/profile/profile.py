"""A step as torch.profiler saw it: what the GPU did, what it waited for, and which regime that is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step
from rooflinekit.errors import AmbiguousDeviceError, ComparisonError, DeviceNotFoundError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import Matched, OpTime, match, table_of_calls
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.step.prediction import Prediction
    from rooflinekit.study.profile.trace import Progress


Regime = Literal["GPU-bound", "CPU-bound", "waiting", "CPU only"]

BUSY_SHARE = 0.8  # of the time: from here on the GPU sets the pace, and what lies between its kernels matters little
SMALL_S = 5e-6  # of a median kernel: about what its launch costs the CPU, so that the CPU can hardly keep ahead


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
        """In which the GPU executes nothing; 0 where there is none."""
        return self.wall_s - self.busy_s if self.on_gpu else 0.0

    @property
    def on_gpu(self) -> bool:
        """Whether the trace holds kernels."""
        return bool(self.kernels)

    @property
    def busy_share(self) -> float:
        """Of the step, that the GPU executes something."""
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
        return table_of_calls(self.ops)

    def to_dict(self) -> Mapping[str, object]:
        """Everything but the calls, ready for JSON."""
        plain = ("file", "mark", "steps", "device", "devices", "wall_s", "busy_s", "idle_s", "gaps", "late_s")
        named = (*plain, "unknown_s", "launched", "median_s", "busy_share", "regime", "small_kernels")
        kernels = [{"name": k.name, "count": k.count, "seconds": k.seconds} for k in self.kernels]
        return {**{name: getattr(self, name) for name in named}, "kernels": kernels}

    @classmethod
    def read(cls, file: str | Path, *, mark: str | None = None, progress: Progress | None = None) -> Profile:
        """The steps of a file that `export_chrome_trace` wrote, also of a .json.gz.

        mark: the `record_function` that marks a step; by default the profiler's own `ProfilerStep#`, else the mark
        that takes the most time, else rounds of the same calls, else the whole trace, which "" takes for one step, too.
        progress: called with the share of
        the file that is read. Raises CampaignError for another file, InputError for a mark that is not in it.
        """
        from rooflinekit.study.profile.trace import profile_of, read_trace

        return profile_of(read_trace(file, progress), mark)

    def beside(self, prediction: Prediction) -> ProfileComparison:
        """The measured step beside a predicted one: calls matched with ops, by kind and order, see `match`.

        Raises ComparisonError for a GPU beside a CPU.
        """
        device = prediction.machine.device
        if self.on_gpu != (device.kind == "gpu"):
            seen = "kernels of a GPU" if self.on_gpu else "no kernels of a GPU"
            word = "GPU" if device.kind == "gpu" else "CPU"
            raise ComparisonError(
                f"{self.file}: the trace holds {seen}, and {device.name} is a {word}; predict for what was profiled"
            )
        return ProfileComparison(profile=self, prediction=prediction, ops=match(self.ops, prediction.timings))

    def __str__(self) -> str:
        def text(seconds: float) -> str:
            return format_quantity(seconds, "s")

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
        """The same of the time that the device computes."""
        measured = sum(op.measured_s for op in self.ops)
        return self.prediction.gpu_s / measured - 1 if measured else float("inf")

    def to_dict(self) -> Mapping[str, object]:
        """Both, and their ops, ready for JSON."""
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


def read_profile(
    path: str | Path, *, rank: int | None = None, mark: str | None = None, progress: Progress | None = None
) -> Profile:
    """The steps of a trace, or of a folder of them: of one rank, or in the mean over all.

    mark: see `Profile.read`. Raises what that raises, and InputError for a folder whose ranks nothing tells.
    """
    from rooflinekit.study.profile.trace import part, trace_files

    files = trace_files(path, rank)
    read = [Profile.read(file, mark=mark, progress=part(progress, i, len(files))) for i, file in enumerate(files)]
    return read[0] if len(read) == 1 else _together(Path(path).name, read)


#: Of a step in the mean over ranks.
_MEANS = ("wall_s", "busy_s", "gaps", "late_s", "unknown_s", "launched")


def _together(folder: str, ranks: Sequence[Profile]) -> Profile:
    named = {one.device for one in ranks}
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in ranks) for name in _MEANS}
    return replace(
        ranks[0],
        file=f"{folder} ({len(ranks)} ranks)",
        steps=min(one.steps for one in ranks),
        device=named.pop() if len(named) == 1 else "",
        devices=sum(one.devices for one in ranks),
        median_s=median(one.median_s for one in ranks),
        kernels=_kernels(ranks),
        ops=median_step([one.ops for one in ranks]),
        **means,
    )


def _kernels(ranks: Sequence[Profile]) -> tuple[KernelTime, ...]:
    """By name, in the mean over ranks, the longest together first."""
    seconds, counts = defaultdict[str, float](float), Counter[str]()
    for kernel in (kernel for one in ranks for kernel in one.kernels):
        seconds[kernel.name] += kernel.seconds / len(ranks)
        counts[kernel.name] += kernel.count
    order = sorted(seconds, key=lambda name: (-seconds[name], name))
    return tuple(KernelTime(name=name, count=round(counts[name] / len(ranks)), seconds=seconds[name]) for name in order)
