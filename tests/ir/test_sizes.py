"""Sizes: plain integers where known, formulas where not."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from rooflinekit.errors import SizeError
from rooflinekit.ir.sizes import (
    ceil_div,
    check_dims,
    evaluator,
    floor_div,
    product,
    quotient,
    simplest,
    smaller,
    symbol,
    total,
)

N, M = symbol("n"), symbol("m")


def test_a_named_size_is_a_positive_integer_and_equal_to_its_namesake():
    assert symbol("n") == N != M
    assert N.is_integer
    assert N.is_positive


@pytest.mark.parametrize("name", ["I", "E", "pi", "S", "Q", "beta", "lambda_"])
def test_names_that_mean_something_to_sympy_are_only_names(name):
    assert symbol(name).is_Symbol
    assert evaluator({name: 7})(symbol(name) + 1) == 8


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((), 1), ((7,), 7), ((2, 3, 4), 24), ((5, 0), 0), ((2, N, 3), 6 * N), ((N, N), N**2), ((0, N), 0)],
)
def test_product_of_sizes(sizes, expected):
    assert product(sizes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"), [((), 0), ((7,), 7), ((2, 3, 4), 9), ((2, N, 3), N + 5), ((N, N), 2 * N), ((N, -N, 4), 4)]
)
def test_total_of_sizes(sizes, expected):
    assert total(sizes) == expected


def test_known_sizes_stay_plain_integers():
    results = [product((2, 3)), total((2, 3)), total((N, -N)), floor_div(7, 2), ceil_div(7, 2), smaller(2, 3)]
    assert [type(result) for result in results] == [int] * 6
    assert type(product((sympy.Integer(2), sympy.Integer(3)))) is int
    assert type(simplest(sympy.Integer(4))) is int


@pytest.mark.parametrize(("numerator", "denominator", "down", "up"), [(7, 2, 3, 4), (8, 2, 4, 4), (1, 5, 0, 1)])
def test_division_rounds_down_or_up(numerator, denominator, down, up):
    assert floor_div(numerator, denominator) == down
    assert ceil_div(numerator, denominator) == up


def test_division_of_named_sizes_is_simplified_where_it_is_even():
    assert floor_div(6 * N, 2) == ceil_div(6 * N, 2) == 3 * N
    assert str(floor_div(N, 2)) == "floor(n/2)"
    assert str(ceil_div(N, 2)) == "ceiling(n/2)"
    assert floor_div(product((N, M)), M) == N


def test_a_whole_quotient_stays_a_polynomial():
    assert quotient(12, 4) == 3
    assert quotient(N * (N + 1), 2) == N**2 / 2 + N / 2
    assert evaluator({"n": 7})(quotient(N * (N + 1), 2)) == 28
    with pytest.raises(ValueError, match=r"^7 is no multiple of 2$"):
        quotient(7, 2)


def test_the_smaller_of_named_sizes():
    assert smaller(N, N) == N
    assert evaluator({"n": 4, "m": 3})(smaller(N, M)) == 3


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 30))
def test_formulas_at_numbers_are_the_operations_on_numbers(n, m, k):
    at = evaluator({"n": n, "m": m})
    assert at(product((N, k, M))) == n * k * m
    assert at(total((N, k, M))) == n + k + m
    assert at(floor_div(product((N, M)), k)) == n * m // k
    assert at(ceil_div(product((N, M)), k)) == -(-n * m // k)
    assert at(smaller(N, M)) == min(n, m)


def test_an_evaluator_leaves_open_what_it_was_not_given():
    at = evaluator({"n": 4})
    assert at(N * M + 1) == 4 * M + 1
    assert at(7) == 7
    assert type(at(N)) is int


# --- sizes that users give ------------------------------------------------------------------------------------


def test_integers_of_numpy_and_sympy_are_sizes():
    checked = check_dims({"n": np.int64(4), "m": sympy.Integer(3)}, ["n", "m"])
    assert checked == {"n": 4, "m": 3}
    assert {type(value) for value in checked.values()} == {int}


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None, np.float32(2), float("nan")])
def test_what_is_no_positive_integer_is_no_size(value):
    with pytest.raises(SizeError) as caught:
        check_dims({"n": value}, ["n"])
    assert str(caught.value) == f"size 'n': expected a positive integer; got {value!r}"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (["batch", "seq"], "no size is named 'bath' in this workload: it has 'batch', 'seq'; did you mean 'batch'?"),
        (["seq"], "no size is named 'bath' in this workload: it has 'seq'"),
        ([], "no size is named 'bath' in this workload: it has none"),
    ],
)
def test_an_unknown_size_is_an_error_that_lists_the_known(known, message):
    assert refusal(SizeError, check_dims, {"bath": 4}, known) == message


def test_sizes_may_be_left_open_unless_all_are_asked_for():
    assert check_dims({"n": 4}, ["n", "m"]) == {"n": 4}
    said = refusal(SizeError, check_dims, {"n": 4}, ["n", "m", "k"], complete=True)
    assert said == "no number is given for sizes 'm' and 'k': add m=…, k=… (--m … --k … on the command line)"


def test_sizes_may_come_from_an_iterator():
    assert check_dims({"n": 4}, iter(["n"]), complete=True) == {"n": 4}
