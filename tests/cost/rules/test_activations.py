"""Activations and softmax, forward and backward: operations of ten elements, spelled out for each kind."""

import pytest
import torch
from learned import Learned, squares
from torch import nn
from torch.nn import functional

#: kind: (inputs, vector FLOP of 10 elements, special functions of 10 elements)
TEN = {
    "relu": (1, 10, 0),
    "threshold": (1, 10, 0),  # x > threshold
    "hardtanh": (1, 20, 0),  # max, min
    "hardshrink": (1, 20, 0),  # x < -λ; x > λ
    "softshrink": (1, 30, 0),  # x < -λ; x > λ; x ± λ
    "leaky_relu": (1, 20, 0),  # x > 0; slope·x
    "hardsigmoid": (1, 40, 0),  # x + 3; max; min; times 1/6
    "hardswish": (1, 50, 0),  # the same, times x
    "sigmoid": (1, 20, 20),  # -x; 1 +; exp, 1 /
    "silu": (1, 30, 20),  # the same, times x
    "elu": (1, 30, 10),  # x > 0; exp(x); -1; times alpha
    "celu": (1, 30, 10),
    "softplus": (1, 20, 20),  # x > threshold; exp(x); 1 +; log
    "mish": (1, 30, 30),  # softplus, 2 and 2; tanh; times x
    "gelu": (1, 40, 10),  # x/√2; erf; 1 +; times x; times 1/2
    # gradients
    "threshold_backward": (2, 10, 0),  # the gradient or 0
    "hardtanh_backward": (2, 20, 0),  # x > lower; x < upper
    "hardshrink_backward": (2, 20, 0),
    "softshrink_backward": (2, 20, 0),
    "leaky_relu_backward": (2, 20, 0),  # x > 0; slope·gradient
    "hardsigmoid_backward": (2, 30, 0),  # x > -3; x < 3; times 1/6
    "hardswish_backward": (2, 50, 0),  # x < -3; x > 3; x/3; + 1/2; times the gradient
    "sigmoid_backward": (2, 30, 0),  # 1 - y; times y; times the gradient
    "tanh_backward": (2, 30, 0),  # y·y; 1 -; times the gradient
    "silu_backward": (2, 70, 20),  # s: -x, 1 +, exp, 1 /; 1 - s; times x; 1 +; times s; times the gradient
    "elu_backward": (2, 30, 10),  # x > 0; exp(x); times alpha; times the gradient
    "softplus_backward": (2, 30, 20),  # -x; 1 +; exp, 1 /; times the gradient
    # s: -x, 1 +, exp, 1 /; t: compare, exp, 1 +, log, tanh; x·s; t·t; 1 -; their product; t +; times the gradient
    "mish_backward": (2, 100, 50),
    "gelu_backward": (2, 90, 20),  # Φ: x/√2, 1 +, ½·, erf; φ: x², ·(-½), ·1/√(2π), exp; x·φ; Φ +; times the gradient
    # softmax
    "_softmax": (1, 30, 20),  # maximum; x - maximum; exp; sum; divide
    "_safe_softmax": (1, 60, 20),  # the same; x = -inf; all of a row; 0 or that
    "_masked_softmax": (2, 40, 20),  # selected by the mask
    "_softmax_backward_data": (2, 40, 0),  # g·y; sum; g - sum; times y
    "_masked_softmax_backward": (3, 50, 0),
}


@pytest.mark.parametrize(("kind", "inputs", "vector", "special"), [(k, *v) for k, v in TEN.items()], ids=TEN)
def test_operations_of_ten_elements(tensor, cost, kind, inputs, vector, special):
    c = cost(kind, [tensor(2, 5) for _ in range(inputs)], [tensor(2, 5)])
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (0, vector, special)
    assert c.read_bytes == 40 * inputs  # 4 · 2·5 each
    assert c.write_bytes == 40


def test_gelu_by_tanh(tensor, cost):
    forward = cost("gelu", [tensor(2, 5)], [tensor(2, 5)], approximate="tanh")
    assert (forward.vector_flop, forward.special_flop) == (80, 10)  # x², x³, ·a, + x, ·c; tanh; 1 +, ·x, ·1/2
    backward = cost("gelu_backward", [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)], approximate="tanh")
    # argument 5, tanh t; ½·(1 + t) 2; slope of the argument c·(1 + 3a·x²) 3; ½x·(1 - t²)·slope 5; sum and times g 2
    assert (backward.vector_flop, backward.special_flop) == (170, 10)


