"""Which kernels a convolution runs as: tiled, unrolled, in loops, and with which copies."""

from dataclasses import replace
from functools import partial

import pytest
from learned import kernels
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.kernels import cudnn, onednn
from rooflinekit.kernels.algorithms import Algorithm
from rooflinekit.kernels.convolution import has_gaps, odd_rows
from rooflinekit.kernels.depthwise import (
    CHANNEL_PRODUCTS,
    GROUP_SUMS,
    SHARED_WINDOWS,
    SINGLE_WINDOW,
    TAP_SUMS,
    UNROLLED,
    WINDOW_LOOP,
    depthwise_algorithm,
)
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.miopen import NAIVE
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import choices_of, time_work


def gradients(
    layer: nn.Conv2d, *, dtype: str, tensor_formats: tuple[str, ...] = (), channels_last: bool = False
) -> list[Kernel]:
    """Kernels of the backward of a layer between others: both of its gradients are wanted, and one comes to it."""
    model = nn.Sequential(nn.Conv2d(3, layer.in_channels, 1, bias=False), layer, nn.ReLU())
    graph = rk.trace(model, rk.Input(2, 3, 16, 16), mode="training", dtype=dtype, channels_last=channels_last)
    issues = [issue for issue in issues_of(graph, tensor_formats) if issue.op.kind == "aten.convolution_backward"]
    return list(issues[0].kernels)


# PyTorch's kernels are unrolled for square windows of 1, 3 and 5; cuDNN's in 16 bits under use_cudnn_depthwise.
@pytest.mark.parametrize(
    ("window", "changed", "expected"),
    [
        ((3, 3), {}, UNROLLED),
        ((3, 3), {"sixteen_bits": False}, SINGLE_WINDOW),
        ((5, 5), {"dense": False}, UNROLLED),
        ((7, 7), {}, WINDOW_LOOP),
        ((7, 7), {"sixteen_bits": False}, SINGLE_WINDOW),
        ((1, 11), {}, WINDOW_LOOP),
        ((9,), {}, UNROLLED),  # of a line, cuDNN takes any window
        ((9,), {"channels": 16}, WINDOW_LOOP),  # but not of fewer than 32 channels
        ((9,), {"dense": False}, WINDOW_LOOP),
        ((7, 7), {"channels_last": True}, SHARED_WINDOWS),
        ((7, 7), {"channels_last": True, "forward": False}, UNROLLED),
        ((9, 9), {"channels_last": True}, CHANNEL_PRODUCTS),
        ((3, 5), {"channels_last": True}, CHANNEL_PRODUCTS),  # KernelBench's are ten times as slow as squares
        ((3, 3), {"sums": True}, TAP_SUMS),
        ((3, 3), {"sums": True, "channels_last": True, "forward": False}, UNROLLED),
    ],
)  # fmt: skip
def test_kernels_of_depthwise_convolutions(
    window: tuple[int, ...], changed: dict[str, bool], expected: Algorithm
) -> None:
    algorithm = partial(
        depthwise_algorithm, channels_last=False, sixteen_bits=True, dense=True, channels=64, forward=True, sums=False
    )
    assert algorithm(window=window, **changed) == expected


def test_a_traced_depthwise_convolution_names_its_kernel() -> None:
    layer = nn.Conv2d(64, 64, 7, padding=3, groups=64, bias=False)
    forward, *_ = kernels(layer, rk.Input(2, 64, 16, 16), dtype="float16")
    assert (forward.algorithm, forward.tensor_core) == (WINDOW_LOOP, False)
    assert [k.algorithm for k in gradients(layer, dtype="float16")] == [WINDOW_LOOP, TAP_SUMS]
    assert [k.algorithm for k in gradients(layer, dtype="float16", channels_last=True)] == [UNROLLED] * 2


@pytest.mark.parametrize(
    ("by", "cycles"),
    [
        (UNROLLED, 100 + 9 * 2), (SHARED_WINDOWS, (100 + 9 * 2) / 3), (WINDOW_LOOP, 9 * 30), (TAP_SUMS, 9 * (30 + 46)),
        (CHANNEL_PRODUCTS, 9 * 90), (SINGLE_WINDOW, 100 + 4 * 46 + 9 * 2),
        (NAIVE, 9 * 70), (GROUP_SUMS, 9 * 30),
    ],
)  # fmt: skip
def test_cycles_of_an_output(device: Device, by: Algorithm, cycles: float) -> None:
    # 4000 outputs of 9 taps, one for each of 50·80 lanes at 1.25 GHz
    values = {"window_cycles": 100, "tap_cycles": 2, "loop_tap_cycles": 30}
    machine = Machine.of(device, constants(**values, naive_cycles=70, channel_tap_cycles=90))
    products = Products.of([0], batch=4000, m=1, n=1, k=9, algorithm=by)
    assert time_work(KernelBatch.of(1, products=products), machine).compute_s[0] == pytest.approx(cycles / 1.25e9)


