"""Fits on measurements that are made up from known constants: what is found again, how closely, and what is not."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from observed import elements, observe
from round_numbers import DEVICE, constants

from rooflinekit.calibrate.fitting.constants import CONSTANTS, Stage
from rooflinekit.calibrate.fitting.hierarchical_fit import Estimate, Solution, fit
from rooflinekit.calibrate.fitting.observations import Observations
from rooflinekit.timing.machine import Machine

CLOCK = DEVICE.clock.boost
BANDWIDTH = {"gpu-a": 1e12, "gpu-b": 0.5e12, "gpu-c": 2e12}
SHARE = {"gpu-a": 0.80, "gpu-b": 0.78, "gpu-c": 0.82}  # of the bandwidth; their geometric mean is 0.7998
RAMP = 3000  # cycles
LOAD_S = CONSTANTS["load_cycles"].start / CLOCK  # the least that a kernel waits for what it reads

STREAMS = Stage(
    name="streams",
    ops=frozenset({"add", "mul"}),
    dtypes=frozenset({"fp32"}),
    constants=("memory_share", "kernel_ramp_cycles"),
)


def machine(name: str, **changes: object) -> Machine:
    dram = {"bandwidth": BANDWIDTH.get(name, 1e12)}
    return Machine.of(DEVICE.replace(name=name, dram=dram, **changes), constants())


MACHINES = {name: machine(name) for name in BANDWIDTH}


def spread_sizes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of 0.01 to 80 million elements."""
    random = np.random.default_rng(seed)
    return np.round(np.exp(random.uniform(4.6, 9.9, count))), np.round(np.exp(random.uniform(4.6, 8.3, count)))


def streamed(
    gpu: str, op: str = "add", *, share: float | None = None, seed: int = 0, count: int = 80, noise: float = 0.01
) -> Observations:
    """Additions by hand: 12 bytes an element at a share of the bandwidth, after the ramp; each off by some noise."""
    rows, cols = spread_sizes(seed, count)
    seconds = RAMP / CLOCK + np.maximum(12 * rows * cols / (BANDWIDTH[gpu] * (share or SHARE[gpu])), LOAD_S)
    random = np.random.default_rng(seed + 1)
    table = elements(rows, cols, seconds * np.exp(noise * random.normal(size=count)), op)
    return observe(gpu, f"{gpu} lab", op, "profiler", table)


def log_ratio(found: float, expected: float) -> float:
    return abs(math.log(found / expected))


ALL = [streamed(gpu, seed=10 * i) for i, gpu in enumerate(SHARE)]


# --- what is found again -------------------------------------------------------------------------------------------


def test_constants_of_each_gpu_are_found() -> None:
    """Within 1.5 %, of which 1 % is what an own value that is 2.5 % off the shared one is drawn back to it."""
    solution = fit(ALL, MACHINES, [STREAMS])
    for gpu, share in SHARE.items():
        values = solution.values(gpu)
        assert log_ratio(values["memory_share"], share) < 0.01
        assert log_ratio(values["kernel_ramp_cycles"], RAMP) < 0.03


def test_the_shared_value_is_the_middle_of_the_gpus() -> None:
    solution = fit(ALL, MACHINES, [STREAMS])
    assert log_ratio(solution.values()["memory_share"], 0.7998) < 0.01
    assert solution.values() == solution.values("gpu-that-nobody-measured")


def test_more_gpus_tell_more() -> None:
    one, three = (fit(part, MACHINES, [STREAMS]) for part in (ALL[:1], ALL))
    key = ("", "memory_share")
    assert three.estimates[key].stderr < 0.7 * one.estimates[key].stderr


def test_noise_widens_the_errors() -> None:
    quiet, loud = (
        fit([streamed(gpu, noise=noise) for gpu in SHARE], MACHINES, [STREAMS]).estimates["", "kernel_ramp_cycles"]
        for noise in (0.02, 0.2)
    )
    assert loud.stderr > quiet.stderr


