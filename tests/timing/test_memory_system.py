"""Bytes → time on a machine of 1 TB/s DRAM, 2 TB/s L2 of 4 MB, and 50 SMs at 1.25 GHz."""

import numpy as np
import pytest
from round_numbers import constants

from rooflinekit.hardware.device import Device, Memory
from rooflinekit.kernels.algorithms import ATTENTION
from rooflinekit.timing.kernel_batch import KernelBatch, Products, Recent
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.memory_system import combined
from rooflinekit.timing.roofline import time_work


def memory_us(machine: Machine, **columns: object) -> float:
    return float(time_work(KernelBatch.of(1, **columns), machine).memory_s[0]) * 1e6


def compute_us(machine: Machine, **columns: object) -> float:
    return float(time_work(KernelBatch.of(1, **columns), machine).compute_s[0]) * 1e6


# --- both at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "joined"),
    [
        (1, 7.0),  # one after the other
        (2, 5.0),  # √(9 + 16)
        (3, 91 ** (1 / 3)),  # ∛(27 + 64)
        (1000, 4.0),  # the shorter is hidden
    ],
)
def test_compute_and_memory_join_by_the_norm(overlap: float, joined: float) -> None:
    both = combined(np.array([3.0, 4.0]), np.array([4.0, 3.0]), overlap)
    assert both == pytest.approx([joined, joined])


def test_the_norm_at_its_ends() -> None:
    # nothing at all, one alone, two alike: 1·√2; and a millionth beside 1 is not lost to rounding
    found = combined(np.array([0.0, 5.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 7.0, 1.0, 1e-6]), 2.0)
    assert found.tolist() == pytest.approx([0.0, 5.0, 7.0, 2**0.5, 1 + 0.5e-12], rel=1e-14)


# --- DRAM -----------------------------------------------------------------------------------------------------


def test_products_and_streams_have_shares_of_their_own(device: Device) -> None:
    machine = Machine.of(device, constants(memory_share=0.8, product_memory_share=0.5))
    # 3 MB read and 1 MB written at 0.8 and 0.5 TB/s
    assert memory_us(machine, read_bytes=3e6, write_bytes=1e6) == pytest.approx(5.0)
    product = Products.of([0], m=1, n=1, k=1)
    assert memory_us(machine, products=product, read_bytes=3e6, write_bytes=1e6) == pytest.approx(8.0)
    # fused attention reads keys and values as they lie
    attention = Products.of([0], m=1, n=1, k=1, algorithm=ATTENTION)
    assert memory_us(machine, products=attention, read_bytes=3e6, write_bytes=1e6) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("memory", "capability", "microseconds"),
    [
        ("HBM2", "6.0", 10.0),  # 4 MB at 0.8 · 0.5 TB/s
        ("HBM2", "7.0", 5.0),  # from Volta on
        ("GDDR6", "6.1", 5.0),
        (None, "6.0", 5.0),
    ],
)
def test_early_memory_sustains_less(device: Device, memory: str | None, capability: str, microseconds: float) -> None:
    dram = Memory(type=memory, capacity=16e9, bandwidth=1e12)
    early = device.replace(vendor="NVIDIA", compute_capability=capability, dram=dram)
    machine = Machine.of(early, constants(memory_share=0.8, early_memory=0.5, product_memory_share=0.8))
    assert memory_us(machine, read_bytes=4e6) == pytest.approx(microseconds)
    # what product kernels get has a constant of its own
    assert memory_us(machine, read_bytes=4e6, products=Products.of([0], m=1, n=1, k=1)) == pytest.approx(5.0)


