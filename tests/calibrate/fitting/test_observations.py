"""Measurements as predicted: what each way of timing adds, which algorithm is taken, and what cannot be true."""

import numpy as np
import pandas as pd
import pytest
from observed import campaign, elements, observe
from round_numbers import constants

from rooflinekit.calibrate.fitting.observations import observations_of, without_faults
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.timing.machine import Machine

#: 1000·1000 additions of 4 bytes: 12 MB at 1 TB/s are 12 µs.
ADDITION = elements(1000, 1000, [2e-5])
HARNESS = {"dispatch": 10e-6, "after": 30e-6, "backend": 5e-6, "dispatch:add": 2.0, "dispatch:mul": 7.0}


@pytest.fixture
def machine(device: Device) -> Machine:
    return Machine.of(device, constants(kernel_gap=1e-6, kernel_gap_graph=0.4e-6))


def microseconds(machine: Machine, timing: str, rows: pd.DataFrame = ADDITION, **harness: float) -> float:
    found = observe("gpu", "gpu lab", "add", timing, rows).predict(machine, HARNESS | harness)
    assert found.shape == (1,)
    return float(found[0]) * 1e6


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ("profiler", 12.0),  # the kernel alone
        ("graph", 12.4),  # and the gap before it
        ("backend", 17.4),  # and what the library does
        ("event", 50.0),  # 2 · 10 µs before the launch, then the CPU's 30 µs hide the kernel's 13
    ],
)
def test_what_each_way_of_timing_adds(machine: Machine, timing: str, expected: float) -> None:
    assert microseconds(machine, timing) == pytest.approx(expected)


def test_an_event_waits_for_the_kernel_or_the_cpu(machine: Machine) -> None:
    # 5 µs after the launch: the kernel's 12 µs and the gap of 1 µs are longer
    assert microseconds(machine, "event", after=5e-6) == pytest.approx(33.0)


# asleep the board is four times slower: 48 µs. It is as good as awake where it needs far less than that to wake up, and
# has half of its slowness left, as a logarithm, where it needs as much: 12 · 4^(1/2) = 24.
@pytest.mark.parametrize(("awake", "expected"), [(1e-9, 12.0), (48e-6, 24.0), (1.0, 48.0)])
def test_a_board_wakes_up(machine: Machine, awake: float, expected: float) -> None:
    assert microseconds(machine, "alone", slow=4.0, awake=awake) == pytest.approx(expected, rel=1e-4)


def test_power_is_no_limit_to_a_board_that_rested() -> None:
    # 2·8192³ FLOP at 65.13 TFLOP/s, all 128×128 tiles full, take 16.9 ms; with 70 W at 3.05 pJ a FLOP 48 ms
    board = Machine.of(load_device("nvidia-t4"), constants(matrix_energy=3.05e-12))
    rows = pd.DataFrame([{"op": "mm", "dtype": "fp16", "m": 8192.0, "n": 8192.0, "k": 8192.0, "seconds": 1.0}])
    timed = {t: observe("nvidia-t4", "lab", "mm", t, rows).predict(board, {})[0] for t in ("profiler", "rested")}
    assert timed["profiler"] == pytest.approx(2 * 8192**3 / (70 / 3.05e-12), rel=0.05)
    assert timed["rested"] == pytest.approx(2 * 8192**3 / 65.13e12, rel=0.2)


def test_an_op_of_unknown_dispatch_takes_that_of_an_addition(machine: Machine) -> None:
    found = observe("gpu", "gpu lab", "add", "event", ADDITION).predict(machine, {"dispatch": 10e-6, "after": 0.0})
    assert found[0] == pytest.approx(23e-6)


def test_a_profiler_sees_no_gap(device: Device) -> None:
    machine = Machine.of(device, constants(kernel_gap=1.0, kernel_gap_graph=1.0))
    assert microseconds(machine, "profiler") == pytest.approx(12.0)


