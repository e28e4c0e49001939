"""A prediction: its sums, tables, interval, memory and words."""

import json
import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import DeviceNotFoundError, FormatError, InputError, SizeError
from rooflinekit.hardware.host import Host
from rooflinekit.step.labels import REGIME_TERMS, parted
from rooflinekit.step.prediction import predict_graph
from rooflinekit.step.timeline import Execution
from rooflinekit.timing.machine import Machine


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(Net(), rk.Input("batch", 3, 32, 32), mode="training", optimizer=torch.optim.SGD)


@pytest.fixture(params=["none", "step", "op"])
def prediction(graph: rk.Graph, request: pytest.FixtureRequest) -> rk.Prediction:
    return rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=64, execution=rk.Execution(sync=request.param))


def test_terms_add_up_to_the_total(prediction: rk.Prediction) -> None:
    assert sum(prediction.terms().values()) == prediction.total_s
    assert list(prediction.terms()) == ["ideal", "underuse", "memory", "launch", "overhead", "input"]
    assert all(seconds >= 0 for seconds in prediction.terms().values())
    assert prediction.gpu_s + prediction.terms()["overhead"] == pytest.approx(prediction.total_s)
    assert sum(prediction.shares.values()) == pytest.approx(1)


def test_the_timeline_ends_when_the_terms_say(prediction: rk.Prediction) -> None:
    assert prediction.spans[-1].end_s + prediction.timeline.tail_s == pytest.approx(prediction.total_s)


def test_tables_add_up(prediction: rk.Prediction) -> None:
    in_kernels = prediction.total_s - prediction.timeline.tail_s
    for table in (prediction.by_module(), prediction.by_module(1), prediction.by_kind(), prediction.by_phase()):
        assert table["total_s"].sum() == pytest.approx(in_kernels)
        assert table["gpu_s"].sum() == pytest.approx(prediction.gpu_s)
        assert table["kernels"].sum() == len(prediction.timings)
        parts = table[["ideal_s", "underuse_s", "memory_s", "launch_s", "overhead_s"]].sum(axis=1)
        assert parts.to_numpy() == pytest.approx(table["total_s"].to_numpy())
    assert set(prediction.by_phase().index) == {"forward", "backward", "optimizer"}
    assert set(prediction.by_module(1).index) == {"", "body", "head"}
    assert len(prediction.by_kernel()) == len(prediction.timings)


def test_a_step_by_hand(machine: Machine, host: Host) -> None:
    # Linear 1000→1280 at batch 1280: two full waves of 50 tiles of 128×128. 3.2768 GFLOP at 10 TFLOP/s and a bias of
    # 1.6384 MFLOP at half of it, as single instructions are: 327.68 + 0.32768 = 328.00768 µs, beside 17 MB; relu:
    # 6.5536 MB in and out at 1 TB/s (the L2 of 4 MB holds none of it). Issue: 1 µs for the transposed view, 10 µs for
    # the product.
    graph = rk.trace(nn.Sequential(nn.Linear(1000, 1280), nn.ReLU()), rk.Input(1280, 1000))
    found = predict_graph(graph, machine, host, Execution(sync="step"))
    busy = 328.00768e-6 + 2 * 6.5536e-6
    assert found.gpu_s == pytest.approx(busy)
    assert found.total_s == pytest.approx(11e-6 + busy)
    assert found.cpu_s == pytest.approx(21e-6)
    assert found.regime == "compute"
    assert found.flop == 2 * 1280**2 * 1000 + 1280**2 + 1280**2  # product, bias, relu
    # x, weight, bias, y; then y and z
    assert found.bytes == 4 * (2 * 1280 * 1000 + 1280 + 1280**2) + 4 * 2 * 1280**2