def test_products_tell_rate_and_power() -> None:
    """fp32 products on a board with power to spare and on one of 70 W: 0.8 of the peak, and 12 pJ a FLOP in 16 nm.

    0.82 · 70 W / 12 pJ are 4.78 TFLOP/s of 10.
    """
    stage = Stage(
        name="products",
        ops=frozenset({"mm"}),
        dtypes=frozenset({"fp32"}),
        constants=("issue_share", "matrix_tile_loss", "simt_energy"),
    )
    boards = {
        "ample": machine("ample", board_power=300, process_nm=16),
        "small": machine("small", board_power=70, process_nm=16),
    }
    truth = {name: about.start for name, about in CONSTANTS.items()}
    truth |= {"issue_share": 0.8, "matrix_tile_loss": 15.0, "simt_energy": 12e-12}
    random = np.random.default_rng(3)
    found = []
    for name, board in boards.items():
        table = pd.DataFrame(
            {"op": "mm", "dtype": "fp32", **{size: random.integers(200, 6000, 100) for size in "mnk"}, "seconds": 1.0}
        )
        blank = observe(name, f"{name} lab", "mm", "profiler", table)
        seconds = blank.predict(board.with_values(truth), {}) * np.exp(0.01 * random.normal(size=100))
        found.append(observe(name, f"{name} lab", "mm", "profiler", table.assign(seconds=seconds)))
    solution = fit(found, boards, [stage])
    ample, small = (solution.values(name) for name in boards)
    assert log_ratio(ample["issue_share"], 0.8) < 0.01
    assert log_ratio(ample["matrix_tile_loss"], 15) < 0.1
    assert log_ratio(small["simt_energy"], 12e-12) < 0.02


def test_the_harness_is_found() -> None:
    """Of single calls between events: 12 µs before the launch, 1.5 times that for a product, 25 µs after it.

    The dispatch and a kernel's ramp come one after the other, so that it takes a profiler to tell them apart. Within
    10 %: the sum of both is told by all small kernels, each alone only by those of about 25 µs, against an expectation
    of 15 µs.
    """
    found = [streamed("gpu-a", share=0.8)]
    for seed, (op, factor) in enumerate({"add": 1.0, "mul": 1.5}.items()):
        rows, cols = spread_sizes(seed, 120)
        kernel = 1e-6 + RAMP / CLOCK + 12 * rows * cols / (1e12 * 0.8)
        seconds = 12e-6 * factor + np.maximum(kernel, 25e-6)
        found.append(observe("gpu-a", "gpu-a lab", op, "event", elements(rows, cols, seconds, op)))
    solution = fit(found, MACHINES, [STREAMS])
    harness = solution.harness("gpu-a lab")
    assert log_ratio(harness["dispatch"], 12e-6) < 0.1
    assert log_ratio(harness["after"], 25e-6) < 0.1
    assert log_ratio(harness["dispatch:mul"], 1.5) < 0.1
    assert log_ratio(harness["dispatch"] + harness["after"], 37e-6) < 0.01
    assert log_ratio(solution.values("gpu-a")["memory_share"], 0.8) < 0.02


def test_what_a_library_adds_is_found() -> None:
    rows, cols = spread_sizes(5, 120)
    seconds = 6e-6 + 0.4e-6 + RAMP / CLOCK + 12 * rows * cols / (1e12 * 0.8)
    served = observe("gpu-a", "gpu-a server", "add", "backend", elements(rows, cols, seconds))
    # a profiler's measurements beside it tell the ramp
    solution = fit([served, streamed("gpu-a", share=0.8)], MACHINES, [STREAMS])
    assert log_ratio(solution.harness("gpu-a server")["backend"], 6e-6) < 0.05


def test_an_unknown_host_is_the_mean_of_the_known_ones() -> None:
    estimates = {
        ("host one", "dispatch"): Estimate(log=math.log(8e-6), stderr=0.1),
        ("host two", "dispatch"): Estimate(log=math.log(18e-6), stderr=0.1),
        ("op", "mul"): Estimate(log=math.log(1.5), stderr=0.1),
    }
    harness = Solution(estimates=estimates).harness("three")
    assert harness["dispatch"] == pytest.approx(12e-6)  # √(8 · 18)
    assert harness["after"] == pytest.approx(15e-6)  # nobody told: where fits start
    assert harness["dispatch:mul"] == pytest.approx(1.5)
    assert Solution(estimates=estimates).harness("two")["dispatch"] == pytest.approx(18e-6)


