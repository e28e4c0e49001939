"""Laws that every prediction obeys: on random kernels, devices and constants around their usual values."""

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.files import constants_for, load_constants
from rooflinekit.hardware.device import Clock, Device, Memory
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import ATTENTION, PRODUCT, Algorithm
from rooflinekit.kernels.cudnn import FORWARD, FUSED_WINOGRAD
from rooflinekit.kernels.depthwise import UNROLLED
from rooflinekit.published.stated import Constant
from rooflinekit.timing.kernel_batch import KernelBatch, Products, Recent
from rooflinekit.timing.machine import Calibration, Machine
from rooflinekit.timing.roofline import Times, time_work

ROUNDING = 1e-9  # relative: sums of sizes up to 1e15 are taken in another order
MATHS = (Math.FP32, Math.FP16, Math.BF16, Math.TF32, Math.FP64)
KERNELS = 100  # timed together in an example

examples = settings(max_examples=30, deadline=None)


# --- what can occur: columns out of a seed, for hypothesis would draw each number on its own ------------------------


def calibration(seed: int) -> Calibration:
    """Every constant within its range, at most a factor of 1.6 from its usual value."""
    random = np.random.default_rng(seed)
    values = {
        name: min(max(about.start * math.exp(random.uniform(-0.5, 0.5)), about.low), about.high)
        for name, about in CONSTANTS.items()
    }
    # on no GPU that was measured do products get more of DRAM than streams: the L2 is to be faster than both
    values["product_memory_share"] = min(values["product_memory_share"], values["memory_share"])
    made = {n: Constant(value=v, stderr=0.1, unit="1", meaning=n, source="test") for n, v in values.items()}
    return Calibration(name="test", constants=MappingProxyType(made), spreads=MappingProxyType({}))


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """From a small board of 2016 to a large one of 2024, with tensor cores or without."""
    sms, clock = draw(st.integers(10, 150)), draw(st.floats(1e9, 2.5e9))
    fp32 = 2 * 64 * sms * clock
    tensor_core = draw(st.booleans())
    return Device(
        name="random-gpu",
        vendor="Nobody",
        architecture="Random",
        process_nm=draw(st.sampled_from([16, 7, 5])),
        board_power=draw(st.floats(50, 800)),
        sm_count=sms,
        lanes_per_sm=64,
        clock=Clock(boost=clock),
        dram=Memory(capacity=16e9, bandwidth=draw(st.floats(1e11, 4e12))),
        l2_capacity=draw(st.floats(1e6, 60e6)),
        l1_capacity_per_sm=draw(st.floats(24e3, 256e3)),
        threads_per_sm=draw(st.sampled_from([1024, 1536, 2048])),
        matrix_peak={"fp16": 8 * fp32, "bf16": 8 * fp32, "tf32": 4 * fp32} if tensor_core else {},
        vector_peak={"fp32": fp32, "fp64": fp32 / 2},
    )


_SHAPES = (PRODUCT, FORWARD, FUSED_WINOGRAD, ATTENTION, UNROLLED)


def work(seed: int) -> KernelBatch:
    """Products by algorithms of every shape, and streams and rows; some find in the cache what a kernel left there."""
    random = np.random.default_rng(seed)
    multiplies = random.random(KERNELS) < 0.5

    def some(count: int, low: float, high: float) -> np.ndarray:
        """As many small as large ones."""
        return np.round(np.exp(random.uniform(np.log(low), np.log(high), count)))

    def sparse(high: float) -> np.ndarray:
        return np.where(random.random(KERNELS) < 0.5, 0.0, some(KERNELS, 1, high))

    def other(high: float) -> np.ndarray:
        return np.where(multiplies, 0.0, sparse(high))

    owners, touch = np.flatnonzero(multiplies), np.flatnonzero(random.random(KERNELS) < 0.6)
    products = Products.of(
        owners,
        **{name: some(owners.size, 1, high) for name, high in (("batch", 300), ("m", 8e3), ("n", 8e3), ("k", 8e3))},
        executed=random.choice([1.0, 0.6], owners.size),
        algorithm=[_SHAPES[i] for i in random.integers(len(_SHAPES), size=owners.size)],
    )
    return KernelBatch.of(
        KERNELS,
        math=[MATHS[i] for i in random.integers(len(MATHS), size=KERNELS)],
        tensor_core=random.random(KERNELS) < 0.8,
        products=products,
        recent=Recent.of(touch, some(touch.size, 1, 1e8), some(touch.size, 1, 1e8)),
        **{name: sparse(1e10) for name in ("read_bytes", "write_bytes")},
        **{name: other(1e10) for name in ("vector_flop", "special_flop", "accesses")},
        rows=other(1e5),
        columns=some(KERNELS, 1, 2e4),
        passes=random.integers(1, 4, KERNELS),
        row_bytes=some(KERNELS, 1, 2e5),
        threads=random.choice([32, 128, 1024], KERNELS),
    )


