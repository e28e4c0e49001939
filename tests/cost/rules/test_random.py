"""Random numbers: what they write, what they read, and no FLOP; dropout on top of them."""

import pytest
import torch
from learned import Learned
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("kind", ["rand", "randn", "randint", "randperm"])
def test_new_random_numbers_are_written(tensor, cost, kind):
    c = cost(kind, [], [tensor(2, 5, dtype="int64")])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 80)


@pytest.mark.parametrize("kind", ["rand_like", "randn_like", "randint_like"])
def test_a_tensor_that_gives_the_shape_is_not_read(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5)], [tensor(2, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 40)


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "geometric", "cauchy", "log_normal", "random"])
def test_drawing_in_place_reads_nothing(tensor, cost, kind):
    x = tensor(2, 5)
    c = cost(f"{kind}_", [x], [x])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 40)


@pytest.mark.parametrize("kind", ["poisson", "_standard_gamma", "_sample_dirichlet"])
def test_parameters_of_a_distribution_are_read(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5)], [tensor(2, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 40, 40)


@pytest.mark.parametrize("kind", ["normal", "binomial"])
def test_two_parameters_of_a_distribution_are_read(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 80, 40)


def test_multinomial_reads_probabilities_and_writes_places(tensor, cost):
    c = cost("multinomial", [tensor(2, 5)], [tensor(2, 3, dtype="int64")])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 40, 48)  # 4 · 2·5; 8 · 2·3


def test_bernoulli_reads_its_probabilities_where_they_are_a_tensor(tensor, cost):
    x, p = tensor(2, 5), tensor(5)
    assert cost("bernoulli", [x], [tensor(2, 5)]).read_bytes == 40
    assert cost("bernoulli", [x], [tensor(2, 5)], p=0.5).read_bytes == 0
    one_for_all = cost("bernoulli_", [x], [x], p=0.5)
    assert (one_for_all.flop, one_for_all.read_bytes, one_for_all.write_bytes) == (0, 0, 40)
    one_each = cost("bernoulli_", [x, p], [x], p=p)
    assert (one_each.flop, one_each.read_bytes, one_each.write_bytes) == (0, 20, 40)


@pytest.mark.parametrize(("kind", "mask"), [("native_dropout", "bool"), ("_fused_dropout", "uint8")])
def test_dropout_writes_its_mask_of_one_byte_an_element(tensor, cost, kind, mask):
    c = cost(kind, [tensor(2, 5)], [tensor(2, 5), tensor(2, 5, dtype=mask)])
    assert c.vector_flop == 30  # compare, mask, scale
    assert (c.read_bytes, c.write_bytes) == (40, 50)


@pytest.mark.parametrize("kind", ["native_dropout_backward", "_masked_scale"])
def test_the_gradient_of_dropout_is_masked_and_scaled(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5), tensor(2, 5, dtype="bool")], [tensor(2, 5)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (20, 50, 40)


@pytest.mark.parametrize("kind", ["_standard_gamma_grad", "_dirichlet_grad"])
def test_the_gradient_of_a_drawn_number_is_a_special_function(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)])
    assert (c.vector_flop, c.special_flop) == (0, 10)


# --- traced ---------------------------------------------------------------------------------------------------


def test_traced_dropout(traced, costs_of):
    graph = traced(Learned(functional.dropout), (2, 5), mode="training")
    (forward,), (backward,) = costs_of(graph, "native_dropout"), costs_of(graph, "native_dropout_backward")
    assert (forward.vector_flop, forward.write_bytes) == (30, 50)
    assert (backward.vector_flop, backward.read_bytes) == (20, 14)  # a gradient of ones, expanded; the mask


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout(), (4, 6)),
        (nn.Dropout(inplace=True), (4, 6)),
        (nn.Dropout1d(), (2, 3, 4)),
        (nn.Dropout2d(), (2, 3, 4, 4)),
        (nn.Dropout3d(), (2, 3, 4, 4, 4)),
        (nn.AlphaDropout(), (4, 6)),
        (nn.FeatureAlphaDropout(), (2, 3, 4, 4)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_every_op_of_dropout_has_a_rule(traced, layer, shape):
    # the trace raises UnknownOpError where one has none
    assert traced(layer, shape).flop == 0
    assert traced(Learned(layer), shape, mode="training").flop > 0


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda x: torch.rand(6) + x, 24 + 96),
        (lambda x: torch.randn_like(x) + x, 96 + 96),
        (lambda x: torch.empty(6).uniform_() + x, 24 + 96),
        (lambda x: torch.bernoulli(x), 96),
        (lambda x: torch.poisson(x), 96),
        (lambda x: torch.multinomial(x, 2), 64),  # 8 · 4·2
        (lambda x: torch.normal(x, 1.0), 96),
        (lambda x: functional.gumbel_softmax(x), 576),  # drawn; log; negated; added; divided by 1; softmax
    ],
)
def test_traced_random_numbers(traced, function, written):
    assert traced(function, (4, 6)).write_bytes == written
