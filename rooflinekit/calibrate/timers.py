"""Clocks for cases: CUDA graphs between events on a GPU, `perf_counter` around repeated calls on a CPU.

On a GPU a sample is one replay of a graph of calls, by two events: what a call takes there, with the gap before it
(timing `graph`). What cannot be captured is timed one call at a time, synchronised after each (timing `event`). On a
CPU a sample is a loop of calls, what PyTorch does around its kernels included (timing `backend`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import resource
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rooflinekit.calibrate.microbench import Call, Calls, UnsupportedError, calls_of
from rooflinekit.calibrate.plan import Case
from rooflinekit.calibrate.record_file import Measurement
from rooflinekit.calibrate.samples import collect
from rooflinekit.errors import CampaignError, InputError, SpecError
from rooflinekit.hardware.cpu_detection import describe_cpu

_SAMPLE_S = 1e-3  # a sample lasts about as long: clocks tick in less than a thousandth of it
_MOST_CALLS = 2000  # in a sample
_SIGNIFICANT = 5  # digits of a sample that are kept

#: Errors after which CUDA runs nothing more in this process.
_FAILURES: tuple[type[BaseException], ...] = (torch.AcceleratorError,)

Sample = Callable[[], float]  # seconds of one call, each time anew


class CpuTimer:
    """Times cases on the CPU, each on as many threads as it says."""

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        """Samples of one case; PyTorch's number of threads is afterwards what it was."""
        before = torch.get_num_threads()
        torch.set_num_threads(case.threads or before)
        try:
            with _measurable(case, turn) as found:
                calls = calls_of(case, torch.device("cpu"), self.cache_bytes)
                inner = _inner(_loop(calls, 1), warmup + len(calls.calls))
                start, switches = time.perf_counter(), _preemptions()
                seconds = collect(_loop(calls, inner), samples, precision)
                rate = (_preemptions() - switches) / (time.perf_counter() - start)
                state = {"copies": len(calls.calls), "preemptions": round(rate, 1)}
                found.append(_measurement(case, turn, "backend", inner, seconds, state))
        finally:
            torch.set_num_threads(before)
        return found[0]

    def environment(self) -> dict[str, str]:
        """What a campaign rests on; two that differ in it do not mix."""
        return {**_environment(), "threads": str(torch.get_num_threads())}


class CudaTimer:
    """Times cases on a CUDA GPU. `cuda` stands for `torch.cuda`."""

    def __init__(self, index: int, cache_bytes: float, cuda: Any = torch.cuda, device: str = "cuda") -> None:
        self.index = index
        self.cache_bytes = cache_bytes
        self.cuda = cuda
        self.device = torch.device(device, index) if device == "cuda" else torch.device(device)

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        """Samples of one case, as a graph where it can be captured."""
        with (
            self.cuda.device(self.index),
            _measurable(case, turn) as found,
            fp32_arithmetic(matmul=False, convolution=False),
        ):
            calls = calls_of(case, self.device, self.cache_bytes)
            sets = itertools.cycle(calls.calls)
            once = self._between_events(lambda: next(sets)())
            inner = _inner(once, warmup)
            timing, sample = "graph", self._graph(calls, inner)
            if sample is None:
                timing, inner, sample = "event", 1, once
            for _ in range(warmup):
                sample()
            seconds = collect(sample, samples, precision)
            state = {**self._state(), "copies": len(calls.calls)}
            found.append(_measurement(case, turn, timing, inner, seconds, state))
        self.cuda.empty_cache()
        return found[0]

    def _between_events(self, call: Call, calls: int = 1) -> Sample:
        """One run between two events, and a wait for it; the seconds are those of each of its `calls`."""
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))

        def sample() -> float:
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / calls

        return sample

    def _graph(self, calls: Calls, inner: int) -> Sample | None:
        """Replays of so many calls; None where they cannot be captured."""
        graph = self.cuda.CUDAGraph()
        side = self.cuda.Stream()
        try:
            with self.cuda.stream(side):  # libraries set themselves up outside the capture
                calls.repeated(len(calls.calls))
            self.cuda.synchronize()
            with self.cuda.graph(graph):
                calls.repeated(inner)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.cuda.synchronize()
            return None
        return self._between_events(graph.replay, inner)

    def environment(self) -> dict[str, str]:
        """What a campaign rests on; two that differ in it do not mix."""
        properties = self.cuda.get_device_properties(self.index)
        return {
            **_environment(),
            "gpu": str(properties.name),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "driver": _driver(),
        }

    def _state(self) -> dict[str, float]:
        """Clock in Hz, power in W, temperature in °C, at the end of a case; nothing without NVML."""
        asked = {"clock": ("clock_rate", 1e6), "power": ("power_draw", 1e-3), "temperature": ("temperature", 1.0)}
        found = {}
        for name, (function, unit) in asked.items():
            # torch asks NVML, which may be missing, older than the GPU, or closed to containers: each its own error.
            with contextlib.suppress(Exception):
                found[name] = float(getattr(self.cuda, function)(self.index)) * unit
        return found


