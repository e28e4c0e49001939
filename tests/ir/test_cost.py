"""Costs: what is added, what is derived."""

import dataclasses

import pytest

from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.sizes import evaluator, symbol


def test_a_multiply_add_is_two_flop():
    gemm = Gemm(batch=2, m=7, n=3, k=5)
    assert gemm.dense_multiply_adds == gemm.multiply_adds == 210  # 2·7·3·5
    assert gemm.flop == 420


def test_needed_multiply_adds_replace_the_dense_ones():
    gemm = Gemm(m=4, n=4, k=8, needed=80)
    assert (gemm.flop, gemm.multiply_adds, gemm.dense_multiply_adds) == (160, 80, 128)
    assert Gemm(m=4, n=4, k=8, needed=0).flop == 0


@pytest.mark.parametrize("record", [Gemm(m=1, n=1, k=1), Cost()])
def test_counts_cannot_be_changed_and_are_given_by_name(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, 5)
    with pytest.raises(TypeError, match="positional argument"):
        type(record)(1)
    assert not hasattr(record, "__dict__")


def test_an_empty_cost_is_zero():
    assert (Cost().flop, Cost().dense_matrix_flop, Cost().bytes) == (0, 0, 0)


@pytest.fixture
def two():
    return (
        Cost(gemms=(Gemm(m=2, n=3, k=4),), vector_flop=5, special_flop=6, read_bytes=7, write_bytes=8, label="a"),
        Cost(gemms=(Gemm(m=2, n=2, k=2, needed=5),), vector_flop=50, special_flop=60, read_bytes=70, write_bytes=80),
    )


def test_the_classes_of_work_add_up(two):
    first, second = two
    assert (first.matrix_flop, first.flop, first.bytes) == (48, 59, 15)  # 2·2·3·4; + 5 + 6; 7 + 8
    assert (second.matrix_flop, second.dense_matrix_flop, second.flop) == (10, 16, 120)


def test_costs_add(two):
    first, second = two
    both = first + second
    assert both.gemms == first.gemms + second.gemms
    assert (both.matrix_flop, both.dense_matrix_flop) == (58, 64)
    assert (both.vector_flop, both.special_flop, both.read_bytes, both.write_bytes) == (55, 66, 77, 88)
    assert both.label == (second + first).label == "a"
    assert sum(two, Cost()) == Cost() + first + second == both


def test_numbers_for_named_sizes_reach_every_part(two):
    n = symbol("n")

    def of(s):
        counts = {"vector_flop": s, "special_flop": 2 * s, "read_bytes": 3 * s, "write_bytes": 4 * s}
        return Cost(gemms=(Gemm(batch=s, m=s, n=s, k=s, needed=s),), **counts, label="a")

    cost = of(n)
    assert cost.map(evaluator({"n": 3})) == of(3)
    assert (cost.matrix_flop, cost.dense_matrix_flop) == (2 * n, 2 * n**4)
    assert (cost.flop, cost.bytes) == (5 * n, 7 * n)
