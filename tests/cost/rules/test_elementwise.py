"""Element-wise ops: operations and special functions of ten elements, spelled out for each kind."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from rooflinekit import Input

#: kind: (inputs, vector FLOP of 10 elements, special functions of 10 elements)
TEN = {
    "neg": (1, 10, 0),
    "abs": (1, 10, 0),
    "sign": (1, 10, 0),
    "relu": (1, 10, 0),
    "mul": (2, 10, 0),
    "maximum": (2, 10, 0),
    "minimum": (2, 10, 0),
    "where": (3, 10, 0),
    "masked_fill": (2, 10, 0),
    "eq": (2, 10, 0),
    "ne": (2, 10, 0),
    "lt": (2, 10, 0),
    "le": (2, 10, 0),
    "gt": (2, 10, 0),
    "ge": (2, 10, 0),
    "logical_not": (1, 10, 0),
    "logical_and": (2, 10, 0),
    "logical_or": (2, 10, 0),
    "logical_xor": (2, 10, 0),
    "bitwise_not": (1, 10, 0),
    "bitwise_and": (2, 10, 0),
    "bitwise_or": (2, 10, 0),
    "bitwise_xor": (2, 10, 0),
    "floor": (1, 10, 0),
    "ceil": (1, 10, 0),
    "round": (1, 10, 0),
    "trunc": (1, 10, 0),
    "clamp_min": (1, 10, 0),
    "clamp_max": (1, 10, 0),
    "isnan": (1, 10, 0),
    "isinf": (1, 10, 0),
    "add": (2, 10, 0),
    "sub": (2, 10, 0),
    "rsub": (2, 10, 0),
    "div": (2, 0, 10),
    "reciprocal": (1, 0, 10),
    "remainder": (2, 0, 10),
    "exp": (1, 0, 10),
    "exp2": (1, 0, 10),
    "expm1": (1, 0, 10),
    "log": (1, 0, 10),
    "log2": (1, 0, 10),
    "log1p": (1, 0, 10),
    "sin": (1, 0, 10),
    "cos": (1, 0, 10),
    "tanh": (1, 0, 10),
    "erf": (1, 0, 10),
    "sqrt": (1, 0, 10),
    "rsqrt": (1, 0, 10),
    "pow": (2, 0, 10),
    "clamp": (1, 20, 0),  # max, min
    "hardtanh": (1, 20, 0),  # max, min
    "leaky_relu": (1, 20, 0),  # x > 0; slope·x
    "hardsigmoid": (1, 40, 0),  # x + 3; max; min; times 1/6
    "hardswish": (1, 50, 0),  # the same, times x
    "sigmoid": (1, 20, 20),  # -x; 1 +; exp, 1 /
    "silu": (1, 30, 20),  # the same, times x
    "elu": (1, 30, 10),  # x > 0; exp(x); -1; times alpha
    "softplus": (1, 20, 20),  # x > threshold; exp(x); 1 +; log
    "mish": (1, 30, 30),  # softplus, 2 and 2; tanh; times x
    "logit": (1, 10, 20),  # 1 - x; x / that; log
    "gelu": (1, 40, 10),  # x/√2; erf; 1 +; times x; times 1/2
    "threshold_backward": (2, 10, 0),  # the gradient or 0
    "hardtanh_backward": (2, 20, 0),  # x > lower; x < upper
    "leaky_relu_backward": (2, 20, 0),  # x > 0; slope·gradient
    "hardsigmoid_backward": (2, 30, 0),  # x > -3; x < 3; times 1/6
    "hardswish_backward": (2, 50, 0),  # x < -3; x > 3; x/3; + 1/2; times the gradient
    "sigmoid_backward": (2, 30, 0),  # 1 - y; times y; times the gradient
    "tanh_backward": (2, 30, 0),  # y·y; 1 -; times the gradient
    "silu_backward": (2, 70, 20),  # s: -x, 1 +, exp, 1 /; 1 - s; times x; 1 +; times s; times the gradient
    "elu_backward": (2, 30, 10),  # x > 0; exp(x); times alpha; times the gradient
    "softplus_backward": (2, 30, 20),  # -x; 1 +; exp, 1 /; times the gradient
    "gelu_backward": (2, 90, 20),  # Φ: x/√2, 1 +, ½·, erf; φ: x², ·(-½), ·1/√(2π), exp; x·φ; Φ +; times the gradient
    "native_dropout_backward": (2, 20, 0),  # times mask; times scale
    "mse_loss": (2, 30, 0),  # difference; square; sum
    "mse_loss_backward": (3, 30, 0),  # difference; times 2/n; times the gradient
    "binary_cross_entropy_with_logits": (2, 40, 20),  # max(x, 0); - x·y (2); + log(1 + exp) with 1 + inside log1p
    "addcmul": (3, 30, 0),  # b·c; times v; a +
    "addcdiv": (3, 20, 10),  # b/c; times v; a +
    "lerp": (3, 30, 0),  # b - a; times w; a +
}


@pytest.mark.parametrize(("kind", "inputs", "vector", "special"), [(k, *v) for k, v in TEN.items()], ids=TEN)
def test_operations_of_ten_elements(tensor, cost, kind, inputs, vector, special):
    c = cost(kind, [tensor(2, 5) for _ in range(inputs)], [tensor(2, 5)])
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (0, vector, special)
    assert c.read_bytes == 40 * inputs  # 4 · 2·5 each
    assert c.write_bytes == 40


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize(("kind", "flop"), [("mse_loss", 30), ("binary_cross_entropy_with_logits", 60)])
def test_a_loss_counts_its_inputs_however_it_is_reduced(tensor, cost, kind, flop, reduced):
    c = cost(kind, [tensor(2, 5), tensor(2, 5)], [tensor() if reduced else tensor(2, 5)])
    assert c.flop == flop
    assert c.write_bytes == (4 if reduced else 40)


@pytest.mark.parametrize("kind", ["add", "sub", "rsub"])
def test_a_factor_of_the_second_term_is_a_multiplication(tensor, cost, kind):
    a, b = tensor(2, 5), tensor(2, 5)
    assert cost(kind, [a, b], [tensor(2, 5)], alpha=1).vector_flop == 10
    assert cost(kind, [a, b], [tensor(2, 5)], alpha=0.5).vector_flop == 20


@pytest.mark.parametrize(("exponent", "vector", "special"), [(2, 10, 0), (2.0, 10, 0), (3, 20, 0), (0.5, 0, 10)])
def test_whole_powers_are_multiplications(tensor, cost, exponent, vector, special):
    c = cost("pow", [tensor(2, 5)], [tensor(2, 5)], exponent=exponent)
    assert (c.vector_flop, c.special_flop) == (vector, special)


def test_gelu_by_tanh(tensor, cost):
    forward = cost("gelu", [tensor(2, 5)], [tensor(2, 5)], approximate="tanh")
    assert (forward.vector_flop, forward.special_flop) == (80, 10)  # x², x³, ·a, + x, ·c; tanh; 1 +, ·x, ·1/2
    backward = cost("gelu_backward", [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)], approximate="tanh")
    # argument 5, tanh t; ½·(1 + t) 2; slope of the argument c·(1 + 3a·x²) 3; ½x·(1 - t²)·slope 5; sum and times g 2
    assert (backward.vector_flop, backward.special_flop) == (170, 10)


def test_dropout_writes_its_mask_of_one_byte_an_element(tensor, cost):
    c = cost("native_dropout", [tensor(2, 5)], [tensor(2, 5), tensor(2, 5, dtype="bool")])
    assert c.vector_flop == 30  # compare, mask, scale
    assert (c.read_bytes, c.write_bytes) == (40, 50)


def test_an_in_place_op_reads_and_writes_the_same_tensor(tensor, cost):
    x, y = tensor(2, 5), tensor(2, 5)
    c = cost("add_", [x, y], [x], alpha=1)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (10, 80, 40)


def test_a_tensor_passed_twice_is_read_once(tensor, cost):
    x = tensor(2, 5)
    assert cost("mul", [x, x], [tensor(2, 5)]).read_bytes == 40


def test_broadcasting_computes_every_output_and_reads_what_there_is(tensor, cost):
    c = cost("mul", [tensor(4, 1), tensor(1, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (24, 40, 96)  # 4·6; 4 · (4 + 6); 4 · 4·6


def test_an_expanded_input_counts_the_memory_behind_it(tensor, cost):
    c = cost("mul", [tensor(4, 6, stride=(0, 1)), tensor(4, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes) == (24, 120)  # 4 · (6 + 4·6)


def test_a_comparison_writes_one_byte_an_element(tensor, cost):
    c = cost("gt", [tensor(2, 5)], [tensor(2, 5, dtype="bool")])
    assert (c.read_bytes, c.write_bytes) == (40, 10)


# --- traced ---------------------------------------------------------------------------------------------------


def test_a_traced_square_reads_its_input_once(traced):
    graph = traced(lambda x: x * x, (4, 5))
    assert (graph.vector_flop, graph.read_bytes, graph.write_bytes) == (20, 80, 80)


def test_a_traced_sum_with_an_expanded_tensor(traced):
    graph = traced(lambda x: x + x[:1].expand(4, 5), (4, 5))
    assert graph.vector_flop == 20
    assert graph.read_bytes == 100  # 4 · (4·5 + 5)


@pytest.mark.parametrize(
    ("function", "flop"),
    [
        (functional.relu, 10),
        (lambda x: functional.relu(x, inplace=True), 10),
        (functional.relu6, 20),  # max, min
        (functional.silu, 50),  # 3 and 2
        (functional.gelu, 50),  # 4 and 1
        (functional.hardswish, 50),
        (torch.tanh, 10),
        (lambda x: x**2 / 3, 20),
        (lambda x: functional.dropout(x, 0.5, training=False), 0),
    ],
)
def test_traced_activations_of_ten_elements(traced, function, flop):
    assert traced(function, (2, 5)).flop == flop


class Scaled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x):
        return self.function(x * self.factor)


@pytest.mark.parametrize(
    ("function", "kind", "vector", "special"),
    [
        (functional.relu, "threshold_backward", 10, 0),
        (functional.gelu, "gelu_backward", 90, 20),
        (functional.silu, "silu_backward", 70, 20),
        (functional.hardswish, "hardswish_backward", 50, 0),
        (torch.sigmoid, "sigmoid_backward", 30, 0),
        (torch.tanh, "tanh_backward", 30, 0),
        (functional.dropout, "native_dropout_backward", 20, 0),
    ],
)
def test_traced_gradients_of_activations_of_ten_elements(traced, costs_of, function, kind, vector, special):
    graph = traced(Scaled(function), (2, 5), mode="training")
    (c,) = costs_of(graph, kind)
    assert (c.vector_flop, c.special_flop) == (vector, special)


def test_traced_losses(traced, costs_of):
    options = {"mode": "training", "targets": (Input(2, 5),)}
    graph = traced(Scaled(torch.relu), (2, 5), loss=functional.mse_loss, **options)
    (forward,), (backward,) = costs_of(graph, "mse_loss"), costs_of(graph, "mse_loss_backward")
    assert (forward.flop, forward.read_bytes, forward.write_bytes) == (30, 80, 4)
    assert (backward.flop, backward.read_bytes, backward.write_bytes) == (30, 84, 40)
    graph = traced(Scaled(torch.relu), (2, 5), loss=functional.binary_cross_entropy_with_logits, **options)
    (forward,) = costs_of(graph, "binary_cross_entropy_with_logits")
    assert (forward.vector_flop, forward.special_flop) == (40, 20)
