"""Three queues a device, with times by hand: kernels of whole seconds, collectives likewise."""

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.distributed.queues import Barrier, Item, Pace, Transmission, Work, covered, run_devices
from rooflinekit.hardware.specs import members_of
from rooflinekit.timing.collectives import CollectiveTiming, route_of
from rooflinekit.timing.timings import Timing


@pytest.fixture(scope="module")
def timing(blocks: rk.Graph) -> Timing:
    return rk.predict(blocks, "nvidia-a100-sxm4-80gb", batch=8).timings[0]


@pytest.fixture(scope="module")
def memory(timing: Timing) -> Timing:
    """Of a kernel that memory limits."""
    return replace(timing, compute_s=0.0, ideal_s=0.0, memory_s=1.0)


def kernel(timing: Timing, seconds: float) -> Work:
    return Work(what="op", kernels=(replace(timing, busy_s=seconds, launch_s=0.0),))


def sent(key: str, seconds: float, *, blocking: bool = False) -> Transmission:
    cluster = rk.load_cluster("dgx-a100")
    # As many wire bytes as nothing, and no channel of a GPU's: kernels beside it are not slowed but by its SMs
    time = CollectiveTiming(
        collective="all-reduce", algorithm="ring", size_bytes=1.0, transfer_s=seconds,
        route=route_of(cluster, members_of(cluster), 2),
    )  # fmt: skip
    return Transmission(key=key, timing=time, blocking=blocking)


@pytest.fixture(scope="module")
def pace() -> Pace:
    return Pace(device=rk.load_device("nvidia-a100-sxm4-80gb"), latency_s=0.0, sync_s=0.0)


#: An A100's 108 SMs, of which NCCL takes 24 on NVLink; for kernels that arithmetic limits.
SLOWED = 108 / (108 - 24)


def test_a_collective_runs_beside_kernels(memory: Timing, pace: Pace) -> None:
    # 1 s, then 2 s are sent beside 4 s of kernels that memory limits and nothing slows; then 1 s
    program: list[Item] = [kernel(memory, 1), sent("a", 2), kernel(memory, 4), Barrier(keys=("a",)), kernel(memory, 1)]
    run = run_devices([(program, pace)])
    (device,) = run.devices
    assert (run.messages[0].start_s, run.messages[0].end_s) == (1, 3)
    assert device.end_s == pytest.approx(6)
    assert (device.exposed_s, run.communication_s) == (0, 2)


def test_what_is_not_hidden_is_exposed(memory: Timing, pace: Pace) -> None:
    program: list[Item] = [sent("a", 3), kernel(memory, 1), Barrier(keys=("a",)), kernel(memory, 1)]
    run = run_devices([(program, pace)])
    assert run.devices[0].end_s == pytest.approx(4)  # 1 s of the 3 is beside a kernel
    assert run.devices[0].exposed_s == pytest.approx(2)


def test_collectives_of_a_group_follow_each_other(timing: Timing, pace: Pace) -> None:
    run = run_devices([([sent("a", 1), sent("b", 1)], pace)])
    assert [(m.start_s, m.end_s) for m in run.messages] == [(0, 1), (1, 2)]
    assert run.devices[0].end_s == 2


def test_a_slower_device_makes_the_others_wait(timing: Timing, pace: Pace) -> None:
    fast: list[Item] = [kernel(timing, 1), sent("a", 1, blocking=True), kernel(timing, 1)]
    slow: list[Item] = [kernel(timing, 3), sent("a", 1, blocking=True), kernel(timing, 1)]
    run = run_devices([(fast, pace), (slow, pace)])
    assert [device.end_s for device in run.devices] == [pytest.approx(5)] * 2
    assert [device.straggling_s for device in run.devices] == [pytest.approx(2), 0]
    assert [device.exposed_s for device in run.devices] == [pytest.approx(1)] * 2


def test_kernels_beside_it_take_longer(timing: Timing, pace: Pace) -> None:
    arithmetic = replace(timing, compute_s=1.0, memory_s=0.0)
    run = run_devices([([sent("a", 100), kernel(arithmetic, 10)], pace)])
    (device,) = run.devices
    assert device.spans[0].end_s == pytest.approx(10 * SLOWED)
    assert device.contention_s == pytest.approx(10 * SLOWED - 10)
    # and only as long as it runs: 1 s of it does 1 / SLOWED of a second's work
    (device,) = run_devices([([sent("a", 1), kernel(arithmetic, 10)], pace)]).devices
    assert device.spans[0].end_s == pytest.approx(1 + 10 - 1 / SLOWED)


def test_the_cpu_issues_while_the_device_waits(memory: Timing, pace: Pace) -> None:
    late = Work(what="op", cpu_s=2.0, kernels=kernel(memory, 1).kernels)
    run = run_devices([([sent("a", 3, blocking=True), late], pace)])
    assert run.devices[0].end_s == pytest.approx(4)  # issued at 2, while the device stands still until 3
    # of those 3 s the first 2 are the CPU's, the rest the links'
    assert (run.devices[0].idle_s, run.devices[0].exposed_s) == (pytest.approx(2), pytest.approx(1))


def test_covered() -> None:
    assert covered([]) == 0
    assert covered([(0, 1), (0.5, 2), (3, 4)], 0.75, 3.5) == pytest.approx(1.75)
