"""Memory over a step: the largest sum is the peak, and each account holds what it is named for."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.host import Host
from rooflinekit.model.machine import Machine
from rooflinekit.step.memory import ACCOUNTS
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import predict_graph


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
    assert next(alive["activations"] for alive in held) == mib
    assert all(alive["weights"] == alive["gradients"] == alive["optimizer state"] == 0 for alive in held)
    assert max(sum(alive.values()) for alive in held) == p.memory.peak_bytes