def test_kernels_of_one_op_follow_each_other(device: Device) -> None:
    # [1000, 2000] × [2000, 500] in 8 bits of 16-bit input: its largest value, 4 MB, 4 µs; scaled, 4 MB read and 2 MB
    # written, 6 µs; the product: 2 + 1 MB read, 1 MB written, 4 µs. Each starts after a gap of 0.4 µs. An L2 of 4 MB,
    # twice as fast, has half of the 4 MB when it is gone through for its largest value, (4.6 - 4) of 1.2 MB, and 0.6 of
    # 3.2 MB where 2 MB are written beside.
    rows = pd.DataFrame([{"op": "mm_quantized", "dtype": "fp8", "m": 1000, "n": 500, "k": 2000, "seconds": 1.0}])
    fast = Machine.of(device.replace(matrix_peak={"fp16": 1e15, "fp8": 1e18}), constants(kernel_gap_graph=0.4e-6))
    found = observe("gpu", "gpu lab", "mm_quantized", "graph", rows).predict(fast, {})
    assert found[0] == pytest.approx(15.2e-6 - 0.5e-12 * 4e6 * (0.6 / 1.2 + 0.6 / 3.2))


def test_the_fastest_algorithm_is_taken_where_it_can_run(device: Device) -> None:
    # 64 channels in and out, 800 images of 8×8 pixels: 51200·64·576 · 2 FLOP take 377.4874 µs; Winograd on 4×4 blocks
    # a quarter of them. Stride 2 leaves a quarter of the pixels, by the direct way alone.
    rows = pd.DataFrame(
        {
            "op": "conv_fwd", "dtype": "fp32", "b": 800, "c_in": 64, "c_out": 64, "h": 8, "w": 8, "r": 3, "s": 3,
            "stride_h": [1, 2], "stride_w": [1, 2], "pad_h": 1, "pad_w": 1, "seconds": 1.0,
        }
    )  # fmt: skip
    huge = device.replace(dram={"bandwidth": 1e15})
    machine = Machine.of(huge, constants(simt_convolution=0.9))
    found = observe("gpu", "gpu lab", "conv_fwd", "profiler", rows).predict(machine, {})
    # 4×4 blocks: 36 products of 3200×64×64 are 36·25 tiles of 128×64, 18 full waves: a quarter of the FLOP at 0.9
    assert found[0] == pytest.approx(377.4874e-6 / 4 / 0.9, rel=1e-3)  # and 0.09 µs of transforms
    # 12800 rows are 100 tiles of 128×64, two full waves
    assert found[1] == pytest.approx(377.4874e-6 / 4 / 0.9)


def test_each_op_and_format_is_a_group() -> None:
    rows = elements([1, 2, 3, 4, 5], 10, [0.1, 0.2, 0.3, 0.4, 0.5], op=["add", "mul", "add", "add", "relu"])
    rows.loc[2, "dtype"] = "fp16"
    found = observations_of([campaign(rows)])
    assert [(o.op, o.rows["dtype"][0], o.seconds.tolist()) for o in found] == [
        ("add", "fp16", [0.3]),
        ("add", "fp32", [0.1, 0.4]),
        ("mul", "fp32", [0.2]),
        ("relu", "fp32", [0.5]),
    ]
    assert {o.residuals for o in found} == {"elementwise"}
    # all tables of one source were taken with one harness
    assert {o.host for o in found} == {"gpu lab.example/data"}


def test_some_of_the_measurements_are_counted_anew() -> None:
    rows = elements([1, 2, 3], 10, [0.1, 0.2, 0.3])
    found = observe("gpu", "gpu lab", "add", "event", rows).taken(np.array([True, False, True]))
    assert len(found) == 2
    assert found.seconds.tolist() == [0.1, 0.3]
    [group] = found.groups
    assert group.kernels[0].cost.write_bytes.values.tolist() == [40, 120]


def test_faster_than_the_datasheet_is_a_fault(machine: Machine) -> None:
    # [1280, 1000] × [1000, 1280] takes 3.2768 GFLOP: at 10 TFLOP/s 327.68 µs; up to a tenth less is taken for a clock
    # above the stated one
    rows = pd.DataFrame(
        {"op": "mm", "dtype": "fp32", "m": 1280, "n": 1280, "k": 1000, "seconds": [290e-6, 300e-6, 400e-6]}
    )
    kept = without_faults(observe("gpu", "gpu lab", "mm", "profiler", rows), machine)
    assert kept.seconds.tolist() == [300e-6, 400e-6]


def test_faster_than_direct_convolution_is_possible(machine: Machine) -> None:
    rows = pd.DataFrame(
        {
            "op": "conv_fwd", "dtype": "fp32", "b": 1, "c_in": 64, "c_out": 64, "h": 64, "w": 64, "r": 3, "s": 3,
            "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "seconds": [1e-6],
        }
    )  # fmt: skip
    assert len(without_faults(observe("gpu", "gpu lab", "conv_fwd", "profiler", rows), machine)) == 1
