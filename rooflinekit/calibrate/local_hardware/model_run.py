"""A model's step timed on the hardware at hand, as PyTorch runs it: eager, compiled, or as a CUDA graph."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from rooflinekit.calibrate.bench.gpu_state import load_nvml
from rooflinekit.calibrate.bench.samples import collect, repeats, settled
from rooflinekit.calibrate.bench.timers import CpuTimer, CudaTimer, first_line, fp32_arithmetic, gpu_name
from rooflinekit.calibrate.hosts.bench import Bench, on_threads
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ModelRun, ProfiledOp, median_step
from rooflinekit.calibrate.local_hardware.trace import Trace, by_name, calls_of, launched_kernels, read_events
from rooflinekit.errors import MeasureError, RooflinekitError
from rooflinekit.ir.inputs import Input
from rooflinekit.ir.op import DType
from rooflinekit.tracing.symbols import channels_last_of, place_of
from rooflinekit.tracing.tracer import Step, loss_of, mapped, multi_tensor, region

_WARMUPS = 50  # at most
_SETTING_UP = 3  # steps before a capture
_LOOP_S = 0.02  # a loop of steps that follow each other lasts at least as long
_LOOP = (5, 200)  # steps in it, at least and at most
_PROFILED_S = 0.05  # that profiled steps take together
_PROFILED = (3, 20)  # of them, at least and at most
_SIGNIFICANT = 5  # digits of a sample that are kept
_FEWEST_IDS = 2  # where no table of embeddings says how many numbers are valid

Run = Callable[[], object]
_Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How carefully a step is timed."""

    precision: float  # of the median, relative; a step that reaches it gets no more samples
    samples: int  # at most
    budget_s: float  # after which no further sample is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Bench):
    """Where a step runs: a GPU, or the CPU on `threads` threads."""

    threads: int | None = None

    @classmethod
    def of(cls, kind: str, index: int) -> Place:
        """A device as PyTorch names it. Raises InputError for a GPU that it does not see."""
        if kind == "cpu":
            return cls(device=torch.device("cpu"))
        gpu_name(index)
        return cls(device=torch.device("cuda", index), cuda=torch.cuda)

    def check(self, backend: str) -> None:
        """Raises MeasureError for a way of execution that there is not."""
        if backend in ("cuda-graph", "reduce-overhead") and self.cuda is None:
            raise MeasureError(
                f"execution {backend!r}: a CPU has no CUDA graphs; choose 'eager' or 'compiled', or a GPU"
            )

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """What runs within runs there, on random numbers that are always the same; afterwards all is as before."""
        with contextlib.ExitStack() as stack:
            if self.cuda is not None:
                stack.enter_context(self.cuda.device(self.device.index))
            stack.enter_context(torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []))
            stack.enter_context(on_threads(self.threads))
            torch.manual_seed(0)
            yield

    def environment(self) -> dict[str, str]:
        """The surroundings that the measurement depends on."""
        if self.cuda is None:
            return CpuTimer(0).environment()
        return CudaTimer(self.device.index or 0, 0, self.cuda, self.device.type, load_nvml()).environment()


