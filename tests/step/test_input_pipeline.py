"""Copies of inputs and loaders: schedules worked out by hand, and laws."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device, Pcie
from rooflinekit.hardware.host import Host
from rooflinekit.step.entry import copy_rate
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.machine import Machine

US = 1e-6


def relu(rows: int = 1000) -> rk.Graph:
    """[rows, 1000] floats of 4 bytes: 4 MB a thousand rows."""
    return rk.trace(nn.ReLU(), rk.Input(rows, 1000))


def predicted(graph: rk.Graph, machine: Machine, host: Host, **execution: object) -> rk.Prediction:
    return predict_graph(graph, machine, host, rk.Execution(**execution))


def test_a_copy_that_the_cpu_waits_for(machine: Machine, host: Host) -> None:
    # issued at 10 µs; 4 MB at 10 GB/s = 400 µs; the op is issued 10 µs later and moves 8 MB at 1 TB/s = 8 µs
    found = predicted(relu(), machine, host, copy="pageable")
    (copy,) = found.timeline.copies
    assert (copy.start_s, copy.end_s) == pytest.approx((10 * US, 410 * US))
    assert found.spans[0].start_s == pytest.approx(420 * US)
    assert found.total_s == pytest.approx(428 * US)
    assert found.terms()["input"] == pytest.approx(400 * US)
    assert found.terms()["overhead"] == pytest.approx(20 * US)
    assert found.cpu_s == pytest.approx(20 * US)


def test_a_copy_that_runs_beside_the_cpu(machine: Machine, host: Host) -> None:
    found = predicted(relu(), machine, host, copy="pinned", non_blocking=True)
    assert found.spans[0].start_s == pytest.approx(410 * US)  # issued at 20
    assert found.total_s == pytest.approx(418 * US)
    loop = predicted(relu(), machine, host, copy="pinned", non_blocking=True, sync="none")
    assert loop.total_s == pytest.approx(408 * US)  # the GPU's queue alone: 400 and 8


def test_a_wait_takes_a_synchronization(machine: Machine, host: Host) -> None:
    slow = host.replace(sync=3e-6, launch_latency=5e-6, step=7e-6)
    found = predicted(relu(), machine, slow, copy="pageable")
    # 7 + 10 + 5 until it starts, 400, 3; 10 + 5 until the kernel starts, 8, 3
    assert found.total_s == pytest.approx((422 + 3 + 15 + 8 + 3) * US)


def test_a_graph_is_launched_when_its_input_is_there(machine: Machine, host: Host) -> None:
    found = predicted(relu(), machine, host, copy="pageable", backend="cuda-graph")
    # the copy ends at 410; 1 + 10 µs to launch
    assert found.spans[0].start_s == pytest.approx(421 * US)
    assert sum(found.terms().values()) == found.total_s


def test_inputs_and_targets_are_copied(machine: Machine, host: Host) -> None:
    graph = rk.trace(
        nn.Linear(1000, 10), rk.Input(100, 1000), mode="training",
        loss=nn.functional.cross_entropy, targets=[rk.Input(100, dtype="int64")],
    )  # fmt: skip
    copies = predicted(graph, machine, host, copy="pinned").timeline.copies
    assert [copy.transfer.bytes for copy in copies] == [400_000, 800]


def test_the_slower_of_memory_and_link_sets_the_rate(device: Device, host: Host) -> None:
    assert copy_rate(device, host, pinned=True) == 1e10
    narrow = device.replace(pcie=Pcie(generation=3, lanes=4))
    # 8 GT/s · 128/130 / 8 · 4 lanes = 3.938 GB/s; 256 of 280 bytes are payload
    assert copy_rate(narrow, host, pinned=True) == pytest.approx(3.938e9 * 256 / 280, rel=1e-3)


def test_a_loader_sets_the_pace(machine: Machine, host: Host) -> None:
    fast = predicted(relu(), machine, host)
    slow = predicted(relu(), machine, host, loader_rate=1e5)  # 1000 samples: 10 ms
    assert slow.total_s == pytest.approx(10e-3)
    assert slow.terms() == pytest.approx(fast.terms() | {"input": 10e-3 - fast.total_s})
    assert predicted(relu(), machine, host, loader_rate=1e9).terms() == fast.terms()


@pytest.mark.parametrize("sync", ["none", "step", "op"])
@pytest.mark.parametrize("gpu", ["nvidia-l4", "nvidia-p100-pcie-16gb"])
def test_laws(sync: str, gpu: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    graph = rk.trace(model, rk.Input("batch", 3, 64, 64), mode="training", optimizer=torch.optim.SGD)
    for host in ("generic-server", "generic-cloud", "generic-desktop", "xeon-server-2018"):
        for batch in (1, 64):
            ways = [("none", False), ("pinned", True), ("pinned", False), ("pageable", False)]
            found = [
                rk.predict(
                    graph, gpu, batch=batch, host=host,
                    execution=rk.Execution(sync=sync, copy=copy, non_blocking=beside),
                )
                for copy, beside in ways
            ]  # fmt: skip
            times = [p.total_s for p in found]
            assert times == sorted(times)  # nothing to copy, beside the CPU, pinned, pageable
            for p in found:
                assert sum(p.terms().values()) == p.total_s
                assert p.gpu_s + p.terms()["overhead"] + p.terms()["input"] == pytest.approx(p.total_s)
                assert (p.terms()["input"] > 0) == (p.execution.copy != "none")


def test_cpus_copy_nothing_and_run_in_series() -> None:
    graph = rk.trace(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), rk.Input(32, 64))
    found = rk.predict(graph, "intel-core-i7-12700h", execution=rk.Execution(copy="pageable"))
    assert found.terms()["input"] == 0
    assert found.total_s == pytest.approx(found.cpu_s + found.gpu_s)
    spans = found.spans
    assert all(span.issued_s == span.start_s for span in spans)
    for sync in ("none", "op"):
        assert rk.predict(graph, "intel-core-i7-12700h", execution=rk.Execution(sync=sync)).total_s == found.total_s
    said = refusal(InputError, rk.predict, graph, "intel-core-i7-12700h", execution="cuda-graph")
    assert said == "execution 'cuda-graph': a CPU has no CUDA graphs; choose 'eager' or 'compiled'"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"copy": "pined"}, "execution copy: expected none, pageable, pinned; got 'pined'; did you mean 'pinned'?"),
        (
            {"copy": "pageable", "non_blocking": True},
            "execution non_blocking with copy 'pageable': only copies from 'pinned' memory run beside the CPU",
        ),
        ({"loader_rate": 0}, "execution loader_rate: expected samples a second above 0; got 0"),
        ({"loader_rate": float("nan")}, "execution loader_rate: expected samples a second above 0; got nan"),
    ],
)
def test_wrong_words_are_refused(given: dict[str, object], message: str) -> None:
    assert refusal(InputError, rk.Execution, **given) == message


def test_a_rate_of_samples_needs_samples(machine: Machine, host: Host) -> None:
    said = refusal(InputError, predicted, replace(relu(), inputs=()), machine, host, loader_rate=10)
    assert said == "execution loader_rate: ReLU has no input whose first dimension would be the number of samples"
