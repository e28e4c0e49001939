"""What is around a compiled step: guards, copies of inputs, and what a CUDA graph cannot hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.step.bounds import bounds
from rooflinekit.step.entry import as_run, changed_inputs, entry_of, input_copies, issues_for, issuing
from rooflinekit.step.execution import Execution

US = 1e-6


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(self.norm(self.conv(x)))
        return out


def of_mode(mode: str) -> rk.Graph:
    return rk.trace(Normed(), rk.Input(2, 3, 8, 8), mode=mode)  # type: ignore[arg-type]


def test_every_weight_buffer_and_input_is_guarded(host: Host) -> None:
    slow = host.replace(guard=2 * US, graph_entry=4 * US)
    graph = of_mode("inference")
    # a weight; gain, shift, running mean and variance, and the count of batches; the input: 7 tensors
    assert len(graph.weights) + len(graph.inputs) == 7
    assert entry_of(slow, Execution(backend="compiled"), graph).enter_s == pytest.approx(44 * US)  # 30 + 7 · 2
    assert entry_of(slow, Execution(), graph).enter_s == 0
    # the launch 1 + 10 µs; torch.compile also has to find its graph
    assert entry_of(slow, Execution(backend="cuda-graph"), graph).replay_s == pytest.approx(11 * US)
    assert entry_of(slow, Execution(backend="max-autotune"), graph).replay_s == pytest.approx(15 * US)
    assert entry_of(slow, Execution(backend="max-autotune-no-cudagraphs"), graph).replay_s == 0


def test_a_graph_of_torch_compile_copies_its_inputs() -> None:
    graph = of_mode("inference")
    size = 2 * 3 * 8 * 8 * 4
    for backend in ("reduce-overhead", "max-autotune", "cudagraphs"):
        (copy,) = input_copies(graph, Execution(backend=backend))  # type: ignore[arg-type]
        assert (copy.kernels[0].cost.read_bytes, copy.kernels[0].cost.write_bytes) == (size, size)
    for backend in ("eager", "compiled", "cuda-graph"):
        assert input_copies(graph, Execution(backend=backend)) == ()  # type: ignore[arg-type]


def test_a_forward_pass_in_training_mode_drops_and_keeps_statistics() -> None:
    graph = of_mode("forward")
    kinds = [op.kind for op in graph.ops]
    assert not graph.gradients
    assert "aten.add_" in kinds  # counts batches
    assert any("bernoulli" in kind or "dropout" in kind for kind in kinds)
    (norm,) = [op for op in graph.ops if op.kind == "aten.native_batch_norm"]
    assert norm.attrs["training"]
    assert changed_inputs(graph) == ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert changed_inputs(of_mode("inference")) == ()


def test_a_step_that_changes_buffers_is_not_recorded_by_the_backend_cudagraphs() -> None:
    asked = Execution(backend="cudagraphs")
    assert as_run(of_mode("inference"), asked) is asked
    found = rk.predict(of_mode("forward"), "nvidia-l4", execution=asked)
    assert found.execution.backend == "aot-eager"
    assert any("'norm.num_batches_tracked' and 2 more in place" in note for note in found.notes)
    # three buffers copied back, each an op
    leave = entry_of(rk.load_host(), Execution(backend="aot-eager"), of_mode("forward")).leave_s
    assert leave == pytest.approx(3 * rk.load_host().compiled_call * rk.load_host().dispatch_s("default"))
    # inductor keeps changes of its inputs within the graph
    assert as_run(of_mode("forward"), Execution(backend="reduce-overhead")).backend == "reduce-overhead"


def test_inference_mode_is_the_same_work_with_less_to_keep(host: Host) -> None:
    plain, quick = (rk.trace(Normed(), rk.Input(2, 3, 8, 8), inference_mode=on) for on in (False, True))
    assert [op.kind for op in plain.ops] == [op.kind for op in quick.ops]
    assert issuing(host, plain) is host
    # a view 0.46 of 1 µs, another op a quarter of a view less than 10 µs
    assert issuing(host, quick).dispatch == pytest.approx({"default": 9.75 * US, "view": 0.46 * US})
    with pytest.raises(InputError, match="a training step needs gradients"):
        rk.trace(Normed(), rk.Input(2, 3, 8, 8), mode="training", inference_mode=True)


def test_python_calls_each_module_once(host: Host) -> None:
    graph, slow = of_mode("inference"), host.replace(module=3 * US)
    more, less = (rk.predict(graph, "nvidia-l4", host=h).cpu_s for h in (slow, host))
    # the root, its convolution and its norm; dropout does nothing in evaluation, and no op tells of its call
    assert more - less == pytest.approx(9 * US)


def test_events_leave_out_what_is_around_a_step(host: Host) -> None:
    around = host.replace(step=50 * US, launch_latency=20 * US, sync=30 * US, record=4 * US)
    step, between = (
        rk.predict(of_mode("inference"), "nvidia-l4", host=around, execution=Execution(sync=sync)).total_s
        for sync in ("step", "events")  # type: ignore[arg-type]
    )
    assert step - between == pytest.approx((50 + 20 + 30 - 4) * US)


@given(
    st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2), st.floats(0, 0.5), st.floats(0, 1), st.floats(0.1, 3),
    st.booleans(),
)  # fmt: skip
def test_laws_of_bounds(gpu: float, cpu: float, kernels: float, spread: float, z: float, in_series: bool) -> None:
    total = gpu + cpu if in_series else max(gpu, cpu)
    low, high = bounds(total, cpu, gpu, kernels * gpu, spread, z, in_series=in_series)
    assert 0 < low <= total * (1 + 1e-12)
    assert total <= high * (1 + 1e-12)
    wider = bounds(total, cpu, gpu, kernels * gpu, 1.5 * spread, z, in_series=in_series)
    assert wider[0] <= low * (1 + 1e-9)
    assert high <= wider[1] * (1 + 1e-9)


def test_bounds_by_hand() -> None:
    # a host off by a factor of 2 either way: 100 µs of CPU against 80 µs of GPU is 80 to 200 µs
    low, high = bounds(100.0, 100.0, 80.0, 0.0, math.log(2), 1.0, in_series=False)
    assert (low, high) == pytest.approx((80, 200))
    # the GPU decides: a faster host changes nothing, one of 60 µs is at 120 twice as slow
    assert bounds(80.0, 60.0, 80.0, 0.0, math.log(2), 1.0, in_series=False) == pytest.approx((80, 120))
    # on a CPU kernels and dispatch follow each other: 80 + 100 is 80 + 50 to 80 + 200
    assert bounds(180.0, 100.0, 80.0, 0.0, math.log(2), 1.0, in_series=True) == pytest.approx((130, 280))
    # kernels alone: exp(0.1) of a step of which they are all; and the same of many at once
    assert bounds(1.0, 0.0, 1.0, 0.1, 0.0, 1.0, in_series=False) == pytest.approx((math.exp(-0.1), math.exp(0.1)))
    both = bounds(
        np.array([1.0, 0.0]), np.zeros(2), np.array([1.0, 0.0]), np.array([0.1, 0.0]), 0.0, 1.0, in_series=False
    )
    assert np.allclose(both, [[math.exp(-0.1), 0], [math.exp(0.1), 0]])


def test_kernels_that_are_chosen_by_times_are_those_of_the_device_as_it_is() -> None:
    # A product of 69 GFLOP and GELU over its 32 MiB, 33 µs of traffic at 2 TB/s. At 312 TFLOP/s the template at 0.9 of
    # that rate takes 0.24 ms, the two apart 0.25 ms; a board of the same name with a quarter of it 0.98 and 0.91 ms.
    layers = nn.Sequential(nn.Linear(2048, 4096, dtype=torch.float16), nn.GELU())
    graph = rk.trace(layers, rk.Input("batch", 2048, dtype="float16")).at(batch=4096)
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    slower = device.replace(matrix_peak={name: rate / 4 for name, rate in device.matrix_peak.items()})
    counts = [
        sum(len(issue.kernels) for issue in issues_for(graph, one, Execution(backend="max-autotune-no-cudagraphs")))
        for one in (device, slower, device)
    ]
    assert counts == [1, 2, 1]
