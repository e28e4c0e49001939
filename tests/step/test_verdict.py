"""Whether a step fits: three numbers of bytes, and a probability that agrees with the allocator's."""

import pytest
from torch import nn

import rooflinekit as rk

MIB = 2**20


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    return rk.trace(net, rk.Input("batch", 1024), mode="train", optimizer="Adam")


def on(graph: rk.Graph, capacity: float, batch: int = 8192) -> rk.Prediction:
    device = rk.load_device("nvidia-l4")
    small = device.model_copy(update={"dram": device.dram.model_copy(update={"capacity": float(capacity)})})
    return rk.predict(graph.at(batch=batch), gpu=small)


def test_numbers_by_hand() -> None:
    # 4 MiB of weights, 1 of input, 1 of result and cuBLAS's 8.125: 14.125 in blocks, 2 + 20 in segments; 500 of CUDA.
    p = rk.predict(nn.Linear(1024, 1024, bias=False), rk.Input(256, 1024), gpu="nvidia-l4")
    found = p.memory_verdict()
    assert found.allocated.bytes == 14.125 * MIB
    assert found.reserved.bytes == 22 * MIB
    assert found.process.bytes == 522 * MIB
    # sqrt((0.03 * 22)^2 + (0.3 * 500)^2) = 150.0015 MiB a deviation, 1.64485 of them to a side: 246.73 MiB.
    assert found.process.high_bytes - found.process.bytes == pytest.approx(246.73 * MIB, rel=1e-4)
    assert found.probability > 0.999999
    for words in ("14.1 MiB (", "22.0 MiB (", "522 MiB (", "500 MiB for CUDA's context", "over 99% likely to fit"):
        assert words in str(found)


def test_probability_agrees_with_the_allocator(graph: rk.Graph) -> None:
    roomy = on(graph, 64 * 2**30)
    least = None
    before = 0.0
    for capacity in range(roomy.memory.peak_bytes, 2 * roomy.memory.reserved_bytes + 2**30, 128 * MIB):
        p = on(graph, capacity)
        found = p.memory_verdict()
        assert found.probability > before - 1e-6  # more memory never makes it less likely
        before = found.probability
        assert p.memory.fits == (found.probability >= 0.5)
        if 0.01 < found.probability < 0.99:
            assert p.memory.peak_bytes <= found.least_bytes <= roomy.memory.reserved_bytes
            assert least in (None, found.least_bytes)  # it is the step's, whatever the device has
            least = found.least_bytes
    assert least is not None
    assert before > 0.99


def test_levels_are_checked(graph: rk.Graph) -> None:
    narrow, wide = (on(graph, 64 * 2**30).memory_verdict(level).process for level in (0.5, 0.99))
    assert wide.low_bytes < narrow.low_bytes < narrow.bytes < narrow.high_bytes < wide.high_bytes
    with pytest.raises(ValueError, match="between 0 and 1"):
        on(graph, 64 * 2**30).memory_verdict(1.0)