seeds = st.integers(0, 2**32 - 1)
works = seeds.map(work)
machines = st.builds(Machine.of, devices(), seeds.map(calibration))


def never_slower(fast: Times, slow: Times, rounding: float = ROUNDING) -> bool:
    return bool((fast.total_s <= slow.total_s * (1 + rounding)).all())


# --- parts --------------------------------------------------------------------------------------------------------


@examples
@given(works, machines)
def test_parts_are_not_negative_and_add_up(work: KernelBatch, machine: Machine) -> None:
    times = time_work(work, machine)
    ideal, underuse = times.ideal_s, times.compute_s - times.ideal_s
    memory, launch = times.busy_s - times.compute_s, times.launch_s
    assert all((part >= 0).all() for part in (ideal, underuse, memory, launch))
    assert ideal + underuse + memory + launch == pytest.approx(times.total_s, rel=1e-12)
    assert np.isfinite(times.total_s).all()


@examples
@given(works, machines)
def test_joined_times_lie_between_the_longer_and_the_sum(work: KernelBatch, machine: Machine) -> None:
    times = time_work(work, machine)
    assert (times.busy_s >= np.maximum(times.compute_s, times.memory_s) * (1 - ROUNDING)).all()
    assert (times.busy_s <= (times.compute_s + times.memory_s) * (1 + ROUNDING)).all()


# --- a better device ----------------------------------------------------------------------------------------------


def _more_sms(device: Device, factor: float) -> Device:
    count = math.ceil(device.sm_count * factor)
    scale = count / device.sm_count
    return device.replace(
        sm_count=count,
        l2_capacity=device.l2_capacity * scale,
        matrix_peak={name: peak * scale for name, peak in device.matrix_peak.items()},
        vector_peak={name: peak * scale for name, peak in device.vector_peak.items()},
    )


BETTER = {
    "bandwidth": lambda d, f: d.replace(dram=Memory(capacity=d.dram.capacity, bandwidth=d.dram.bandwidth * f)),
    "clock": lambda d, f: d.replace(clock=Clock(boost=d.clock.boost * f)),  # and with it all peaks
    "clock alone": lambda d, f: d.replace(
        clock=Clock(boost=d.clock.boost * f), matrix_peak=d.matrix_peak, vector_peak=d.vector_peak
    ),
    "matrix peak": lambda d, f: d.replace(matrix_peak={name: peak * f for name, peak in d.matrix_peak.items()}),
    "vector peak": lambda d, f: d.replace(vector_peak={name: peak * f for name, peak in d.vector_peak.items()}),
    "L2": lambda d, f: d.replace(l2_capacity=d.l2_capacity * f),
    "L1": lambda d, f: d.replace(l1_capacity_per_sm=d.l1_capacity_per_sm * f),
}


FACTORS = st.floats(1.01, 8.0)  # peaks of a what-if are rounded to six digits: below that a better one might be worse
OF_PEAKS = 5e-6  # so is what an SM multiplies in a clock, and with it the energy of a FLOP that power lets through


@pytest.mark.parametrize("what", BETTER)
@examples
@given(work=works, machine=machines, factor=FACTORS)
def test_a_better_device_is_never_slower(what: str, work: KernelBatch, machine: Machine, factor: float) -> None:
    # the same peaks at a higher clock are smaller units, of which a FLOP takes more energy
    device = machine.device.replace(board_power=None) if what == "clock alone" else machine.device
    plain, better = (Machine.of(d, machine.constants) for d in (device, BETTER[what](device, factor)))
    assert never_slower(time_work(work, better), time_work(work, plain), OF_PEAKS)


@examples
@given(work=works, machine=machines, factor=FACTORS)
def test_more_sms_of_the_same_kind_are_never_slower(work: KernelBatch, machine: Machine, factor: float) -> None:
    """With as much L2 each, where rows are read again; on boards of which nobody says what power they draw: see
    test_utilization for attention on a few of many SMs.
    """
    small, large = (
        Machine.of(device.replace(board_power=None), machine.constants)
        for device in (machine.device, _more_sms(machine.device, factor))
    )
    assert never_slower(time_work(work, large), time_work(work, small))


@examples
@given(work=works, machine=machines, factor=FACTORS)
def test_more_board_power_is_never_slower(work: KernelBatch, machine: Machine, factor: float) -> None:
    power = machine.device.board_power
    times = [
        time_work(work, Machine.of(machine.device.replace(board_power=watts), machine.constants))
        for watts in (power, power * factor, None)
    ]
    assert never_slower(times[1], times[0])
    assert never_slower(times[2], times[1])


