"""Clocks for cases: CUDA graphs between events on a GPU, `perf_counter` around repeated calls on a CPU.

On a GPU a sample is one replay of a graph of calls, by two events: what a call takes there, with the gap before it
(timing `graph`). What cannot be captured is timed one call at a time, synchronised after each (timing `event`). On a
CPU a sample is a loop of calls, what PyTorch does around its kernels included (timing `backend`). What is no kernel is
timed by the CPU's clock, as `host_bench` and `collectives` say (timing `host`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from rooflinekit.calibrate.bench.collectives import Groups
from rooflinekit.calibrate.bench.gpu_state import GpuState, load_nvml
from rooflinekit.calibrate.bench.microbench import Calls, UnsupportedError, calls_of
from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Measurement
from rooflinekit.calibrate.bench.samples import collect, repeats
from rooflinekit.calibrate.hosts.bench import Bench, Sample, between_events, on_threads, prepare
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.errors import CampaignError, InputError, SpecError
from rooflinekit.hardware.detection import bus_id, describe_cpu, system_root

_SAMPLE_S = 1e-3  # a sample lasts about as long: clocks tick in less than a thousandth of it
_MOST_CALLS = 2000  # in a sample
_LONGER = 8  # than planned: so long a graph may be to hold all sets, and so long samples may last once there are a few
_SIGNIFICANT = 5  # digits of a sample that are kept

#: Errors after which CUDA runs nothing more in this process.
_FAILURES: tuple[type[BaseException], ...] = (torch.AcceleratorError,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    timing: str
    inner: int
    seconds: tuple[float, ...]
    state: dict[str, float]


class CpuTimer:
    """Times cases on the CPU, each on as many threads as it says."""

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes
        self.groups = Groups(devices=0)

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        """Samples of one case; PyTorch's number of threads is afterwards what it was."""
        with on_threads(case.threads):
            return _measured(case, turn, lambda: self._timed(case, warmup, samples, precision))

    def _timed(self, case: Case, warmup: int, samples: int, precision: float) -> _Timed:
        if case.op in HOST_OPS:
            return _host(case, Bench(device=torch.device("cpu")), self.groups, warmup, samples, precision)
        calls = calls_of(case, torch.device("cpu"), self.cache_bytes)
        inner = _inner(_loop(calls, 1), warmup)
        with watched_load() as load:
            seconds = _samples(_loop(calls, inner), samples, precision)
        return _Timed(timing="backend", inner=inner, seconds=seconds, state={**calls.state, **load})

    def environment(self) -> dict[str, str]:
        """The surroundings of a campaign; measurements of two surroundings do not mix."""
        return {**host_environment(), "threads": str(torch.get_num_threads())}


class CudaTimer:
    """Times cases on a CUDA GPU. `cuda` stands for `torch.cuda`, `nvml` for `pynvml`."""

    def __init__(
        self, index: int, cache_bytes: float, cuda: Any = torch.cuda, device: str = "cuda", nvml: Any = None
    ) -> None:
        self.index = index
        self.cache_bytes = cache_bytes
        self.cuda = cuda
        self.device = torch.device(device, index) if device == "cuda" else torch.device(device)
        self.properties = cuda.get_device_properties(index)
        self.state = GpuState(nvml, index, bus_id(self.properties))
        self.groups = Groups(devices=cuda.device_count())

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        """Samples of one case, of a kernel as a graph where it can be captured."""
        tf32 = case.dtype == "tf32"
        with self.cuda.device(self.index), fp32_arithmetic(matmul=tf32, convolution=tf32):
            try:
                return _measured(case, turn, lambda: self._timed(case, warmup, samples, precision))
            finally:
                self.cuda.empty_cache()

    def _timed(self, case: Case, warmup: int, samples: int, precision: float) -> _Timed:
        if case.op not in HOST_OPS:
            return self._kernel(case, warmup, samples, precision)
        bench = Bench(device=self.device, cuda=self.cuda)
        if HOST_OPS[case.op].family != "rate":  # asking the driver would hold up the CPU's work
            return _host(case, bench, self.groups, warmup, samples, precision)
        with self.state.watched() as state:
            timed = _host(case, bench, self.groups, warmup, samples, precision)
        return replace(timed, state={**timed.state, **state})

    def _kernel(self, case: Case, warmup: int, samples: int, precision: float) -> _Timed:
        calls = calls_of(case, self.device, self.cache_bytes)
        sets = itertools.cycle(calls.calls)
        once = between_events(self.cuda, lambda: next(sets)())
        inner = _inner(once, warmup)
        if inner < len(calls.calls) <= inner * _LONGER:
            inner = len(calls.calls)  # a graph goes through its own sets again and again
        timing, sample = "graph", self._graph(calls, inner)
        if sample is None:
            timing, inner, sample = "event", 1, once
        for _ in range(warmup):
            sample()
        with watched_load() as load, self.state.watched() as state:
            seconds = _samples(sample, samples, precision)
        return _Timed(
            timing=timing, inner=inner, seconds=seconds, state={**calls.state, **state, "load": load.get("load", 0.0)}
        )

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
        return between_events(self.cuda, graph.replay, inner)

    def environment(self) -> dict[str, str]:
        """The surroundings of a campaign; measurements of two surroundings do not mix."""
        return {
            **host_environment(),
            "gpu": str(self.properties.name),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            **self.state.environment(),
        }


