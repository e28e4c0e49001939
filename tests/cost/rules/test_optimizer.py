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
    "_foreach_sign": (1, 1, 0),
    "_foreach_clamp_min": (1, 1, 0),
    "_foreach_clamp_max": (1, 1, 0),
    "_foreach_max": (1, 1, 0),
    "_foreach_exp": (1, 0, 1),
    "_foreach_log": (1, 0, 1),
    "_foreach_rsqrt": (1, 0, 1),
    "_foreach_tanh": (1, 0, 1),
    "_foreach_sigmoid": (1, 2, 2),  # -x, 1 + ; exp, division
    "_foreach_addcmul": (3, 2, 0),  # b·c; a +
    "_foreach_addcdiv": (3, 1, 1),  # b / c; a +
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


@pytest.mark.parametrize("factor", [{"value": 0.1}, {"scalars": (0.1, 0.2)}])
def test_a_factor_in_a_product_over_lists_is_a_multiplication(tensor, cost, factor):
    inputs = [tensor(*shape) for _ in range(3) for shape in ((4, 6), (7,))]
    added = cost("_foreach_addcmul_", inputs, inputs[:2], **factor)
    assert (added.vector_flop, added.special_flop) == (93, 0)  # 3 · 31
    divided = cost("_foreach_addcdiv_", inputs, inputs[:2], **factor)
    assert (divided.vector_flop, divided.special_flop) == (62, 31)


@pytest.mark.parametrize(("order", "roots"), [(2, 2), (1, 0), (float("inf"), 0), (3, 2)])
def test_norms_of_lists_square_and_sum_and_take_a_root_each(tensor, cost, order, roots):
    c = cost("_foreach_norm", [tensor(4, 6), tensor(7)], [tensor(), tensor()], ord=order)
    assert (c.vector_flop, c.special_flop) == (62, roots)  # 2 · 31
    assert (c.read_bytes, c.write_bytes) == (124, 8)


def test_copying_lists_does_not_read_the_targets(tensor, cost):
    targets, sources = [tensor(4, 6), tensor(7)], [tensor(4, 6, dtype="bfloat16"), tensor(7, dtype="bfloat16")]
    c = cost("_foreach_copy_", [*targets, *sources], targets)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 62, 124)  # 2 · 31; 4 · 31


def test_zeroing_lists_reads_nothing(tensor, cost):
    targets = [tensor(4, 6), tensor(7)]
    c = cost("_foreach_zero_", targets, targets)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 124)


# --- gradient scaling -----------------------------------------------------------------------------------------


def test_scaled_gradients_are_checked_and_multiplied(tensor, cost):
    gradients, mark, scale = (tensor(4, 6), tensor(7)), tensor(), tensor()
    attrs = {"self": gradients, "found_inf": mark, "inv_scale": scale}
    c = cost("_amp_foreach_non_finite_check_and_unscale_", [*gradients, mark, scale], [*gradients, mark], **attrs)
    assert (c.vector_flop, c.special_flop) == (62, 0)  # 2 · 31
    assert (c.read_bytes, c.write_bytes) == (132, 128)  # 4 · 31 + 2 · 4; 4 · 31 + 4


def test_the_scale_itself_is_a_handful_of_operations(tensor, cost):
    scale, tracker, mark = tensor(), tensor(dtype="int32"), tensor()
    attrs = {"self": scale, "growth_tracker": tracker}
    c = cost("_amp_update_scale_", [scale, tracker, mark], [scale], **attrs)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (4, 12, 8)


# --- whole steps in one op ------------------------------------------------------------------------------------


def fused(tensor, cost, kind, state, **attrs):
    """The cost of a fused step over 31 parameters; `state` names the lists beside parameters and gradients."""
    lists = {name: (tensor(4, 6), tensor(7)) for name in ("self", "grads", *state)}
    inputs = [t for tensors in lists.values() for t in tensors]
    scale = attrs.get("grad_scale")
    defaults = {"maximize": False, "weight_decay": 0.0, "grad_scale": None}
    return cost(kind, [*inputs, *([scale] if scale else [])], inputs, **{**defaults, **lists, **attrs})


