"""Convolutions: each multiply-add of each output, in the forward pass and for both gradients, counted by hand."""

import pytest
import torch
from learned import Learned, squares
from torch import nn
from torch.nn import functional

#: layer, input, FLOP of one pass, output elements
LAYERS = {
    "1d": (nn.Conv1d(6, 8, 3), (2, 6, 20), 10368, 288),  # 2 · 2·18 · 8 · 6·3
    "2d": (nn.Conv2d(64, 64, 3, padding=1), (32, 64, 56, 56), 7398752256, 6422528),  # 2 · 32·56·56 · 64 · 64·3·3
    "pointwise": (nn.Conv2d(6, 4, 1), (2, 6, 5, 5), 2400, 200),  # 2 · 2·5·5 · 4 · 6
    "strided": (nn.Conv2d(3, 8, 7, stride=2, padding=3), (2, 3, 32, 32), 1204224, 4096),  # 2 · 2·16·16 · 8 · 3·7·7
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2), (1, 4, 9, 9), 10800, 150),  # 2 · 5·5 · 6 · 4·3·3
    "rectangular": (nn.Conv2d(4, 6, (1, 3)), (1, 4, 5, 7), 3600, 150),  # 2 · 5·5 · 6 · 4·1·3
    "grouped": (nn.Conv2d(8, 12, 3, padding=1, groups=4), (2, 8, 6, 6), 31104, 864),  # 2 · 2·6·6 · 12 · 2·3·3
    "depthwise": (nn.Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 6, 6), 10368, 576),  # 2 · 2·6·6 · 8 · 1·3·3
    "multiplied": (nn.Conv2d(8, 16, 3, padding=1, groups=8), (2, 8, 6, 6), 20736, 1152),  # 2 · 2·6·6 · 16 · 1·3·3
    "3d": (nn.Conv3d(2, 4, 3), (1, 2, 5, 6, 7), 25920, 240),  # 2 · 3·4·5 · 4 · 2·3·3·3
    # transposed: each *input* pixel meets the whole kernel
    "transposed 1d": (nn.ConvTranspose1d(6, 8, 4, stride=2), (2, 6, 10), 7680, 352),  # 2 · 2·10 · 6 · 8·4
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), 21600, 1452),  # 2 · 2·5·5 · 4 · 6·3·3
    "transposed grouped": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
        (2, 4, 5, 5),
        10800,  # 2 · 2·5·5 · 4 · 3·3·3
        1452,  # 2·6·11·11
    ),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 3, 3, 3), 2592, 648),  # 2 · 27 · 2 · 3·2·2·2
}
layers = pytest.mark.parametrize(("layer", "shape", "flop", "elements"), LAYERS.values(), ids=LAYERS)


@layers
def test_forward_flop_of_convolutions(traced, layer, shape, flop, elements):
    graph = traced(layer, shape)
    assert graph.matrix_flop == flop
    assert graph.vector_flop == elements  # the bias
    assert graph.special_flop == 0


@layers
def test_each_gradient_has_the_multiply_adds_of_the_forward_pass(traced, costs_of, layer, shape, flop, elements):
    backward = costs_of(traced(Learned(layer), shape, mode="training"), "convolution_backward")
    assert [c.label for c in backward] == ["input gradient", "weight gradient", "bias gradient"]
    assert [c.matrix_flop for c in backward] == [flop, flop, 0]
    assert [c.vector_flop for c in backward] == [0, 0, elements]  # a sum of all output gradients


@layers
def test_the_first_layer_needs_no_gradient_of_its_input(traced, costs_of, layer, shape, flop, elements):
    backward = costs_of(traced(layer, shape, mode="training"), "convolution_backward")
    assert [c.label for c in backward] == ["weight gradient", "bias gradient"]
    assert sum(c.matrix_flop for c in backward) == flop


def test_a_frozen_convolution_has_the_gradient_of_its_input_alone(traced, costs_of):
    layer = nn.Conv2d(4, 6, 3).requires_grad_(False)
    (backward,) = costs_of(traced(Learned(layer), (2, 4, 5, 5), mode="training"), "convolution_backward")
    assert backward.label == "input gradient"
    assert backward.matrix_flop == 7776  # 2 · 2·3·3 · 6 · 4·3·3


def test_without_bias_there_is_no_vector_work(traced, costs_of):
    layer = nn.Conv2d(4, 6, 3, bias=False)
    graph = traced(Learned(layer), (2, 4, 5, 5), mode="training")
    (forward,) = costs_of(graph, "convolution")
    assert forward.vector_flop == 0
    assert [c.label for c in costs_of(graph, "convolution_backward")] == ["input gradient", "weight gradient"]


def test_traffic_of_a_grouped_convolution_and_its_gradients(traced, costs_of):
    # x 2·8·6·6 = 576, weight 12·2·3·3 = 216, bias 12, y 2·12·6·6 = 864 numbers of 4 bytes
    graph = traced(Learned(nn.Conv2d(8, 12, 3, padding=1, groups=4)), (2, 8, 6, 6), mode="training", loss=squares)
    (forward,) = costs_of(graph, "convolution")
    assert (forward.read_bytes, forward.write_bytes) == (3216, 3456)  # 4 · (576 + 216 + 12); 4 · 864
    by_input, by_weight, by_bias = costs_of(graph, "convolution_backward")
    assert (by_input.read_bytes, by_input.write_bytes) == (4320, 2304)  # 4 · (864 + 216); 4 · 576
    assert (by_weight.read_bytes, by_weight.write_bytes) == (5760, 864)  # 4 · (864 + 576); 4 · 216
    assert (by_bias.read_bytes, by_bias.write_bytes) == (3456, 48)  # 4 · 864; 4 · 12


