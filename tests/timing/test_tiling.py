"""The option that is taken is the best of all, although not all are worked out."""

from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_numbers import constants

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import BY_LAYOUT, PRODUCT, SCALED, Algorithm, ByUnit, Layout
from rooflinekit.kernels.cudnn import DATA, WEIGHT
from rooflinekit.kernels.miopen import PIXELWISE
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import time_work
from rooflinekit.timing.tiling import SIDES, SPLITS, TILES, rows_of_tiles

SMS, SM_RATE = 50, 2e12  # of the device: FLOP/s of the tensor core of one SM
LOSS, PROLOGUE, OVERLAP, GAP_S = 50.0, 100.0, 2.0, 2e-6


def least_s(machine: Machine, batch: int, m: int, n: int, k: int, traffic_s: float) -> float:
    """The least of all tiles and splits, each worked out by itself."""
    found = []
    for (a, b), s in product(TILES, (s for s in SPLITS if s <= 16)):
        step_s = 2 * a * b * (1 + LOSS * (1 / a + 1 / b)) / SM_RATE
        waves = ceil(batch * ceil(m / a) * ceil(n / b) * s / SMS)
        compute_s = waves * (ceil(k / s) + PROLOGUE) * step_s
        memory_s = traffic_s + (2 * 4 * s * batch * m * n / machine.bandwidth if s > 1 else 0.0)
        found.append((compute_s**OVERLAP + memory_s**OVERLAP) ** (1 / OVERLAP) + (GAP_S if s > 1 else 0.0))
    return min(found)


SIZES = st.sampled_from([1, 7, 64, 100, 512, 1000, 3000, 4096, 20_000])
PRODUCTS = st.tuples(st.sampled_from([1, 12, 300]), SIZES, SIZES, SIZES, st.floats(0, 1e-3))


def test_no_tile_and_no_split_takes_less(device: Device) -> None:
    constant = {"matrix_tile_loss": LOSS, "matrix_prologue": PROLOGUE, "overlap": OVERLAP, "kernel_gap": GAP_S}
    machine = Machine.of(device, constants(**constant))

    @settings(max_examples=40, deadline=None)
    @given(st.lists(PRODUCTS, min_size=1, max_size=12))
    def check(products: list[tuple[int, int, int, int, float]]) -> None:
        batch, m, n, k, traffic_s = map(np.array, zip(*products, strict=True))
        asked = Products.of(np.arange(len(products)), batch=batch, m=m, n=n, k=k)
        work = KernelBatch.of(len(products), math=Math.FP16, products=asked, read_bytes=traffic_s * machine.bandwidth)
        found = time_work(work, machine).total_s - machine.start_s  # of the first kernel; a split has a second one
        assert found == pytest.approx([least_s(machine, *one) for one in products], rel=1e-9)

    check()


def seconds(device: Device, by: Algorithm, m: int, n: int, k: int, math: Math = Math.FP16, **values: float) -> float:
    """Of a product alone, where tiles lose nothing."""
    machine = Machine.of(device, constants(**values))
    asked = Products.of([0], m=m, n=n, k=k, algorithm=by)
    return float(time_work(KernelBatch.of(1, math=math, products=asked), machine).total_s[0])


# A tile of 128×128 takes 2·128·128·1000 / 2 TFLOP/s = 16.384 µs of one SM; so do 8 images of 7×7 pixels and 2.
def test_an_images_gradient_has_large_tiles_and_no_split(device: Device) -> None:
    assert seconds(device, DATA, 8 * 49, 512, 1000) == pytest.approx(16.384e-6)
    assert seconds(device, DATA, 2 * 49, 512, 1000) == pytest.approx(16.384e-6)
    # 98 rows of a plain product on tiles of 16×32: 7·16 blocks in 3 waves, or split among more SMs
    assert seconds(device, PRODUCT, 2 * 49, 512, 1000) < 4e-6


def test_a_weights_gradient_is_split(device: Device) -> None:
    # one tile; k of 500,000 in 48 parts, each on one of 50 SMs: 2·128·128·10417 / 2 TFLOP/s, and the partial sums
    assert seconds(device, WEIGHT, 128, 128, 500_000) == pytest.approx(170.7e-6, rel=0.02)


def test_miopen_loses_in_tiles_on_cuda_cores_what_others_lose_on_tensor_cores(device: Device) -> None:
    board = device.replace(vendor="AMD", matrix_peak={}, vector_peak={"fp32": 10e12, "fp16": 20e12, "int8": 40e12})
    # 2 rows of 3200 columns on 50 SMs of 0.2 TFLOP/s: tiles of 2×64, one an SM, which lose a half and a 64th of `loss`
    near = {"l2_bytes_per_clock": 1e6, "matrix_tile_loss": 4.0}
    plain, theirs = (seconds(board, by, 2, 3200, 1000, Math.FP32, **near) for by in (PRODUCT, PIXELWISE))
    free_s = 2 * 2 * 64 * 1000 / 0.2e12
    assert plain == pytest.approx((1 + 2 * (1 / 2 + 1 / 64)) * free_s)
    assert theirs == pytest.approx((1 + 4 * (1 / 2 + 1 / 64)) * free_s)
    # pairs of fp16 run at their share of twice the rate
    half = seconds(board, PIXELWISE, 512, 3200, 1000, Math.FP16, miopen_half=0.5)
    assert half == pytest.approx(seconds(board, PIXELWISE, 512, 3200, 1000, Math.FP32))