def test_regimes() -> None:
    def regime(model: nn.Module, *inputs: rk.Input) -> str:
        return rk.predict(model, *inputs, gpu="nvidia-a100-sxm4-80gb").regime

    assert regime(nn.Linear(8192, 8192, device="meta"), rk.Input(8192, 8192)) == "compute"
    assert regime(nn.ReLU(), rk.Input(2**28)) == "memory"
    assert regime(nn.Sequential(*[nn.ReLU()] * 20), rk.Input(16)) == "overhead"
    # As a CUDA graph the GPU waits for nobody: its kernels are all start.
    small = rk.predict(
        nn.Sequential(*[nn.ReLU()] * 2000), rk.Input(16), gpu="nvidia-a100-sxm4-80gb", execution="cuda-graph"
    )
    assert small.regime == "latency"


@pytest.fixture(scope="module")
def layers() -> rk.Graph:
    body = nn.Sequential(nn.Linear(256, 1024), nn.LayerNorm(1024), nn.GELU(), nn.Linear(1024, 256), nn.Softmax(-1))
    return rk.trace(body, rk.Input("batch", 256))


@settings(max_examples=40, deadline=None)
@given(
    gpu=st.sampled_from(["nvidia-t4", "nvidia-l4", "nvidia-p100-pcie-16gb", "nvidia-h100-sxm5-80gb"]),
    doublings=st.integers(0, 16),
    execution=st.sampled_from(["eager", "compiled", "cuda-graph"]),
)
def test_the_regime_is_the_largest_sum_of_the_terms(layers: rk.Graph, gpu: str, doublings: int, execution: str) -> None:
    p = rk.predict(layers, gpu, batch=2**doublings, execution=execution)
    terms = parted(p.terms(), p.underuse())
    sums = {regime: sum(terms[name] for name in names) for regime, names in REGIME_TERMS.items()}
    assert sum(sums.values()) == pytest.approx(p.total_s)
    assert {name: s / p.total_s for name, s in sums.items()} == pytest.approx(dict(p.shares), abs=1e-12)
    assert sums[p.regime] == pytest.approx(max(sums.values()))


def test_more_bandwidth_is_never_slower_for_a_step(graph: rk.Graph) -> None:
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    times = []
    for factor in (0.5, 1, 2, 8):
        dram = device.dram.replace(bandwidth=device.dram.bandwidth * factor, pin_rate=None)
        times.append(rk.predict(graph, device.replace(dram=dram), batch=64).total_s)
    assert times == sorted(times, reverse=True)


def test_interval(prediction: rk.Prediction) -> None:
    low, high = prediction.interval(0.9)
    assert low < prediction.total_s < high
    wider = prediction.interval(0.99)
    assert wider[0] < low < high < wider[1]
    with pytest.raises(ValueError, match="expected a probability between 0 and 1; got 1"):
        prediction.interval(1)


def test_interval_of_equal_kernels(machine: Machine, host: Host) -> None:
    # 16 kernels of one shape: 10 % that the family is off, 20 % that this shape is, 5 % of the day; 1.645 of it at 90 %
    layers = [nn.Linear(4000, 4000, bias=False, device="meta") for _ in range(16)]
    graph = rk.trace(nn.Sequential(*layers), rk.Input(4000, 4000))
    found = predict_graph(graph, machine, host, Execution(sync="none"))
    assert found.shares["compute"] == pytest.approx(1)
    assert math.log(found.interval(0.9)[1] / found.total_s) == pytest.approx(
        math.hypot(0.1, 0.2, 0.05) * 1.6449, rel=1e-3
    )
    # what starts take is known to 10 %: it adds as far as a step consists of them
    starting = Machine.of(machine.device, constants(kernel_ramp_cycles=1e7, product_ramp_cycles=1e7))
    found = predict_graph(graph, starting, host, Execution(sync="none"))
    share = 16 * 1e7 / starting.clock / found.total_s
    assert 0.3 < share < 0.9
    assert math.log(found.interval(0.9)[1] / found.total_s) == pytest.approx(
        math.hypot(0.1, 0.2, 0.05, 0.1 * share) * 1.6449, rel=1e-3
    )


def test_memory_of_a_training_step(machine: Machine, host: Host) -> None:
    # Weight 100·50 and bias 50; AdamW keeps two moments of each; gradients are as large as the weights.
    graph = rk.trace(nn.Linear(100, 50), rk.Input(8, 100), mode="training", optimizer=torch.optim.AdamW)
    memory = predict_graph(graph, machine, host, Execution()).memory
    assert memory.weight_bytes == memory.gradient_bytes == 4 * 5050
    assert memory.state_bytes == 2 * 4 * 5050
    assert memory.peak_bytes >= 4 * (4 * 5050 + 800)  # and the input
    assert memory.fits


