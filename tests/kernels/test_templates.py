"""Templates of max-autotune, by the datasheet: when a product takes the work behind it along."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Math, Phase
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.templates import may_fuse, templated


def kernel(cost: Cost, math: Math, family: Family) -> Kernel:
    return Kernel(
        name="triton_poi_fused_gelu_1" if family is Family.ELEMENTWISE else "addmm", kind="aten.addmm", family=family,
        module="", phase=Phase.FORWARD, math=math, cost=cost,
    )  # fmt: skip


def product(m: int, k: int, math: Math = Math.FP16) -> Kernel:
    """[m, k] × [k, m] in 16 bits."""
    return kernel(Cost(gemms=(Gemm(m=m, n=m, k=k),), read_bytes=4 * m * k, write_bytes=2 * m * m), math, Family.MATMUL)


def behind(m: int) -> Kernel:
    return kernel(Cost(read_bytes=2 * m * m, write_bytes=2 * m * m, special_flop=m * m), Math.FP32, Family.ELEMENTWISE)


def test_a_short_product_takes_its_epilogue_along_and_moves_what_is_left() -> None:
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    found = templated(product(4096, 64), behind(4096), 2 * 4096**2, device)
    assert found is not None
    # inputs of the product, results of the work; what lay between is neither written nor read
    assert (found.cost.read_bytes, found.cost.write_bytes) == (4 * 4096 * 64, 2 * 4096**2)
    assert (found.cost.special_flop, found.name) == (4096**2, "triton_tem_fused_addmm_gelu_1")


def test_a_long_product_keeps_its_library() -> None:
    # 2·4096²·65536 FLOP at 312 TFLOP/s take 7 ms, a tenth more is 0.8 ms; the pass over 67 MB takes 33 µs
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    assert templated(product(4096, 65536), behind(4096), 2 * 4096**2, device) is None


def test_products_on_lanes_and_small_gpus_have_none() -> None:
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    assert templated(product(4096, 64, Math.FP32), behind(4096), 2 * 4096**2, device) is None
    assert may_fuse(device)
    assert not may_fuse(rk.load_device("nvidia-t4"))  # 40 SMs
    assert not may_fuse(None)


@pytest.mark.parametrize("backend", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_only_max_autotune_asks_for_templates(backend: str) -> None:
    execution = rk.Execution(backend=backend)  # type: ignore[arg-type]
    assert execution.autotunes
    assert not replace(execution, backend="reduce-overhead").autotunes
