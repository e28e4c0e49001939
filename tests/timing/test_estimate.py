"""Estimates add up: what has one cause is off together, what is off by itself in squares."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.timing.estimate import Estimate, around, away, deviations

NUMBERS = st.floats(0, 10)
ESTIMATES = st.builds(
    Estimate,
    seconds=st.floats(0.1, 10),
    shared=st.dictionaries(st.sampled_from(["product", "softmax", "step"]), NUMBERS),
    own=NUMBERS,
    joules=st.one_of(st.none(), NUMBERS),
)


def test_by_hand() -> None:
    # 3 s ± 0.3 s by products and 0.4 s of its own: ± 0.5 s; with 1 s ± 0.1 s by products 4 s ± √(0.4² + 0.4²)
    one = Estimate(seconds=3.0, shared={"product": 0.3}, own=0.16, joules=6.0)
    assert one.variance == pytest.approx(0.25)
    assert one.deviation == pytest.approx(0.5 / 3)
    both = one + Estimate(seconds=1.0, shared={"product": 0.1}, joules=2.0)
    assert (both.seconds, both.joules) == (4.0, 8.0)
    assert both.variance == pytest.approx(0.32)
    # twice the same is twice as far off, for what is off is off each time: not √2 of it
    assert (2 * one).deviation == pytest.approx(one.deviation)
    assert (one + one).variance == pytest.approx(4 * 0.09 + 2 * 0.16)
    low, high = one.interval(0.9)
    assert (low, high) == pytest.approx((3 * math.exp(-1.6449 * 0.5 / 3), 3 * math.exp(1.6449 * 0.5 / 3)), rel=1e-4)


def test_columns_are_many_estimates() -> None:
    many = Estimate(seconds=np.array([1.0, 0.0]), shared={"step": np.array([0.1, 0.0])}, own=np.zeros(2))
    assert many.deviation.tolist() == pytest.approx([0.1, 0.0])
    low, high = many.interval(0.5)
    assert low[1] == high[1] == 0.0
    assert Estimate(seconds=1.0, shared={"step": 0.1}).interval(0.5) == pytest.approx((low[0], high[0]))


@given(ESTIMATES, ESTIMATES, st.floats(0, 5))
def test_laws(a: Estimate, b: Estimate, times: float) -> None:
    assert (a + b).seconds == (b + a).seconds
    assert (a + b).variance == pytest.approx((b + a).variance)
    # together they are at least as far off as if nothing were common, and no further than the sum of both
    assert a.variance + b.variance <= (a + b).variance * (1 + 1e-9)
    assert (a + b).variance <= (math.sqrt(a.variance) + math.sqrt(b.variance)) ** 2 * (1 + 1e-9)
    assert (times * a).variance == pytest.approx(times**2 * a.variance)
    assert ((a + b).joules is None) == (a.joules is None or b.joules is None)


@given(st.floats(0.1, 10), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_bounds_and_how_far_they_are_away(middle: float, part: float, below: float, above: float) -> None:
    bounds = around(middle, part, (below, above))
    assert away(middle, bounds) == pytest.approx((math.hypot(part, below), math.hypot(part, above)), abs=1e-9)


@pytest.mark.parametrize("level", [0, 1, -1, 2, float("nan"), "0.9", None])
def test_levels_are_probabilities(level: object) -> None:
    with pytest.raises(ValueError, match="level: expected a probability between 0 and 1"):
        deviations(level)  # type: ignore[arg-type]
