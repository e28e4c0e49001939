"""The profiler's events as a tree: a real one of the CPU, and those of a GPU by hand."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rooflinekit.calibrate.local_hardware import model_run
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step


def test_a_step_on_the_cpu(capfd: pytest.CaptureFixture[str]) -> None:
    x, weight, bias = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    before = os.environ.get("KINETO_LOG_LEVEL")
    ops, kernels = model_run.profile_step(
        lambda: torch.nn.functional.linear(x, weight, bias).relu(), lambda: None, cuda=False, steps=1
    )
    assert kernels == ()
    assert [op.name for op in ops if op.depth == 0] == ["aten::linear", "aten::relu"]
    linear, *inside = ops[: [op.name for op in ops].index("aten::relu")]
    # of one step: medians over several need not keep to it
    assert linear.seconds >= sum(op.seconds for op in inside if op.depth == 1) > 0
    assert os.environ.get("KINETO_LOG_LEVEL") == before
    assert capfd.readouterr().err == ""


# --- a GPU's events, by hand ------------------------------------------------------------------------------------------


class Step:
    """Events of a Chrome trace, times in µs."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, category: str, name: str, start: float, end: float, thread: int = 1, **args: Any) -> None:
        place = {"pid": 1, "tid": thread, "ts": start, "dur": end - start}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def launch(self, name: str, at: float, start: float, duration: float, thread: int = 1) -> None:
        number = len(self.events) + round(start)
        self.add("cuda_runtime", "cudaLaunchKernel", at, at + 0.5, thread, correlation=number)
        self.add("kernel", name, start, start + duration, 7, device=0, correlation=number)


def a_step(at: float, gemm: float) -> list[dict[str, Any]]:
    """Forward below the mark, backward on autograd's thread, and a Triton kernel that no call is known of."""
    step = Step()
    step.add("user_annotation", "rooflinekit: a step", at, at + 100)
    step.add("gpu_user_annotation", "rooflinekit: a step", at + 10, at + 52, 7)
    step.add("cpu_op", "aten::linear", at + 1, at + 9)
    step.add("cpu_op", "aten::t", at + 1, at + 2)
    step.add("cpu_op", "aten::addmm", at + 2, at + 8)
    step.launch("gemm", at + 3, at + 10, gemm)
    # An annotation is drawn on the GPU's time line too, and is no kernel of its call.
    step.add("user_annotation", "Optimizer.step#SGD.step", at + 19, at + 26, 2)
    step.add("gpu_user_annotation", "Optimizer.step#SGD.step", at + 30, at + 39, 7)
    step.add("cpu_op", "aten::mm", at + 20, at + 25, 2)
    step.launch("gemm", at + 21, at + 30, 7.0, 2)
    step.add("kernel", "triton_poi_fused_0", at + 50, at + 52, 7, device=0)
    return step.events


def test_kernels_belong_to_the_calls_that_launched_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first step is left out; of the gemm's 10, 12 and 11 µs the median is 11.
    events = [event for at, gemm in ((0, 99.0), (1000, 10.0), (2000, 12.0), (3000, 11.0)) for event in a_step(at, gemm)]
    document = {"traceEvents": events}

    class Profile:
        def __init__(self, activities: object) -> None: ...
        def __enter__(self) -> Any:
            return SimpleNamespace(export_chrome_trace=lambda file: Path(file).write_text(json.dumps(document)))

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(model_run, "profile", Profile)
    ran: list[str] = []
    ops, kernels = model_run.profile_step(lambda: ran.append("run"), lambda: ran.append("wait"), cuda=True, steps=3)
    assert ran == ["run", "wait"] * 4
    assert [(op.name, op.depth, round(op.seconds * 1e6, 6)) for op in ops] == [
        ("aten::linear", 0, 11), ("aten::addmm", 1, 11), ("Optimizer.step#SGD.step", 0, 7),
        ("aten::mm", 1, 7), ("triton_poi_fused_0", 0, 2),
    ]  # fmt: skip
    # In each step one gemm of each kind: (10 + 12 + 11) / 3 + 7 µs.
    assert kernels == (
        KernelTime(name="gemm", count=2, seconds=pytest.approx(18e-6)),
        KernelTime(name="triton_poi_fused_0", count=1, seconds=pytest.approx(2e-6)),
    )


def test_only_steps_that_made_the_same_calls_are_compared() -> None:
    def made(*seconds: float, name: str = "a") -> tuple[ProfiledOp, ...]:
        return tuple(ProfiledOp(name=name, depth=0, seconds=one) for one in seconds)

    found = median_step([made(9.0, name="b"), made(1.0), made(5.0), made(3.0)])
    assert [op.seconds for op in found] == [3.0]
