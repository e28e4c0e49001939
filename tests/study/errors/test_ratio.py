"""What two steps are off by together does not make their ratio uncertain: by hand, and by laws."""

from __future__ import annotations

import math

import pytest
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.errors.components import Ratios
from rooflinekit.timing.machine import Machine

_Z = 1.6449  # standard deviations to either side of a 90 % interval


@pytest.fixture(scope="module")
def relu() -> rk.Graph:
    return rk.trace(nn.ReLU(), rk.Input("batch", 2**20))


@pytest.fixture(scope="module")
def both() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.ReLU(), nn.Tanh()), rk.Input("batch", 2**20))


def _step(graph: rk.Graph, device: Device, host: Host, batch: int) -> Prediction:
    return predict_graph(graph.at(batch=batch), Machine.of(device, constants()), host, Execution(sync="none"))


def test_on_one_gpu_a_network_is_off_by_itself_alone(
    relu: rk.Graph, both: rk.Graph, device: Device, host: Host
) -> None:
    # Of ReLU, and of ReLU and tanh: the family's constants are one GPU's, and go out. ReLU is in both, as half of the
    # second: what is left is (1 - 1/2) · 0.2 of ReLU's own error and 1/2 · 0.2 of tanh's, each 0.1, and each network's
    # 0.08: √(2 · 0.1² + 2 · 0.08²) = 0.1811. Each time by itself may be 1.44 times longer or shorter.
    one, two = (_step(graph, device, host, 256) for graph in (relu, both))
    found = Ratios((one, two), one_network=False).of(1, 0, scale=0.75)
    assert found.times == pytest.approx(1.5, rel=0.05)
    assert math.log(found.high / found.times) == pytest.approx(_Z * 0.1811, rel=0.02)
    assert found.certain
    assert one.interval()[1] > 0.75 * two.interval()[0]  # and yet these overlap


def test_the_other_way_round_is_the_inverse(relu: rk.Graph, both: rk.Graph, device: Device, host: Host) -> None:
    for batch in (1, 256):  # where the CPU decides, and where the GPU does
        ratios = Ratios([_step(graph, device, host, batch) for graph in (relu, both)], one_network=False)
        there, back = ratios.of(1, 0, scale=3.0), ratios.of(0, 1, scale=1 / 3)
        assert (there.times, there.low, there.high) == pytest.approx((1 / back.times, 1 / back.high, 1 / back.low))


def test_one_host_slows_both(relu: rk.Graph, both: rk.Graph, device: Device, host: Host) -> None:
    # Both wait for the CPU: a host e times slower takes both e times as long. Two that nobody named do not, unless
    # they are one with a choice of GPUs: what is left are the kernels, less than ln 1.5.
    one, two = (_step(graph, device, host, 1) for graph in (relu, both))
    together = Ratios((one, two), one_network=False).of(1, 0)
    wide = host.model_copy(update={"spread": 1.0})
    one, two = (_step(graph, device, wide, 1) for graph in (relu, both))
    assert Ratios((one, two), one_network=False).of(1, 0).high == pytest.approx(together.high, rel=0.05)
    unnamed = wide.model_copy(update={"name": "unnamed"})
    another = device.replace(name="other-gpu")
    steps = _step(relu, device, unnamed, 1), _step(relu, another, unnamed, 1)
    apart = Ratios(steps, one_network=True, one_host=False).of(1, 0)
    assert math.log(apart.high / apart.times) > _Z * 1.0
    assert Ratios(steps, one_network=True).of(1, 0).high < 1.5


def test_no_time_no_ratio(relu: rk.Graph, device: Device, host: Host) -> None:
    nothing = _step(rk.trace(nn.Identity(), rk.Input("batch", 8)), device, host, 1)
    found = Ratios((nothing, _step(relu, device, host, 1)), one_network=False).of(0, 1)
    assert (found.low, found.high, found.certain) == (0.0, math.inf, False)