def test_error_codes_among_the_data_take_their_part(device: Device) -> None:
    coded = device.replace(dram=Memory(type="GDDR6", capacity=16e9, bandwidth=1e12, inline_ecc=True))
    machine = Machine.of(coded, constants(memory_share=0.8, product_memory_share=0.4))
    # 15 of 16 bytes are data: 3 MB at 0.8 · 15/16 TB/s
    assert memory_us(machine, read_bytes=3e6) == pytest.approx(4.0)
    # 2.4 MB written fetch 0.15 MB of codes to change them: 3 + 2.4 + 0.15 MB
    assert memory_us(machine, read_bytes=3e6, write_bytes=2.4e6) == pytest.approx(7.4)
    tiles = Products.of([0], m=1, n=1, k=1)
    assert memory_us(machine, read_bytes=3e6, products=tiles) == pytest.approx(8.0)  # at half the share


# --- rows that are read again ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row_bytes", "passes", "microseconds"),
    [
        (25_000, 3, 11.0),  # 2 blocks · 25 kB fill half of the L1: both later passes hit; 10 MB read, 1 MB written
        (37_500, 3, 21.0),  # 75 % full, halfway from half to full: half of the 20 MB is read again
        (50_000, 3, 31.0),  # full: nothing is left
        (60_000, 3, 31.0),
        (90_000, 3, 31.0),
        (60_000, 2, 21.0),  # one later pass
        (60_000, 1, 11.0),  # none
    ],
)
def test_later_passes_hit_the_l1_as_far_as_rows_fit(
    device: Device, row_bytes: float, passes: int, microseconds: float
) -> None:
    # blocks of 1024 threads, 2 on an SM of 2048; an L1 of 100 kB
    machine = Machine.of(device.replace(l1_capacity_per_sm=100e3, threads_per_sm=2048), constants())
    found = memory_us(
        machine, read_bytes=10e6, write_bytes=1e6, rows=1000, row_bytes=row_bytes, passes=passes, threads=1024
    )
    assert found == pytest.approx(microseconds)


def test_later_passes_hit_the_l2_as_far_as_the_rows_of_all_sms_fit(device: Device) -> None:
    # 2 blocks of 60 kB fill the L1 of 100 kB; 50 SMs have 6 MB of rows at work, and 12 MB pass with their results
    columns = {"read_bytes": 10e6, "write_bytes": 1e6, "rows": 1000, "row_bytes": 60_000, "threads": 1024}
    # 11 MB from DRAM at 1 TB/s; 20 MB of later passes too, or at 64 bytes a clock of 50 SMs of 1.25 GHz: 4 TB/s
    for capacity, microseconds in ((4e6, 31.0), (40e6, 16.0)):
        large = device.replace(l1_capacity_per_sm=100e3, threads_per_sm=2048, l2_capacity=capacity)
        machine = Machine.of(large, constants(l2_bytes_per_clock=64))
        assert memory_us(machine, passes=3, **columns) == pytest.approx(microseconds)
        assert memory_us(machine, passes=1, **columns) == pytest.approx(11.0)


def test_few_rows_leave_the_l1_to_one_another(device: Device) -> None:
    # 50 rows are one an SM, where 51 are two: 60 kB of 100 kB is a fifth of the way from half to full
    machine = Machine.of(device.replace(l1_capacity_per_sm=100e3, threads_per_sm=2048), constants())
    columns = {"read_bytes": 7e6, "row_bytes": 60e3, "passes": 2, "threads": 1024}
    assert memory_us(machine, rows=50, **columns) == pytest.approx(8.4)
    assert memory_us(machine, rows=51, **columns) == pytest.approx(14.0)


def test_where_the_specification_says_no_l1_it_is_24_kib(device: Device) -> None:
    # 2 blocks of 6 KiB fill half of it, of 12 KiB all; 1 MB of L2 holds nothing of the 2 · 2 · 50 · 12 KiB of all SMs
    columns = {"read_bytes": 1e6, "rows": 1000, "passes": 2, "threads": 1024}
    machine = Machine.of(device.replace(l2_capacity=1e6), constants())
    assert memory_us(machine, row_bytes=6 * 1024, **columns) == pytest.approx(1.0)
    assert memory_us(machine, row_bytes=12 * 1024, **columns) == pytest.approx(2.0)