def measure_step(
    step: Step,
    place: Place,
    care: Care,
    *,
    backend: str,
    wait_each: bool,
    dtype: DType | None = None,
    tf32: bool | None = None,
    sizes: Mapping[str, int],
    by_op: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> ModelRun:
    """Samples of one step, and its ops under the profiler.

    backend: "eager", "compiled", "cuda-graph" or "reduce-overhead". wait_each: whether the CPU waits for the device
    after each step, or steps follow each other. dtype, tf32: as `rk.trace` has them. A CUDA graph hides its ops from
    the profiler: theirs are of the same step without it.

    Raises MeasureError for a model that cannot be run there.
    """
    with place.chosen(), _running(step, place), fp32_arithmetic(matmul=tf32 is True, convolution=tf32 is not False):
        progress("preparing")
        ready = on_device(step, place.device, dtype, sizes)
        progress("warming up")
        run = _runners(place)[backend](ready, place.device)
        once = place.finishing(run)
        warm = _warm_up(once, care.budget_s)
        steps = 1 if wait_each else repeats(_LOOP_S, warm[-1], *_LOOP)
        progress("timing")
        seconds = collect(place.finishing(run, steps), care.samples, care.precision, within_s=care.budget_s)
        kept = tuple(float(f"{value:.{_SIGNIFICANT}g}") for value in seconds)
        found = ModelRun(seconds=kept, warmup=len(warm), steps=steps, environment=place.environment())
        if not by_op:
            return found
        progress("profiling")
        run, steps = _without_graph(backend, run, ready, place), repeats(_PROFILED_S, min(seconds), *_PROFILED)
        ops, kernels = profile_step(run, place.wait, cuda=place.device.type == "cuda", steps=steps)
        return replace(found, ops=ops, kernels=kernels)


def _runners(place: Place) -> dict[str, Callable[[Step, torch.device], Run]]:
    return {
        "eager": eager,
        "compiled": compiled,
        "reduce-overhead": lambda step, device: compiled(step, device, "reduce-overhead"),
        "cuda-graph": lambda step, device: _captured(eager(step, device, capturable=True), place.cuda),
    }


def _captured(run: Run, cuda: Any) -> Run:
    """The step as a CUDA graph: captured once, replayed at each call."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):  # libraries and optimizers set themselves up outside the capture
        for _ in range(_SETTING_UP):
            run()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        kept = run()  # what the graph writes must not be given to others

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def _without_graph(backend: str, run: Run, step: Step, place: Place) -> Run:
    twins = {"cuda-graph": "eager", "reduce-overhead": "compiled"}
    if backend not in twins:
        return run
    found = _runners(place)[twins[backend]](step, place.device)
    _warm_up(place.finishing(found), 0.0)
    return found


def _warm_up(once: Callable[[], float], budget_s: float) -> list[float]:
    """Times of the steps it took until they no longer changed, or half the budget was spent; compiling aside."""
    seconds = [once(), once()]
    while len(seconds) < _WARMUPS and not settled(seconds) and sum(seconds[1:]) < budget_s / 2:
        seconds.append(once())
    return seconds


@contextlib.contextmanager
def _running(step: Step, place: Place) -> Iterator[None]:
    """Turns an error that the model raises into one line that says where it came up."""
    name = type(step.model).__name__
    try:
        yield
    except RooflinekitError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise MeasureError(
            f"{name}: {place.device} is out of memory: {first_line(error)}; measure it at smaller sizes"
        ) from error
    except Exception as error:
        where = place_of(error)
        at = f" ({where})" if where else ""
        raise MeasureError(
            f"{name}: cannot be run on {place.device}{at}: {type(error).__name__}: {first_line(error)}"
        ) from error


def default_device() -> str:
    """The first GPU, or the CPU where PyTorch sees none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


# A model, its inputs and its optimizer on a real device, and one step of them as a call.


def on_device(step: Step, device: torch.device, dtype: DType | None, sizes: Mapping[str, int]) -> Step:
    """The step with a copy of its model, in the mode of the step, and with tensors instead of descriptions.

    Tensors that were given are copied; described ones are random: normal numbers, integers that every table of
    embeddings of the model has, and flags that are set. Parameters without numbers, on the meta device, are initialized
    by their modules.

    Raises MeasureError for what is no module, and for a tensor on the meta device that no module initializes.
    """
    if not isinstance(step.model, nn.Module):
        raise MeasureError(f"model: expected a torch.nn.Module to run; got {type(step.model).__name__}")
    wanted = None if dtype is None else getattr(torch, dtype.value)
    model = _with_numbers(copy.deepcopy(step.model), device).to(device=device, dtype=wanted)
    if step.channels_last:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.contiguous(memory_format=channels_last_of(tensor.dim()))
    if step.mode == "inference":
        model.eval()
    elif not model.training:
        model.train()
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    ids = min(tables, default=_FEWEST_IDS)  # how many integers are valid for every table of embeddings

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            own = wanted if wanted is not None and value.is_floating_point() else value.dtype
            return value.detach().clone().to(device=device, dtype=own)
        if not isinstance(value, Input):
            return value
        drawn = _drawn(value, device, wanted, sizes, ids)
        return drawn.contiguous(memory_format=channels_last_of(drawn.dim())) if step.channels_last else drawn

    return mapped(replace(step, model=model), made)


def _with_numbers(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with everything that is on the meta device initialized."""
    for path, module in model.named_modules():
        own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        missing = [name for name, tensor in own.items() if tensor.is_meta]
        if not missing:
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            name = ".".join(filter(None, (path, missing[0])))
            raise MeasureError(
                f"{name} of the model is on the meta device, and {type(module).__name__} has no reset_parameters() to "
                "give it numbers; build the model on the device that it is to run on"
            )
        module.to_empty(device=device, recurse=False)
        reset()
    return model


def _drawn(
    value: Input, device: torch.device, wanted: torch.dtype | None, sizes: Mapping[str, int], ids: int
) -> torch.Tensor:
    """A random tensor as described. wanted: the format of floating-point ones, where it is not their own."""
    shape = [sizes[size] if isinstance(size, str) else size for size in value.shape]
    dtype: torch.dtype = getattr(torch, value.dtype.value)
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype, device=device)
    if dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64, device=device).to(dtype)
    if dtype.is_floating_point:  # every format can be made from fp32
        return torch.randn(shape, dtype=torch.float32, device=device).to(dtype if wanted is None else wanted)
    return torch.randint(ids, shape, dtype=dtype, device=device)


def eager(
    step: Step, device: torch.device, compile_part: _Compile = lambda part: part, *, capturable: bool = False
) -> Run:
    """One step, op by op, of parts as they are or compiled. `capturable`: with an optimizer for a CUDA graph."""
    if step.mode == "training":
        return _training(step, device, compile_part, capturable=capturable)
    model = compile_part(step.model)

    def run() -> object:
        with torch.inference_mode() if step.inference_mode else torch.no_grad(), region(step, device.type):
            return model(*step.args, **step.kwargs)

    return run


def compiled(step: Step, device: torch.device, mode: str | None = None) -> Run:
    """One step through torch.compile in `mode`, compiled anew: model and loss as one function, optimizer as another."""
    torch.compiler.reset()
    return eager(step, device, lambda part: torch.compile(part, mode=mode), capturable=mode is not None)


def _training(step: Step, device: torch.device, compile_part: _Compile, *, capturable: bool) -> Run:
    assert isinstance(step.model, nn.Module)
    parameters = [p for p in step.model.parameters() if p.requires_grad]
    optimizer = None if step.optimizer is None else multi_tensor(step.optimizer(parameters))
    for group in optimizer.param_groups if optimizer is not None and capturable else ():
        if "capturable" in group:
            group["capturable"] = True

    def forward() -> torch.Tensor:
        return loss_of(step, step.model(*step.args, **step.kwargs), step.targets)

    loss_now = compile_part(forward)
    update = None if optimizer is None else compile_part(optimizer.step)

    def run() -> object:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            with region(step, device.type):
                loss = loss_now()
            loss.backward()
        if update is not None:
            update()
        return loss

    return run


# A step under torch's profiler: its calls as a tree with the device's time of each, and a GPU's kernels.


_MARK = "rooflinekit: a step"
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def profile_step(
    run: Run, wait: Run, *, cuda: bool, steps: int
) -> tuple[tuple[ProfiledOp, ...], tuple[KernelTime, ...]]:
    """Calls and kernels of a step, each with the median of its times over so many steps.

    run: one step. wait: returns when the device has done it. Seconds are those of the GPU's kernels, or on a CPU those
    of the calls, to which the profiler adds about a microsecond each.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with _silent(), TemporaryDirectory(prefix="rooflinekit-") as folder:
        with profile(activities=activities) as profiler:
            for _ in range(1 + steps):  # the first one sets the profiler up
                with record_function(_MARK):
                    run()
                    wait()
        file = Path(folder) / "steps.json"
        profiler.export_chrome_trace(str(file))
        return _seen(read_events(file))


def _seen(trace: Trace) -> tuple[tuple[ProfiledOp, ...], tuple[KernelTime, ...]]:
    """The calls and kernels of all marked steps but the first, by when they begin, or are launched.

    Autograd's thread for a GPU does not stand below the mark. Annotations, such as an optimizer's, are calls too.
    """
    marked = trace.marks["name"] == trace.names.index(_MARK)
    begins = np.sort(trace.marks["start"][marked])
    calls = pd.concat([trace.calls, trace.marks[~marked]])
    kernels = launched_kernels(trace)
    of_call = np.searchsorted(begins, calls["start"], side="right") - 1
    of_kernel = np.searchsorted(begins, kernels["launched"].fillna(kernels["start"]), side="right") - 1
    later = range(1, len(begins))
    ops = median_step([calls_of(calls[of_call == i], kernels[of_kernel == i], trace) for i in later])
    return ops, by_name(kernels[of_kernel > 0], trace.names, len(later))


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
