"""Reductions, softmax, losses and pooling, counted by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rooflinekit import Input


class Weighted(nn.Module):
    """Multiplies its input by a parameter, then applies a function."""

    def __init__(self, function):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x):
        return self.function(x * self.factor)


def _sum_of_squares(y):
    return (y * y).sum()


# --- reductions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod"]
)
def test_a_reduction_is_one_operation_an_input(tensor, cost, kind):
    c = cost(kind, [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.special_flop) == (24, 0)
    assert (c.read_bytes, c.write_bytes) == (96, 16)


def test_cumsum_writes_as_much_as_it_reads(tensor, cost):
    c = cost("cumsum", [tensor(4, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (24, 96, 96)


@pytest.mark.parametrize("kind", ["var", "std", "var_mean", "std_mean"])
def test_a_variance_is_mean_difference_square_and_sum(tensor, cost, kind):
    c = cost(kind, [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (96, 96, 16)  # 4 · 24; 4 · 24; 4 · 4


def test_a_norm_squares_and_sums_and_takes_a_root(tensor, cost):
    c = cost("linalg_vector_norm", [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.special_flop) == (48, 4)  # 2 · 24; a root a row
    assert (c.read_bytes, c.write_bytes) == (96, 16)


def test_the_largest_and_its_place_are_both_written(traced):
    graph = traced(lambda x: torch.max(x, dim=1), (4, 6))
    assert (graph.vector_flop, graph.write_bytes) == (24, 48)  # 4 values of 4 bytes, 4 places of 8


def test_the_sum_of_an_expanded_tensor_adds_each_element_and_reads_one(traced):
    graph = traced(lambda x: x.expand(4, 6).sum(), (1,))
    assert (graph.vector_flop, graph.read_bytes, graph.write_bytes) == (24, 4, 4)


# --- softmax --------------------------------------------------------------------------------------------------


def test_softmax_and_log_softmax(traced):
    softmax = traced(nn.Softmax(-1), (4, 6))
    # maximum, subtract, sum of 24; exp, divide
    assert (softmax.vector_flop, softmax.special_flop, softmax.bytes) == (72, 48, 192)
    log_softmax = traced(nn.LogSoftmax(-1), (4, 6))
    # maximum, subtract, sum, subtract the logarithm; exp of 24, logarithm of 4 rows
    assert (log_softmax.vector_flop, log_softmax.special_flop, log_softmax.bytes) == (96, 28, 192)
    other_dimension = traced(nn.LogSoftmax(0), (4, 6))
    assert other_dimension.special_flop == 30  # 6 columns


def test_gradients_of_softmax_and_log_softmax(traced, costs_of):
    graph = traced(Weighted(nn.Softmax(-1)), (4, 6), mode="training", loss=_sum_of_squares)
    (c,) = costs_of(graph, "_softmax_backward_data")
    assert (c.vector_flop, c.special_flop) == (96, 0)  # g·y, sum, g - sum, times y: 4 · 24
    assert (c.read_bytes, c.write_bytes) == (192, 96)  # gradient and output
    graph = traced(Weighted(nn.LogSoftmax(-1)), (4, 6), mode="training", loss=_sum_of_squares)
    (c,) = costs_of(graph, "_log_softmax_backward_data")
    assert (c.vector_flop, c.special_flop) == (72, 24)  # sum of g, exp(y), times sum, g -
    assert (c.read_bytes, c.write_bytes) == (192, 96)


# --- losses ---------------------------------------------------------------------------------------------------


def test_cross_entropy_reads_one_log_probability_a_target(traced, costs_of):
    graph = traced(
        Weighted(nn.Identity()),
        (3, 1000),
        mode="training",
        loss=functional.cross_entropy,
        targets=(Input(3, dtype="int64"),),
    )
    (forward,) = costs_of(graph, "nll_loss_forward")
    assert forward.vector_flop == 6  # negate and sum, of 3
    assert forward.read_bytes == 36  # 3 · 4 log-probabilities, 3 · 8 targets
    assert forward.write_bytes == 8  # the loss and its weight
    (backward,) = costs_of(graph, "nll_loss_backward")
    assert backward.vector_flop == 3
    assert backward.read_bytes == 32  # the loss's gradient 4, 3 · 8 targets, total weight 4
    assert backward.write_bytes == 12000  # 4 · 3·1000, zeros but for 3
    (log_softmax,) = costs_of(graph, "_log_softmax")
    assert (log_softmax.vector_flop, log_softmax.special_flop) == (12000, 3003)


def test_class_weights_are_read(tensor, cost):
    log_probability, target, weight = tensor(3, 5), tensor(3, dtype="int64"), tensor(5)
    forward = cost("nll_loss_forward", [log_probability, target, weight], [tensor(), tensor()])
    assert forward.read_bytes == 56  # 3 · 4 + 3 · 8 + 5 · 4
    inputs = [tensor(), log_probability, target, weight, tensor()]
    assert cost("nll_loss_backward", inputs, [tensor(3, 5)]).read_bytes == 52  # 4 + 3 · 8 + 5 · 4 + 4


def test_cross_entropy_of_images(traced, costs_of):
    graph = traced(
        Weighted(nn.Identity()),
        (3, 5, 2, 2),
        mode="training",
        loss=functional.cross_entropy,
        targets=(Input(3, 2, 2, dtype="int64"),),
    )
    (forward,) = costs_of(graph, "nll_loss2d_forward")
    assert (forward.vector_flop, forward.read_bytes) == (24, 144)  # 2 · 12 pixels; 12 · (4 + 8)
    (backward,) = costs_of(graph, "nll_loss2d_backward")
    assert (backward.read_bytes, backward.write_bytes) == (104, 240)  # 4 + 12 · 8 + 4; 4 · 60
    (log_softmax,) = costs_of(graph, "_log_softmax")
    assert log_softmax.special_flop == 72  # exp of 60, logarithm of 12 pixels


# --- pooling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "flop", "read", "write"),
    [
        # one comparison a window element; the places take 8 bytes each
        (nn.MaxPool2d(2), (2, 3, 8, 6), 288, 1152, 864),  # 72 outputs · 4; 4 · 288; 72 · (4 + 8)
        (nn.MaxPool2d(3, stride=2, padding=1), (2, 3, 8, 6), 648, 1152, 864),  # 72 · 9
        (nn.MaxPool1d(2), (2, 3, 8), 48, 192, 288),  # 24 · 2
        (nn.MaxPool3d(2), (1, 2, 4, 4, 4), 128, 512, 192),  # 16 · 8
        # one addition a window element and one multiplication an output
        (nn.AvgPool2d(2), (2, 3, 8, 6), 360, 1152, 288),  # 72 · 5
        (nn.AvgPool1d(2), (2, 3, 8), 72, 192, 96),  # 24 · 3
        (nn.AvgPool3d(2), (1, 2, 4, 4, 4), 144, 512, 64),  # 16 · 9
        (nn.AdaptiveAvgPool2d(2), (2, 3, 8, 6), 312, 1152, 96),  # 288 added, 24 multiplied
        (nn.AdaptiveAvgPool1d(4), (2, 3, 8), 72, 192, 96),  # 48 added, 24 multiplied
        (nn.AdaptiveAvgPool2d(1), (2, 3, 8, 6), 288, 1152, 24),  # torch takes the mean
    ],
)
def test_pooling_forward(traced, layer, shape, flop, read, write):
    graph = traced(layer, shape)
    assert (graph.vector_flop, graph.special_flop) == (flop, 0)
    assert (graph.read_bytes, graph.write_bytes) == (read, write)


@pytest.mark.parametrize(
    ("layer", "kind", "flop", "read"),
    [
        # gradient and places; of the input the shape is enough
        (nn.MaxPool2d(2), "max_pool2d_with_indices_backward", 72, 864),  # 72 additions; 72 · (4 + 8)
        (nn.AvgPool2d(2), "avg_pool2d_backward", 360, 288),  # 72 · (4 + 1); 4 · 72
        (nn.AdaptiveAvgPool2d(2), "_adaptive_avg_pool2d_backward", 288, 96),  # 288 multiplied; 4 · 24
    ],
)
def test_pooling_backward(traced, costs_of, layer, kind, flop, read):
    graph = traced(Weighted(layer), (2, 3, 8, 6), mode="training", loss=_sum_of_squares)
    (c,) = costs_of(graph, kind)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (flop, read, 1152)


def test_one_number_for_a_window_means_a_square_or_a_cube(tensor, cost):
    square = cost("avg_pool2d", [tensor(1, 2, 4, 4)], [tensor(1, 2, 2, 2)], kernel_size=(2,))
    assert square.vector_flop == 40  # 8 · (4 + 1)
    cube = cost("avg_pool3d", [tensor(1, 2, 4, 4, 4)], [tensor(1, 2, 2, 2, 2)], kernel_size=(2,))
    assert cube.vector_flop == 144  # 16 · (8 + 1)