# --- what the data does not tell ------------------------------------------------------------------------------------

BLIND = replace(STREAMS, constants=(*STREAMS.constants, "ocml_cycles"))  # additions raise nothing to a power


def test_what_the_data_does_not_tell_stays_where_it_was() -> None:
    solution, about = fit(ALL, MACHINES, [BLIND]), CONSTANTS["ocml_cycles"]
    assert solution.values("gpu-a")["ocml_cycles"] == pytest.approx(about.start, rel=1e-6)
    assert solution.estimates["", "ocml_cycles"].stderr == pytest.approx(about.spread, rel=0.1)


def test_a_gpu_deviates_where_it_is_known_well_or_farther_off_than_it_is_uncertain() -> None:
    # GPUs differ by 0.1: an error of 0.05 tells, one of 0.099 does so for a deviation of 0.11 and for none of 0.05
    known, far, near = ((0.01, 0.05), (-0.11, 0.099), (0.05, 0.099))
    assert [Estimate(log=log, stderr=stderr).deviates(0.1) for log, stderr in (known, far, near)] == [True, True, False]


def test_the_error_of_an_own_value_that_nothing_tells_is_how_far_gpus_differ() -> None:
    """A GPU whose only measurements are too small for its bandwidth to show."""
    tiny = observe("gpu-c", "gpu-c lab", "add", "profiler", elements(1, range(1, 81), RAMP / CLOCK))
    solution = fit([*ALL[:2], tiny], MACHINES, [STREAMS])
    assert solution.estimates["gpu-c", "memory_share"].log == pytest.approx(0.0, abs=1e-3)
    assert solution.estimates["gpu-c", "memory_share"].stderr == pytest.approx(
        CONSTANTS["memory_share"].between, rel=0.1
    )


def test_without_measurements_everything_stays_at_its_start() -> None:
    values = fit([], MACHINES).values("gpu-a")
    assert values == pytest.approx({name: about.start for name, about in CONSTANTS.items()}, rel=1e-12)


# --- what must not matter -------------------------------------------------------------------------------------------


def test_a_gpu_that_is_left_out_is_not_looked_at() -> None:
    """Its own measurements, ten times as long, change nothing in a fit on the others: the same to the last bit."""
    slow = streamed("gpu-c", share=SHARE["gpu-c"] / 10, seed=20)
    fits = [
        fit([o for o in observations if o.gpu != "gpu-c"], MACHINES, [STREAMS])
        for observations in (ALL, [*ALL[:2], slow])
    ]
    assert fits[0].estimates == fits[1].estimates
    assert fit([*ALL[:2], slow], MACHINES, [STREAMS]).estimates != fit(ALL, MACHINES, [STREAMS]).estimates


def test_outliers_hardly_move_the_fit() -> None:
    """Every twentieth measurement three times as long: by less than 1.5 %, where the mean of errors moves by 5.5 %."""
    spoiled = []
    for o in ALL:
        seconds = o.rows["seconds"].to_numpy().copy()
        seconds[::20] *= 3
        spoiled.append(observe(o.gpu, o.host, o.op, o.timing, o.rows.assign(seconds=seconds)))
    clean, moved = (fit(observations, MACHINES, [STREAMS]) for observations in (ALL, spoiled))
    for gpu in SHARE:
        assert log_ratio(moved.values(gpu)["memory_share"], clean.values(gpu)["memory_share"]) < 0.015


def test_a_table_counts_as_much_as_another_whatever_its_length() -> None:
    doubled = [observe(o.gpu, o.host, o.op, o.timing, pd.concat([o.rows, o.rows], ignore_index=True)) for o in ALL[:1]]
    once, twice = (fit(part, MACHINES, [STREAMS]).values("gpu-a") for part in (ALL[:1], doubled))
    assert twice == pytest.approx(once, rel=1e-5)