# --- what an earlier kernel left in the L2 ----------------------------------------------------------------------
# 4 MB of cache, of which all can be filled (cache_share 1): all is there up to 85 %, 3.4 MB, none from 115 %, 4.6 MB.


@pytest.mark.parametrize(
    ("distance", "microseconds"),
    [
        (0, 0.5),  # 1 MB at 2 TB/s
        (2.4e6, 0.5),  # 3.4 MB with its own
        (3e6, 0.75),  # 4.0 MB, halfway: half of the 1 MB from DRAM
        (3.6e6, 1.0),  # 4.6 MB: none
        (100e6, 1.0),
    ],
)
def test_what_was_touched_last_is_in_the_l2(device: Device, distance: float, microseconds: float) -> None:
    machine = Machine.of(device, constants(l2_bytes_per_clock=32))  # 32 · 50 · 1.25 GHz = 2 TB/s
    found = memory_us(machine, read_bytes=1e6, recent=Recent.of([0], [1e6], [distance]))
    assert found == pytest.approx(microseconds)


def test_the_kernels_own_traffic_passes_too(machine: Machine) -> None:
    # 1 MB was touched, 6 MB moves: its first number is read after 1 MB, its last after 6. All of it is there as long as
    # that is below 4.6 MB: (4.6 - 1) of the 5 + 1.2 MB between; 3.6/6.2 MB at 2 TB/s, the rest at 1
    found = memory_us(machine, read_bytes=4e6, write_bytes=2e6, recent=Recent.of([0], [1e6]))
    assert found == pytest.approx(6 - 3.6 / 6.2 / 2)


@pytest.mark.parametrize(
    ("share", "around", "microseconds"),
    [
        (1.0, 3e6, 1.5),  # what is read and what is written stays: 3 MB at 2 TB/s
        (1.0, 4e6, 2.25),  # a MB of other tensors too: half
        (0.5, 3e6, 3.0),  # half of the cache can be filled: none
    ],
)
def test_a_call_that_comes_again_finds_what_it_wrote(
    device: Device, share: float, around: float, microseconds: float
) -> None:
    machine = Machine.of(device, constants(cache_share=share))
    recent = Recent.of([0], [3e6], [around - 3e6], cyclic=True)
    assert memory_us(machine, read_bytes=2e6, write_bytes=1e6, recent=recent) == pytest.approx(microseconds)


def test_no_more_is_found_than_is_read(machine: Machine) -> None:
    # two tensors of 1 MB are there, 1.5 MB is read: 0.75 µs at 2 TB/s; what is written goes to DRAM
    assert memory_us(machine, read_bytes=1.5e6, recent=Recent.of([0, 0], [1e6, 1e6])) == pytest.approx(0.75)
    assert memory_us(machine, write_bytes=1e6, recent=Recent.of([0], [1e6])) == pytest.approx(1.0)


def test_reads_find_their_own_kernel(machine: Machine) -> None:
    work = KernelBatch.of(3, read_bytes=1e6, recent=Recent.of([2], [1e6]))
    assert time_work(work, machine).memory_s == pytest.approx([1e-6, 1e-6, 0.5e-6])


def test_the_l2_is_never_slower_than_dram(device: Device) -> None:
    # 8 bytes a clock are 0.5 TB/s; DRAM gives 0.8
    machine = Machine.of(device, constants(l2_bytes_per_clock=8, memory_share=0.8))
    assert machine.l2_bandwidth == pytest.approx(0.8e12)
    assert memory_us(machine, read_bytes=1e6, recent=Recent.of([0], [1e6])) == pytest.approx(1.25)


def test_a_cache_behind_the_l2_counts(device: Device) -> None:
    machine = Machine.of(device.replace(last_level_cache=40e6), constants())
    assert memory_us(machine, read_bytes=10e6, recent=Recent.of([0], [10e6])) == pytest.approx(5.0)


# --- the SMs' own time ------------------------------------------------------------------------------------------