def test_traffic_of_a_transposed_convolution(traced, costs_of):
    (forward,) = costs_of(traced(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5)), "convolution")
    assert forward.read_bytes == 1256  # 4 · (2·4·5·5 + 4·3·3·3 + 6)
    assert forward.write_bytes == 5808  # 4 · 2·6·11·11


def test_an_expanded_gradient_is_read_as_the_one_number_it_is(traced, costs_of):
    # the gradient of a plain sum is one number, seen 2·6·3·3 times
    by_weight, by_bias = costs_of(traced(nn.Conv2d(4, 6, 3), (2, 4, 5, 5), mode="training"), "convolution_backward")
    assert by_weight.read_bytes == 804  # 4 · (1 + 2·4·5·5)
    assert by_bias.read_bytes == 4
    assert by_bias.vector_flop == 108


def test_an_image_without_batch_dimension_is_a_batch_of_one(traced):
    assert traced(nn.Conv2d(4, 6, 3), (4, 5, 5)).matrix_flop == 3888  # 2 · 3·3 · 6 · 4·3·3


def test_multiply_adds_agree_with_the_patches_that_are_multiplied(traced):
    # every number of every patch meets every output channel once
    patches = functional.unfold(torch.zeros(2, 5, 11, 9), (3, 2), dilation=2, padding=1, stride=(2, 1)).numel()
    layer = nn.Conv2d(5, 7, (3, 2), dilation=2, padding=1, stride=(2, 1))
    assert traced(layer, (2, 5, 11, 9)).matrix_flop == 2 * 7 * patches


def test_the_gemm_of_a_convolution_states_its_shape(tensor, cost):
    x, weight, y = tensor(2, 8, 6, 6), tensor(12, 2, 3, 3), tensor(2, 12, 6, 6)
    (gemm,) = cost("convolution", [x, weight], [y], groups=4, transposed=False, bias=None).gemms
    # 4 groups of [72 pixels, 2·3·3] × [2·3·3, 3]
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (4, 72, 3, 18)


@pytest.mark.parametrize(
    ("x", "y", "transposed", "by_input", "by_weight"),
    [
        # 2 groups, kernel 3·3, 72 output pixels; 4 channels in and 6 out a group
        ((2, 8, 8, 8), (2, 12, 6, 6), False, (72, 4, 6 * 9), (6, 4 * 9, 72)),
        # the same the other way round: 72 *input* pixels, 6 channels in and 4 out a group
        ((2, 12, 6, 6), (2, 8, 8, 8), True, (72, 6, 4 * 9), (6, 4 * 9, 72)),
    ],
    ids=["plain", "transposed"],
)
def test_the_gemms_of_both_gradients_state_their_shapes(tensor, costs, x, y, transposed, by_input, by_weight):
    inputs = [tensor(*y), tensor(*x), tensor(12, 4, 3, 3)]
    outputs = [tensor(*x), tensor(12, 4, 3, 3)]
    mask = (True, True, False)
    found = costs("convolution_backward", inputs, outputs, groups=2, transposed=transposed, output_mask=mask)
    gemms = [gemm for cost in found for gemm in cost.gemms]
    assert [gemm.batch for gemm in gemms] == [2, 2]
    assert [(gemm.m, gemm.n, gemm.k) for gemm in gemms] == [by_input, by_weight]


def test_the_library_form_of_a_convolution_has_a_rule(tensor, cost):
    x, weight, y = tensor(2, 8, 6, 6), tensor(12, 2, 3, 3), tensor(2, 12, 6, 6)
    assert cost("cudnn_convolution", [x, weight], [y], groups=4).matrix_flop == 31104  # 2 · 2·6·6 · 12 · 2·3·3


def test_convolution_flop_with_named_sizes(traced):
    graph = traced(nn.Conv2d(3, 8, 3, padding=1), ("batch", 3, "height", "width"))
    assert str(graph.matrix_flop) == "432*batch*height*width"  # 2 · batch·height·width · 8 · 3·3·3


def test_a_convolution_with_time_first(tensor, cost):
    # 7 steps, batch 2, 3 channels; kernel of 3 steps; 5 steps of 4 channels
    inputs = [tensor(7, 2, 3), tensor(3, 3, 4), tensor(4)]
    c = cost("conv_tbc", inputs, [tensor(5, 2, 4)], pad=0)
    assert c.matrix_flop == 720  # 2 · 5·2 · 3·3 · 4
    assert c.vector_flop == 40  # a bias for each of 5·2·4
    assert (c.read_bytes, c.write_bytes) == (328, 160)  # 4 · (42 + 36 + 4); 4 · 40


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_paddings_are_kernels_of_their_own(traced, mode):
    # 2·3·6·6 padded to 8·8, then 2 · 2·6·6 · 4 · 3·3·3
    graph = traced(nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode), (2, 3, 6, 6))
    assert graph.matrix_flop == 15552
    assert [p.op.kind for p in graph.priced if p.costs][-1] == "aten.convolution"
    assert len([p for p in graph.priced if p.costs]) > 1