def test_libraries_of_cpus_know_every_window() -> None:
    assert {onednn.direct(one) for one in (UNROLLED, WINDOW_LOOP, TAP_SUMS, GROUP_SUMS)} == {onednn.DEPTHWISE}


@pytest.mark.parametrize(
    ("channels", "window", "gpu", "names"),
    [
        # wide windows have kernels of their own on tensor cores alone
        (16, 9, "nvidia-a100-sxm4-80gb", {cudnn.WIDE_WINDOW.name}),
        (16, 9, "nvidia-p4", {""}),
        # a GPU of fp32 lanes has Winograd's algorithm beside the implicit product, oneDNN is not asked
        (64, 3, "nvidia-p4", {"", "Winograd", "Winograd in passes"}),
        (64, 3, "amd-epyc-7763", {""}),
    ],
)
def test_choices_of_a_convolution(channels: int, window: int, gpu: str, names: set[str]) -> None:
    (kernel,) = kernels(nn.Conv2d(channels, channels, window, bias=False), rk.Input(1, channels, 32, 32))
    machine = Machine.of(rk.load_device(gpu), constants())
    assert {k.algorithm.name for k in choices_of(kernel, machine)} == names


def test_one_pixel_with_channels_first_is_a_product_for_each_image() -> None:
    # 4 images of 14·14 = 196 pixels, 64 channels to 32: no tile holds pixels of two images
    def product(*, channels_last: bool) -> Gemm:
        layer, image = nn.Conv2d(64, 32, 1, bias=False), rk.Input(4, 64, 14, 14)
        (kernel,) = kernels(layer, image, formats=("fp16",), dtype="float16", channels_last=channels_last)
        return kernel.cost.gemms[0]

    first, last = product(channels_last=False), product(channels_last=True)
    assert (first.batch, first.m, first.n, first.k) == (4, 196, 32, 64)
    assert (last.batch, last.m, last.n, last.k) == (1, 4 * 196, 32, 64)


def test_gradients_of_one_pixel_want_channels_last() -> None:
    layer = nn.Conv2d(64, 32, 1, bias=False)
    labels = [kernel.cost.label for kernel in gradients(layer, dtype="float16", tensor_formats=("fp16", "bf16"))]
    there, back = "to channels last", "from channels last"
    # the gradient of the input: that of the output there, itself back; of the weight: both images there
    assert labels == [there, "input gradient", back, there, there, "weight gradient"]
    # the first tensor cores had kernels for either layout
    assert len(gradients(layer, dtype="float16", tensor_formats=("fp16",))) == 2
    assert len(gradients(layer, dtype="float16", tensor_formats=("fp16", "bf16"), channels_last=True)) == 2


def test_weights_are_brought_to_channels_last_and_back_from_ampere_on() -> None:
    layer = nn.Conv2d(64, 32, 3, bias=False)
    there, back = "to channels last", "from channels last"
    labels = [kernel.cost.label for kernel in gradients(layer, dtype="float16", tensor_formats=("fp16", "bf16"))]
    # of the input: the gradient of the output and the weight there; of the weight: both images there, itself back
    assert labels == [there, there, "input gradient", back, there, there, "weight gradient", back]
    assert len(gradients(layer, dtype="float16", tensor_formats=("fp16",))) == len(labels) - 2


@pytest.mark.parametrize(
    ("channels", "window", "dtype", "padded"),
    [
        (40, 3, "float16", 64), (40, 1, "float16", 40), (40, 3, "float32", 40),  # a step in k lies within one tap
        (3, 7, "float16", 8), (3, 16, "float16", 32),  # the first layer's own kernels have no wide windows
    ],
)  # fmt: skip
def test_channels_are_padded_to_whole_steps(channels: int, window: int, dtype: str, padded: int) -> None:
    graph = rk.trace(nn.Conv2d(channels, 8, window, bias=False), rk.Input(1, channels, 32, 32), dtype=dtype)
    (kernel,) = issues_of(graph)[0].kernels
    assert kernel.padded == pytest.approx(padded / channels)


