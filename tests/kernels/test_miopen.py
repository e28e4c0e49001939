"""MIOpen's algorithms: how many products each has, and where it exists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Math
from rooflinekit.kernels import miopen
from rooflinekit.kernels.algorithms import Algorithm, Form, Problem
from rooflinekit.kernels.libraries import exists, libraries_of
from rooflinekit.kernels.miopen import CDNA_3, GCN, RDNA, forms, gathers_pixels, has_compiled

#: The gradient of a 3×3 weight of 4 channels in, 8 out: 2 images of 12×12 pixels, in fp32.
WEIGHT = Problem(
    direction="weight", images=2, groups=1, inner=4, outer=8, image=(1, 12, 12), result=(1, 12, 12), window=(1, 3, 3),
    stride=(1, 1, 1), dilation=(1, 1, 1), itemsize=4,
)  # fmt: skip
PIXEL = replace(WEIGHT, window=(1, 1, 1))


def possible(p: Problem, algorithm: Algorithm) -> list[Form]:
    """Its forms by that algorithm."""
    return [f for f in forms(p) if f.algorithm == algorithm]


@pytest.mark.parametrize(
    ("window", "stride", "result", "size", "pieces"),
    [
        ((3, 3), 1, 12, 8 * 8, 2 * 2),  # 3 results and 6 pixels at once: 3 + 5 along a side; 12 pixels in two pieces
        ((3, 3), 2, 12, 13 * 13, 2 * 2),  # the pixels lie two apart: 3 + 5·2
        ((5, 5), 1, 12, 8 * 8, 3 * 3),  # 5 and 4 at once
        ((7, 1), 1, 12, 11, 4 * 12),  # 7 and 3 at once in steps of two: 7 + 2·2; nothing to gain along the other side
    ],
)
def test_a_weight_in_passes(window: tuple[int, int], stride: int, result: int, size: int, pieces: int) -> None:
    p = replace(WEIGHT, window=(1, *window), stride=(1, stride, stride), result=(1, result, result))
    [form] = possible(p, miopen.WINOGRAD_IN_PASSES)
    assert form.gemm == Gemm(batch=size, m=8, n=4, k=2 * pieces)
    assert form.moved == 4 * size * 2 * pieces * (4 + 8)


@pytest.mark.parametrize(("window", "stride"), [((3, 5), 2), ((2, 2), 1), ((1, 1), 1), ((3, 3), 3)])
def test_no_passes(window: tuple[int, int], stride: int) -> None:
    assert not possible(replace(WEIGHT, window=(1, *window), stride=(1, stride, stride)), miopen.WINOGRAD_IN_PASSES)


def test_fused_kernels_of_a_weight_take_any_window() -> None:
    # 5×5 results in 3·3 blocks of 2×2 and pixels in 4·4 pieces of 3×3; or 2·2 blocks of 3×3 and 6·6 pieces of 2×2
    fused = possible(replace(WEIGHT, window=(1, 5, 5)), miopen.FUSED_WINOGRAD_WEIGHT)
    assert [(f.gemm.batch, f.gemm.k) for f in fused] == [(16 * 9, 2 * 16), (16 * 4, 2 * 36)]


def test_a_weight_by_products_is_read_and_written_for_each_image() -> None:
    [looped] = possible(PIXEL, miopen.BY_IMAGE)
    assert (looped.repeats, looped.added) == (2, 4 * 8 * 4)  # all but the first of two images, 4 bytes each
    [unfolded] = possible(WEIGHT, miopen.UNFOLDED)
    assert (unfolded.moved, unfolded.added) == (4 * 2 * 4 * 9 * 144, 4 * 8 * 4 * 9)
    [at_once] = possible(replace(PIXEL, direction="forward"), miopen.BY_IMAGE)
    assert (at_once.repeats, at_once.added) == (1, 0)


@pytest.mark.parametrize(
    ("side", "channels", "summed", "images", "untuned"),
    [
        (19, 64, 256, 1, False),  # 361 pixels
        (28, 256, 256, 1, True),  # 784: the smallest of networks above the edge
        (28, 1280, 256, 64, True),  # 1.63 channels a pixel
        (28, 2048, 256, 64, False),  # 2.6 channels a pixel
        (14, 256, 1024, 16, True),  # a long sum with 196·256·16 = 803,000 results
        (14, 256, 1024, 64, False),  # with 3.2 million
    ],
)
def test_sizes_that_rocblas_was_not_tuned_for(
    side: int, channels: int, summed: int, images: int, untuned: bool
) -> None:
    sides = (1, side, side)
    p = replace(PIXEL, direction="data", images=images, inner=channels, outer=summed, image=sides, result=sides)
    [form] = possible(p, miopen.BY_IMAGE)
    assert form.untuned == untuned
    assert not any(f.untuned for f in possible(replace(p, direction="forward"), miopen.BY_IMAGE))


def test_every_second_pixel_of_all_images_is_one_product() -> None:
    # 2 images of 6×6 results, 4 channels in, 8 out: copies of 72·(4 + 8) numbers of 4 bytes
    p = replace(PIXEL, direction="data", stride=(1, 2, 2), result=(1, 6, 6))
    [form] = possible(p, miopen.GATHERED)
    assert (form.gemm, form.moved, form.repeats) == (Gemm(m=72, n=4, k=8), 4 * 72 * 12, 1)
    assert not possible(replace(p, direction="weight"), miopen.GATHERED)


def test_what_is_assembly_does_not_run_on_rdna() -> None:
    gpus = [load_device(name) for name in ("amd-vega-56", "amd-mi210", "amd-mi300x", "amd-rx-6800-xt", "nvidia-p4")]
    assert [libraries_of(gpu).generation(gpu) for gpu in gpus] == [GCN, GCN, CDNA_3, RDNA, ""]
    assert has_compiled(Math.FP32, "data")
    assert not has_compiled(Math.BF16, "data")
    assert has_compiled(Math.BF16, "forward")


def test_what_exists_in_which_format() -> None:
    # assembly of one pixel: not in bf16, but for the weight
    assert not gathers_pixels(Math.BF16, replace(PIXEL, direction="forward"))
    assert gathers_pixels(Math.FP16, replace(PIXEL, direction="data"))
    assert gathers_pixels(Math.BF16, PIXEL)
    # lanes without dot products of fp16 have no fused Winograd in it, but passes, whose transforms convert
    vega, fused, passes = load_device("amd-vega-64"), miopen.FUSED_WINOGRAD_WEIGHT, miopen.WINOGRAD_IN_PASSES
    assert not exists(fused, Math.FP16, vega)
    assert exists(fused, Math.FP32, vega)
    assert not exists(fused, Math.BF16, vega)
    assert exists(passes, Math.FP16, vega)
    assert exists(passes, Math.BF16, vega)


@pytest.mark.parametrize(("gpu", "there"), [("amd-mi300x", True), ("amd-mi210", False), ("amd-rx-6800-xt", False)])
def test_tensors_are_transposed_from_cdna_3_on(gpu: str, there: bool) -> None:
    half = replace(WEIGHT, itemsize=2)
    [form] = [f for f in forms(half) if f.algorithm.name == "channels last"]
    image, weight, result = 2 * 4 * 144 * 2, 4 * 8 * 9 * 2, 2 * 8 * 144 * 2
    assert (form.moved, form.around) == (image + 2 * weight + result, 4)  # the weight's gradient there and back
    assert exists(form.algorithm, Math.BF16, load_device(gpu)) is there
    plain = libraries_of(load_device(gpu)).implicit(half, Math.BF16, None)
    assert any(exists(one, Math.BF16, load_device(gpu)) for one in plain) is not there