@pytest.mark.parametrize(
    ("attrs", "vector", "read", "written"),
    [
        ({}, 2, 2, 1),  # w - lr·g
        ({"maximize": True}, 3, 2, 1),  # -g
        ({"weight_decay": 0.1}, 4, 2, 1),  # g + d·w
        ({"momentum": 0.9}, 4, 3, 2),  # m·μ + g
        ({"momentum": 0.9, "dampening": 0.1}, 5, 3, 2),  # (1 - τ)·g
        ({"momentum": 0.9, "nesterov": True}, 6, 3, 2),  # g + μ·m
        ({"momentum": 0.9, "is_first_step": True}, 2, 2, 2),  # m is a copy
    ],
)
def test_a_fused_step_of_gradient_descent(tensor, cost, attrs, vector, read, written):
    defaults = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "is_first_step": False}
    state = ["momentum_buffer_list"] if "momentum" in attrs else []
    empty = {} if state else {"momentum_buffer_list": ()}
    c = fused(tensor, cost, "_fused_sgd_", state, **{**defaults, **empty, **attrs})
    assert (c.vector_flop, c.special_flop) == (31 * vector, 0)
    assert (c.read_bytes, c.write_bytes) == (124 * read, 124 * written)


@pytest.mark.parametrize(
    ("kind", "attrs", "vector"),
    [
        # m: 3; v: 4; √v / c + ε: 1; w - lr·m / that: 2
        ("_fused_adam_", {}, 10),
        ("_fused_adam_", {"weight_decay": 0.1}, 12),  # g + d·w
        ("_fused_adamw_", {"weight_decay": 0.1}, 11),  # w·(1 - lr·d)
        ("_fused_adam_", {"amsgrad": True}, 11),  # the largest v
        ("_fused_adam_", {"maximize": True}, 11),
    ],
)
def test_a_fused_step_of_adam(tensor, cost, kind, attrs, vector):
    largest = ["max_exp_avg_sqs"] if attrs.get("amsgrad") else []
    empty = {} if largest else {"max_exp_avg_sqs": ()}
    state = ["exp_avgs", "exp_avg_sqs", *largest]
    c = fused(tensor, cost, kind, state, **{"amsgrad": False, **empty, **attrs})
    assert (c.vector_flop, c.special_flop) == (31 * vector, 31 * 3)
    assert (c.read_bytes, c.write_bytes) == (124 * (4 + len(largest)), 124 * (3 + len(largest)))


def test_a_fused_step_of_adagrad(tensor, cost):
    c = fused(tensor, cost, "_fused_adagrad_", ["state_sums"])
    # s + g·g: 2; √s + ε: 1 and a root; w - lr·g / that: 2 and a division
    assert (c.vector_flop, c.special_flop, c.read_bytes, c.write_bytes) == (155, 62, 372, 248)


def test_a_fused_step_undoes_the_scale_of_its_gradients(tensor, cost):
    c = fused(tensor, cost, "_fused_adagrad_", ["state_sums"], grad_scale=tensor())
    assert (c.special_flop, c.read_bytes, c.write_bytes) == (93, 376, 372)  # a division more; the gradients written


# --- traced ---------------------------------------------------------------------------------------------------

PARAMETERS = 61  # 4·5 + 5 + 5·6 + 6


