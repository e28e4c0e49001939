"""Medians, quartiles, outliers: by hand."""

import pytest

from rooflinekit.calibrate.bench.samples import collect, enough, settled, summarize


def test_by_hand() -> None:
    # Quartiles of 1 … 9 are 3, 5 and 7: the middle half is 4 wide. 1.57·4/√9 = 2.0933, of the median 5: 41.9 %.
    found = summarize([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (found.median, found.low, found.high, found.iqr) == (5.0, 3.0, 7.0, 4.0)
    assert (found.outliers, found.noisy) == (0, True)
    assert found.error == pytest.approx(1.57 * 4 / 3 / 5)


def test_an_outlier_is_counted_and_moves_nothing() -> None:
    found = summarize([1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99, 50.0])
    assert (found.median, found.outliers, found.noisy) == (1.0, 1, False)
    assert found.iqr < 0.02


@pytest.mark.parametrize(("high", "noisy"), [(1.09, False), (1.25, True)])
def test_noisy_is_a_tenth_of_the_median(high: float, noisy: bool) -> None:
    # Quartiles of [1, 1, 1, high, high] are 1, 1 and high.
    assert summarize([1.0, 1.0, 1.0, high, high]).noisy is noisy


def test_enough() -> None:
    assert not enough([], 0.5)
    assert not enough([1.0] * 4, 0.5)  # four equal ones say nothing of the fifth
    assert enough([1.0] * 5, 0.001)
    quarter = [1.0, 1.0, 1.2, 1.2]  # IQR 0.2 around 1.1
    assert not enough(quarter * 4, 0.05)  # 1.57·0.2/√16/1.1 = 7.1 %
    assert enough(quarter * 16, 0.05)  # half of that for four times as many


def test_collecting_ends_at_the_precision_the_number_or_the_time() -> None:
    assert collect(lambda: 1.0, 9, 0.01) == (1.0,) * 5  # equal ones are enough as soon as there are five
    scattered = iter(range(1, 100))
    assert collect(lambda: next(scattered), 9, 1e-9) == tuple(range(1, 10))
    # Samples of 10 s, at most 25 s: after the fifth no more is begun, before it none is left out.
    now = iter([0.0, *range(50, 1000, 10)])
    scattered = iter(range(1, 100))
    assert collect(lambda: next(scattered), 9, 1e-9, within_s=25, clock=lambda: next(now)) == (1, 2, 3, 4, 5)


def test_settled() -> None:
    assert not settled([1.0] * 5)  # three against three
    assert settled([1.0] * 6)
    assert settled([9.0, 1.0, 1.0, 1.0, 1.04, 1.04, 1.04])
    assert not settled([1.0, 1.0, 1.0, 1.06, 1.06, 1.06])
    assert not settled([1.06, 1.06, 1.06, 1.0, 1.0, 1.0])  # 5.7 % faster
    assert settled([1.0, 1.0, 1.0, 1.0, 1.0, 50.0])  # one that was disturbed is no drift
