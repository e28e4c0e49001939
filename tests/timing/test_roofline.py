"""Kernel times against numbers worked out by hand, and the laws that every kernel obeys."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from round_numbers import DEVICE, constants

import rooflinekit as rk
from rooflinekit.errors import FormatError
from rooflinekit.hardware.device import Clock, Device, Memory
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Math, Phase
from rooflinekit.kernels import algorithms, cudnn
from rooflinekit.kernels.cudnn import FUSED_WINOGRAD
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing, time_kernel


def kernel(cost: Cost, math: Math = Math.FP32, *, tensor_core: bool = True, winograd: Cost | None = None) -> Kernel:
    others = ()
    if winograd is not None:
        others = (replace(kernel(winograd, math), algorithm=FUSED_WINOGRAD, family=Family.CONVOLUTION),)
    return Kernel(
        name="k",
        kind="test.k",
        family=Family.MATMUL,
        module="",
        phase=Phase.FORWARD,
        math=math,
        cost=cost,
        algorithm=algorithms.PRODUCT if tensor_core else cudnn.on_cuda_cores(algorithms.PRODUCT),
        alternatives=others,
    )


# 100 tiles of 128×128: two full waves of the round GPU's 50 SMs. 2·1280·1280·1000 = 3.2768 GFLOP, 12 MB.
PRODUCT = Cost(gemms=(Gemm(m=1280, n=1280, k=1000),), read_bytes=8_000_000, write_bytes=4_000_000)


def test_a_compute_bound_product(machine: Machine) -> None:
    timing = time_kernel(kernel(PRODUCT), machine)
    assert timing.compute_s == pytest.approx(327.68e-6)  # 3.2768 GFLOP at 10 TFLOP/s
    assert timing.memory_s == pytest.approx(12e-6)  # 12 MB at 1 TB/s
    assert timing.total_s == pytest.approx(327.68e-6)
    assert timing.bound == "compute"


def test_the_same_product_on_the_tensor_core_is_memory_bound_less_far(machine: Machine) -> None:
    timing = time_kernel(kernel(PRODUCT, Math.FP16), machine)
    assert timing.compute_s == pytest.approx(32.768e-6)  # at 100 TFLOP/s
    assert time_kernel(kernel(PRODUCT, Math.FP16, tensor_core=False), machine).compute_s == pytest.approx(327.68e-6)


def test_shares_and_start(device: Device) -> None:
    slow = Machine.of(device, constants(issue_share=0.5, product_memory_share=0.8, kernel_gap=3e-6))
    timing = time_kernel(kernel(PRODUCT), slow)
    assert timing.terms() == pytest.approx({"ideal": 327.68e-6, "underuse": 327.68e-6, "memory": 0.0, "launch": 3e-6})
    assert timing.memory_s == pytest.approx(15e-6)  # 12 MB at 0.8 TB/s
    assert timing.total_s == pytest.approx(658.36e-6)


def test_vector_work_and_special_functions(machine: Machine) -> None:
    # 5 M FLOP at half of 10 TFLOP/s is 1 µs, 1 M special functions at 1 T/s is 1 µs; 40 MB take 40 µs
    timing = time_kernel(kernel(Cost(vector_flop=5_000_000, special_flop=1_000_000, read_bytes=40_000_000)), machine)
    assert timing.compute_s == pytest.approx(2e-6)
    # With a sharp maximum the shorter side costs nothing: the traffic hides the arithmetic.
    assert timing.terms() == pytest.approx({"ideal": 0.0, "underuse": 0.0, "memory": 40e-6, "launch": 0.0}, abs=1e-15)
    assert timing.bound == "memory"


def test_an_empty_kernel_costs_its_start(device: Device) -> None:
    timing = time_kernel(kernel(Cost()), Machine.of(device, constants(kernel_gap=2e-6)))
    assert timing.total_s == 2e-6
    assert timing.bound == "latency"


def test_arithmetic_and_traffic_count_as_far_as_they_are_not_hidden() -> None:
    # busy = √(3² + 4²) = 5; 3 · 3/5 = 1.8 of it waits for arithmetic, 4 · 4/5 = 3.2 for traffic: together 5.
    timing = Timing(
        kernel=kernel(Cost()), ideal_s=1.0, compute_s=3.0, memory_s=4.0, launch_s=0.5, busy_s=5.0,
        causes_s=(0.5, 0.0, 0.0), overlap=2.0,
    )  # fmt: skip
    assert timing.terms() == pytest.approx({"ideal": 0.6, "underuse": 1.2, "memory": 3.2, "launch": 0.5})
    # The clock that power holds down is a roof: 0.5 · 3/5 = 0.3 of it. What reaches neither: 1.2 - 0.3 + 0.5.
    assert timing.parts() == pytest.approx({"compute": 0.9, "memory": 3.2, "latency": 1.4})
    assert timing.bound == "memory"
    assert timing.underuse_parts() == pytest.approx({"power": 0.3, "waves": 0.0, "tiles": 0.0, "rate": 0.9})


def test_a_kernel_that_reaches_neither_roof_is_latency_bound() -> None:
    # Its FLOP take 1 s at the peak and its traffic 1 s, but its rows keep the SMs for 100 s.
    timing = Timing(kernel=kernel(Cost()), ideal_s=1.0, compute_s=100.0, memory_s=1.0, launch_s=0.0, busy_s=100.0)
    assert timing.bound == "latency"


def test_winograd_where_it_is_faster_and_there_is_no_tensor_core(device: Device) -> None:
    # 51200 = 400·128 rows, 400 blocks of 128×64 are 8 waves; in 12,800 blocks of 2×2 there are 400 of 32,
    # times 64 / 32 channels: 800 blocks of Winograd's are 16 waves
    direct = Cost(gemms=(Gemm(m=51_200, n=64, k=64 * 9),), read_bytes=4, write_bytes=4)
    fewer = Cost(gemms=(Gemm(m=400 * 128, n=2 * 128, k=64),), read_bytes=4, write_bytes=4)
    doubled = Machine.of(device, constants(matrix_prologue=64))
    # 2 · 51200·64·576 = 3.775 GFLOP, direct 377.5 µs; in 2.25 times fewer FLOP 335.5 µs where as many steps in k as
    # its 64 channels are added
    both = time_kernel(kernel(direct, winograd=fewer), doubled)
    assert both.total_s == pytest.approx(377.4874e-6 / 2.25 / 0.5)
    slower = Machine.of(device, constants(matrix_prologue=96))
    assert time_kernel(kernel(direct, winograd=fewer), slower).total_s == pytest.approx(377.4874e-6)
    on_tensor_core = time_kernel(kernel(direct, Math.FP16, winograd=fewer), Machine.of(device, constants()))
    assert on_tensor_core.total_s == pytest.approx(37.74874e-6)


def test_formats_that_the_device_does_not_have(machine: Machine) -> None:
    bf16 = time_kernel(kernel(PRODUCT, Math.BF16), machine)
    assert bf16.compute_s == pytest.approx(327.68e-6)
    assert bf16.note == "round-gpu has no bf16 matrix units: computed in fp32"
    # tf32 only allows the unit: where there is none, fp32 is what was asked for
    assert time_kernel(kernel(PRODUCT, Math.TF32), machine).note == ""
    with pytest.raises(
        FormatError, match=r"^round-gpu has no fp8 arithmetic \(it has fp16, fp32, fp64\); choose another"
    ):
        time_kernel(kernel(PRODUCT, Math.FP8), machine)


sizes = st.integers(min_value=1, max_value=5000)


#: Constants of the size that fits give them.
ORDINARY = {
    **dict.fromkeys(("issue_share", "memory_share", "product_memory_share", "attention_share"), 0.8),
    "matrix_tile_loss": 10.0,
    "latency_cycles": 3.0,
    "matrix_energy": 2.1e-12,
    "simt_energy": 21e-12,
    "overlap": 3.0,
    "kernel_ramp_cycles": 2400.0,
    "product_ramp_cycles": 1800.0,
    "kernel_gap": 1e-6,
}


@st.composite
def kernels(draw: st.DrawFn, products: int = 2) -> Kernel:
    gemms = draw(st.lists(st.builds(Gemm, batch=sizes, m=sizes, n=sizes, k=sizes), max_size=products))
    counts = {
        name: draw(st.integers(0, 10**9)) for name in ("vector_flop", "special_flop", "read_bytes", "write_bytes")
    }
    return kernel(Cost(gemms=tuple(gemms), **counts), draw(st.sampled_from([Math.FP32, Math.FP16, Math.FP64])))


def gpu(bandwidth: float = 1e12, clock: float = 1.25e9, scale: float = 1.0) -> Machine:
    made = DEVICE.replace(
        clock=Clock(boost=clock), dram=Memory(capacity=16e9, bandwidth=bandwidth),
        matrix_peak={"fp16": 100e12 * scale}, vector_peak={"fp32": 10e12 * scale, "fp64": 5e12 * scale},
    )  # fmt: skip
    return Machine.of(made, constants(**ORDINARY))


@given(kernels())
def test_terms_are_not_negative_and_add_up(k: Kernel) -> None:
    timing = time_kernel(k, gpu())
    assert all(seconds >= 0 for seconds in timing.terms().values())
    assert sum(timing.terms().values()) == pytest.approx(timing.total_s, rel=1e-12)


# several products of one kernel are a library's calls in turn: each has the tiles that suit it alone
@given(kernels(products=1), st.floats(1.0, 10.0))
def test_a_better_device_is_never_slower(k: Kernel, factor: float) -> None:
    base = time_kernel(k, gpu()).total_s * (1 + 1e-9)
    assert time_kernel(k, gpu(bandwidth=1e12 * factor)).total_s <= base
    assert time_kernel(k, gpu(scale=factor)).total_s <= base
    assert time_kernel(k, gpu(clock=1.25e9 * factor)).total_s <= base


def test_plain_fp32_products_on_a_tensor_core_have_a_share_of_their_own(device: Device) -> None:
    cdna = device.replace(matrix_peak={"fp16": 100e12, "fp32": 25e12})
    whole, part = (Machine.of(cdna, constants(single_tensor_core_share=share)) for share in (1.0, 0.8))
    for math, slower in ((Math.FP32, 1 / 0.8), (Math.FP16, 1.0)):
        seconds = [time_kernel(kernel(PRODUCT, math), machine).compute_s for machine in (whole, part)]
        assert seconds[1] == pytest.approx(slower * seconds[0])


def test_vector_lanes_do_one_thing_at_a_time(machine: Machine) -> None:
    # 3.2768 GFLOP of products and 0.5 GFLOP beside them, at half of the peak: on the CUDA cores 327.68 + 100 µs, beside
    # the tensor core the longer of 32.8 and 100
    both = PRODUCT + Cost(vector_flop=5 * 10**8)
    assert time_kernel(kernel(both), machine).compute_s == pytest.approx(427.68e-6)
    assert time_kernel(kernel(both, Math.FP16), machine).compute_s == pytest.approx(100e-6)


def test_powers_take_many_instructions(device: Device) -> None:
    # 4000 lanes at 1.25 GHz: 10 functions of 30 cycles for each of 40 M numbers take 2.4 ms by AMD's library, one
    # function 0.24 ms; squares are products
    machine = Machine.of(device, constants(ocml_cycles=30.0))
    x = rk.Input(40_000_000)
    (power,) = (k for issue in issues_of(rk.trace(lambda x: x**2.5, x)) for k in issue.kernels)
    (square,) = (k for issue in issues_of(rk.trace(lambda x: x**2, x)) for k in issue.kernels)
    (tangent,) = (k for issue in issues_of(rk.trace(torch.tanh, x)) for k in issue.kernels)
    (half,) = (k for issue in issues_of(rk.trace(lambda x: x / 2.5, x)) for k in issue.kernels)  # times its inverse
    assert time_kernel(power, machine).compute_s == pytest.approx(power.cost.special_flop / 1e12)
    amd = Machine.of(device.replace(vendor="AMD"), machine.constants)

    def longer_s(kernel: Kernel) -> float:
        return time_kernel(kernel, amd).compute_s - time_kernel(kernel, machine).compute_s

    assert longer_s(power) == pytest.approx(2.4e-3)
    assert longer_s(tangent) == pytest.approx(0.24e-3)
    assert longer_s(square) == longer_s(half) == 0


def test_what_passes_alone_hides_nothing(machine: Machine) -> None:
    # 327.68 µs of products beside 12 MB, which 1 TB/s lets pass in 12 µs; of 42 MB the 30 that pass alone come on top
    moved = replace(PRODUCT, read_bytes=38_000_000)
    timing = time_kernel(replace(kernel(moved), alone=30_000_000), machine)
    assert timing.total_s == pytest.approx(327.68e-6 + 30e-6)
    assert timing.memory_s == pytest.approx(42e-6)
    assert timing.terms()["memory"] == pytest.approx(30e-6)
    assert sum(timing.terms().values()) == pytest.approx(timing.total_s)