def test_a_scale_inside_the_exponential_is_a_multiplication(tensor, cost):
    x, y = tensor(2, 5), tensor(2, 5)
    assert cost("celu", [x], [y], alpha=2.0).flop == 50
    assert cost("celu", [x], [y], alpha=1.0).flop == 40
    assert cost("elu", [x], [y], alpha=1.0, scale=1.05, input_scale=1).flop == 40  # SELU
    assert cost("elu_backward", [y, x], [y], alpha=2.0, scale=1, input_scale=0.5).flop == 50


def test_the_gradient_of_elu_from_its_output_has_no_exponential(tensor, cost):
    c = cost("elu_backward", [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)], is_result=True)
    assert (c.vector_flop, c.special_flop) == (30, 0)  # y > 0; y + alpha; times the gradient


def test_prelu_reads_its_slopes(tensor, cost):
    x, slopes, grad = tensor(2, 5), tensor(1, 5), tensor(2, 5)
    forward = cost("_prelu_kernel", [x, slopes], [tensor(2, 5)])
    assert (forward.vector_flop, forward.read_bytes) == (20, 60)  # x > 0, slope·x; 4 · (10 + 5)
    backward = cost("_prelu_kernel_backward", [grad, x, slopes], [tensor(2, 5), tensor(2, 5)])
    assert backward.vector_flop == 30  # x > 0; slope·gradient; x·gradient
    assert (backward.read_bytes, backward.write_bytes) == (100, 80)  # 4 · (10 + 10 + 5); both 4 · 10


def test_log_sigmoid_does_not_write_the_buffer_that_only_the_cpu_has(tensor, cost):
    x, y, buffer, grad = (tensor(2, 5) for _ in range(4))
    forward = cost("log_sigmoid_forward", [x], [y, buffer])
    assert (forward.vector_flop, forward.special_flop) == (20, 20)  # min(x, 0); exp(-|x|), log1p; -
    assert (forward.read_bytes, forward.write_bytes) == (40, 40)
    backward = cost("log_sigmoid_backward", [grad, x, buffer], [tensor(2, 5)])
    assert (backward.vector_flop, backward.special_flop) == (20, 20)  # exp(x); 1 +; 1 /; times the gradient
    assert (backward.read_bytes, backward.write_bytes) == (80, 40)


def test_a_gated_unit_writes_half_of_what_it_reads(tensor, cost):
    forward = cost("glu", [tensor(2, 10)], [tensor(2, 5)])
    assert (forward.vector_flop, forward.special_flop) == (30, 20)  # sigmoid 2 and 2; times the other half
    assert (forward.read_bytes, forward.write_bytes) == (80, 40)
    backward = cost("glu_backward", [tensor(2, 5), tensor(2, 10)], [tensor(2, 10)])
    assert (backward.vector_flop, backward.special_flop) == (60, 20)  # s 2 and 2; g·s; 1 - s; times a; times g·s
    assert (backward.read_bytes, backward.write_bytes) == (120, 80)


def test_randomized_relu_writes_the_slopes_that_it_draws(tensor, cost):
    x, noise, y, grad = (tensor(2, 5) for _ in range(4))
    training = cost("rrelu_with_noise", [x, noise], [y], training=True)
    assert (training.vector_flop, training.read_bytes, training.write_bytes) == (20, 40, 80)
    evaluation = cost("rrelu_with_noise", [x, noise], [y], training=False)
    assert (evaluation.vector_flop, evaluation.read_bytes, evaluation.write_bytes) == (20, 40, 40)
    backward = cost("rrelu_with_noise_backward", [grad, x, noise], [tensor(2, 5)], training=True)
    assert (backward.vector_flop, backward.read_bytes) == (10, 80)  # g · slope; gradient and slopes
    backward = cost("rrelu_with_noise_backward", [grad, x, noise], [tensor(2, 5)], training=False)
    assert (backward.vector_flop, backward.read_bytes) == (20, 80)  # x > 0, slope·g; gradient and input


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


@pytest.mark.parametrize(("shape", "special"), [((), 2), ((0, 6), 0), ((6, 0), 6)])
def test_log_softmax_of_almost_nothing(tensor, cost, shape, special):
    assert cost("_log_softmax", [tensor(*shape)], [tensor(*shape)], dim=-1).special_flop == special


def test_gradients_of_softmax_and_log_softmax(traced, costs_of):
    graph = traced(Learned(nn.Softmax(-1)), (4, 6), mode="training", loss=squares)
    (c,) = costs_of(graph, "_softmax_backward_data")
    assert (c.vector_flop, c.special_flop) == (96, 0)  # g·y, sum, g - sum, times y: 4 · 24
    assert (c.read_bytes, c.write_bytes) == (192, 96)  # gradient and output
    graph = traced(Learned(nn.LogSoftmax(-1)), (4, 6), mode="training", loss=squares)
    (c,) = costs_of(graph, "_log_softmax_backward_data")
    assert (c.vector_flop, c.special_flop) == (72, 24)  # sum of g, exp(y), times sum, g -
    assert (c.read_bytes, c.write_bytes) == (192, 96)