# --- larger products ----------------------------------------------------------------------------------------------


def sizes(seed: int, **high: int) -> dict[str, np.ndarray]:
    """Random sizes up to `high`, small ones as often as large ones."""
    random = np.random.default_rng(seed)
    return {name: np.floor(np.exp(random.uniform(0, np.log(most + 1), KERNELS))) for name, most in high.items()}


def timed(
    machine: Machine, arithmetic: Math, by: Algorithm, read_bytes: float | np.ndarray, shape: dict[str, np.ndarray]
) -> Times:
    """Kernels of one product each."""
    products = Products.of(np.arange(KERNELS), **shape, algorithm=by)
    return time_work(KernelBatch.of(KERNELS, math=arithmetic, products=products, read_bytes=read_bytes), machine)


ANY = {"batch": 300, "m": 8000, "n": 8000, "k": 8000}
ALGORITHMS = st.sampled_from([PRODUCT, FORWARD, FUSED_WINOGRAD])
ARITHMETICS = st.sampled_from([Math.FP32, Math.FP16])
BYTES = st.sampled_from([0.0, 1e6, 1e8])


@pytest.mark.parametrize("grown", ANY)
@examples
@given(machine=machines, arithmetic=ARITHMETICS, by=ALGORITHMS, read_bytes=BYTES, seed=seeds, more=st.integers(1, 300))
def test_a_larger_product_is_never_faster(
    grown: str, machine: Machine, arithmetic: Math, by: Algorithm, read_bytes: float, seed: int, more: int
) -> None:
    small = sizes(seed, **ANY)
    large = small | {grown: small[grown] + more}
    before, after = (timed(machine, arithmetic, by, read_bytes, shape) for shape in (small, large))
    assert never_slower(before, after)


@pytest.mark.parametrize("grown", ["batch", "queries", "keys"])
@examples
@given(
    machine=machines,
    arithmetic=ARITHMETICS,
    read_bytes=BYTES,
    seed=seeds,
    executed=st.sampled_from([1.0, 0.55]),
    more=st.integers(1, 64),
)
def test_attention_over_more_is_never_faster(
    grown: str, machine: Machine, arithmetic: Math, read_bytes: float, seed: int, executed: float, more: int
) -> None:
    """The share that a mask leaves stays the same."""

    def attend(batch: np.ndarray, queries: np.ndarray, keys: np.ndarray, width: np.ndarray) -> Times:
        products = Products.of(
            np.tile(np.arange(KERNELS), 2),
            batch=np.tile(batch, 2),
            m=np.tile(queries, 2),
            n=np.concatenate([keys, width]),
            k=np.concatenate([width, keys]),
            executed=executed,
            algorithm=ATTENTION,
        )
        return time_work(KernelBatch.of(KERNELS, math=arithmetic, products=products, read_bytes=read_bytes), machine)

    small = sizes(seed, batch=300, queries=4000, keys=4000, width=256)
    assert never_slower(attend(**small), attend(**small | {grown: small[grown] + more}))


@examples
@given(machine=machines, arithmetic=ARITHMETICS, by=ALGORITHMS, read_bytes=BYTES, seed=seeds)
def test_twice_the_products_take_at_most_twice_the_time(
    machine: Machine, arithmetic: Math, by: Algorithm, read_bytes: float, seed: int
) -> None:
    """Of the same kernel: the start comes once."""
    once = sizes(seed, **ANY)
    before = timed(machine, arithmetic, by, read_bytes, once)
    after = timed(machine, arithmetic, by, 2 * read_bytes, once | {"batch": 2 * once["batch"]})
    assert (after.total_s <= (2 * before.busy_s + before.launch_s) * (1 + ROUNDING)).all()


# --- the step from one size to the next -----------------------------------------------------------------------------


def prologue(machine: Machine, kind: str) -> float:
    """Steps in k beyond a product's: CUDA cores have none."""
    return float(machine.values["matrix_prologue"]) if kind == "matrix" else 0.0


def wave_s(machine: Machine, arithmetic: Math, k: np.ndarray) -> np.ndarray:
    """One wave of 256×128 tiles over the whole of k: no other tile takes longer."""
    rate = machine.matrix_rate(arithmetic)
    kind = "matrix" if rate.on_tensor_core else "simt"
    loss = 1 + machine.values["matrix_tile_loss"] * (1.0 if kind == "matrix" else 0.5) * (1 / 256 + 1 / 128)
    step = 2 * 256 * 128 * loss / (rate.peak * rate.share / machine.sm_count)
    step = max(step, machine.values["latency_cycles"] / machine.clock)
    return (k + prologue(machine, kind)) * step


