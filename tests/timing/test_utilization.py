"""Tiles, waves, split-K and attention blocks, worked out on a machine of 50 SMs with 0.2 TFLOP/s each.

On CUDA cores a step in k of an a×b tile takes 2·a·b / 0.2e12 s: 163.84 ns for 128×128, 327.68 ns for 256×128, 5.12 ns
for 16×32. On the tensor core it takes a tenth of that.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import constants

from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import Math
from rooflinekit.kernels import cudnn, miopen, onednn
from rooflinekit.kernels.algorithms import ATTENTION, Algorithm
from rooflinekit.kernels.depthwise import UNROLLED
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import Times, time_work

#: A start so long that no product is split over k for the sake of a second kernel.
UNSPLIT = {"kernel_gap": 1e-3}


def times(machine: Machine, math: Math = Math.FP32, *, read_bytes: float = 0.0, **sizes: float) -> Times:
    """Of one kernel with one product."""
    return time_work(KernelBatch.of(1, math=math, products=Products.of([0], **sizes), read_bytes=read_bytes), machine)


def compute_us(machine: Machine, math: Math = Math.FP32, **sizes: float) -> float:
    return float(times(machine, math, **sizes).compute_s[0]) * 1e6


# --- tiles and waves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waves", [1, 2, 3, 10])
def test_full_waves_take_flop_over_rate(device: Device, waves: int) -> None:
    # 50·waves tiles of 128×128: 2 · 6400·128·1000 FLOP a wave, at 10 TFLOP/s 163.84 µs
    machine = Machine.of(device, constants(**UNSPLIT))
    assert compute_us(machine, m=6400 * waves, n=128, k=1000) == pytest.approx(163.84 * waves)
    assert compute_us(machine, Math.FP16, m=6400 * waves, n=128, k=1000) == pytest.approx(16.384 * waves)


@pytest.mark.parametrize(
    ("vendor", "capability", "lanes", "share"),
    # four schedulers issue 128 threads' instructions a clock, of which 0.75 multiply and add: 96 a clock
    [("NVIDIA", "9.0", 64, 1.0), ("NVIDIA", "9.0", 128, 0.75), ("NVIDIA", "9.0", 192, 0.5), ("NVIDIA", "6.1", 128, 1.0),
     ("NVIDIA", "10.0", 128, 1.0), ("NVIDIA", "10.0", 256, 0.75), ("AMD", "gfx942", 128, 1.0)],
)  # fmt: skip
def test_cuda_cores_multiply_no_faster_than_their_schedulers_issue(
    device: Device, vendor: str, capability: str, lanes: int, share: float
) -> None:
    peak = 2 * device.sm_count * lanes * device.vector_clock
    vector = {**device.vector_peak, "fp32": peak}
    made = device.model_copy(
        update={"vendor": vendor, "compute_capability": capability, "lanes_per_sm": lanes, "vector_peak": vector}
    )
    machine = Machine.of(made, constants(**UNSPLIT))
    assert machine.matrix_rate(Math.FP32).share == pytest.approx(share * constants().value("issue_share"))
    assert machine.matrix_rate(Math.FP16).share == constants().value("issue_share")  # the tensor core


def test_one_row_more_takes_one_wave_more_of_the_smallest_tiles(device: Device) -> None:
    # 6401 rows: 51 tiles of 128×128 are 2 waves. Of 16×32 there are 401·4 = 1604, 33 waves of 0.512 µs, 16.896 µs.
    # 32×32 or 16×64: 804 or 802 tiles, 17 waves of 1.024 µs, 17.408 µs; all larger ones take more.
    machine = Machine.of(device, constants(**UNSPLIT))
    assert compute_us(machine, Math.FP16, m=6401, n=128, k=1000) == pytest.approx(16.896)


def test_lanes_have_thinner_tiles(device: Device) -> None:
    # 2 rows of 6400: 100 tiles of 2×64, 2 waves of 2 · 2·64·1000 FLOP at 0.2 TFLOP/s, 1.28 µs. The tensor core has none
    # below 16 rows: 200 of 16×32, 4 waves of 0.512 µs. (A cache of 20 TB/s is no limit.)
    machine = Machine.of(device, constants(l2_bytes_per_clock=320, **UNSPLIT))
    assert compute_us(machine, m=2, n=6400, k=1000) == pytest.approx(2 * 1.28)
    assert compute_us(machine, Math.FP16, m=2, n=6400, k=1000) == pytest.approx(4 * 0.512)


def test_a_matrix_times_a_vector_fetches_each_number_once(device: Device) -> None:
    # 4 · 1000·6400 B at 32 B a clock of each of 50 SMs, 2 TB/s, take 12.8 µs; 2 · 1000·6400 FLOP 1.28 µs
    machine = Machine.of(device, constants(**UNSPLIT))
    assert machine.l2_bandwidth == pytest.approx(2e12)
    assert compute_us(machine, m=1, n=6400, k=1000) == pytest.approx(12.8)
    # with lanes of a fiftieth, 0.2 TFLOP/s, the arithmetic takes longer: 64 µs, as there are no tiles to fill
    slow = Machine.of(device.replace(vector_peak={"fp32": 0.2e12}), constants(**UNSPLIT))
    assert compute_us(slow, m=6400, n=1, k=1000) == pytest.approx(64.0)


def test_a_cpu_packs_both_matrices(device: Device) -> None:
    # 1000·(100 + 300) numbers of 4 B are written and read: 3.2 MB at 1 TB/s. Not on a GPU, nor for products of a batch.
    cpu = Machine.of(device.replace(kind="cpu", vector_peak={"fp32": 10e12}, matrix_peak={}), constants(**UNSPLIT))
    packed = times(cpu, m=100, n=300, k=1000)
    assert packed.memory_s[0] == pytest.approx(3.2e-6)
    assert times(cpu, m=100, n=300, k=1000, batch=2).memory_s[0] == 0
    assert times(Machine.of(device, constants(**UNSPLIT)), m=100, n=300, k=1000).memory_s[0] == 0
    # of a convolution the weights alone: 1000·300 numbers of 4 B, twice, for each of 2 groups
    assert times(cpu, m=100, n=300, k=1000, batch=2, algorithm=onednn.direct(cudnn.FORWARD)).memory_s[
        0
    ] == pytest.approx(4.8e-6)


def test_tiles_that_lose_nothing_but_time_per_step_leave_the_largest_one(device: Device) -> None:
    # 500 cycles a step are 400 ns, more than any tile's work, so that the fewest waves win: those of 256×128.
    # 12800·128 are 50 such tiles, one wave of 1000 steps: 400 µs. One row more is a 51st tile and a wave of its own.
    machine = Machine.of(device, constants(latency_cycles=500, **UNSPLIT))
    assert compute_us(machine, m=12_800, n=128, k=1000) == pytest.approx(400.0)
    assert compute_us(machine, m=12_801, n=128, k=1000) == pytest.approx(800.0)
    assert compute_us(machine, m=25_600, n=128, k=1000) == pytest.approx(800.0)


@pytest.mark.parametrize(("m", "n"), [(65, 65), (256, 65), (65, 128), (2, 2)])
def test_a_tile_that_is_not_full_takes_as_long_as_a_full_one(device: Device, m: int, n: int) -> None:
    # 100 products of less than a tile each are 100 tiles, 2 waves of 400 µs at the floor of 500 cycles a step
    machine = Machine.of(device, constants(latency_cycles=500, **UNSPLIT))
    assert compute_us(machine, batch=100, m=m, n=n, k=1000) == pytest.approx(800.0)


def test_the_latency_of_a_step_is_a_floor_not_an_addition(device: Device) -> None:
    # 400 cycles are 320 ns, below the 327.68 ns of a 256×128 tile: one wave of it takes its work alone. At 420
    # cycles, 336 ns, the floor counts. Any smaller tile takes at least 2 waves of 320 ns.
    at = {cycles: Machine.of(device, constants(latency_cycles=cycles, **UNSPLIT)) for cycles in (400, 420)}
    assert compute_us(at[400], m=12_800, n=128, k=1000) == pytest.approx(327.68)
    assert compute_us(at[420], m=12_800, n=128, k=1000) == pytest.approx(336.0)


def test_blocks_of_miopen_wait_unless_others_are_beside_them(device: Device) -> None:
    # 1.28 ns of a 2×64 tile and 400 ns for operands: 401.28 ns a step, as long as an SM of 64 KiB has 4 blocks of
    # 16 KiB. 8 blocks come as twice 4. Where sums are split, blocks are never alone: the longer counts.
    machine = Machine.of(
        device.replace(vendor="AMD", shared_memory_per_sm=64 * 1024), constants(miopen_latency_cycles=500, **UNSPLIT)
    )
    took = {
        n: compute_us(machine, batch=50 * n, m=2, n=64, k=1000, algorithm=miopen.IMPLICIT["forward"]) for n in (1, 4, 8)
    }
    assert took == pytest.approx({1: 401.28, 4: 401.28, 8: 802.56})
    assert compute_us(machine, batch=50, m=2, n=64, k=1000, algorithm=miopen.IMPLICIT["weight"]) == pytest.approx(400.0)


def test_small_tiles_lose_more(device: Device) -> None:
    # A tile takes 1 + 64·(1/a + 1/b) of its work: 1.75 for 256×128, 2 for 128×128.
    machine = Machine.of(device, constants(matrix_tile_loss=128, **UNSPLIT))
    # 1280×1280 are 50 tiles of 256×128: one wave of 327.68 µs · 1.75
    assert compute_us(machine, m=1280, n=1280, k=1000) == pytest.approx(573.44)
    # 1281 rows: 60 of 256×128 or 55 of 128×256, 2 waves, 1146.88 µs. 128×128: 110, 3 waves of 163.84 · 2 = 983.04.
    # 128×64 at 2.5: 220, 5 waves of 81.92 · 2.5 = 1024; 256×64 at 2.25: 3 of 163.84 · 2.25 = 1105.92;
    # 64×64 at 3: 420, 9 of 40.96 · 3 = 1105.92; those with a side of 32 or 16 from 1290 on.
    assert compute_us(machine, m=1281, n=1280, k=1000) == pytest.approx(983.04)


def test_tiles_of_the_tensor_core_lose_twice_as_much_as_those_of_the_cuda_cores(device: Device) -> None:
    machine = Machine.of(device, constants(matrix_tile_loss=64, **UNSPLIT))
    assert compute_us(machine, m=1280, n=1280, k=1000) == pytest.approx(327.68 * 1.375)
    assert compute_us(machine, Math.FP16, m=1280, n=1280, k=1000) == pytest.approx(32.768 * 1.75)


def test_the_prologue_is_steps_in_k(device: Device) -> None:
    # 50 tiles of 128×128, one wave; on tensor cores a step takes 2·128² FLOP / 2 TFLOP/s = 16.384 ns, on CUDA cores,
    # which have no prologue, 163.84 ns
    machine = Machine.of(device, constants(matrix_prologue=250, **UNSPLIT))
    assert compute_us(machine, Math.FP16, batch=50, m=128, n=128, k=1000) == pytest.approx(1250 * 16.384e-3)
    assert compute_us(machine, batch=50, m=128, n=128, k=1000) == pytest.approx(163.84)


def test_products_of_a_batch_fill_waves_together(device: Device) -> None:
    # 25 products of 128×128 fill half of the SMs with 128×128 tiles, 64×128 fill all: 81.92 µs. 50 take one wave,
    # 100 two.
    machine = Machine.of(device, constants(**UNSPLIT))
    found = [compute_us(machine, batch=batch, m=128, n=128, k=1000) for batch in (25, 50, 100)]
    assert found == pytest.approx([81.92, 163.84, 327.68])


def test_a_mask_that_leaves_out_half(device: Device) -> None:
    machine = Machine.of(device, constants(**UNSPLIT))
    assert compute_us(machine, m=6400, n=128, k=1000, executed=0.5) == pytest.approx(81.92)


def test_prologue_and_latency_are_those_of_16_bit(device: Device) -> None:
    # fp8 at 200 TFLOP/s: 1000 steps take 16.384 µs. 250 steps of fp16 take 250 · 32.768 ns whatever is multiplied.
    fast = device.replace(matrix_peak={"fp16": 100e12, "fp8": 200e12})
    machine = Machine.of(fast, constants(matrix_prologue=250, **UNSPLIT))
    assert compute_us(machine, Math.FP16, m=1280, n=1280, k=1000) == pytest.approx(32.768 + 8.192)
    assert compute_us(machine, Math.FP8, m=1280, n=1280, k=1000) == pytest.approx(16.384 + 8.192)
    # 50 cycles are 40 ns, more than the 32.768 ns of a 256×128 tile: half of that for fp8. 12800×128 are one wave.
    machine = Machine.of(fast, constants(latency_cycles=50, **UNSPLIT))
    assert compute_us(machine, Math.FP16, m=12_800, n=128, k=1000) == pytest.approx(40.0)
    assert compute_us(machine, Math.FP8, m=12_800, n=128, k=1000) == pytest.approx(20.0)


def test_halved_matrix_units_hide_the_loss_of_tiles(device: Device) -> None:
    # Operands come fast enough for 200 TFLOP/s, of which the line computes half: 1.75 times a 256×128 tile's time at
    # full rate is less than its time at half, so that 1280·1280·1000 take FLOP/peak; at a loss of 256 the factor is 4
    halved = device.replace(matrix_peak_fp16_accumulate={"fp16": 200e12})
    at = {loss: Machine.of(halved, constants(matrix_tile_loss=loss, **UNSPLIT)) for loss in (64, 256)}
    assert compute_us(at[64], Math.FP16, m=1280, n=1280, k=1000) == pytest.approx(32.768)
    assert compute_us(at[256], Math.FP16, m=1280, n=1280, k=1000) == pytest.approx(32.768 * 4 / 2)


@pytest.mark.parametrize(
    ("by", "math", "constant"),
    [
        (cudnn.FORWARD, Math.FP32, "simt_convolution"),
        (cudnn.WEIGHT, Math.FP32, "simt_weight"),
        (cudnn.FUSED_WINOGRAD, Math.FP32, "simt_convolution"),
    ],
)
def test_the_rate_of_convolutions(device: Device, by: Algorithm, math: Math, constant: str) -> None:
    sizes = {"m": 6400, "n": 128, "k": 1000}
    machine = Machine.of(device, constants(**UNSPLIT, **{constant: 0.5}))
    plain = compute_us(machine, math, **sizes)
    assert compute_us(machine, math, **sizes, algorithm=by) == pytest.approx(2 * plain)


def test_many_products_are_timed_as_each_alone(device: Device) -> None:
    # more than are looked at together, on the CUDA cores and on the tensor core in turn
    machine = Machine.of(device, constants(matrix_tile_loss=20, matrix_prologue=100, **UNSPLIT))
    count = 9000
    rows = np.arange(count) % 90 * 37 + 1
    maths = [Math.FP32, Math.FP16] * (count // 2)
    work = KernelBatch.of(count, math=maths, products=Products.of(np.arange(count), m=rows, n=300, k=77))
    together = time_work(work, machine).compute_s * 1e6
    for row in (0, 1, 88, 4095, 4096, 8191, 8999):
        alone = compute_us(machine, maths[row], m=row % 90 * 37 + 1, n=300, k=77)
        assert together[row] == pytest.approx(alone, rel=1e-12)


# --- split-K --------------------------------------------------------------------------------------------------

#: One 128×128 output, 96000 deep, with times added up instead of hidden (overlap 1). Unsplit at best 32 tiles of 16×32
#: of the tensor core: 96000 · 0.512 ns = 49.152 µs. In 3 parts 48 tiles of 32×32: 32000 · 1.024 ns = 32.768 µs. More
#: parts never do better, as 48 of 50 SMs is what 2^i·3 tiles fill at best, and each adds 2 · 4 · 128·128 B of partial
#: sums.
LONG = {"m": 128, "n": 128, "k": 96_000}


def test_few_tiles_are_split_over_k(device: Device) -> None:
    machine = Machine.of(device, constants(overlap=1, kernel_gap=2e-6))
    found = times(machine, Math.FP16, **LONG)
    assert found.compute_s[0] == pytest.approx(32.768e-6)
    # 3 partial sums of 128·128 numbers of 4 bytes are written and read: 393,216 B at 1 TB/s
    assert found.memory_s[0] == pytest.approx(0.393216e-6)
    assert found.launch_s[0] == pytest.approx(4e-6)  # the kernel that adds them up starts too
    assert found.total_s[0] == pytest.approx(37.161216e-6)


def test_the_last_part_of_a_split_takes_as_long_as_the_others(device: Device) -> None:
    # 96001 in 3 parts: 32001 steps of 1.024 ns, though the last part has one less
    machine = Machine.of(device, constants(overlap=1, kernel_gap=2e-6))
    assert compute_us(machine, Math.FP16, **LONG | {"k": 96_001}) == pytest.approx(32.769024, rel=1e-9)


def test_a_split_that_costs_more_than_it_saves_is_not_made(device: Device) -> None:
    # it saves 49.152 - 32.768 - 0.393 = 15.991 µs in 3 parts, which a start of 20 µs is not worth
    found = times(Machine.of(device, constants(overlap=1, kernel_gap=20e-6)), Math.FP16, **LONG)
    assert found.compute_s[0] == pytest.approx(49.152e-6)
    assert (found.memory_s[0], found.launch_s[0]) == (0.0, 20e-6)


def test_full_waves_are_not_split(device: Device) -> None:
    # 6400×128 are 50 tiles of 128×128: there is nothing to gain
    found = times(Machine.of(device, constants(overlap=1, kernel_gap=2e-6)), m=6400, n=128, k=1000)
    assert (found.memory_s[0], found.launch_s[0]) == (0.0, 2e-6)


def test_a_board_at_its_power_gains_nothing_by_splitting(device: Device) -> None:
    # 64 W at 10 pJ a FLOP sustain 6.4 TFLOP/s: 2 · 128·128·96000 FLOP take 491.52 µs however they are cut, so that
    # partial sums and a second start of 2 µs are a loss
    board = device.replace(board_power=64, process_nm=16)
    found = times(Machine.of(board, constants(overlap=1, kernel_gap=2e-6, simt_energy=10e-12)), **LONG)
    assert found.total_s[0] == pytest.approx(493.52e-6)


def test_a_product_beside_longer_vector_work_gains_nothing_by_splitting(device: Device) -> None:
    # on the tensor core 49.152 µs unsplit, beside 300 MFLOP on the CUDA cores: at 10 TFLOP/s of multiply-adds, single
    # operations do 5, 60 µs. Split, it would end no sooner and start twice.
    machine = Machine.of(device, constants(kernel_gap=2e-6))
    work = KernelBatch.of(1, math=Math.FP16, products=Products.of([0], **LONG), vector_flop=300e6)
    assert time_work(work, machine).total_s[0] == pytest.approx(62e-6)


# --- depthwise convolutions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor_core", [True, False])
@pytest.mark.parametrize("sizes", [{"m": 1000, "n": 1, "k": 9}, {"m": 1, "n": 9, "k": 1000}], ids=["output", "weight"])
def test_depthwise_convolutions_work_a_lane_an_output(device: Device, sizes: dict[str, int], tensor_core: bool) -> None:
    # 10 channels of 1000 pixels, or the gradient of their 10 windows: 10,000 outputs of 9 taps, 100 + 9·2 cycles each,
    # on 50·80 lanes: 295 cycles at 1.25 GHz. No tiles, no tensor core.
    machine = Machine.of(device, constants(window_cycles=100, tap_cycles=2))
    products = Products.of([0], batch=10, **sizes, algorithm=UNROLLED)
    found = time_work(KernelBatch.of(1, math=Math.FP16, tensor_core=tensor_core, products=products), machine)
    assert found.compute_s[0] == pytest.approx(0.236e-6)


def test_a_depthwise_convolution_of_one_pixel(device: Device) -> None:
    # 4000 channels of one pixel: an output a lane, 100 + 9·2 cycles
    machine = Machine.of(device, constants(window_cycles=100, tap_cycles=2))
    products = Products.of([0], batch=4000, m=1, n=1, k=9, algorithm=UNROLLED)
    assert time_work(KernelBatch.of(1, products=products), machine).compute_s[0] == pytest.approx(118 / 1.25e9)


# --- attention ------------------------------------------------------------------------------------------------


def attention(machine: Machine, *, batch: int, queries: int, keys: int, width: int, executed: float = 1.0) -> Times:
    """Both products of fused attention in fp16."""
    products = Products.of(
        [0, 0],
        batch=batch,
        m=queries,
        n=[keys, width],
        k=[width, keys],
        executed=executed,
        algorithm=ATTENTION,
    )
    return time_work(KernelBatch.of(1, math=Math.FP16, products=products), machine)


# A block of 128 queries over 1024 keys of width 64: 2 · 128·1024·64 FLOP at 2 TFLOP/s are 8.388608 µs a product.
BLOCK = 8.388608e-6


@pytest.mark.parametrize(("heads", "waves"), [(25, 1), (26, 2), (50, 2), (12, 1)])
def test_attention_blocks_come_in_waves(machine: Machine, heads: int, waves: int) -> None:
    # two blocks a head, on 50 SMs
    found = attention(machine, batch=heads, queries=256, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(waves * 2 * BLOCK)


def test_the_rate_and_the_start_of_attention_blocks(device: Device) -> None:
    # at half the rate 2 · 16.777216 µs; 2500 cycles at 1.25 GHz are 2 µs in each of 2 waves
    slow = Machine.of(device, constants(attention_share=0.5, attention_block_cycles=2500, warp_mma_flop=1600))
    assert attention(slow, batch=100, queries=128, keys=1024, width=64).compute_s[0] == pytest.approx(
        2 * (4 * BLOCK + 2e-6)
    )


def test_attention_pads_queries_to_16_and_keys_to_64(machine: Machine) -> None:
    # 70 queries run as 80, 1000 keys as 1024: 50 blocks, one wave of 2 · 80·1024·64 FLOP a product
    found = attention(machine, batch=50, queries=70, keys=1000, width=64)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK * 80 / 128)


def test_causal_attention_ends_spread_over_the_last_block(machine: Machine) -> None:
    # 1024 queries see 1024·1025/2 of 1024² keys, 512.5 on average, and 64 more: the diagonal block of 128 is computed
    # whole. 50 heads · 8 blocks are 8 an SM: 8 · 576.5/1024 of the longest block and half a block more, where without a
    # mask it is 8. Under a window that leaves 1/16 the longest block has twice the average.
    for seen, expected in ((1025 / 2048, 8 * 576.5 / 1024 + 1 / 2), (1 / 16, 8 / 8 + 1 / 8)):
        found = attention(machine, batch=50, queries=1024, keys=1024, width=64, executed=seen)
        assert found.compute_s[0] == pytest.approx(2 * BLOCK * expected)
    whole = attention(machine, batch=50, queries=1024, keys=1024, width=64)
    assert whole.compute_s[0] == pytest.approx(2 * 8 * BLOCK)


def test_causal_attention_is_not_faster_than_its_longest_block(machine: Machine) -> None:
    # 5 heads · 8 blocks on 50 SMs: the last block of each head sees all keys
    found = attention(machine, batch=5, queries=1024, keys=1024, width=64, executed=1025 / 2048)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK)


#: An SM takes 1024 keys of 64 numbers of 2 bytes at 64 B a clock of 1.25 GHz: 1.6384 µs, longer than the arithmetic of
#: one query, which runs as 16: 16/128 of BLOCK, 1.0486 µs.
FETCH = 1.6384e-6


def test_decoding_gives_each_head_an_sm(machine: Machine) -> None:
    # with 50 heads on 50 SMs nothing is gained by splitting
    found = attention(machine, batch=50, queries=1, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * FETCH)


def test_decoding_splits_the_keys_of_a_few_heads(device: Device) -> None:
    # 5 heads on 50 SMs take a tenth of that, and a kernel that joins the parts: a gap of 0.1 µs
    found = attention(Machine.of(device, constants(kernel_gap=1e-7)), batch=5, queries=1, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * FETCH / 10 + 1e-7)


def test_decoding_does_not_split_what_another_kernel_would_cost(device: Device) -> None:
    found = attention(Machine.of(device, constants(kernel_gap=4e-6)), batch=5, queries=1, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * FETCH)


def test_more_queries_are_bound_by_arithmetic(machine: Machine) -> None:
    # 32 of 128: 2.097 µs
    found = attention(machine, batch=50, queries=32, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK / 4)


def test_attention_without_tensor_cores_runs_on_the_lanes(machine: Machine) -> None:
    products = Products.of([0, 0], batch=50, m=128, n=[1024, 64], k=[64, 1024], algorithm=ATTENTION)
    found = time_work(KernelBatch.of(1, math=Math.FP32, products=products), machine)
    assert found.compute_s[0] == pytest.approx(2 * 10 * BLOCK)


def test_attention_on_a_few_sms_is_not_limited_by_the_power_of_all(device: Device) -> None:
    # 60 W at 1 pJ a FLOP sustain 60 TFLOP/s of 100. 10 blocks on 10 of 50 SMs draw for 20 TFLOP/s: as fast as without.
    board = device.replace(board_power=60, process_nm=16)
    found = attention(Machine.of(board, constants(matrix_energy=1e-12)), batch=5, queries=256, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK)


def test_products_of_a_gradient_draw_more(device: Device) -> None:
    # 50 blocks on 50 SMs: 2 · 838.8608 MFLOP at 1 pJ are 1.6777216 mJ, at 30 W 55.92 µs; those of a gradient, which
    # run at half of the rate, take twice the energy.
    board = device.replace(board_power=30, process_nm=16)
    shape = {"batch": 25, "m": 256, "n": [1024, 64], "k": [64, 1024]}
    limited = Machine.of(board, constants(matrix_energy=1e-12, attention_gradient=0.5))
    for algorithm, times in ((ATTENTION, 1), (replace(ATTENTION, gradient=True), 2)):
        products = Products.of([0, 0], **shape, algorithm=algorithm)
        found = time_work(KernelBatch.of(1, math=Math.FP16, products=products), limited)
        assert found.compute_s[0] == pytest.approx(times * 1.6777216e-3 / 30)


@pytest.mark.parametrize(("width", "compiled"), [(64, 64), (72, 96), (80, 96), (160, 192)])
def test_heads_are_filled_up_to_a_compiled_size(machine: Machine, width: int, compiled: int) -> None:
    found = attention(machine, batch=25, queries=256, keys=1024, width=width)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK * compiled / 64)


def test_queries_that_share_a_block_are_split_over_the_keys(device: Device) -> None:
    # 128 queries of 5 heads on 50 SMs: a tenth of a block each, and a kernel that joins the parts after 0.1 µs
    found = attention(Machine.of(device, constants(kernel_gap=1e-7)), batch=5, queries=128, keys=1024, width=64)
    assert found.compute_s[0] == pytest.approx(2 * BLOCK / 10 + 1e-7)


def test_attention_over_fewer_keys_than_a_head_is_wide(machine: Machine) -> None:
    # 32 keys run as 64: each product 2 · 128·64·128 FLOP, a block at 2 TFLOP/s 1.048576 µs
    found = attention(machine, batch=50, queries=128, keys=32, width=128)
    assert found.compute_s[0] == pytest.approx(2 * 1.048576e-6)


# --- why the peak is not reached -----------------------------------------------------------------------------------


def causes_us(found: Times) -> tuple[float, ...]:
    """Power, waves, tiles, and what is left."""
    power, waves, tiles = (float(seconds) * 1e6 for seconds in found.causes_s[:, 0])
    return power, waves, tiles, float(found.compute_s[0] - found.ideal_s[0]) * 1e6 - power - waves - tiles


def test_full_waves_of_whole_tiles_miss_nothing(device: Device) -> None:
    machine = Machine.of(device, constants(**UNSPLIT))
    assert causes_us(times(machine, Math.FP16, m=6400, n=128, k=1000)) == pytest.approx((0, 0, 0, 0), abs=1e-9)


def test_waves_and_tiles_share_what_one_row_more_costs(device: Device) -> None:
    # 1604 tiles of 16×32 in 33 waves of 50: 46 of 1650 places stay empty, 46/1650 · 16.896 µs = 0.47104 µs. Of 6416
    # rows 15 are not asked for: 15/6416 · 16.42496 µs = 0.0384 µs. 2·6401·128·1000 FLOP at 100 TFLOP/s are 16.38656 µs.
    machine = Machine.of(device, constants(**UNSPLIT))
    found = times(machine, Math.FP16, m=6401, n=128, k=1000)
    assert float(found.ideal_s[0]) == pytest.approx(16.38656e-6)
    assert causes_us(found) == pytest.approx((0, 0.47104, 0.0384, 0), abs=1e-9)


def test_a_prologue_and_a_lower_rate_are_what_is_left(device: Device) -> None:
    # half of the rate doubles 16.384 µs; as many steps in k again for the prologue double it once more
    machine = Machine.of(device, constants(issue_share=0.5, matrix_prologue=1000, **UNSPLIT))
    found = times(machine, Math.FP16, m=6400, n=128, k=1000)
    assert causes_us(found) == pytest.approx((0, 0, 0, 3 * 16.384))


def test_power_is_what_lifting_it_would_save(device: Device) -> None:
    # 50 W at 10 pJ sustain 5 of 10 TFLOP/s: 327.68 µs instead of 163.84
    board = device.replace(board_power=50.0, process_nm=16)
    machine = Machine.of(board, constants(simt_energy=1e-11, **UNSPLIT))
    assert causes_us(times(machine, m=6400, n=128, k=1000)) == pytest.approx((163.84, 0, 0, 0), abs=1e-9)


def test_blocks_of_attention_come_in_waves_and_in_grains(device: Device) -> None:
    # 60 heads of 17 queries, which take 32, and 100 keys, which take 128; SMs of 2 TFLOP/s share them evenly. The keys
    # alone, 2 · 100·64 B at 64 B a clock, come in 0.16 µs, more than the products asked for need.
    found = times(Machine.of(device, constants()), Math.FP16, batch=60, m=17, n=100, k=64, algorithm=ATTENTION)
    block_us, asked_us = (2 * queries * keys * 64 / 2e12 * 1e6 for queries, keys in ((32, 128), (17, 100)))
    assert float(found.compute_s[0]) * 1e6 == pytest.approx(60 / 50 * block_us)
    expected = (0, 0, 60 / 50 * (block_us - 0.16), 60 / 50 * (0.16 - asked_us))
    assert causes_us(found) == pytest.approx(expected, abs=1e-9)