# --- traced ---------------------------------------------------------------------------------------------------


#: layer and FLOP of all kinds for 24 elements
LAYERS = {
    "ReLU": (nn.ReLU(), 24),
    "ReLU in place": (nn.ReLU(inplace=True), 24),
    "ReLU6": (nn.ReLU6(), 48),
    "LeakyReLU": (nn.LeakyReLU(), 48),
    "PReLU": (nn.PReLU(), 48),
    "PReLU by channel": (nn.PReLU(6), 48),
    "RReLU": (nn.RReLU(), 48),
    "ELU": (nn.ELU(), 96),  # 3 and 1
    "CELU": (nn.CELU(), 96),
    "CELU of another alpha": (nn.CELU(2.0), 120),  # 4 and 1
    "SELU": (nn.SELU(), 96),
    "GELU": (nn.GELU(), 120),  # 4 and 1
    "GELU by tanh": (nn.GELU("tanh"), 216),  # 8 and 1
    "SiLU": (nn.SiLU(), 120),  # 3 and 2
    "Mish": (nn.Mish(), 144),  # 3 and 3
    "Hardswish": (nn.Hardswish(), 120),
    "Hardsigmoid": (nn.Hardsigmoid(), 96),
    "Hardtanh": (nn.Hardtanh(), 48),
    "Hardshrink": (nn.Hardshrink(), 48),
    "Softshrink": (nn.Softshrink(), 72),
    "Tanhshrink": (nn.Tanhshrink(), 48),  # x - tanh(x)
    "Softplus": (nn.Softplus(), 96),  # 2 and 2
    "Softsign": (nn.Softsign(), 72),  # x / (1 + |x|)
    "Sigmoid": (nn.Sigmoid(), 96),  # 2 and 2
    "LogSigmoid": (nn.LogSigmoid(), 96),  # 2 and 2
    "Tanh": (nn.Tanh(), 24),
    "Threshold": (nn.Threshold(0.1, 0.0), 24),
    "GLU": (nn.GLU(), 60),  # 3 and 2 of 12
    "Softmax": (nn.Softmax(-1), 120),  # 3 and 2
    "LogSoftmax": (nn.LogSoftmax(-1), 124),  # 4 and 1, and a logarithm each of 4 rows
    "Softmin": (nn.Softmin(-1), 144),  # negated first
    "no dropout": (lambda x: functional.dropout(x, 0.5, training=False), 0),
}
layers = pytest.mark.parametrize(("layer", "flop"), LAYERS.values(), ids=LAYERS)


@layers
def test_an_activation_in_inference(traced, layer, flop):
    assert traced(layer, (4, 6)).flop == flop


@layers
def test_every_op_of_an_activation_in_training_has_a_rule(traced, layer, flop):
    graph = traced(Learned(layer), (4, 6), mode="training")  # raises UnknownOpError where one has none
    assert graph.flop > flop


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_op_of_softmax_over_channels_has_a_rule(traced, mode):
    assert traced(Learned(nn.Softmax2d()), (2, 3, 4, 4), mode=mode).special_flop == 192  # exp and division of 96


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_every_op_of_attention_has_a_rule(traced, mode, need_weights):
    x = (2, 5, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    assert traced(attention, x, x, x, mode=mode, need_weights=need_weights).flop > 0


@pytest.mark.parametrize(
    ("function", "kind", "vector", "special"),
    [
        (functional.relu, "threshold_backward", 24, 0),
        (functional.gelu, "gelu_backward", 216, 48),
        (functional.silu, "silu_backward", 168, 48),
        (functional.hardswish, "hardswish_backward", 120, 0),
        (torch.sigmoid, "sigmoid_backward", 72, 0),
        (torch.tanh, "tanh_backward", 72, 0),
        (functional.selu, "elu_backward", 72, 24),
        (functional.glu, "glu_backward", 72, 24),  # 6 and 2 of 12
        (nn.LogSigmoid(), "log_sigmoid_backward", 48, 48),
        (nn.Mish(), "mish_backward", 240, 120),
    ],
)
def test_traced_gradients_of_24_elements(traced, costs_of, function, kind, vector, special):
    (c,) = costs_of(traced(Learned(function), (4, 6), mode="training"), kind)
    assert (c.vector_flop, c.special_flop) == (vector, special)