@pytest.mark.parametrize("grown", ["batch", "m", "n"])
@examples
@given(machine=machines, arithmetic=ARITHMETICS, read_bytes=BYTES, seed=seeds)
def test_the_step_to_the_next_size_is_at_most_a_wave(
    grown: str, machine: Machine, arithmetic: Math, read_bytes: float, seed: int
) -> None:
    """One row, column or product more is at most one row of tiles more; here one that fits on the SMs side by side.

    The smallest tile is 16×32 and k is split in 16 at most: a row of tiles over n columns has at most ⌈n/32⌉·16 blocks,
    a column of tiles over m rows ⌈m/16⌉·16. Beside the wave there are 128 bytes of partial sums for each further
    output, and where the board's power is the limit its FLOP take what they take.
    """
    side = max(1, machine.sm_count // 16)
    waves = math.ceil(16 * side / machine.sm_count)  # 1 from 16 SMs on
    limits = {
        "m": {"batch": 1, "m": 3000, "n": 32 * side},
        "n": {"batch": 1, "m": 16 * side, "n": 3000},
        "batch": {"batch": 3000, "m": 16, "n": 32 * side},
    }[grown]
    small = sizes(seed, **limits, k=8000)
    large = small | {grown: small[grown] + 1}
    before, after = (timed(machine, arithmetic, PRODUCT, read_bytes, shape) for shape in (small, large))
    outputs = large["batch"] * large["m"] * large["n"] - small["batch"] * small["m"] * small["n"]
    sums = 128 * outputs / (machine.bandwidth * machine.values["product_memory_share"])
    wave = waves * wave_s(machine, arithmetic, small["k"])
    power = 2 * outputs * small["k"] / machine.matrix_rate(arithmetic).limit
    assert (after.total_s <= (before.total_s + np.maximum(wave, power) + sums) * (1 + ROUNDING)).all()


@examples
@given(machine=machines, arithmetic=ARITHMETICS, by=ALGORITHMS, read_bytes=BYTES, seed=seeds)
def test_the_step_to_the_next_k_is_one_of_k_over_16_and_the_prologue(
    machine: Machine, arithmetic: Math, by: Algorithm, read_bytes: float, seed: int
) -> None:
    """Split in 16 at most, a block has k/16 steps and its prologue; one more is added to them."""
    small = sizes(seed, **ANY)
    before = timed(machine, arithmetic, by, read_bytes, small)
    after = timed(machine, arithmetic, by, read_bytes, small | {"k": small["k"] + 1})
    kind = "matrix" if machine.matrix_rate(arithmetic).on_tensor_core else "simt"
    steps = np.minimum(small["k"], small["k"] / 16 + prologue(machine, kind))
    bound = before.busy_s * (1 + 1 / steps) + before.launch_s
    assert (after.total_s <= bound * (1 + ROUNDING)).all()


# --- constants ----------------------------------------------------------------------------------------------------


def test_a_gpu_that_nobody_measured_has_the_constants_of_any_gpu() -> None:
    found = load_constants("random-gpu")
    assert found == load_constants()
    assert found.measured == frozenset()


@examples
@given(works, devices())
def test_without_calibration_the_prediction_is_that_of_the_priors(work: KernelBatch, device: Device) -> None:
    found, priors = (Machine.of(device, calibration) for calibration in (constants_for(device), load_constants()))
    assert np.array_equal(time_work(work, found).total_s, time_work(work, priors).total_s)


@examples
@given(works, devices())
def test_without_calibration_of_its_own_the_prediction_is_that_of_its_architecture(
    work: KernelBatch, device: Device
) -> None:
    """A GPU of compute capability 8.0 that nobody measured: one as another, and not as any GPU."""
    ampere = device.replace(compute_capability="8.0")
    found, other = (Machine.of(ampere, constants_for(ampere.replace(name=name))) for name in ("random-gpu", "other"))
    assert np.array_equal(time_work(work, found).total_s, time_work(work, other).total_s)
    assert found.values["issue_share"] != load_constants().value("issue_share")
    assert found.constants.measured == frozenset()


def test_a_measured_gpu_differs_from_the_priors_in_what_was_measured() -> None:
    own, priors = load_constants("nvidia-t4"), load_constants()
    changed = {name for name in CONSTANTS if own.constants[name] != priors.constants[name]}
    assert changed
    assert {own.constants[name].source for name in changed} == {"calibration/campaigns: nvidia-t4"}
    assert own.measured
    device = load_device("nvidia-t4")
    assert Machine.of(device, replace(own, constants=priors.constants)).values == Machine.of(device, priors).values
