"""What a board's power sustains: watts beyond idling, over the energy of a FLOP in the process."""

import math
from dataclasses import replace

import pytest
import torch
from round_numbers import constants

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import PRODUCT, Algorithm
from rooflinekit.kernels.cudnn import FUSED_WINOGRAD, WEIGHT
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine, power_limit
from rooflinekit.timing.roofline import time_work

#: 12.5 pJ a FLOP on the CUDA cores, 2.5 pJ on the tensor core, in 16 nm: of all that the board draws.
VALUES = {
    "simt_energy": 12.5e-12, "matrix_energy": 2.5e-12, "eight_bit_energy": 0.5,
    "energy_node_exponent": 1.0, "simt_node_exponent": 1.0, "energy_size_exponent": 0.0,
}  # fmt: skip


def limit(device: Device, arithmetic: Math = Math.FP32, *, tensor_core: bool = False, **board: object) -> float:
    board = {"board_power": 250, "process_nm": 16, **board}
    return power_limit(device.replace(**board), VALUES, arithmetic, tensor_core=tensor_core)


@pytest.mark.parametrize(
    ("board", "tflops"),
    [
        ({}, 20.0),  # 250 W / 12.5 pJ
        ({"board_power": 70}, 5.6),  # 70 W / 12.5 pJ
        ({"devices_per_board": 2}, 10.0),  # 125 W each
        ({"process_nm": 5}, 64.0),  # 5/16 of the energy
    ],
)
def test_the_limit_of_the_lanes(device: Device, board: dict[str, object], tflops: float) -> None:
    assert limit(device, **board) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("arithmetic", "tensor_core", "tflops"),
    [
        (Math.FP16, True, 100.0),  # 250 W / 2.5 pJ
        (Math.BF16, True, 100.0),
        (Math.TF32, True, 100 / 1.39),  # 39 % more energy
        (Math.FP8, True, 200.0),  # half
        (Math.INT8, True, 200.0),
        (Math.FP4, True, 400.0),  # a quarter
        (Math.FP32, True, 100 / 1.39**2),  # twice 39 %: an MI100 sustains 40 TFLOP/s, its lanes would 26
        (Math.FP64, True, 10.0),
        (Math.FP64, False, 10.0),
        (Math.FP16, False, 40.0),  # half as many bits are multiplied
        (Math.BF16, False, 20.0),  # computed in fp32
        (Math.FP32, False, 20.0),
    ],
)
def test_the_energy_of_formats(device: Device, arithmetic: Math, tensor_core: bool, tflops: float) -> None:
    assert limit(device, arithmetic, tensor_core=tensor_core) == pytest.approx(tflops * 1e12)


def test_energy_falls_with_a_power_of_the_node(device: Device) -> None:
    board = device.replace(board_power=250, process_nm=64)
    # (64 / 16)^0.5 = 2 on one unit, 4 on the other: 20 / 2 or 20 / 4 TFLOP/s on the CUDA cores, 100 / 4 or 100 / 2
    # beside
    for name, lanes, tensor_core in (("simt_node_exponent", 10e12, 25e12), ("energy_node_exponent", 5e12, 50e12)):
        values = VALUES | {name: 0.5}
        assert power_limit(board, values, Math.FP32, tensor_core=False) == pytest.approx(lanes)
        assert power_limit(board, values, Math.FP16, tensor_core=True) == pytest.approx(tensor_core)


@pytest.mark.parametrize("silent", ["board_power", "process_nm"])
def test_what_is_not_stated_limits_nothing(device: Device, silent: str) -> None:
    assert limit(device, **{silent: None}) == math.inf


def test_a_board_of_70_watts_beside_one_of_250(device: Device) -> None:
    # 3.2768 GFLOP in 2 full waves: at 10 TFLOP/s 327.68 µs; 70 W sustain 5.6 TFLOP/s, 585.143 µs
    work = KernelBatch.of(1, products=Products.of([0], m=1280, n=1280, k=1000))
    found = {
        watts: time_work(
            work,
            Machine.of(device.replace(board_power=watts, process_nm=16), constants(**VALUES)),
        ).total_s[0]
        for watts in (70, 250)
    }
    assert found == pytest.approx({70: 585.142857e-6, 250: 327.68e-6})


