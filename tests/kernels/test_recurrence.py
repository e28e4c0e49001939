"""Recurrent layers as chains: t steps, batch b, state h, by hand."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learned import kernels
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import OWN_PRODUCT, PERSISTENT
from rooflinekit.kernels.kernel import Chain, Kernel
from rooflinekit.kernels.recurrence import HANDOVER
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import time_kernel

T, B, N, H = 64, 8, 256, 256
#: Without numbers in their weights, which would take 300 MB.
LSTM, GRU, RNN = (partial(layer, device="meta") for layer in (nn.LSTM, nn.GRU, nn.RNN))


def chains(layer: nn.RNNBase, device: Device | None = None, **options: object) -> list[Kernel]:
    found = kernels(lambda x: layer(x)[0], rk.Input(T, B, layer.input_size), device=device, **options)
    return [kernel for kernel in found if kernel.chain]


def chain(layer: nn.RNNBase, device: Device | None = None, **options: object) -> Chain:
    (found,) = chains(layer, device, **options)
    assert found.chain is not None
    return found.chain


# --- how the steps follow each other --------------------------------------------------------------


def test_one_layer_is_a_product_and_the_gates_after_each_other() -> None:
    assert chain(LSTM(N, H)) == Chain(links=64, kernels=128, starts=128, launches=128)


def test_stacked_layers_are_a_wavefront() -> None:
    # the last of three layers ends its last step 2 steps after the first; the CPU launches all 3·64 cells, and
    # hands each over to the stream of the next layer
    found = chain(GRU(N, H, num_layers=3))
    assert found == Chain(links=66, kernels=384, starts=2 * 66, launches=384 + 192 * HANDOVER)


def test_layers_of_two_directions_wait_for_all_of_the_layer_below() -> None:
    found = chain(LSTM(N, H, num_layers=3, bidirectional=True))
    assert found == Chain(links=3 * 64, kernels=768, starts=2 * 3 * 64, launches=768 + 384 * HANDOVER)


def test_backward_is_a_chain_of_its_own() -> None:
    forward, backward = chains(LSTM(N, H), mode="training", loss=torch.sum)
    assert (forward.chain, forward.phase) == (Chain(links=64, kernels=128, starts=128, launches=128), "forward")
    assert (backward.chain, backward.phase) == (forward.chain, "backward")


def test_a_library_without_streams_runs_layer_after_layer(device: Device) -> None:
    amd = device.replace(vendor="AMD", compute_capability="gfx942")
    assert chain(LSTM(N, H, num_layers=3), amd) == Chain(links=192, kernels=384, starts=384, launches=384)


@pytest.mark.parametrize(
    ("layer", "calls"),
    # oneDNN has one primitive for a layer of LSTM; a GRU's step is addmm, four sums, two sigmoids, tanh and three
    # products and differences, an RNN's addmm, a sum and tanh
    [(LSTM(N, H), 0), (GRU(N, H), 11 * T), (RNN(N, H), 3 * T)],
)
def test_a_cpu_loops_over_operators(device: Device, layer: nn.RNNBase, calls: int) -> None:
    assert chain(layer, device.replace(kind="cpu")) == Chain(
        links=T, kernels=calls or 2 * T, starts=calls or 2 * T, calls=calls
    )


def test_a_cell_in_a_loop_is_one_kernel_on_a_gpu_and_ten_operators_on_a_cpu(device: Device) -> None:
    on_gpu, on_cpu = (
        kernels(nn.GRUCell(N, H), rk.Input(B, N), rk.Input(B, H), device=place)
        for place in (device, device.replace(kind="cpu"))
    )
    assert [kernel.kind for kernel in on_gpu] == ["aten.mm", "aten.mm", "aten._thnn_fused_gru_cell"]
    assert on_gpu[-1].chain is None
    # two sums for each of both gates' products, two sigmoids, r·h, a sum, tanh, and (h - n)·z + n
    assert on_cpu[-1].chain == Chain(links=1, kernels=10, starts=10, calls=9)


# --- persistent kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "capability", "dtype", "expected"),
    [
        # small states, in any format
        (LSTM(N, 192, num_layers=2), "7.5", "float32", True),
        (LSTM(N, 193), "7.5", "float32", False),
        (RNN(N, 384), "6.0", "float32", True),
        (RNN(N, 385), "6.0", "float32", False),
        (LSTM(N, 128), "5.2", "float32", False),
        (LSTM(N, 128), "8.0", "float64", False),
        (LSTM(N, 128, proj_size=32), "8.0", "float32", False),
        # one layer of one direction in fp16, in multiples of 128 up to 1024, batches of a multiple of 8
        (LSTM(256, 1024), "8.0", "float16", True),
        (LSTM(256, 1024), "8.0", "float32", False),
        (LSTM(256, 1024), "8.0", "bfloat16", False),
        (LSTM(256, 1024), "8.6", "float16", False),
        (LSTM(256, 1024), "7.5", "float16", False),
        (LSTM(256, 1024), "7.0", "float16", True),
        (LSTM(256, 1024, num_layers=2), "8.0", "float16", False),
        (LSTM(256, 1024, bidirectional=True), "8.0", "float16", False),
        (LSTM(250, 1024), "8.0", "float16", False),
        (LSTM(256, 1152), "8.0", "float16", False),
        (GRU(256, 1024), "8.0", "float16", False),
        (RNN(256, 1024), "9.0", "float16", True),
    ],
)
def test_which_layers_keep_their_weights_on_the_sms(
    device: Device, layer: nn.RNNBase, capability: str, dtype: str, expected: bool
) -> None:
    gpu = device.replace(vendor="NVIDIA", compute_capability=capability, sm_count=100)
    (found,) = chains(layer, gpu, dtype=dtype)
    assert (found.algorithm == PERSISTENT) == expected
    assert found.chain is not None
    assert bool(found.chain.barriers) == expected


def test_few_sms_and_odd_batches_are_launched_step_by_step(device: Device) -> None:
    gpu = device.replace(vendor="NVIDIA", compute_capability="8.0", sm_count=97)
    assert chain(LSTM(256, 1024), gpu, dtype="float16").barriers == 0
    odd = kernels(LSTM(256, 1024), rk.Input(T, 12, 256), device=gpu.replace(sm_count=108), dtype="float16")
    assert [kernel.chain.barriers for kernel in odd if kernel.chain] == [0]


def test_backward_keeps_the_weights_of_smaller_states_only(device: Device) -> None:
    gpu = device.replace(vendor="NVIDIA", compute_capability="8.6")
    forward, backward = chains(LSTM(N, 160), gpu, mode="training", loss=torch.sum)
    assert (forward.algorithm, backward.algorithm) == (PERSISTENT, OWN_PRODUCT)


def test_weights_that_stay_are_read_once(device: Device) -> None:
    gpu = device.replace(vendor="NVIDIA", compute_capability="8.6")
    (stays,) = chains(LSTM(N, 128), gpu)
    (again,) = chains(LSTM(N, 128), device)
    # 512·128 numbers of 4 bytes, in 63 of 64 steps
    assert again.cost.bytes - stays.cost.bytes == 63 * 512 * 128 * 4


def test_weights_that_the_cache_holds_are_no_traffic_of_each_step(device: Device) -> None:
    # A step: 1024·256 weights and, of 8 sequences, 3·1024 gates (the inputs' read, the product written and read) and a
    # state and a cell, both in and out: 4·(262144 + 8·(3·1024 + 4·256)) = 1179648 bytes; 1.25 MB hold them.
    large, small = (device.replace(l2_capacity=size) for size in (1.25e6, 1.0e6))
    (held,), (fetched,) = (chains(LSTM(N, H), one) for one in (large, small))
    assert fetched.bytes == T * 1179648
    # The first step fetches the weights; the product, state and cell are read where the step before has left them.
    assert held.bytes == 4 * (262144 + T * 8 * (2 * 1024 + 2 * 256))
    assert held.cost == fetched.cost  # which the time is of


def test_packed_sequences_are_launched_step_by_step(device: Device) -> None:
    layer = LSTM(N, 128)

    def model(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0]

    gpu = device.replace(vendor="NVIDIA", compute_capability="8.6")
    found = kernels(model, rk.Input(T, B, N), rk.Input(B, dtype="int64"), device=gpu)
    assert [kernel.chain for kernel in found if kernel.chain] == [
        Chain(links=T, kernels=2 * T, starts=2 * T, launches=2 * T)
    ]


# --- times ----------------------------------------------------------------------------------------


def test_a_chain_takes_as_often_as_it_has_links(device: Device) -> None:
    # a start of 2500 cycles at 1.25 GHz is 2 µs, of a product 3 µs, and so a step 5 µs beside its work
    machine = Machine.of(device, constants(kernel_ramp_cycles=2500.0, product_ramp_cycles=3750.0))
    (found,) = chains(LSTM(N, H))
    timing = time_kernel(found, machine)
    assert timing.launch_s == pytest.approx(64 * 5e-6)
    # 2·8·1024·256 FLOP a step: 0.42 µs at 10 TFLOP/s
    assert timing.ideal_s >= 64 * 2 * 8 * 1024 * 256 / 10e12
    assert timing.total_s == pytest.approx(sum(timing.terms().values()))


def test_a_persistent_layer_starts_once_and_waits_at_each_step(device: Device) -> None:
    gpu = device.replace(vendor="NVIDIA", compute_capability="8.6")
    values = {"kernel_ramp_cycles": 2500.0, "product_ramp_cycles": 3750.0}
    (found,) = chains(LSTM(N, 128), gpu)
    timing = time_kernel(found, Machine.of(gpu, constants(**values)))
    assert timing.launch_s == pytest.approx(3e-6 + 64 * 2e-6)


def test_the_cpu_sets_the_pace_of_a_chain_of_little_work(machine: Machine, host: Host) -> None:
    # on a GPU without starts: 10 µs for the op with its first kernel, then 2·64 launches of 1 µs, and the last link
    layer = LSTM(N, H)
    graph = rk.trace(lambda x: layer(x)[0], rk.Input(T, B, N)).at()
    p = predict_graph(graph, machine, host, Execution())
    before = [span for span in p.spans if not span.timing.kernel.chain]
    (link,) = (span for span in p.spans if span.timing.kernel.chain)
    zeros = sum(span.timing.kernel.kind != "aten._cudnn_rnn" for span in before)
    cpu_us = 10 * (zeros + 1) + 128
    assert p.cpu_s == pytest.approx((cpu_us + 0) * 1e-6, abs=3e-6)  # views
    assert p.total_s == pytest.approx(p.cpu_s + link.timing.total_s / 64, rel=1e-6)
    assert p.regime == "overhead"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40))
def test_more_samples_never_take_less_time(steps: int, batch: int) -> None:
    graph = rk.trace(GRU(32, 64, 2), rk.Input("t", "b", 32))
    one, two = (rk.predict(graph, "nvidia-a30", t=steps, b=b).total_s for b in (batch, 2 * batch))
    assert one <= two * (1 + 1e-9)


def test_a_layer_runs_in_tf32_where_cudnn_is_left_alone() -> None:
    (found,) = chains(LSTM(N, H))
    assert found.math is Math.TF32
    (found,) = chains(LSTM(N, H), tf32=False)
    assert found.math is Math.FP32


# --- ways of execution ----------------------------------------------------------------------------


def test_a_cuda_graph_frees_a_chain_of_the_cpu() -> None:
    graph = rk.trace(GRU(256, 256, 4), rk.Input(128, 8, 256))
    eager, captured = (
        rk.predict(graph, "nvidia-a100-sxm4-80gb", execution=execution) for execution in ("eager", "cuda-graph")
    )
    assert captured.total_s < 0.5 * eager.total_s
    assert captured.terms()["overhead"] < 1e-4


def test_torch_compile_leaves_recurrent_layers_alone() -> None:
    graph = rk.trace(GRU(256, 256, 4), rk.Input(128, 8, 256))
    eager, compiled, replayed = (
        rk.predict(graph, "nvidia-a100-sxm4-80gb", execution=execution)
        for execution in ("eager", "compiled", "reduce-overhead")
    )
    assert compiled.total_s == pytest.approx(eager.total_s, rel=0.05)
    assert replayed.total_s == pytest.approx(eager.total_s, rel=0.05)
    assert any("recurrent layers run as in eager mode" in note for note in compiled.notes)


def test_points_of_a_sweep_are_predictions() -> None:
    graph = rk.trace(LSTM(32, 48, 2, bidirectional=True), rk.Input("t", "b", 32))
    table = rk.sweep(graph, gpus=["nvidia-a30"], t=range(10, 130, 7), b=range(2, 40, 5))
    for _, row in table.iloc[::29].iterrows():
        p = rk.predict(graph, "nvidia-a30", t=int(row["t"]), b=int(row["b"]))
        assert row["total_s"] == pytest.approx(p.total_s, rel=1e-12)
        assert row["high_s"] == pytest.approx(p.interval(0.9)[1], rel=1e-12)
