"""From medians to a host specification."""

from pathlib import Path

import pytest
from records import case

from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded
from rooflinekit.calibrate.hosts.draft import HostCost, costs_of, host_of
from rooflinekit.files import write_text
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_host
from rooflinekit.hardware.yaml_file import spec_text

HEAD = Head(device="nvidia-l4", plan="tiny", digest="d", units=9, environment={})
BASE = load_host("generic-server")


def one(op: str, *seconds: float, turn: int = 0, status: str = "ok", **sizes: int) -> Measurement:
    return Measurement(
        case=case(op, "fp16", **sizes), round=turn, status=status, timing="host", inner=1, seconds=seconds or (1e-6,)
    )


def costs(*measurements: Measurement) -> tuple[HostCost, ...]:
    return costs_of(Recorded(head=HEAD, measurements=measurements, finished=False))


def host(*measurements: Measurement, gpu: bool = True) -> Host:
    return host_of(costs(*measurements), BASE, "nvidia-l4-host", gpu=gpu, source="measured")


def test_medians_over_rounds_by_case() -> None:
    found = costs(
        one("sync", 1e-6, 2e-6, 3e-6),
        one("sync", 5e-6, 6e-6, 7e-6, turn=1),
        one("issue_default", 9e-6),
        one("add", 1e-3, rows=1, cols=1),  # a kernel
        one("item", status="unsupported"),
        one("h2d_pinned", 4e-3, bytes=2048),
        one("h2d_pinned", 1e-3, bytes=1024),
    )
    # in the order of the vocabulary, smaller sizes first; (3 + 5)/2 over both rounds
    assert [(cost.case.op, cost.summary.median) for cost in found] == [
        ("issue_default", 9e-6), ("sync", pytest.approx(4e-6)), ("h2d_pinned", 1e-3), ("h2d_pinned", 4e-3),
    ]  # fmt: skip


def test_rates() -> None:
    sync, copy, burst = costs(
        one("burst", 1e-3, m=100, n=200, k=300, milliseconds=5), one("h2d_pinned", 2e-3, bytes=4096), one("sync")
    )
    assert burst.rate == (pytest.approx(12e9), "flop/s")  # 2·100·200·300 = 12 MFLOP in a millisecond
    assert copy.rate == (pytest.approx(2.048e6), "byte/s")
    assert sync.rate is None


def test_a_sustained_rate_is_that_of_its_second_half() -> None:
    (found,) = costs(one("sustained", 1e-3, 1e-3, 2e-3, 2e-3, m=1, n=1, k=1, milliseconds=6))
    assert found.summary.median == 2e-3


def test_what_was_measured_replaces_what_was_stated() -> None:
    found = host(
        one("issue_default", 5e-6), one("issue_matmul", 8e-6), one("issue_view", 1e-6),
        one("issue_default_backward", 4e-6), one("issue_matmul_backward", 4e-6),
        one("sync", 9e-6), one("graph_node", 2e-6, nodes=9), one("launch_stream", 22e-6),
        one("launch_graph", 11e-6, nodes=9),
        one("h2d_pageable", 1e-3, bytes=8_000_000), one("h2d_pinned", 1e-3, bytes=20_000_000),
    )  # fmt: skip
    assert (found.dispatch_s("default"), found.dispatch_s("matmul"), found.dispatch_s("view")) == (5e-6, 8e-6, 1e-6)
    assert found.dispatch_s("convolution") == BASE.dispatch_s("convolution")
    assert found.backward_factor == 0.65  # between 4/5 and 4/8
    assert found.sync == 9e-6
    assert found.launch_latency == pytest.approx(6e-6)  # 22 - 5 - 9 - 2
    assert found.graph_launch == pytest.approx(9.1e-6)  # beside a launch of 1.9
    assert (found.copy_bandwidth_pageable, found.copy_bandwidth_pinned) == (8e9, 20e9)
    assert (found.launch, found.step, found.dram_bandwidth) == (BASE.launch, BASE.step, BASE.dram_bandwidth)
    assert found.sources["sync"] == "measured"
    assert found.sources["step"] == "that of generic-server, not measured"
    assert found.sources["dispatch"] == (
        "measured; convolution, attention, normalization, reduction, optimizer: that of generic-server, not measured"
    )


def test_without_a_gpu_a_launch_is_added() -> None:
    found = host(
        one("issue_default", 1.5e-6), one("issue_view", 1e-6), one("issue_default_backward", 3.5e-6), gpu=False
    )
    # generic-server launches in 1.9 µs; a view launches nothing
    assert (found.dispatch_s("default"), found.dispatch_s("view")) == (3.4e-6, 1e-6)
    assert found.backward_factor == 1.59  # (3.5 + 1.9) / (1.5 + 1.9)
    assert "on a CPU, so a launch of generic-server (1.9 µs) is added" in found.sources["dispatch"]
    assert (found.sync, found.sources["sync"]) == (BASE.sync, "that of generic-server, not measured")


def test_a_latency_is_not_negative() -> None:
    parts = one("issue_default", 5e-6), one("sync", 9e-6), one("graph_node", 2e-6, nodes=9)
    assert host(*parts, one("launch_stream", 10e-6)).launch_latency == 0


def test_the_largest_copy_counts_and_no_issue_cost_is_no_host() -> None:
    small, large = one("h2d_pinned", 1e-5, bytes=1000), one("h2d_pinned", 1e-3, bytes=10_000_000)
    assert host(one("issue_default", 5e-6), large, small).copy_bandwidth_pinned == 10e9
    assert host_of(costs(small, large), BASE, "x", gpu=True, source="measured") is None


def test_the_file_reads_back(tmp_path: Path) -> None:
    found, file = host(one("issue_default", 5e-6), one("sync", 9.13e-6)), tmp_path / "nvidia-l4-host.yaml"
    write_text(spec_text(found, "A host."), file)
    assert load_host(file) == found
    assert file.read_text().startswith("# A host.\nschema: 1\nname: nvidia-l4-host\n")
