"""CPUs are devices: a workload is predicted on them, between its roofline and a few times that."""

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware import specs
from rooflinekit.timing.memory_system import levels

CPUS = [device.name for device in specs.devices() if device.kind == "cpu"]


@pytest.fixture(scope="module")
def product() -> rk.Graph:
    return rk.trace(nn.Linear(4096, 4096, bias=False, device="meta"), rk.Input(512, 4096))


@pytest.fixture(scope="module")
def stream() -> rk.Graph:
    return rk.trace(nn.ReLU(), rk.Input(64, 2**20))


@pytest.mark.parametrize("name", CPUS)
def test_a_product_is_limited_by_the_lanes(product: rk.Graph, name: str) -> None:
    prediction = rk.predict(product, name)
    ideal = 2 * 512 * 4096 * 4096 / specs.load_device(name).vector_peak["fp32"]  # 17.2 GFLOP
    assert ideal < prediction.total_s < 4 * ideal
    assert prediction.regime in ("compute", "latency")  # with all cores busy, products reach about half of the peak


@pytest.mark.parametrize("name", CPUS)
def test_a_stream_is_limited_by_memory(stream: rk.Graph, name: str) -> None:
    prediction = rk.predict(stream, name)
    ideal = 2 * 4 * 64 * 2**20 / specs.load_device(name).dram.bandwidth  # 537 MB, read and written
    pages = 4 * 64 * 2**20 / 4096 * 0.25e-6  # of the result, which is new: 65,536 at a quarter of a microsecond
    assert ideal < prediction.total_s - pages < 2 * ideal
    (timing,) = prediction.timings
    assert levels([timing.kernel], [timing.memory_s], prediction.machine)[0][0] == pytest.approx(8 * 64 * 2**20)
    assert prediction.regime == "memory"
