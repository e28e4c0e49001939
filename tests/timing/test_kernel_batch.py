"""Kernels as columns: what is not given, what is of one length, and what is refused."""

import numpy as np
import pytest

from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import ATTENTION, PRODUCT
from rooflinekit.timing.kernel_batch import KernelBatch, Products, Recent


def test_what_is_not_given_is_nothing() -> None:
    work = KernelBatch.of(3)
    assert len(work) == 3
    assert work.math == (Math.FP32,)
    assert work.arithmetic.tolist() == [0, 0, 0]
    assert work.tensor_core.tolist() == [True, True, True]
    assert (work.products.m.size, work.recent.bytes.size) == (0, 0)
    for name in (
        "vector_flop",
        "special_flop",
        "read_bytes",
        "write_bytes",
        "rows",
        "columns",
        "row_bytes",
        "accesses",
    ):
        assert getattr(work, name).tolist() == [0.0, 0.0, 0.0]
    for name in ("passes", "warps"):  # rows are read once, by one warp
        assert getattr(work, name).tolist() == [1.0, 1.0, 1.0]


def test_no_kernels_at_all() -> None:
    work = KernelBatch.of(0, math=[])
    assert len(work) == 0
    assert work.arithmetic.size == 0


def test_numbers_stand_for_columns() -> None:
    work = KernelBatch.of(3, read_bytes=[1, 2, 3], write_bytes=7, tensor_core=[True, False, True])
    assert work.read_bytes.tolist() == [1.0, 2.0, 3.0]
    assert work.write_bytes.tolist() == [7.0, 7.0, 7.0]
    assert work.tensor_core.tolist() == [True, False, True]


def test_arithmetics_are_numbered_in_the_order_of_their_first_kernel() -> None:
    work = KernelBatch.of(4, math=[Math.FP16, Math.FP32, Math.FP16, Math.FP64])
    assert work.math == (Math.FP16, Math.FP32, Math.FP64)
    assert work.arithmetic.tolist() == [0, 1, 0, 2]


def test_a_column_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match=r"^KernelBatch has no column flops$"):
        KernelBatch.of(2, flops=3.0)


def test_a_column_of_another_length() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        KernelBatch.of(2, read_bytes=[1.0, 2.0, 3.0])


def test_products_of_numbers_and_columns() -> None:
    products = Products.of([0, 0, 1], batch=2, m=[8, 16, 32], n=4, k=10, executed=[1, 0.5, 1])
    assert products.kernel.tolist() == [0, 0, 1]
    # 2·batch·m·n·k: 2·2·8·4·10 = 1280, half of 2560, 5120
    assert products.flop.tolist() == [1280.0, 1280.0, 5120.0]
    assert products.of_algorithm(lambda one: one.packs).tolist() == [PRODUCT.packs] * 3


def test_chosen_products_keep_their_kernels() -> None:
    products = Products.of([0, 1, 2], m=[1, 2, 3], n=1, k=1, algorithm=[PRODUCT, ATTENTION, ATTENTION])
    chosen = products.where(products.of_algorithm(lambda one: one == ATTENTION))
    assert chosen.kernel.tolist() == [1, 2]
    assert chosen.m.tolist() == [2.0, 3.0]


def test_no_products() -> None:
    assert Products.none().flop.tolist() == []


def test_reads_of_what_was_touched_just_now() -> None:
    recent = Recent.of([0, 2], [100, 200])
    assert recent.distance.tolist() == [0.0, 0.0]
    assert recent.bytes.dtype == np.float64