@pytest.mark.parametrize(
    ("gpu", "m", "expected"),
    [
        # tiles of 128 rows; clusters of 256, of which H100 takes what is beyond the last row once more
        ("nvidia-h100-sxm5-80gb", 512, 4),
        ("nvidia-h100-sxm5-80gb", 257, (512 + 255) / 128),
        ("nvidia-h100-sxm5-80gb", 64, 1),  # no clusters
        ("nvidia-b200-sxm-180gb", 257, 4),
        ("nvidia-l40s", 257, 3),
    ],
)
def test_clusters_of_scaled_products(gpu: str, m: int, expected: float) -> None:
    machine = Machine.of(load_device(gpu), constants())
    products, (rows, _) = Products.of(np.arange(1), algorithm=SCALED, m=m, n=512, k=512), SIDES[True]
    assert rows_of_tiles(products, rows, machine)[TILES.index((128, 128))] == expected


@pytest.mark.parametrize(("gpu", "rows", "columns"), [
    ("nvidia-p100-pcie-16gb", 64, 128), ("nvidia-t4", 64, 64), ("nvidia-v100-sxm2-16gb", 64, 64),
    ("nvidia-a100-sxm4-80gb", 128, 128), ("nvidia-h100-sxm5-80gb", 128, 128),
])  # fmt: skip
def test_a_batch_on_cuda_cores_takes_as_long_as_its_least_tiles(gpu: str, rows: int, columns: int) -> None:
    """As many as fill each wave, where tiles lose nothing: time goes by least tiles, 1, 1, 2 and 4 for each product."""
    machine = Machine.of(load_device(gpu), constants(matrix_tile_loss=0.0))

    def batch_s(m: int, n: int, by: Algorithm = PRODUCT) -> float:
        products = Products.of([0], batch=64 * machine.sm_count, m=m, n=n, k=4096, algorithm=by)
        return float(time_work(KernelBatch.of(1, products=products), machine).total_s[0]) - machine.start_s

    one = batch_s(rows, columns)
    assert batch_s(rows // 2, columns // 2) == pytest.approx(one)
    assert batch_s(rows, columns + 1) == pytest.approx(2 * one)
    assert batch_s(rows + 1, columns + 1) == pytest.approx(4 * one)
    assert batch_s(rows // 2, columns // 2, replace(PRODUCT, tiles=ByUnit.both("every"))) < 0.6 * one


def linear_s(gpu: str, rows: int, layout: Layout = "TN", n: int = 8192) -> float:
    """A product of 8,192 columns and sums of 8,192, in fp32, where tiles lose nothing and power is no limit."""
    machine = Machine.of(load_device(gpu), constants(matrix_tile_loss=0.0, simt_energy=1e-14))
    products = Products.of([0], m=rows, n=n, k=8192, algorithm=BY_LAYOUT[layout])
    return float(time_work(KernelBatch.of(1, products=products), machine).total_s[0]) - machine.start_s


def test_a_product_on_hopper_takes_waves_of_its_large_tiles() -> None:
    """Of 256×128, on 114 SMs: 256 tiles take 3 waves, as 320 do; 384 take a fourth. A weight's gradient has others."""
    gpu = "nvidia-h100-pcie-80gb"
    three = linear_s(gpu, 1024)
    assert linear_s(gpu, 1280) == pytest.approx(three)
    assert linear_s(gpu, 1280, "NN") == pytest.approx(three)
    assert linear_s(gpu, 1536) == pytest.approx(three * 4 / 3)
    assert linear_s(gpu, 1024, "NT") < linear_s(gpu, 1280, "NT")


@pytest.mark.parametrize(("gpu", "slower"), [
    ("nvidia-l40s", True), ("nvidia-rtx-a6000", True), ("nvidia-a100-sxm4-80gb", False), ("nvidia-t4", False),
])  # fmt: skip
def test_a_linear_layer_in_fp32_is_slower_than_a_plain_product_where_cublas_has_other_kernels(
    gpu: str, slower: bool
) -> None:
    """8.6 and 8.9 alone: a layer takes 1/0.63 of the time there, and the same elsewhere."""
    ratio = linear_s(gpu, 2048) / linear_s(gpu, 2048, "NN")
    assert ratio == pytest.approx(1 / 0.63 if slower else 1.0, rel=0.01)


def test_a_board_at_its_power_limit_has_less_energy_for_a_linear_layer_in_fp32() -> None:
    """Of an L4's 72 W: a plain product takes 0.87 of the joules, and so of the time, that both take there."""
    machine = Machine.of(load_device("nvidia-l4"), constants(matrix_tile_loss=0.0, simt_energy=1e-10))
    work = (
        KernelBatch.of(1, products=Products.of([0], m=4096, n=4096, k=4096, algorithm=BY_LAYOUT[layout]))
        for layout in ("NN", "TN")
    )
    plain_s, layer_s = (float(time_work(one, machine).total_s[0]) - machine.start_s for one in work)
    assert plain_s == pytest.approx(0.87 * layer_s, rel=1e-3)