def step_of(traced, optimizer):
    """Costs of the step, and what it counts for each parameter: vector FLOP, special functions, floats moved."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    graph = traced(model, ("batch", 4), mode="training", optimizer=optimizer)
    assert graph.parameters == PARAMETERS
    costs = [cost for priced in graph.priced if priced.op.phase == "optimizer" for cost in priced.costs]
    assert sum(cost.matrix_flop for cost in costs) == 0
    totals = [sum(getattr(cost, part) for cost in costs) for part in ("vector_flop", "special_flop")]
    moved = [sum(getattr(cost, part) for cost in costs) // 4 for part in ("read_bytes", "write_bytes")]
    return costs, tuple(count // PARAMETERS for count in (*totals, *moved))


#: (vector FLOP, special functions, floats read, floats written) for each parameter, foreach and one by one
STEPS = {
    "SGD": (torch.optim.SGD, (2, 0, 2, 1)),  # w - lr·g
    # m·0.9 (1); m + g (1); w - lr·m (2): reads m; m, g; w, m
    "momentum": (functools.partial(torch.optim.SGD, momentum=0.9), (4, 0, 5, 3)),
    # g + d·w (2) before, g + 0.9·m (2) between: reads g, w; m; m, g; g, m; w, g
    "nesterov": (functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1), (8, 0, 9, 5)),
    # w·(1 - lr·d) 1; m lerp 3; v·β 1; v + (1-β)·g·g 3; √v; /c; + ε 1; w - lr·m/that 2 and a division
    # reads w; m, g; v; v, g; v; √v; √v/c; w, m, √v/c + ε
    "AdamW": (torch.optim.AdamW, (11, 3, 12, 8)),
    "Adam": (torch.optim.Adam, (10, 3, 11, 7)),  # without the decay
    "AMSGrad": (functools.partial(torch.optim.Adam, amsgrad=True), (11, 3, 13, 8)),  # the largest v
    # v·α 1; v + (1-α)·g·g 3; √v; + ε 1; w - lr·g/that 2 and a division: reads v; v, g; v; √v; w, g, that
    "RMSprop": (torch.optim.RMSprop, (7, 2, 8, 5)),
    # mean lerp 3 of it and g; √(v - mean·mean) 3 in place of √v
    "centered": (functools.partial(torch.optim.RMSprop, centered=True), (13, 2, 12, 7)),
    # v·ρ 1; v + (1-ρ)·g·g 3; √(v + ε) 1; √(d + ε) 1; / and ·g 1; d·ρ 1; d + (1-ρ)·Δ·Δ 3; w - lr·Δ 2
    "Adadelta": (torch.optim.Adadelta, (13, 3, 16, 11)),
    # m lerp 3; u·β 1; |g| 1; + ε 1; maximum 1; w - lr·m/u 2 and a division
    "Adamax": (torch.optim.Adamax, (9, 1, 10, 6)),
}


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize(("optimizer", "counts"), STEPS.values(), ids=STEPS)
def test_an_optimizer_step_by_parameter(traced, optimizer, counts, foreach):
    _, found = step_of(traced, functools.partial(optimizer, foreach=foreach))
    assert found == counts


@pytest.mark.parametrize(
    ("optimizer", "counts"),
    [
        ("SGD", (2, 0, 2, 1)),
        ("Adam", (10, 3, 4, 3)),  # the foreach form reads 11 and writes 7
        ("AdamW", (11, 3, 4, 3)),
        ("Adagrad", (5, 2, 3, 2)),
    ],
)
def test_a_fused_step_reads_and_writes_everything_once(traced, optimizer, counts):
    costs, found = step_of(traced, functools.partial(getattr(torch.optim, optimizer), fused=True))
    assert len(costs) == 1
    assert found == counts


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize(
    "optimizer",
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "Adamax", "Rprop"],
)
def test_every_op_of_the_usual_optimizers_has_a_rule(traced, optimizer, foreach):
    # the trace raises UnknownOpError where one has none
    optimizer = functools.partial(getattr(torch.optim, optimizer), foreach=foreach)
    graph = traced(nn.Linear(4, 5), (3, 4), mode="training", optimizer=optimizer)
    assert any(priced.op.phase == "optimizer" for priced in graph.priced)


def test_every_op_of_the_orthogonalizing_optimizer_has_a_rule(traced):
    graph = traced(nn.Linear(4, 6, bias=False), (3, 4), mode="training", optimizer=torch.optim.Muon)
    step = [cost for priced in graph.priced if priced.op.phase == "optimizer" for cost in priced.costs]
    # five times: m·mᵀ 2 · 4·4·6, its square 2 · 4·4·4, times m 2 · 4·4·6
    assert sum(cost.matrix_flop for cost in step) == 2560


class Around(torch.optim.SGD):
    """Gradient descent with something before and something after the step."""

    def __init__(self, parameters, before=None, after=None):
        super().__init__(parameters, lr=0.1)
        self.before, self.after = before, after

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        if self.before:
            self.before(parameters)
        super().step(closure)
        if self.after:
            self.after(parameters)


def averaged(parameters):
    with torch.no_grad():
        torch._foreach_lerp_([p.detach() for p in parameters], [p.detach() for p in parameters], 0.01)


def unscaled(parameters):
    gradients = [p.grad for p in parameters]
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(()), torch.ones(()))


def zeroed(parameters):
    for p in parameters:
        p.grad.zero_()


@pytest.mark.parametrize(
    ("around", "vector", "written"),
    [
        # squares summed 2, times the factor 1; w - lr·g 2
        ({"before": functools.partial(nn.utils.clip_grad_norm_, max_norm=1.0, foreach=True)}, 5, 2),
        ({"before": functools.partial(nn.utils.clip_grad_value_, clip_value=1.0, foreach=True)}, 4, 3),
        ({"before": unscaled}, 4, 2),  # checked, multiplied
        ({"after": averaged}, 5, 2),  # a + w·(b - a)
        ({"after": zeroed}, 2, 2),
    ],
    ids=["clipped by norm", "clipped by value", "unscaled", "averaged", "zeroed"],
)
def test_what_stands_around_a_step_by_parameter(traced, around, vector, written):
    _, found = step_of(traced, functools.partial(Around, **around))
    assert (found[0], found[3]) == (vector, written)


def test_frozen_parameters_are_not_updated(traced):
    model = nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Linear(5, 6))
    graph = traced(model, (3, 4), mode="training", optimizer=torch.optim.SGD)
    (update,) = [cost for priced in graph.priced if priced.op.phase == "optimizer" for cost in priced.costs]
    assert update.vector_flop == 72  # 2 · (5·6 + 6)
    assert graph.parameters == 61
