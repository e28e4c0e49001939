"""What steps cost: by hand."""

import math

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.compare.cost import Price, costs_of


def test_rented_and_owned_by_hand() -> None:
    price = Price(currency="USD", hour=3.6, purchase=8766.0, years=2.0, utilization=0.5, kwh=0.36, pue=2.0)
    assert price.rented(10.0) == pytest.approx(0.01)  # 3.6 an hour are 0.001 a second
    # 8766 over 2 · 8766 · 0.5 hours: 1 an hour; 1 kWh at a PUE of 2 is 0.72
    assert price.owned(3600.0, 3.6e6) == pytest.approx(1.72)
    # 1 kW: 0.72 an hour of electricity, so buying saves 2.88 of 3.60 an hour
    assert price.break_even_hours(1000.0) == pytest.approx(8766 / 2.88)
    assert price.break_even_hours(5000.0) == pytest.approx(math.inf)  # 3.6 an hour of electricity
    assert Price(currency="USD", hour=1.0).break_even_hours(100.0) is None
    assert Price(currency="USD", hour=1.0).owned(1.0, 1.0) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "expected what an hour costs, or a purchase"),
        ({"hour": -1.0}, "price of an hour: expected 0 to 1e.06; got -1.0"),
        ({"hour": float("nan")}, "price of an hour: "),
        ({"hour": 1.0, "utilization": 0.0}, "utilization: expected 0.001 to 1; got 0.0"),
        ({"hour": 1.0, "pue": 0.9}, "PUE: expected 1 to 10; got 0.9"),
        ({"hour": 1.0, "years": 0.0}, "years: "),
    ],
)
def test_prices_that_are_none(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Price(currency="USD", **wrong)


@pytest.fixture(scope="module")
def predictions() -> list[rk.Prediction]:
    graph = rk.trace(nn.Linear(1024, 1024), rk.Input("batch", 1024))
    return [rk.predict(graph, gpu, batch=1000) for gpu in ("nvidia-t4", "nvidia-l4")]


def test_the_cheapest_comes_first(predictions: list[rk.Prediction]) -> None:
    prices = [Price(currency="USD", hour=hour) for hour in (1.0, 3600.0)]
    found = costs_of(predictions, prices, samples=5e6, carbon=0.5)
    assert found.table["gpu"].tolist() == ["nvidia-t4", "nvidia-l4"]
    slow, dear = predictions
    row = found.table.iloc[0]
    assert row["cost"] == pytest.approx(slow.total_s / 3600)
    assert row["per_million"] == pytest.approx(1000 * slow.total_s / 3600)
    assert row["run_cost"] == pytest.approx(5000 * slow.total_s / 3600)  # 5 million in steps of a thousand
    assert row["run_kwh"] == pytest.approx(5000 * slow.energy_j / 3.6e6)
    assert row["kg"] == pytest.approx(row["run_kwh"] / 2)
    assert found.table.iloc[1]["cost"] == pytest.approx(dear.total_s)


def test_bounds_leave_gpus_out(predictions: list[rk.Prediction]) -> None:
    prices = [Price(currency="USD", hour=hour) for hour in (1.0, 3600.0)]
    most = 1.01 * 1000 * predictions[0].total_s / 3600
    assert costs_of(predictions, prices, max_cost=most).table["gpu"].tolist() == ["nvidia-t4"]
    with pytest.raises(InputError, match="no GPU is left: at most 1 watts"):
        costs_of(predictions, prices, max_watts=1.0)
    with pytest.raises(InputError, match="prices: expected one currency; got EUR, USD"):
        costs_of(predictions, [Price(currency="USD", hour=1.0), Price(currency="EUR", hour=1.0)])
    with pytest.raises(InputError, match="samples: expected a positive number; got 0"):
        costs_of(predictions, prices, samples=0)
