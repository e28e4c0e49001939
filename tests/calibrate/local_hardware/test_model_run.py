"""Steps timed on the CPU, and on a GPU that is played: waits, graphs, loops, and what cannot be run."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn

from rooflinekit.calibrate.local_hardware import model_run
from rooflinekit.calibrate.local_hardware.model_run import Care, Place, measure_step
from rooflinekit.errors import MeasureError
from rooflinekit.ir.inputs import Input
from rooflinekit.tracing.tracer import Step

CARE = Care(precision=0.5, samples=6, budget_s=60.0)


def step(model: nn.Module, *args: Any, **fields: Any) -> Step:
    return Step(model=model, args=args, kwargs={}, **fields)


def measured(model: nn.Module, place: Place, **options: Any) -> Any:
    asked = {"backend": "eager", "wait_each": True, "sizes": {"rows": 3}, "by_op": False, **options}
    return measure_step(step(model, Input("rows", 4)), place, asked.pop("care", CARE), **asked)


# --- the CPU ----------------------------------------------------------------------------------------------------------


def test_samples_and_ops() -> None:
    said: list[str] = []
    place = Place(device=torch.device("cpu"), threads=1)
    found = measured(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), place, by_op=True, progress=said.append)
    assert said == ["preparing", "warming up", "timing", "profiling"]
    assert 5 <= len(found.seconds) <= 6
    assert all(0 < seconds < 10 for seconds in found.seconds)
    assert (found.steps, found.kernels, found.environment["threads"]) == (1, (), "1")
    assert found.warmup >= 2
    names = [op.name for op in found.ops if op.depth == 0]
    assert names == ["aten::linear", "aten::relu"]
    assert "aten::addmm" in [op.name for op in found.ops if op.depth == 1]


def test_everything_is_afterwards_as_before() -> None:
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(
                (torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
            )
            return super().forward(x)

    place, model = Place(device=torch.device("cpu"), threads=1), Watched(4, 4)
    state = torch.get_rng_state()
    for tf32_asked in (True, False, None):
        measured(model, place, tf32=tf32_asked)
    # nowhere, everywhere, or where PyTorch's defaults have it: in convolutions
    assert list(dict.fromkeys(seen)) == [(1, True, True), (1, False, False), (1, False, True)]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.cudnn.allow_tf32 is tf32


def test_random_numbers_are_always_the_same() -> None:
    seen = []

    class Watched(nn.Identity):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

    for _ in range(2):
        measured(Watched(), Place(device=torch.device("cpu")))
    assert torch.equal(seen[0], seen[-1])


def test_steps_that_follow_each_other_are_timed_as_a_loop() -> None:
    found = measured(nn.Identity(), Place(device=torch.device("cpu")), wait_each=False)
    assert found.steps == 200  # as many as a loop may have: a step takes microseconds


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such\nlayer"), "Broken: cannot be run on cpu (test_model_run.py:{line}): ValueError: no such"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nGPU 0"),
         "Broken: cpu is out of memory: CUDA out of memory. Tried 2 GiB.; measure it at smaller sizes"),
        (MemoryError(), "Broken: cpu is out of memory: MemoryError; measure it at smaller sizes"),
    ],
)  # fmt: skip
def test_what_the_model_raises_is_one_line(error: Exception, message: str) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    with refused(MeasureError, message.format(line=Broken.forward.__code__.co_firstlineno + 1)):
        measured(Broken(), Place(device=torch.device("cpu")))


def test_warming_up_ends_when_times_no_longer_fall() -> None:
    times = iter([9.0, 8, 7, 6, 5, 4, 4, 4, 4, 4, 4, 4])
    # The median of the last three against that of the three before: 4 of (5, 4, 4) and 4 of (4, 4, 4) agree at last.
    assert model_run._warm_up(lambda: next(times), 1e9) == [9, 8, 7, 6, 5, 4, 4, 4, 4, 4]
    # The first step compiles: only what follows counts against half the budget of 10 s.
    slow = iter([100.0, 3, 3, 9, 9, 9])
    assert model_run._warm_up(lambda: next(slow), 10) == [100, 3, 3]


# --- CUDA, played -----------------------------------------------------------------------------------------------------


class Cuda:
    """`torch.cuda` as far as it is used; notes what happens in which order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def device(self, index: int | None) -> Iterator[None]:
        self.log.append(f"device {index}")
        yield

    def synchronize(self) -> None:
        self.log.append("wait")

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    @contextmanager
    def stream(self, side: object) -> Iterator[None]:
        self.log.append("aside")
        yield
        self.log.append("back")

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    @contextmanager
    def graph(self, graph: object) -> Iterator[None]:
        self.log.append("capture")
        yield
        self.log.append("captured")

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="NVIDIA H200")

    def device_count(self) -> int:
        return 1


class Logged(nn.Module):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __deepcopy__(self, memo: object) -> nn.Module:
        return Logged(self.log)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append("step")
        return x


def played(cuda: Cuda) -> Place:
    return Place(device=torch.device("cpu"), cuda=cuda)


def test_each_step_is_waited_for() -> None:
    cuda = Cuda()
    found = measured(Logged(cuda.log), played(cuda))
    assert cuda.log[0] == "device None"
    assert cuda.log[1:] == ["wait", "step", "wait"] * (found.warmup + len(found.seconds))
    assert found.environment["gpu"] == "NVIDIA H200"


def test_a_loop_is_waited_for_at_its_end() -> None:
    cuda = Cuda()
    found = measured(Logged(cuda.log), played(cuda), wait_each=False)
    loops = (["wait"] + ["step"] * found.steps + ["wait"]) * len(found.seconds)
    assert cuda.log[1:] == ["wait", "step", "wait"] * found.warmup + loops


def test_a_graph_is_captured_once_and_replayed() -> None:
    cuda = Cuda()
    found = measured(Logged(cuda.log), played(cuda), backend="cuda-graph")
    head = ["device None", "aside", "step", "step", "step", "back", "capture", "step", "captured"]
    assert cuda.log == head + ["wait", "replay", "wait"] * (found.warmup + len(found.seconds))


def test_the_ops_of_a_graph_are_those_of_the_step_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    asked: list[dict[str, Any]] = []

    def profile_step(run: Any, wait: Any, **options: Any) -> Any:
        cuda.log.append("profile")
        run()
        asked.append(options)
        return (), ()

    monkeypatch.setattr(model_run, "profile_step", profile_step)
    measured(Logged(cuda.log), played(cuda), backend="cuda-graph", by_op=True)
    assert cuda.log[-2:] == ["profile", "step"]
    assert asked == [{"cuda": False, "steps": 20}]  # 20 of them at most; the device that is played is a CPU


def test_reduce_overhead_is_a_mode_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda part, mode=None: modes.append(mode) or part)
    cuda = Cuda()
    measured(nn.Identity(), played(cuda), backend="reduce-overhead")
    assert modes == ["reduce-overhead"]


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^--device cuda:1: PyTorch sees no CUDA GPU on this machine$"):
        Place.of("cuda", 1)
    assert Place.of("cpu", 0) == Place(device=torch.device("cpu"))
    assert model_run.default_device() == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert model_run.default_device() == "cuda"
