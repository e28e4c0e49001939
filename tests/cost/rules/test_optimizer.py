"""Optimizer steps, by the operations and the numbers moved for each parameter."""

import functools

import pytest
import torch
from torch import nn

#: kind: (lists of tensors read, vector FLOP an element, special functions an element)
FOREACH = {
    "_foreach_mul": (2, 1, 0),
    "_foreach_neg": (1, 1, 0),
    "_foreach_abs": (1, 1, 0),
    "_foreach_maximum": (2, 1, 0),
    "_foreach_minimum": (2, 1, 0),
    "_foreach_add": (2, 1, 0),
    "_foreach_sub": (2, 1, 0),
    "_foreach_div": (2, 0, 1),
    "_foreach_sqrt": (1, 0, 1),
    "_foreach_reciprocal": (1, 0, 1),
    "_foreach_pow": (1, 0, 1),
    "_foreach_lerp": (2, 3, 0),  # b - a; times w; a +
    "_foreach_addcmul": (3, 3, 0),  # b·c; times v; a +
    "_foreach_addcdiv": (3, 2, 1),  # b / c; times v; a +
}


@pytest.mark.parametrize(("kind", "lists", "vector", "special"), [(k, *v) for k, v in FOREACH.items()], ids=FOREACH)
def test_an_op_over_lists_of_tensors(tensor, cost, kind, lists, vector, special):
    inputs = [tensor(*shape) for _ in range(lists) for shape in ((4, 6), (7,))]
    c = cost(kind, inputs, [tensor(4, 6), tensor(7)])
    assert (c.vector_flop, c.special_flop) == (31 * vector, 31 * special)  # 4·6 + 7
    assert (c.read_bytes, c.write_bytes) == (124 * lists, 124)


def test_a_factor_in_a_sum_over_lists_is_a_multiplication(tensor, cost):
    weights, gradients = [tensor(4, 6), tensor(7)], [tensor(4, 6), tensor(7)]
    c = cost("_foreach_add_", [*weights, *gradients], weights, alpha=-0.1)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (62, 248, 124)


def test_copying_lists_does_not_read_the_targets(tensor, cost):
    targets, sources = [tensor(4, 6), tensor(7)], [tensor(4, 6, dtype="bfloat16"), tensor(7, dtype="bfloat16")]
    c = cost("_foreach_copy_", [*targets, *sources], targets)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 62, 124)  # 2 · 31; 4 · 31


def test_zeroing_lists_reads_nothing(tensor, cost):
    targets = [tensor(4, 6), tensor(7)]
    c = cost("_foreach_zero_", targets, targets)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 124)


@pytest.mark.parametrize(
    ("optimizer", "vector", "special", "read", "written"),
    [
        (torch.optim.SGD, 2, 0, 2, 1),  # w - lr·g
        # m·0.9 (1); m + g (1); w - lr·m (2): reads m; m, g; w, m
        (functools.partial(torch.optim.SGD, momentum=0.9), 4, 0, 5, 3),
        # g + d·w (2) before, g + 0.9·m (2) between: reads g, w; m; m, g; g, m; w, g
        (functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1), 8, 0, 9, 5),
        # w·(1 - lr·d) 1; m lerp 3; v·β 1; v + (1-β)·g·g 3; √v; /c; + ε 1; w - lr·m/that 2 and a division
        # reads w; m, g; v; v, g; v; √v; √v/c; w, m, √v/c + ε
        (torch.optim.AdamW, 11, 3, 12, 8),
        (torch.optim.Adam, 10, 3, 11, 7),  # without the decay
    ],
    ids=["SGD", "momentum", "nesterov", "AdamW", "Adam"],
)
def test_an_optimizer_step_by_parameter(traced, optimizer, vector, special, read, written):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    graph = traced(model, ("batch", 4), mode="training", optimizer=optimizer)
    parameters = 61  # 4·5 + 5 + 5·6 + 6
    assert graph.parameters == parameters
    costs = [cost for priced in graph.priced if priced.op.phase == "optimizer" for cost in priced.costs]
    assert sum(cost.vector_flop for cost in costs) == vector * parameters
    assert sum(cost.special_flop for cost in costs) == special * parameters
    assert sum(cost.read_bytes for cost in costs) == 4 * read * parameters
    assert sum(cost.write_bytes for cost in costs) == 4 * written * parameters
    assert sum(cost.matrix_flop for cost in costs) == 0


@pytest.mark.parametrize(
    "optimizer",
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "Adamax"],
)
def test_every_op_of_the_usual_optimizers_has_a_rule(traced, optimizer):
    # the trace raises UnknownOpError where one has none
    graph = traced(nn.Linear(4, 5), (3, 4), mode="training", optimizer=getattr(torch.optim, optimizer))
    assert any(priced.op.phase == "optimizer" for priced in graph.priced)


def test_frozen_parameters_are_not_updated(traced):
    model = nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Linear(5, 6))
    graph = traced(model, (3, 4), mode="training", optimizer=torch.optim.SGD)
    (update,) = [cost for priced in graph.priced if priced.op.phase == "optimizer" for cost in priced.costs]
    assert update.vector_flop == 72  # 2 · (5·6 + 6)
    assert graph.parameters == 61
