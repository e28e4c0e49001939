"""Operators of the user's own: what a trace needs of them, and how coverage names those without a rule."""

import pytest
import torch

import rooflinekit as rk
from rooflinekit.errors import TraceError, UnknownOpError


@torch.library.custom_op("rooflinekit_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rooflinekit_tests::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_an_operator_without_a_rule_is_a_guess_that_coverage_names() -> None:
    graph = rk.trace(twice, rk.Input("n", 4))
    assert dict(graph.coverage.default_kinds) == {"rooflinekit_tests.twice": 1}
    # one FLOP an element, and each tensor once
    assert (str(graph.vector_flop), str(graph.bytes)) == ("4*n", "32*n")
    with pytest.raises(UnknownOpError, match=r"rooflinekit_tests\.twice"):
        rk.trace(twice, rk.Input("n", 4), strict=True)


def test_a_rule_for_one_trace() -> None:
    rules = {"rooflinekit_tests::twice": lambda op: rk.Cost(vector_flop=7 * op.outputs[0].numel)}
    graph = rk.trace(twice, rk.Input("n", 4), rules=rules, strict=True)
    assert str(graph.vector_flop) == "28*n"


def test_an_operator_without_shapes_is_refused_with_what_to_do() -> None:
    with pytest.raises(TraceError, match=r"no fake impl registered .* `shapeless.register_fake`"):
        rk.trace(shapeless, rk.Input(3, 4))
