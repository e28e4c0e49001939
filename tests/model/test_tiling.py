"""The option that is taken is the best of all, although not all are worked out."""

from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_numbers import constants

from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import time_work
from rooflinekit.model.tile_rates import TILES
from rooflinekit.model.tiling import SPLITS
from rooflinekit.model.work import Products, Work

SMS, SM_RATE = 50, 2e12  # of the device: FLOP/s of the matrix engine of one SM
LOSS, PROLOGUE, OVERLAP, GAP_S = 50.0, 100.0, 2.0, 2e-6


def least_s(machine: Machine, batch: int, m: int, n: int, k: int, traffic_s: float) -> float:
    """The least of all tiles and splits, each worked out by itself."""
    found = []
    for (a, b), s in product(TILES, SPLITS):
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
        work = Work.of(len(products), math=Math.FP16, products=asked, read_bytes=traffic_s * machine.bandwidth)
        found = time_work(work, machine).total_s - machine.start_s  # of the first kernel; a split has a second one
        assert found == pytest.approx([least_s(machine, *one) for one in products], rel=1e-9)

    check()
