"""The two queues, against schedules worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Math, Op, Phase
from rooflinekit.kernels.kernel import Issue, Kernel
from rooflinekit.step.timeline import Execution, Timeline, schedule
from rooflinekit.timing.timings import Timing

US = 1e-6


def issue(*kernel_us: float, phase: Phase = Phase.FORWARD, kind: str = "test.op") -> tuple[Issue, tuple[Timing, ...]]:
    op = Op(name="op", kind=kind, phase=phase)
    family = Family.ELEMENTWISE if kernel_us else Family.VIEW
    made = Kernel(name="k", kind=kind, family=family, module="", phase=phase, math=Math.FP32, cost=Cost())
    timings = tuple(
        Timing(kernel=made, ideal_s=0, compute_s=0, memory_s=t * US, launch_s=0, busy_s=t * US) for t in kernel_us
    )
    return Issue(op=op, family=family, kernels=(made,) * len(kernel_us)), timings


def run(host: Host, sync: str, *parts: tuple[Issue, tuple[Timing, ...]]) -> tuple[Timeline, float]:
    timeline = schedule([p[0] for p in parts], [p[1] for p in parts], host, Execution(sync=sync))
    busy = sum(span.timing.total_s for span in timeline.spans)
    return timeline, busy + timeline.idle_s


def starts(timeline: Timeline) -> list[float]:
    return [round(span.start_s / US, 6) for span in timeline.spans]


def test_a_fast_gpu_waits_for_the_cpu(host: Host) -> None:
    # issued at 10, 20, 30 µs; each runs 4 µs
    timeline, total = run(host, "step", issue(4), issue(4), issue(4))
    assert starts(timeline) == [10, 20, 30]
    assert total == pytest.approx(34 * US)
    assert timeline.cpu_s == pytest.approx(30 * US)
    assert timeline.idle_s == pytest.approx(22 * US)


def test_a_slow_gpu_lets_the_cpu_run_ahead(host: Host) -> None:
    timeline, total = run(host, "step", issue(50), issue(50))
    assert starts(timeline) == [10, 60]
    assert total == pytest.approx(110 * US)


def test_views_cost_the_cpu_only(host: Host) -> None:
    timeline, total = run(host, "step", issue(), issue(), issue(4))
    assert starts(timeline) == [12]  # 1 + 1 + 10
    assert total == pytest.approx(16 * US)


def test_further_launches_and_backward(host: Host) -> None:
    timeline, _ = run(host, "step", issue(0, 0, 0), issue(0, phase=Phase.BACKWARD))
    assert starts(timeline) == [10, 11, 12, 17]  # launches 1 µs apart, a backward op 5 µs
    assert timeline.cpu_s == pytest.approx(17 * US)


def test_latency_step_and_sync(host: Host) -> None:
    slow = host.replace(launch_latency=5 * US, step=7 * US, sync=3 * US)
    timeline, total = run(slow, "step", issue(4))
    assert starts(timeline) == [22]  # 7 + 10 + 5
    assert total == pytest.approx((22 + 4 + 3) * US)


def test_synchronizing_after_each_op_adds_what_would_have_overlapped(host: Host) -> None:
    timeline, total = run(host, "op", issue(50), issue(50))
    assert starts(timeline) == [10, 70]  # 10 + 50, then 10 to issue
    assert total == pytest.approx(120 * US)
    assert timeline.cpu_s == pytest.approx(20 * US)


def test_a_read_of_a_number_waits_for_the_gpu(host: Host) -> None:
    timeline, total = run(host, "none", issue(50), issue(1, kind="aten._local_scalar_dense"), issue(1))
    assert starts(timeline) == [10, 60, 71]
    assert total == pytest.approx(72 * US)


@pytest.mark.parametrize(("kernel_us", "pace_us"), [(4, 30), (50, 150), (10, 30)])
def test_steps_in_a_loop_take_the_slower_queue(host: Host, kernel_us: float, pace_us: float) -> None:
    timeline, total = run(host, "none", *[issue(kernel_us)] * 3)
    assert total == pytest.approx(pace_us * US)
    assert timeline.cpu_s == pytest.approx(30 * US)


def test_a_cpu_that_works_on_after_the_last_kernel(host: Host) -> None:
    _, total = run(host, "step", issue(4), *[issue()] * 20)
    assert total == pytest.approx(30 * US)  # 10 + 20 views


def run_as(host: Host, backend: str, sync: str, *parts: tuple[Issue, tuple[Timing, ...]]) -> tuple[Timeline, float]:
    execution = Execution(backend=backend, sync=sync)
    timeline = schedule([p[0] for p in parts], [p[1] for p in parts], host, execution)
    return timeline, sum(span.timing.total_s for span in timeline.spans) + timeline.idle_s


def test_a_compiled_step_pays_guards_and_a_launch_each(host: Host) -> None:
    fused, second = issue(4, kind="inductor.pointwise"), issue(4, 4, kind="inductor.reduction")
    # guards 30 µs; a Triton launch 5 µs, the second kernel of one loop 1 µs more
    timeline, total = run_as(host, "compiled", "step", fused, second)
    assert starts(timeline) == [35, 40, 44]
    assert timeline.cpu_s == pytest.approx(41 * US)
    assert total == pytest.approx(48 * US)


def test_libraries_called_by_a_compiled_step_cost_less_than_from_python(host: Host) -> None:
    timeline, _ = run_as(host, "compiled", "step", issue(4, kind="aten.mm"), issue(4, kind="aten.mm"))
    assert starts(timeline) == [35, 40]  # 30 + 0.5 · 10 each


def test_a_compiled_step_reads_numbers_as_eager_mode_does(host: Host) -> None:
    read = issue(1, kind="aten._local_scalar_dense")
    timeline, _ = run_as(host, "compiled", "none", issue(50, kind="inductor.pointwise"), read, issue(1, kind="aten.mm"))
    assert starts(timeline) == [35, 85, 91]  # read at 86; 5 more to issue the last


@pytest.mark.parametrize(("backend", "guards_us"), [("cuda-graph", 0), ("reduce-overhead", 30)])
def test_a_graph_is_one_launch(host: Host, backend: str, guards_us: float) -> None:
    slow = host.replace(launch_latency=5 * US, step=7 * US, sync=3 * US)
    timeline, total = run_as(slow, backend, "step", issue(4), issue(), issue(4, 4))
    # the loop 7 µs, the launch 1 + 10 µs, 5 µs until it runs; then one kernel after the other
    start = guards_us + 23
    assert starts(timeline) == [start, start + 4, start + 8]
    assert timeline.cpu_s == pytest.approx((guards_us + 18) * US)
    assert total == pytest.approx((start + 12 + 3) * US)


def test_graphs_in_a_loop_follow_each_other(host: Host) -> None:
    assert run_as(host, "cuda-graph", "none", issue(50), issue(50))[1] == pytest.approx(100 * US)
    assert run_as(host, "cuda-graph", "none", issue(1), issue(1))[1] == pytest.approx(11 * US)  # the launches


def test_a_graph_cannot_read_numbers_nor_stop_after_ops(host: Host) -> None:
    assert refusal(InputError, run_as, host, "cuda-graph", "step", issue(1, kind="aten._local_scalar_dense")) == (
        "execution 'cuda-graph': op 'op' reads a number on the CPU, which a CUDA graph cannot hold; take it out of the "
        "step, or choose execution 'eager' or 'compiled'"
    )
    assert refusal(InputError, Execution, backend="reduce-overhead", sync="op") == (
        "execution sync 'op': a CUDA graph ('reduce-overhead') runs as a whole; choose 'step' or 'none', or execution "
        "'eager' or 'compiled'"
    )


times = st.lists(st.lists(st.floats(0, 100), max_size=3), min_size=1, max_size=12)
HOST = Host(
    name="h",
    description="for the laws",
    dispatch={"default": 10 * US, "view": 1 * US},
    backward_factor=0.5,
    launch=1 * US,
    launch_latency=2 * US,
    sync=3 * US,
    step=4 * US,
    dram_bandwidth=1e11,
    copy_bandwidth_pageable=1e10,
    copy_bandwidth_pinned=1e10,
)


@given(times)
def test_laws_of_the_queues(kernel_times: list[list[float]]) -> None:
    parts = [issue(*ts) for ts in kernel_times]
    (_, loop), (timeline, step), (_, op) = (run(HOST, sync, *parts) for sync in ("none", "step", "op"))
    busy = sum(sum(ts) for ts in kernel_times) * US
    assert loop <= step * (1 + 1e-9)
    assert step <= op * (1 + 1e-9)
    assert loop >= max(busy, timeline.cpu_s) * (1 - 1e-9)
    assert step <= busy + timeline.cpu_s + (HOST.launch_latency * len(parts) + HOST.sync) * (1 + 1e-9)
    for before, after in zip(timeline.spans, timeline.spans[1:], strict=False):
        assert after.start_s >= before.end_s
        assert after.start_s >= after.issued_s


def test_unknown_words_are_refused() -> None:
    with pytest.raises(
        InputError, match="execution sync: expected none, step, op, events; got 'stepp'; did you mean 'step'"
    ):
        Execution(sync="stepp")
    assert refusal(InputError, rk.predict, torch.exp, rk.Input(3), gpu="nvidia-l4", execution="compilde") == (
        "execution backend: expected eager, compiled, cuda-graph, reduce-overhead, max-autotune, "
        "max-autotune-no-cudagraphs, cudagraphs, aot-eager; got 'compilde'; did you mean 'compiled'?"
    )