@contextlib.contextmanager
def _measurable(case: Case, turn: int) -> Iterator[list[Measurement]]:
    """Takes the one measurement; what the device cannot run becomes one that says so.

    Raises CampaignError where the device itself has failed: no case after it could be measured.
    """
    found: list[Measurement] = []
    try:
        yield found
    except _FAILURES as error:
        raise CampaignError(
            f"{case.key}: the device failed: {first_line(error)}; what was measured before is kept, the same command "
            "goes on with this case, and --only leaves its op out"
        ) from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        found.append(Measurement(case=case, round=turn, status="out of memory", note=first_line(error)))
    except (UnsupportedError, RuntimeError, NotImplementedError, TypeError) as error:
        status = "out of memory" if "can't allocate memory" in str(error) else "unsupported"
        found.append(Measurement(case=case, round=turn, status=status, note=first_line(error)))


def _preemptions() -> int:
    """How often something else has taken a CPU from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def fp32_arithmetic(*, matmul: bool, convolution: bool) -> Iterator[None]:
    """Whether products and convolutions in fp32 may run as tf32; afterwards it is as before."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32
    products.allow_tf32, cudnn.allow_tf32 = matmul, convolution
    try:
        yield
    finally:
        products.allow_tf32, cudnn.allow_tf32 = before


def _loop(calls: Calls, inner: int) -> Sample:
    def sample() -> float:
        start = time.perf_counter_ns()
        calls.repeated(inner)
        return (time.perf_counter_ns() - start) / 1e9 / inner

    return sample


def _inner(once: Sample, warmup: int) -> int:
    """How many calls last as long as a sample should, from the quickest of the last few after the warm-up."""
    for _ in range(warmup):
        once()
    return max(1, min(_MOST_CALLS, math.ceil(_SAMPLE_S / max(1e-9, min(once() for _ in range(3))))))


def _measurement(
    case: Case, turn: int, timing: str, inner: int, seconds: tuple[float, ...], state: dict[str, float]
) -> Measurement:
    kept = tuple(float(f"{value:.{_SIGNIFICANT}g}") for value in seconds)
    return Measurement(case=case, round=turn, status="ok", timing=timing, inner=inner, seconds=kept, state=state)


def _environment() -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "host cpu": _host_cpu(),
        "governor": _governor(),
    }


def _host_cpu() -> str:
    try:
        return str(describe_cpu().mapping["display_name"])
    except SpecError:  # only Linux says
        return platform.processor() or platform.machine()


def _governor(root: Path = Path("/sys/devices/system/cpu")) -> str:
    """What decides the CPU's clock; virtual machines do not say."""
    try:
        return (root / "cpu0/cpufreq/scaling_governor").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _driver() -> str:
    """The driver's version, as NVML says it."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlSystemGetDriverVersion())
    except Exception:
        # Without NVML, or with one that a container hides, the CUDA runtime is all that is known.
        return "unknown"


def timer_of(kind: str, index: int, cache_bytes: float) -> CpuTimer | CudaTimer:
    """The clock for a kind of device. `cache_bytes`: capacity of its last-level cache."""
    return CudaTimer(index, cache_bytes) if kind == "cuda" else CpuTimer(cache_bytes)


def gpu_name(index: int) -> str:
    """What the driver calls this GPU. Raises InputError where PyTorch does not see it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        seen = f"{count} CUDA GPUs, counted from 0" if count else "no CUDA GPU on this machine"
        raise InputError(f"--device cuda:{index}: PyTorch sees {seen}")
    return str(torch.cuda.get_device_name(index))
