"""Crossovers: both sides equal there, and each on its own side before and after."""

import pytest
from refusals import refused
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import predict_graph
from rooflinekit.study.compare.crossover import MOST
from rooflinekit.timing.machine import Machine


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    body = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU())
    return rk.trace(body, rk.Input("batch", 128, 512), dtype="float16")


def share(p: rk.Prediction, module: str) -> dict[str, float]:
    """Seconds of a module by regime."""
    found = {"compute": 0.0, "memory": 0.0, "latency": 0.0, "overhead": 0.0}
    for span in p.spans:
        if span.timing.kernel.module == module:
            terms, power = span.timing.terms(), span.timing.underuse_parts()["power"]
            found["compute"] += terms["ideal"] + power
            found["memory"] += terms["memory"]
            found["latency"] += terms["underuse"] - power + terms["launch"]
            found["overhead"] += span.waited_s
    return found


@pytest.mark.parametrize("gpu", ["nvidia-k80", "nvidia-p100-pcie-16gb", "nvidia-gtx-1080"])
def test_a_module_and_its_op_are_compute_bound_from_there_on(graph: rk.Graph, gpu: str) -> None:
    p = rk.predict(graph, gpu, batch=8)
    found = rk.compute_bound_from(p, module="0")
    op = next(op.name for op in graph.ops if op.module == "0" and "mm" in op.kind)
    assert rk.compute_bound_from(p, op=op).value == found.value
    assert found.at.total_s == rk.predict(graph, gpu, batch=found.value).total_s
    sides = share(found.at, "0")
    assert max(sides, key=sides.__getitem__) == "compute"
    if found.value > 1:
        before = share(rk.predict(graph, gpu, batch=found.value - 1), "0")
        assert max(before, key=before.__getitem__) != "compute"


@pytest.mark.parametrize("gpu", ["nvidia-p100-pcie-16gb", "nvidia-gtx-1080"])
def test_a_step_is_compute_bound_from_there_on(graph: rk.Graph, gpu: str) -> None:
    found = rk.compute_bound_from(rk.predict(graph, gpu, batch=3))
    assert rk.predict(graph, gpu, batch=found.value).regime == "compute"
    assert found.value == 1 or rk.predict(graph, gpu, batch=found.value - 1).regime != "compute"


def test_never_is_said() -> None:
    # Each number is read and written once for one FLOP: an eighth of a FLOP a byte, at any batch.
    found = rk.compute_bound_from(rk.predict(nn.ReLU(), rk.Input("batch", 64), gpu="nvidia-l4", batch=8))
    assert (found.value, found.at) == (None, None)
    assert str(found) == f"ReLU is compute-bound on nvidia-l4: at no batch up to {MOST}"


def test_the_cpu_no_longer_limits_by_hand(device: Device, host: Host) -> None:
    # 2^17 numbers of 4 bytes are read and written: 2^20 bytes a sample, 1.0486 µs at 1 TB/s. The CPU takes 10 µs, and
    # 10 / 1.0486 = 9.54.
    graph = rk.trace(nn.ReLU(), rk.Input("batch", 2**17))
    p = predict_graph(graph.at(batch=3), Machine.of(device, constants()), host, Execution(sync="none"))
    found = rk.gpu_bound_from(p)
    assert found.value == 10
    assert str(found) == "the kernels on round-gpu take longer than round-host to issue them: from batch 10 on"


def test_the_cpu_no_longer_limits(graph: rk.Graph) -> None:
    p = rk.predict(graph, "nvidia-h100-sxm5-80gb", batch=1)
    found = rk.gpu_bound_from(p)
    assert found.value > 1
    after, before = (rk.predict(graph, "nvidia-h100-sxm5-80gb", batch=found.value - less) for less in (0, 1))
    assert after.gpu_s >= after.cpu_s
    assert before.gpu_s < before.cpu_s


@pytest.mark.parametrize("batch", [4, 64])
def test_at_the_bandwidth_both_take_the_same_time(graph: rk.Graph, batch: int) -> None:
    p = rk.predict(graph, "nvidia-t4", batch=batch)
    other = rk.load_device("nvidia-l4")
    found = rk.bandwidth_to_match(p, other)
    assert found.at.total_s == pytest.approx(p.total_s, rel=1e-9)

    def with_times(factor: float) -> float:
        return rk.predict(graph, other.replace(dram={"bandwidth": factor * found.bandwidth}), batch=batch).total_s

    assert with_times(1.02) < p.total_s < with_times(0.98)
    assert found.second.total_s == rk.predict(graph, other, batch=batch).total_s


def test_a_gpu_that_differs_in_bandwidth_alone_needs_the_same(graph: rk.Graph) -> None:
    device = rk.load_device("nvidia-l4")
    narrow = device.replace(name="narrow", dram={"bandwidth": "100 GB/s"})
    found = rk.bandwidth_to_match(rk.predict(graph, narrow.replace(name="first", dram=device.dram), batch=16), narrow)
    assert found.bandwidth == pytest.approx(300e9, rel=1e-6)
    assert str(found) == "narrow is faster than first from 300 GB/s of DRAM bandwidth on; it has less: 100 GB/s"


def test_no_bandwidth_helps_where_arithmetic_is_slow() -> None:
    # 2^29 FLOP at 1 GFLOP/s take half a second.
    p = rk.predict(nn.ReLU(), rk.Input("batch", 2**26), gpu="nvidia-h200-sxm-141gb", batch=8)
    slow = rk.load_device("nvidia-t4").replace(vector_peak={"fp32": "1 GFLOP/s"})
    found = rk.bandwidth_to_match(p, slow)
    assert (found.bandwidth, found.at) == (None, None)
    assert str(found) == ("nvidia-t4 is slower than nvidia-h200-sxm-141gb at any DRAM bandwidth near its own 320 GB/s")


def test_wrong_names(graph: rk.Graph) -> None:
    p = rk.predict(graph, "nvidia-l4", batch=8)
    with pytest.raises(SizeError, match="no size is named 'bacth' in this workload"):
        rk.compute_bound_from(p, "bacth")
    with pytest.raises(InputError, match="Sequential has no module '7'"):
        rk.compute_bound_from(p, module="7")
    with pytest.raises(InputError, match="nvidia-l4 is the GPU of the step: name another one"):
        rk.bandwidth_to_match(p, "nvidia-l4")
    compiled = rk.predict(graph, "nvidia-l4", batch=8, execution="compiled")
    relu = next(op.name for op in graph.ops if "relu" in op.kind)
    with refused(InputError, f"{relu} runs no kernel of its own: it is a view, or fused with others (compiled)"):
        rk.compute_bound_from(compiled, op=relu)
