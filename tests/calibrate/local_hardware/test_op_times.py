"""The profiler's events as a tree: a real one of the CPU, and those of a GPU by hand."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from rooflinekit.calibrate.local_hardware import model_run
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ProfiledOp, median_step


def test_a_step_on_the_cpu(capfd: pytest.CaptureFixture[str]) -> None:
    x, weight, bias = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    before = os.environ.get("KINETO_LOG_LEVEL")
    ops, kernels = model_run.profile_step(
        lambda: torch.nn.functional.linear(x, weight, bias).relu(), lambda: None, cuda=False, steps=3
    )
    assert kernels == ()
    assert [op.name for op in ops if op.depth == 0] == ["aten::linear", "aten::relu"]
    linear, *inside = ops[: [op.name for op in ops].index("aten::relu")]
    assert linear.seconds >= sum(op.seconds for op in inside if op.depth == 1) > 0
    assert os.environ.get("KINETO_LOG_LEVEL") == before
    assert capfd.readouterr().err == ""


# --- a GPU's events, by hand ------------------------------------------------------------------------------------------


class Event(SimpleNamespace):
    """As torch.profiler has them, times in µs."""

    def __init__(self, name: str, start: float, end: float, **fields: Any) -> None:
        self.cpu_children: list[Event] = []
        self.cpu_parent: Event | None = None
        self.kernels: list[Any] = []
        self.is_async = self.is_user_annotation = False
        self.device_type = DeviceType.CPU
        super().__init__(name=name, time_range=SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start))
        self.__dict__.update(fields)
        for child in self.cpu_children:
            child.cpu_parent = self


def launches(name: str, duration: float) -> list[Any]:
    return [SimpleNamespace(name=name, duration=duration)]


def kernel(name: str, start: float, duration: float, **fields: Any) -> Event:
    return Event(name, start, start + duration, device_type=DeviceType.CUDA, **fields)


def a_step(at: float, gemm: float) -> list[Event]:
    """Forward below the mark, backward on autograd's thread, and a Triton kernel that no call is known of."""
    addmm = Event("aten::addmm", at + 2, at + 8, kernels=launches("gemm", gemm))
    view = Event("aten::t", at + 1, at + 2)
    linear = Event("aten::linear", at + 1, at + 9, cpu_children=[addmm, view])
    mark = Event("rooflinekit: a step", at, at + 100, cpu_children=[linear], is_user_annotation=True)
    product = Event("aten::mm", at + 20, at + 25, kernels=launches("gemm", 7.0))
    # An annotation is drawn on the GPU's time line too, and taken for a kernel of its call.
    backward = Event("Optimizer.step#SGD.step", at + 19, at + 26, cpu_children=[product], is_user_annotation=True,
                     kernels=launches("Optimizer.step#SGD.step", 9.0))  # fmt: skip
    return [
        mark, linear, view, addmm, backward, product,
        kernel("gemm", at + 10, gemm), kernel("gemm", at + 30, 7.0), kernel("triton_poi_fused_0", at + 50, 2.0),
        kernel("rooflinekit: a step", at + 10, 42.0, is_user_annotation=True),
        kernel("Optimizer.step#SGD.step", at + 30, 9.0, is_user_annotation=True),
    ]  # fmt: skip


def test_kernels_belong_to_the_calls_that_launched_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first step is left out; of the gemm's 10, 12 and 11 µs the median is 11.
    events = [event for at, gemm in ((0, 99.0), (1000, 10.0), (2000, 12.0), (3000, 11.0)) for event in a_step(at, gemm)]

    class Profile:
        def __init__(self, activities: object) -> None: ...
        def __enter__(self) -> Any:
            return SimpleNamespace(events=lambda: events)

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