def test_rows_go_to_sms_as_wholes(device: Device) -> None:
    machine = Machine.of(device, constants(column_cycles=0.5))
    # a row of 1000 columns takes its SM 500 cycles, 0.4 µs at 1.25 GHz; 100 rows are 2 an SM, the 101st makes 3
    assert compute_us(machine, rows=1, columns=1000) == pytest.approx(0.4)
    assert compute_us(machine, rows=100, columns=1000) == pytest.approx(0.8)
    assert compute_us(machine, rows=101, columns=1000) == pytest.approx(1.2)
    assert compute_us(machine, rows=0, columns=1000) == 0.0


def test_a_row_takes_its_sm_so_long_for_each_thread_of_its_block(device: Device) -> None:
    values = constants(thread_cycles=2.5)
    machine = Machine.of(device, values)
    # 100 rows are 2 an SM: 1024 threads take 2560 cycles a row, four warps of 32 threads 320
    assert compute_us(machine, rows=100, threads=1024) == pytest.approx(2 * 2560 / 1250)
    assert compute_us(machine, rows=100, warps=4) == pytest.approx(2 * 320 / 1250)
    # AMD's data centre GPUs have warps of 64, its others of 32
    assert compute_us(Machine.of(device.replace(compute_capability="gfx90a"), values), rows=100, warps=4) == (
        pytest.approx(2 * 640 / 1250)
    )
    assert device.replace(compute_capability="gfx1030").warp == 32
    # on NVIDIA's, blocks of 1024 threads add up by shuffles, in 0.37 of the time; smaller ones are of older kernels
    by_shuffles = Machine.of(device.replace(vendor="NVIDIA"), values)
    assert compute_us(by_shuffles, rows=100, threads=1024) == pytest.approx(2 * 0.37 * 2560 / 1250)
    assert compute_us(by_shuffles, rows=100, threads=512) == pytest.approx(2 * 1280 / 1250)
    # of 1536 threads of an SM one such block fills two thirds, and three of 512 all
    ada = Machine.of(device.replace(vendor="NVIDIA", threads_per_sm=1536), values)
    assert compute_us(ada, rows=100, threads=1024) == pytest.approx(2 * 1.5 * 0.37 * 2560 / 1250)
    assert compute_us(ada, rows=100, threads=512) == pytest.approx(2 * 1280 / 1250)
    # a warp alone needs no other to find the sum of its row
    assert compute_us(machine, rows=100, warps=1) == 0.0


def test_single_accesses_take_their_cycles(device: Device) -> None:
    # a million accesses on 50 SMs at a quarter cycle: 5000 cycles
    machine = Machine.of(device, constants(access_cycles=0.25))
    assert compute_us(machine, accesses=1e6) == pytest.approx(4.0)
    # AMD's compute units of 64 lanes issue for half as many threads a clock as NVIDIA's four schedulers: 10,000 cycles
    halved = device.replace(vendor="AMD", lanes_per_sm=64)
    assert compute_us(Machine.of(halved, constants(access_cycles=0.25)), accesses=1e6) == pytest.approx(8.0)
    few = device.replace(vendor="NVIDIA", lanes_per_sm=64)  # whose schedulers are four all the same
    assert compute_us(Machine.of(few, constants(access_cycles=0.25)), accesses=1e6) == pytest.approx(4.0)


def test_a_block_alone_waits_for_each_load_of_its_row(device: Device) -> None:
    machine = Machine.of(device, constants(column_cycles=0.5, load_cycles=800))
    row = {"columns": 512_000, "threads": 128, "passes": 2, "read_bytes": 50 * 2.048e6, "row_bytes": 2.048e6}
    # 512,000 columns by 128 threads, 4 at a time, are 1,000 loads, twice: 1.6 million cycles at 1.25 GHz
    assert compute_us(machine, rows=50, **row) == pytest.approx(1280.0)
    # ten rows an SM keep it as busy as they wait: 10 · 256,000 cycles
    assert compute_us(machine, rows=500, **row) == pytest.approx(2048.0)
    # a row that lies in the L1 when its block comes back is waited for once: 10 loads
    short = {"columns": 5120, "threads": 128, "passes": 2, "read_bytes": 50 * 20_480, "row_bytes": 4096}
    assert compute_us(machine, rows=50, **short) == pytest.approx(10 * 800 / 1250)