def test_a_bias_is_broadcast() -> None:
    graph = rk.trace(nn.Conv2d(4, 8, 3), rk.Input(1, 4, 12, 12))
    kernel = issues_of(graph)[0].kernels[-1]
    assert (kernel.cost.label, kernel.indexed, kernel.ramps) == ("bias", 3 * 8 * 10 * 10, 2)  # both results, and it


def test_weights_of_16_bits_are_summed_in_fp32_since_turing() -> None:
    layer = nn.Conv2d(8, 16, 3, bias=False)
    volta, turing = (
        gradients(layer, dtype="float16", tensor_formats=tensor_formats, channels_last=True)
        for tensor_formats in (("fp16",), ("fp16", "int8"))
    )
    assert [k.cost.label for k in turing if k not in volta] == ["sums in fp32"]
    (sums,) = (k for k in turing if k.cost.label == "sums in fp32")
    # 16·8·9 numbers: 4 bytes are set to 0, 4 instead of 2 written by the product, 4 read, and 2 written
    assert (sums.cost.read_bytes, sums.cost.write_bytes) == (4 * 1152, (4 + 2 + 2) * 1152)
    single = gradients(layer, dtype="float32", tensor_formats=("fp16", "tf32", "int8"), channels_last=True)
    assert "sums in fp32" not in [k.cost.label for k in single]


@pytest.mark.parametrize(
    ("width", "out", "dilation", "channels_last", "tiled"),
    [
        (32, 32, 1, True, True), (64, 64, 1, True, False), (64, 64, 1, False, True),
        (16, 32, 1, True, False), (32, 32, 2, True, False),  # as many come out as go in, of a dense window
        (8, 8, 1, True, False),  # whole groups fill 32 channels: two of 8 do not
    ],
)  # fmt: skip
def test_gradients_of_groups_with_channels_last(
    width: int, out: int, dilation: int, channels_last: bool, tiled: bool
) -> None:
    layer = nn.Conv2d(2 * width, 2 * out, 3, padding=dilation, dilation=dilation, groups=2, bias=False)
    found = gradients(layer, dtype="float16", channels_last=channels_last)
    assert [kernel.tensor_core for kernel in found] == [tiled, tiled]
    assert tiled or {kernel.padded for kernel in found} == {1.0}  # up to 64 channels take time


def test_odd_channels_and_gaps_are_copied() -> None:
    # 83 of 16 bits begin off 4 bytes: filled up before, and cut after; 82 do not. Both are computed as 96
    def labels(channels: int) -> list[str]:
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        image = rk.Input(1, channels, 8, 8)
        found = kernels(layer, image, formats=("fp16",), dtype="float16", channels_last=True)
        assert {k.padded for k in found if k.cost.gemms} == {96 / channels}
        return [k.cost.label for k in found]

    assert labels(83) == ["to even channels", "", "to even channels"]
    assert labels(82) == [""]
    assert [odd_rows(pixels) for pixels in (1, 49, 196)] == [False, True, False]
    # every second block of 16 channels of an image of 32 begins 16 behind the one before
    whole = TensorSpec(name="x", shape=(2, 16, 4, 4), dtype=DType.FLOAT16)
    assert not has_gaps(whole)
    assert not has_gaps(replace(whole, stride=(256, 1, 64, 16)))
    assert has_gaps(replace(whole, stride=(512, 1, 128, 32)))


@pytest.mark.parametrize(
    ("channels", "stride", "padded"),
    # From 10 pixels to 8 at stride 1, from 17 to 8 at stride 2 (transposed: from 8 to 10, and 17, in each direction).
    # Each of the image's pixels takes all taps of 8 channels: (10/8)²·8/3, and (17/8)² for 8 channels.
    [(3, 1, 25 / 6), (8, 2, 289 / 64), (16, 2, 1.0)],
)
def test_transposed_convolutions_of_few_channels_take_every_tap_on_the_lanes(
    channels: int, stride: int, padded: float
) -> None:
    layer = nn.ConvTranspose2d(channels, 32, 3, stride, bias=False)
    (kernel,) = (k for k in kernels(layer, rk.Input(2, channels, 8, 8), formats=("tf32",)) if k.cost.gemms)
    assert (kernel.tensor_core, kernel.padded) == (channels == 16, pytest.approx(padded))
