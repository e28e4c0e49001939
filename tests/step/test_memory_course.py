"""Memory over a step: the largest sum is the peak, and each account holds what it is named for."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.host import Host
from rooflinekit.step.memory import ACCOUNTS
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.machine import Machine


@pytest.mark.parametrize("backend", ["eager", "compiled", "cuda-graph"])
@pytest.mark.parametrize("gpu", ["nvidia-h100-sxm5-80gb", "nvidia-p100-pcie-16gb"])
def test_the_largest_sum_is_the_peak(backend: str, gpu: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    graph = rk.trace(model, rk.Input("batch", 3, 32, 32), mode="training", optimizer=torch.optim.AdamW)
    p = rk.predict(graph, gpu, batch=16, execution=backend)
    course = memory_course(p)
    assert max(moment.total_bytes for moment in course) == p.memory.peak_bytes
    starts = [moment.start_s for moment in course]
    assert starts == sorted(starts)
    assert {span.start_s for span in p.spans} >= set(starts) - {0.0}
    most = {name: max(moment.bytes_of[name] for moment in course) for name in ACCOUNTS}
    # Blocks are whole multiples of 512 bytes: no less than the tensors, little more.
    for account, exact in (("optimizer state", p.memory.state_bytes), ("gradients", p.memory.gradient_bytes)):
        assert exact <= most[account] <= exact + 40 * 512


def test_by_hand(machine: Machine, host: Host) -> None:
    # Three ReLUs over 1 MiB of numbers: the input stays, each result lives until the next is made, and the last stays.
    p = predict_graph(
        rk.trace(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU()), rk.Input(2**18)), machine, host, rk.Execution()
    )
    mib = 2**20
    held = [dict(moment.bytes_of) for moment in memory_course(p)]
    assert [alive["inputs"] for alive in held] == [mib] * 3
    assert all(alive["weights"] == alive["gradients"] == alive["optimizer state"] == 0 for alive in held)
    assert [alive["activations"] for alive in held] == [mib, 2 * mib, 2 * mib]
    assert [sum(alive.values()) for alive in held] == [2 * mib, 3 * mib, 3 * mib]


def test_fragments_by_hand(machine: Machine, host: Host) -> None:
    # Blocks of 1.5 MiB share a segment of 20 MiB: two of them are in use beside the first op, three beside the others.
    graph = rk.trace(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU()), rk.Input(3 * 2**17))
    course = memory_course(predict_graph(graph, machine, host, rk.Execution()))
    assert [moment.fragment_bytes / 2**20 for moment in course] == [17, 15.5, 15.5]
    assert all(moment.total_bytes + moment.fragment_bytes == 20 * 2**20 for moment in course)


def test_activations_by_module_are_those_of_the_account(machine: Machine, host: Host) -> None:
    # The stem makes 1 MiB, each of eight blocks 1 MiB and a gradient of it: their middles are 0.5, 2, 4, … 16 of 17,
    # and quarters end at 4.25, 8.5 and 12.75.
    blocks = nn.Sequential(*(nn.Sigmoid() for _ in range(8)))
    model = nn.ModuleDict({"stem": nn.Linear(512, 512), "blocks": blocks})
    model.forward = lambda x: model["blocks"](model["stem"](x))  # type: ignore[method-assign]
    graph = rk.trace(model.to("meta"), rk.Input(512, 512), mode="training")
    p = predict_graph(graph, machine, host, rk.Execution())
    whole, parts = memory_course(p), memory_course(p, by_module=True)
    assert [moment.total_bytes for moment in parts] == [moment.total_bytes for moment in whole]
    fullest = max(parts, key=lambda moment: moment.total_bytes).bytes_of
    names = [name for name in fullest if name not in ACCOUNTS]
    assert names == ["stem … blocks.1", "blocks.2 … 3", "blocks.4 … 5", "blocks.6 … 7", "outside of modules"]
    assert [fullest[name] // 2**20 for name in names[:3]] == [2, 2, 2]  # a sigmoid keeps its result, not its input
