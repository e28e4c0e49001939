"""What is measured beside kernels: against a clock that calls move, and once each on the CPU at hand."""

from types import SimpleNamespace

import pytest
import torch
from played_gpu import Gpu
from records import case

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.timers import CpuTimer
from rooflinekit.calibrate.hosts import bench as host_bench
from rooflinekit.calibrate.hosts.bench import Bench, prepare
from rooflinekit.calibrate.hosts.ops import HOST_OPS, ISSUED, ISSUED_BACKWARD, steady

CPU = torch.device("cpu")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    gpu = Gpu()
    monkeypatch.setattr(host_bench, "_forward", lambda family, device: gpu.call)
    return Bench(device=CPU, cuda=gpu, sleep=gpu.sleep, clock=gpu.clock)


def seconds(made: Case, bench: Bench, samples: int = 5) -> float:
    return prepare(made, bench, samples).sample()


def test_issuing_waits_for_nothing(bench: Bench) -> None:
    assert seconds(case("issue_default"), bench) == pytest.approx(4e-6)
    assert bench.cuda.ends > bench.clock()  # the GPU is still at it


def test_waiting(bench: Bench) -> None:
    assert seconds(case("sync"), bench) == pytest.approx(7e-6)


def test_a_launch_on_an_idle_gpu_is_seen_to_its_end(bench: Bench) -> None:
    # issued in 4, run in 20, waited for in 7
    assert seconds(case("launch_stream"), bench) == pytest.approx(31e-6)


def test_graphs(bench: Bench) -> None:
    assert seconds(case("launch_graph", nodes=100), bench) == pytest.approx(9e-6)
    prepared = prepare(case("graph_node", nodes=100), bench, 5)
    # The first event stands before the launch of 9 µs, then 100 kernels of 2 µs: 2.09 µs each
    assert prepared.sample() == pytest.approx(2.09e-6)
    assert prepared.inner == 100


@pytest.mark.parametrize("op", ["h2d_pageable", "h2d_pinned", "d2h_pageable", "d2h_pinned"])
def test_copies_arrive(op: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made, copied = [], []
    empty, copy = torch.empty, torch.Tensor.copy_
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: made.append(empty(*shape, **options)) or made[-1])

    def watched(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        copied.append((self, source, non_blocking))
        return copy(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    # The copy is no call of the played GPU: the wait alone passes.
    assert seconds(case(op, bytes=4096), bench) == pytest.approx(7e-6)
    ((target, source, non_blocking),) = copied
    assert (target.nbytes, torch.equal(target, source)) == (4096, True)
    assert (target is made[0]) == op.startswith("h2d")
    assert non_blocking == op.endswith("pinned")


def test_bursts_follow_a_rest_and_sustained_blocks_follow_each_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = bench.cuda
    monkeypatch.setattr(host_bench, "calls_of", lambda *_: SimpleNamespace(calls=(gpu.call,)))
    burst = prepare(case("burst", m=8, n=8, k=8, milliseconds=2), bench, 40)
    # A call alone takes 31 µs: 65 of them fill 2 ms. One after another each takes the GPU 20 µs, after the first was
    # issued in 4 and before the wait of 7.
    assert (burst.inner, burst.samples, burst.warms_up) == (65, 5, False)
    before = gpu.now
    assert burst.sample() == pytest.approx((65 * 20e-6 + 11e-6) / 65)
    assert gpu.now - before == pytest.approx(0.3 + 2 * 7e-6 - 7e-6 + 65 * 20e-6 + 4e-6 + 7e-6)
    sustained = prepare(case("sustained", m=8, n=8, k=8, milliseconds=400), bench, 40)
    # 400 ms in 40 blocks of 10 ms: 323 calls each
    assert (sustained.inner, sustained.samples) == (323, 40)
    before = gpu.now
    sustained.sample()
    assert gpu.now - before < 0.1  # no rest


def test_the_second_half_of_a_sustained_rate_counts() -> None:
    assert steady("sustained", (1.0, 2.0, 3.0, 4.0, 5.0)) == (3.0, 4.0, 5.0)
    assert steady("burst", (1.0, 2.0, 3.0)) == (1.0, 2.0, 3.0)


# --- on the CPU at hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ISSUED)
def test_forward_ops(family: str) -> None:
    with torch.profiler.profile() as profile, torch.no_grad():
        host_bench._forward(family, CPU)()
    expected = {
        "default": "aten::add", "view": "aten::view", "convolution": "aten::conv2d", "matmul": "aten::linear",
        "attention": "aten::scaled_dot_product_attention", "normalization": "aten::layer_norm",
        "optimizer": "aten::_foreach_mul_",
    }  # fmt: skip
    assert expected[family] in {event.name for event in profile.events()}


@pytest.mark.parametrize("family", ISSUED_BACKWARD)
def test_each_gradient_is_one_op(family: str) -> None:
    call = host_bench._backward(family, CPU)
    with torch.profiler.profile() as profile:
        call()
    kind = {
        "default": "aten::threshold_backward", "matmul": "aten::mm", "convolution": "aten::convolution_backward",
        "normalization": "aten::native_layer_norm_backward",
    }[family]  # fmt: skip
    assert sum(event.name == kind for event in profile.events()) == host_bench._CHAIN


@pytest.mark.parametrize("op", [f"issue_{f}" for f in ISSUED] + [f"issue_{f}_backward" for f in ISSUED_BACKWARD])
def test_issue_costs_of_a_cpu(op: str) -> None:
    found = CpuTimer(0).time(case(op, threads=1), turn=1, warmup=1, samples=5, precision=0.5)
    assert (found.status, found.timing, found.round, found.case.op) == ("ok", "host", 1, op)
    assert all(1e-8 < one < 1e-2 for one in found.seconds)
    assert set(found.state) <= {"preemptions", "load"}


@pytest.mark.parametrize(
    "op", [name for name, op in HOST_OPS.items() if op.family in ("launch", "transfer")] + ["sync"]
)
def test_what_needs_a_gpu(op: str) -> None:
    sizes = dict.fromkeys(HOST_OPS[op].needed, 8)
    found = CpuTimer(0).time(case(op, threads=1, **sizes), turn=0, warmup=1, samples=5, precision=0.5)
    assert (found.status, found.note) == ("unsupported", f"{op} needs a GPU")


def test_rates_of_a_cpu() -> None:
    sizes = {"m": 64, "n": 64, "k": 64, "milliseconds": 5}
    for op, count in (("burst", 5), ("sustained", 7)):
        found = CpuTimer(0).time(case(op, threads=1, **sizes), turn=0, warmup=1, samples=7, precision=0.5)
        assert (found.status, len(found.seconds)) == ("ok", count)