@pytest.mark.parametrize(
    ("by", "microseconds"),
    [
        (PRODUCT, 585.142857),  # 3.2768 GFLOP at 5.6 TFLOP/s
        (WEIGHT, 1170.285714),  # half of a product's rate at any clock, and so at the one of 70 W
        (FUSED_WINOGRAD, 655.36),  # half of 10 TFLOP/s while it waits, below the limit
    ],
)
def test_a_held_board_has_its_clock_for_implicit_products_too(
    device: Device, by: Algorithm, microseconds: float
) -> None:
    shares = {"simt_weight": 0.5, "simt_convolution": 0.5}
    machine = Machine.of(device.replace(board_power=70, process_nm=16), constants(**VALUES, **shares))
    work = KernelBatch.of(1, products=Products.of([0], m=1280, n=1280, k=1000, algorithm=by))
    assert time_work(work, machine).total_s[0] == pytest.approx(microseconds * 1e-6)


@pytest.mark.parametrize(
    ("calls", "before", "microseconds"),
    [
        (math.inf, 0, 585.142857),  # again and again: 70 W sustain 5.6 TFLOP/s
        (100, 0, 506.571428),  # 10 ms are 30.52 calls of 327.68 µs, the other 69.48 are held
        (100, 20, 558.064),  # 20 of them are not timed: 10.52 at the peak, 89.48 held
        (100, 31, 585.142857),
        (10, 0, 327.68),  # over before the clock is lowered: the peak
        (10, 20, 327.68),
    ],
)
def test_a_few_calls_are_over_before_the_clock_is_lowered(
    device: Device, calls: float, before: float, microseconds: float
) -> None:
    board = device.replace(board_power=70, process_nm=16)
    machine = Machine.of(board, constants(power_window=0.01, **VALUES))
    work = KernelBatch.of(1, products=Products.of([0], m=1280, n=1280, k=1000))
    few = replace(machine, calls=calls, warm_calls=before)
    assert time_work(work, few).total_s[0] == pytest.approx(microseconds * 1e-6)


def test_larger_instructions_take_less_energy(device: Device) -> None:
    # 50 SMs at 1.25 GHz: 64 TFLOP/s are 512 multiply-adds a clock, 256 are 2048; (512 / 2048)^0.5 = 1/2
    values = VALUES | {"energy_size_exponent": 0.5}
    limits = [
        power_limit(
            device.replace(board_power=250, process_nm=16, matrix_peak={"fp16": peak}),
            values,
            Math.FP16,
            tensor_core=True,
        )
        for peak in (64e12, 256e12)
    ]
    assert limits == pytest.approx([100e12, 200e12])


def test_the_limit_and_quantization_do_not_add_up(device: Device) -> None:
    # 70 W sustain 5.6 TFLOP/s. 12800·128·2000 FLOP take 585.143 µs at that, where 50 tiles of 256×128 with the latency
    # of their steps would take one wave of 400 µs: power ends it. One row more is two waves, 800 µs, during which the
    # board stays below its power.
    machine = Machine.of(
        device.replace(board_power=70, process_nm=16),
        constants(simt_energy=12.5e-12, latency_cycles=500, kernel_gap=1e-3),
    )
    work = KernelBatch.of(2, products=Products.of([0, 1], m=[12_800, 12_801], n=128, k=1000))
    assert time_work(work, machine).compute_s == pytest.approx([585.142857e-6, 800e-6])


def test_arithmetic_outside_products_is_not_limited(device: Device) -> None:
    # 5 MFLOP at 5 TFLOP/s, half of the peak, are 1 µs, also on a board of 1 W
    machine = Machine.of(device.replace(board_power=1, process_nm=16), constants(simt_energy=10e-12))
    assert time_work(KernelBatch.of(1, vector_flop=5e6), machine).compute_s[0] == pytest.approx(1e-6)


def test_a_burst_is_over_before_the_power_counts() -> None:
    t4, a100 = rk.load_device("nvidia-t4"), rk.load_device("nvidia-a100-sxm4-80gb")
    graph = rk.trace(torch.nn.Linear(8192, 8192, bias=False, device="meta"), rk.Input(8192, 8192))
    assert rk.predict(graph, t4, burst=True).total_s < 0.8 * rk.predict(graph, t4).total_s  # 70 W hold fp32 down
    assert rk.predict(graph, a100, burst=True).total_s == rk.predict(graph, a100).total_s  # 400 W do not