def test_memory_lives_from_first_to_last_use(machine: Machine, host: Host) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x.exp()
        return x

    memory = predict_graph(rk.trace(chain, rk.Input(1000)), machine, host, Execution()).memory
    # the input, and one result while the next is made; 4000 bytes take a block of 8 · 512
    assert memory.peak_bytes == 3 * 4096

    def skip(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y.exp().exp() + y

    memory = predict_graph(rk.trace(skip, rk.Input(1000)), machine, host, Execution()).memory
    assert memory.peak_bytes == 4 * 4096  # input; y; its exp; the next


def test_training_keeps_activations_for_backward(machine: Machine, host: Host) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64, bias=False), nn.Sigmoid()) for _ in range(6)])
    infer, train = (rk.trace(model, rk.Input(1000, 64), mode=mode) for mode in ("inference", "training"))
    peaks = [predict_graph(g, machine, host, Execution()).memory.peak_bytes for g in (infer, train)]
    # weights; input; what a block was called with, its product, and the activation; cuBLAS's 2 · 4 MiB and 8 · 16 KiB
    assert peaks[0] == 6 * 64 * 64 * 4 + 4 * 64_000 * 4 + 8_519_680
    assert peaks[1] > 6 * 64_000 * 4 + 6 * 64 * 64 * 4  # each sigmoid's output stays


def test_what_does_not_fit_is_said() -> None:
    found = rk.predict(nn.Linear(100_000, 50_000, device="meta"), rk.Input(4, 100_000), gpu="nvidia-rtx-2080-ti")
    assert not found.memory.fits
    assert any("does not fit" in note for note in found.notes)
    # 20 GB of weights are more than 11 GB; of fewer bytes than the memory has only the pieces can be the reason
    assert "in pieces" not in found.memory.note("gpu")
    assert "lies in pieces" in replace(found.memory, reserved_bytes=10**9).note("gpu")


def test_emulated_formats_are_said() -> None:
    found = rk.predict(nn.Linear(8, 8), rk.Input(2, 8), gpu="V100-SXM2-16GB", dtype="bfloat16", host="generic-server")
    assert found.notes == (
        "nvidia-v100-sxm2-16gb has no bf16 matrix units: computed in fp32",
        "nvidia-v100-sxm2-16gb: fp32 product kernels are not measured; constants of its architecture "
        "(nvidia-v100-pcie-16gb, nvidia-v100-pcie-32gb) or of all GPUs, wider interval",
    )


def test_absent_formats_are_refused() -> None:
    def product(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16)

    inputs = (rk.Input(32, 64, dtype="float8_e4m3fn"), rk.Input(16, 64, dtype="float8_e4m3fn"), rk.Input())
    assert rk.predict(product, *inputs, gpu="nvidia-h100-sxm5-80gb").total_s > 0
    with pytest.raises(FormatError, match="nvidia-a100-sxm4-80gb has no fp8 arithmetic"):
        rk.predict(product, *inputs, gpu="nvidia-a100-sxm4-80gb")


def test_json_round_trip_and_words(prediction: rk.Prediction) -> None:
    document = json.loads(json.dumps(prediction.to_dict()))
    assert sum(document["terms"].values()) == pytest.approx(document["total_s"])
    assert document["sizes"] == {"batch": 64}
    assert document["regime"] == max(document["shares"], key=document["shares"].__getitem__)
    first = str(prediction).splitlines()[0]
    assert first.startswith("Net training (batch=64), float32, eager on nvidia-a100-sxm4-80gb: ")
    assert first.endswith(f"{prediction.regime}-bound")