def _host(case: Case, bench: Bench, groups: Groups, warmup: int, samples: int, precision: float) -> _Timed:
    if HOST_OPS[case.op].family == "collective":
        group = groups.of(case)
        with watched_load() as load:
            inner, seconds = group.samples(case, warmup, samples, precision)
        return _Timed(timing="host", inner=inner, seconds=seconds, state={**load, "ranks": group.ranks})
    prepared = prepare(case, bench, samples)
    for _ in range(warmup if prepared.warms_up else 0):
        prepared.sample()
    with watched_load() as load:
        if prepared.samples is None:
            seconds = _samples(prepared.sample, samples, precision)
        else:
            seconds = tuple(prepared.sample() for _ in range(prepared.samples))
    return _Timed(timing="host", inner=prepared.inner, seconds=seconds, state=load)


def _measured(case: Case, turn: int, timed: Callable[[], _Timed]) -> Measurement:
    """What was timed, or why it cannot run. Raises CampaignError where the device failed: nothing more runs on it."""
    try:
        found = timed()
    except _FAILURES as error:
        raise CampaignError(
            f"{case.key}: the device failed: {first_line(error)}; what was measured before is kept, the same command "
            "continues with this case, and --only can leave out its op"
        ) from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        return Measurement(case=case, round=turn, status="out of memory", note=first_line(error))
    except (UnsupportedError, RuntimeError, NotImplementedError, TypeError) as error:
        status = "out of memory" if "can't allocate memory" in str(error) else "unsupported"
        return Measurement(case=case, round=turn, status=status, note=first_line(error))
    kept = tuple(float(f"{value:.{_SIGNIFICANT}g}") for value in found.seconds)
    return Measurement(
        case=case,
        round=turn,
        status="ok",
        timing=found.timing,
        inner=found.inner,
        seconds=kept,
        state={name: float(f"{value:.6g}") for name, value in found.state.items()},
    )


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
    sets = itertools.cycle(calls.calls)  # from sample to sample: each finds the set that was used the longest ago

    def sample() -> float:
        start = time.perf_counter_ns()
        for _ in range(inner):
            next(sets)()
        return (time.perf_counter_ns() - start) / 1e9 / inner

    return sample


def _inner(once: Sample, warmup: int) -> int:
    """How many calls last as long as a sample should, from the quickest of the last few after the warm-up."""
    for _ in range(warmup):
        once()
    return repeats(_SAMPLE_S, min(once() for _ in range(3)), most=_MOST_CALLS)


def _samples(sample: Sample, most: int, precision: float) -> tuple[float, ...]:
    """Samples as `collect` has them, in a few times the time that the most would take as planned."""
    return collect(sample, most, precision, within_s=_LONGER * most * _SAMPLE_S)


def timer_of(kind: str, index: int, cache_bytes: float) -> CpuTimer | CudaTimer:
    """The clock for a kind of device. `cache_bytes`: capacity of its last-level cache."""
    return CudaTimer(index, cache_bytes, nvml=load_nvml()) if kind == "cuda" else CpuTimer(cache_bytes)


def gpu_name(index: int) -> str:
    """What the driver calls this GPU. Raises InputError where PyTorch does not see it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        seen = f"{count} CUDA GPUs, counted from 0" if count else "no CUDA GPU on this machine"
        raise InputError(f"--device cuda:{index}: PyTorch sees {seen}")
    return str(torch.cuda.get_device_name(index))


# What measurements rest on beside the hardware's name, and what else the machine does meanwhile.


def host_environment() -> dict[str, str]:
    """Software, CPU, and what decides its clock. Two campaigns that differ in it do not mix."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "host cpu": _host_cpu(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "governor": governor(),
    }


def _host_cpu() -> str:
    try:
        return str(describe_cpu().mapping["display_name"])
    except SpecError:  # only Linux says
        return platform.processor() or platform.machine()


def governor() -> str:
    """The policy that sets the CPU's clock; virtual machines do not state it."""
    try:
        file = system_root() / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@contextlib.contextmanager
def watched_load() -> Iterator[dict[str, float]]:
    """Filled in at the end of the block.

    `preemptions`: how often a second something else took a CPU from this process. `load`: how many programs wanted a
    CPU in the last minute, this one included.
    """
    found: dict[str, float] = {}
    start, before = time.perf_counter(), _switches()
    yield found
    found["preemptions"] = round((_switches() - before) / (time.perf_counter() - start), 1)
    with contextlib.suppress(OSError):
        found["load"] = round(os.getloadavg()[0], 2)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