def test_few_blocks_wait_for_what_they_sum(device: Device) -> None:
    machine = Machine.of(device.replace(threads_per_sm=2048), constants(memory_share=1.0, load_cycles=1000))
    sums = {"read_bytes": 100e6, "loads": 1000, "block_bytes": 100e6}
    # 1,000 loads of 1,000 cycles at 1.25 GHz are 800 µs, in which 100 MB at 1 TB/s would pass eight times
    assert memory_us(machine, blocks=16, **sums) == pytest.approx(800.0)
    # an SM holds four blocks of 512 threads, 50 of them 200: the 201st comes after
    assert memory_us(machine, blocks=200, **sums) == pytest.approx(800.0)
    assert memory_us(machine, blocks=201, **sums) == pytest.approx(1600.0)
    # what is moved after the sums is not hidden; where bytes are many, nobody waits
    assert memory_us(machine, blocks=16, write_bytes=50e6, **sums) == pytest.approx(850.0)
    assert memory_us(machine, blocks=16, read_bytes=1e9, loads=1000, block_bytes=1e9) == pytest.approx(1000.0)


def test_a_kernel_that_reads_waits_for_one_load_at_least(device: Device) -> None:
    machine = Machine.of(device, constants(memory_share=1.0, load_cycles=1000))
    # a load of 1,000 cycles at 1.25 GHz is 0.8 µs, in which 0.8 MB pass at 1 TB/s
    assert memory_us(machine, read_bytes=4) == pytest.approx(0.8)
    assert memory_us(machine, read_bytes=1e6) == pytest.approx(1.0)
    assert memory_us(machine, write_bytes=4) < 0.1


def test_a_column_that_is_walked_again_lies_in_the_cache_while_it_is_short(device: Device) -> None:
    machine = Machine.of(device.replace(threads_per_sm=2048), constants(memory_share=1.0, cache_share=1.0))
    # 50 · 2048 threads with 8 numbers of 4 bytes each are 3.3 MB of the L2's 4: the second reading at its 2 TB/s
    assert memory_us(machine, read_bytes=100e6, reread_bytes=100e6, column=32) == pytest.approx(150.0)
    # with 16 numbers 6.6 MB: from DRAM again
    assert memory_us(machine, read_bytes=100e6, reread_bytes=100e6, column=64) == pytest.approx(200.0)


def test_rows_are_beside_other_arithmetic_not_after_it(device: Device) -> None:
    machine = Machine.of(device, constants(column_cycles=0.5))
    # 50 rows of 1000 columns: 500 cycles, 0.4 µs; 5 MFLOP at 5 TFLOP/s, half of the peak, 1 µs
    assert compute_us(machine, rows=50, columns=1000, vector_flop=5e6) == pytest.approx(1.0)
    assert compute_us(machine, rows=50, columns=1000, vector_flop=1e6) == pytest.approx(0.4)


def test_a_cpus_large_results_find_their_pages_anew(device: Device) -> None:
    # 64 MiB are 16,384 pages of 4 KiB at 0.25 µs, beside 67.1 µs of writing at 1 TB/s; 32 MiB stay with the allocator
    cpu = Machine.of(device.replace(kind="cpu", vector_peak={"fp32": 10e12}, matrix_peak={}), constants())
    assert memory_us(cpu, write_bytes=2**26) == pytest.approx(2**26 / 1e6 + 16_384 * 0.25)
    assert memory_us(cpu, write_bytes=2**25) == pytest.approx(2**25 / 1e6)
    assert memory_us(Machine.of(device, constants()), write_bytes=2**26) == pytest.approx(2**26 / 1e6)