def test_a_graph_at_numbers_is_predicted_like_the_model_at_these_numbers(graph: rk.Graph) -> None:
    by_graph = rk.predict(graph, "nvidia-l4", batch=16)
    by_model = rk.predict(
        Net(), rk.Input("batch", 3, 32, 32), "nvidia-l4", batch=16, mode="training", optimizer=torch.optim.SGD
    )
    assert by_graph.total_s == pytest.approx(by_model.total_s)
    assert by_graph.flop == by_model.flop


def test_wrong_calls_say_what_is_wrong(graph: rk.Graph) -> None:
    with pytest.raises(InputError, match="gpu is missing: name one"):
        rk.predict(graph)
    with pytest.raises(SizeError, match="no number is given for size 'batch': add batch=…"):
        rk.predict(graph, "nvidia-l4")
    with pytest.raises(SizeError, match="no number is given for size 'batch'"):
        rk.predict(Net(), rk.Input("batch", 3, 32, 32), gpu="nvidia-l4")
    with pytest.raises(SizeError, match=r"size 'batch': expected a positive integer; got 2\.5"):
        rk.predict(graph, "nvidia-l4", batch=2.5)
    with pytest.raises(DeviceNotFoundError, match="unknown device 'nvidia-l5'"):
        rk.predict(graph, "nvidia-l5", batch=2)
    with pytest.raises(InputError, match="a Graph has its inputs already; got 1 more"):
        rk.predict(graph, rk.Input(3), "nvidia-l4", batch=2)


def test_keyword_inputs_and_targets_name_sizes_too() -> None:
    def model(x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:
        return x + bias

    found = rk.predict(model, rk.Input("n", 4), gpu="nvidia-l4", bias=rk.Input("m", 4), n=6, m=6)
    assert found.sizes == {"n": 6, "m": 6}
    with pytest.raises(SizeError, match="no number is given for size 'm'"):
        rk.predict(model, rk.Input("n", 4), gpu="nvidia-l4", bias=rk.Input("m", 4), n=6)


def test_representations_are_short(graph: rk.Graph, prediction: rk.Prediction) -> None:
    assert repr(graph) == f"<Graph Net training (batch open): {len(graph.ops)} ops, {graph.matrix_flop} matrix FLOP>"
    assert repr(graph.at(batch=2)).startswith("<Graph Net training (batch=2): ")
    assert repr(prediction).startswith("<Prediction Net training (batch=64), float32, eager on nvidia-a100-sxm4-80gb: ")
    assert repr(rk.explain(prediction, prediction)).startswith("<Explanation Net does as many FLOP as Net")


BACKENDS = ("eager", "compiled", "cuda-graph", "reduce-overhead")


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize("sync", ["none", "step"])
def test_laws_of_execution(mode: str, batch: int, sync: str) -> None:
    traced = rk.trace(Net(), rk.Input("batch", 3, 32, 32), mode=mode)
    found = {
        backend: rk.predict(traced, "nvidia-rtx-4090", batch=batch, execution=rk.Execution(backend=backend, sync=sync))
        for backend in BACKENDS
    }
    assert all(sum(p.terms().values()) == pytest.approx(p.total_s) for p in found.values())
    eager, compiled, graph, both = (found[backend] for backend in BACKENDS)
    assert graph.gpu_s <= eager.gpu_s
    (copy, *replayed), copied_s = both.timings, both.timings[0].total_s  # of the input, to where the graph reads it
    assert both.gpu_s - copied_s <= compiled.gpu_s
    assert copy.kernel.cost.read_bytes == 4 * batch * 3 * 32 * 32
    assert graph.cpu_s < eager.cpu_s
    assert both.cpu_s < compiled.cpu_s
    assert [t.kernel for t in graph.timings] == [t.kernel for t in eager.timings]
    assert [t.kernel for t in replayed] == [t.kernel for t in compiled.timings]
    assert {p.flop for p in found.values()} == {eager.flop}


def test_a_graph_saves_the_gaps(machine: Machine, host: Host) -> None:
    gapped = machine.with_values({**machine.values, "kernel_gap": 3e-6, "kernel_gap_graph": 1e-6})
    traced = rk.trace(lambda x: x.relu().exp(), rk.Input(64, 64), fixed=True)
    eager, replayed = (
        predict_graph(traced, gapped, host, Execution(backend=backend)) for backend in ("eager", "cuda-graph")
    )
    assert eager.gpu_s - replayed.gpu_s == pytest.approx(2 * 2e-6)


def test_fused_kernels_have_names_and_a_compiled_step_says_what_it_assumes() -> None:
    traced = rk.trace(Net(), rk.Input(64, 3, 32, 32), fixed=True)
    compiled = rk.predict(traced, "nvidia-rtx-4090", execution="compiled")
    assert "triton_per_fused_bias_native_batch_norm_relu_mean_1" in compiled.by_kernel().index
    assert compiled.assumptions == ("compiled: inductor runs the convolutions with channels last",)
    assert compiled.to_dict()["execution"] == {
        "backend": "compiled", "sync": "step", "copy": "none", "non_blocking": False, "loader_rate": None,
        "attention": None,
    }  # fmt: skip
    assert not any("compiled" in note for note in rk.predict(traced, "nvidia-rtx-4090").notes)


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_what_is_remembered_of_a_graph_changes_no_answer(execution: str) -> None:
    # Kernels and blocks of a graph are made once for devices that run the same ones.
    gpus = ["nvidia-l4", "nvidia-l40s", "nvidia-t4", "nvidia-p100-pcie-16gb", "amd-mi210", "nvidia-h100-sxm5-80gb"]

    def traced() -> rk.Graph:
        layers = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten())
        return rk.trace(layers, rk.Input("batch", 3, 32, 32), mode="training").at(batch=64)

    graph = traced()
    for gpu in (*gpus, *reversed(gpus)):
        found, fresh = (rk.predict(one, gpu, execution=execution).to_dict() for one in (graph, traced()))
        assert found == fresh