def test_a_few_measurements_may_count_as_few() -> None:
    # one slow measurement draws a value from its prior by less than a hundred of it do
    slow = ALL[0].rows[-1:].assign(seconds=lambda rows: rows["seconds"] * 1.2)
    tables = [observe("gpu-a", "lab", "add", "profiler", pd.concat([slow] * n, ignore_index=True)) for n in (1, 100)]
    few, many = (fit([table], MACHINES, [STREAMS], by_count=True).values("gpu-a") for table in tables)
    start = CONSTANTS["memory_share"].start
    assert log_ratio(few["memory_share"], start) < log_ratio(many["memory_share"], start)


def test_other_ops_and_formats_are_not_looked_at() -> None:
    rows = ALL[0].rows
    others = [
        observe("gpu-a", "gpu-a lab", "div", "profiler", rows.assign(op="div", seconds=1.0)),
        observe("gpu-a", "gpu-a lab", "add", "profiler", rows.assign(dtype="fp16", seconds=1.0)),
    ]
    assert fit([*ALL, *others], MACHINES, [STREAMS]).estimates == fit(ALL, MACHINES, [STREAMS]).estimates


# --- stages -------------------------------------------------------------------------------------------------------


def test_a_later_stage_keeps_what_an_earlier_one_found() -> None:
    first = replace(STREAMS, ops=frozenset({"add"}))
    second = Stage(name="later", ops=frozenset({"mul"}), dtypes=frozenset({"fp32"}), constants=("ocml_cycles",), own=())
    # multiplications at a tenth of the bandwidth: in a fit of both together they would count
    slow = streamed("gpu-a", "mul", share=0.08)
    alone, both = (fit([*ALL, slow], MACHINES, stages) for stages in ([first], [first, second]))
    assert {key: both.estimates[key] for key in alone.estimates} == alone.estimates
    assert ("", "ocml_cycles") in both.estimates


def test_a_stage_may_find_own_values_of_a_constant_that_is_known_for_all() -> None:
    first = replace(STREAMS, ops=frozenset({"add"}))
    second = Stage(
        name="later", ops=frozenset({"mul"}), dtypes=frozenset({"fp32"}), constants=(), own=("memory_share",)
    )
    # gpu-c was not in the first stage: there is a shared value, and its own comes from the second
    own = streamed("gpu-c", "mul", share=0.84)
    solution = fit([*ALL[:2], own], MACHINES, [first, second])
    assert solution.estimates["", "memory_share"] == fit(ALL[:2], MACHINES, [first]).estimates["", "memory_share"]
    assert log_ratio(solution.values("gpu-c")["memory_share"], 0.84) < 0.02


def test_what_a_gpu_does_not_tell_its_relatives_do() -> None:
    estimates = {
        ("", "memory_share"): Estimate(log=math.log(0.8), stderr=0.1),
        ("gpu-a", "memory_share"): Estimate(log=0.2, stderr=0.1),
        ("gpu-b", "memory_share"): Estimate(log=-0.1, stderr=0.1),
    }
    solution = Solution(estimates=estimates)
    relatives = ("gpu-a", "gpu-b", "gpu-that-nobody-measured")
    # four fifths of the mean of those that are known: 0.8 · (0.2 - 0.1) / 2
    assert solution.deviation("memory_share", "gpu-c", relatives) == pytest.approx(0.04)
    assert solution.deviation("memory_share", "", relatives) == pytest.approx(0.04)
    assert solution.values("gpu-c", relatives)["memory_share"] == pytest.approx(0.8 * math.exp(0.04))
    # its own measurements count alone, and without relatives there is the shared value
    assert solution.deviation("memory_share", "gpu-a", relatives) == 0.2
    assert solution.deviation("memory_share", "gpu-c") == 0.0
    assert solution.deviation("issue_share", "gpu-c", relatives) == 0.0


def test_values_are_kept_within_their_range() -> None:
    estimates = {
        ("", "memory_share"): Estimate(log=math.log(0.9), stderr=0.1),
        ("gpu-a", "memory_share"): Estimate(log=math.log(1.3), stderr=0.1),
        ("gpu-b", "memory_share"): Estimate(log=math.log(0.9), stderr=0.1),
    }
    solution = Solution(estimates=estimates)
    assert solution.values("gpu-a")["memory_share"] == 1.0  # 1.17
    assert solution.values("gpu-b")["memory_share"] == pytest.approx(0.81)
    assert Estimate(log=0.0, stderr=0.1).value == 1.0