def test_memory_near_the_limit_is_that_of_a_fresh_graph() -> None:
    graph = rk.trace(nn.Sequential(*[nn.Linear(1024, 1024)] * 4), rk.Input("batch", 1024), mode="training")
    base = rk.load_device("nvidia-l4")
    at = graph.at(batch=100_000)
    for gigabytes in (24, 3, 2.2, 2.0, 1.5, 1.0, 24):
        device = base.replace(dram={"capacity": gigabytes * 1e9})
        assert rk.predict(at, device).memory == rk.predict(graph.at(batch=100_000), device).memory


def test_a_graph_goes_to_another_process_after_a_prediction_as_before() -> None:
    graph = rk.trace(nn.Linear(8, 8), rk.Input("batch", 8)).at(batch=4)
    before = len(pickle.dumps(graph))
    found = rk.predict(graph, "nvidia-l4")
    assert len(pickle.dumps(graph)) == before  # without what is remembered of it
    assert rk.predict(pickle.loads(pickle.dumps(graph)), "nvidia-l4").to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("gpu", "peak"), [("nvidia-a100-sxm4-80gb", 156e12), ("amd-mi100", 46.1e12), ("nvidia-p100-sxm2-16gb", 10.6e12)]
)
def test_utilization_is_of_the_unit_that_multiplies(gpu: str, peak: float) -> None:
    """As tf32 where there is such a unit, by an engine of whole fp32 numbers (MI100), or by fp32 lanes (P100)."""
    graph = rk.trace(nn.Linear(64, 32), rk.Input(16, 64), tf32=True)
    found = rk.predict(graph, gpu)
    assert found.mfu == pytest.approx(2 * 16 * 64 * 32 / peak / found.total_s, rel=1e-3)


def test_utilization_counts_what_the_network_asks_for() -> None:
    """Winograd takes 4 of 9 multiplications; asked for are 9·128 multiply-adds for each of 128 · 32·32 results."""
    layer = nn.Conv2d(128, 128, 3, padding=1, bias=False)
    found = rk.predict(rk.trace(layer, rk.Input(32, 128, 32, 32)), "nvidia-p100-sxm2-16gb")
    assert any("Winograd" in timing.kernel.algorithm.name for timing in found.timings)
    assert found.mfu == pytest.approx(2 * 32 * 128 * 32 * 32 * 9 * 128 / 10.6e12 / found.total_s, rel=1e-3)
