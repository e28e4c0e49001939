"""What steps cost: by hand."""

import math

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.compare.cost import Job, Price, Pricing


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
    assert price.break_even_hours(math.nan) is None  # what it draws is not known
    silent = Job(what="g", total_s=10.0, energy_j=None, batch=1)
    assert rk.costs([silent], [price]).table["cost"][0] == pytest.approx(0.01)  # rented: of owned nothing is known


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
    found = rk.costs(predictions, prices, samples=5e6, carbon=0.5)
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
    assert rk.costs(predictions, prices, max_cost=most).table["gpu"].tolist() == ["nvidia-t4"]
    with pytest.raises(InputError, match="no GPU is left: at most 1 watts"):
        rk.costs(predictions, prices, max_watts=1.0)
    with pytest.raises(InputError, match="prices: expected one currency; got EUR, USD"):
        rk.costs(predictions, [Price(currency="USD", hour=1.0), Price(currency="EUR", hour=1.0)])
    with pytest.raises(InputError, match="samples: expected a positive number; got 0"):
        rk.costs(predictions, prices, samples=0)


def test_a_cluster_by_hand() -> None:
    # 8 GPUs for 9 s at 2 an hour each: 0.04 a step of 4000 tokens, 10 a million; 7.2 kJ are 0.002 kWh, at 1.5 0.003
    job = Job(what="8 GPUs", total_s=9.0, energy_j=7200.0, batch=4000, unit="tokens", gpus=8)
    row = rk.costs([job], [Price(currency="USD", hour=2.0, pue=1.5)], samples=4e6, carbon=0.5).table.iloc[0]
    assert (row["cost"], row["per_million"], row["run_cost"]) == pytest.approx((0.04, 10.0, 40.0))
    assert (row["run_s"], row["run_kwh"], row["kg"]) == pytest.approx((9000.0, 3.0, 1.5))
    assert row["power_w"] == pytest.approx(800.0)
    # each draws 100 W: at 0.36 a kWh 0.036 an hour, so buying at 1964 saves 1.964 an hour of each
    bought = rk.costs([job], [Price(currency="USD", hour=2.0, purchase=1964.0, kwh=0.36)]).table.iloc[0]
    assert bought["break_even_h"] == pytest.approx(1000.0)
    assert bought["owned"] == pytest.approx(1964 * 8 * 9 / (4 * 8766 * 3600) + 0.36 * 0.002)
    with pytest.raises(InputError, match="costs: expected steps of one kind; got samples and tokens"):
        rk.costs([job, Job(what="one", total_s=1.0, energy_j=1.0, batch=1)], [Price(currency="USD", hour=1.0)] * 2)
    with pytest.raises(InputError, match="price: a Job does not say which GPUs it runs on; expected a Price"):
        rk.costs(job, Pricing(table=rk.load_prices("example")))


def test_unequal_gpus_cost_their_mean() -> None:
    table = rk.load_prices("example")
    pricing = Pricing(table=table, kwh=(0.1, "USD"))
    devices = [rk.load_device(name) for name in ("nvidia-t4", "nvidia-l4", "nvidia-l4")]
    assert pricing.of_all(devices).hour == pytest.approx((0.5 + 2 * 0.75) / 3)
    assert pricing.of(devices[0]).kwh == 0.1
    with pytest.raises(InputError, match="nvidia-k80: no price is given"):
        pricing.of(rk.load_device("nvidia-k80"))
    with pytest.raises(InputError, match="prices: expected one currency; got EUR, USD"):
        Pricing(table=table, kwh=(0.1, "EUR"))
    with pytest.raises(InputError, match="a price is missing"):
        Pricing(kwh=(0.1, "EUR"))


def test_tokens_of_training_and_of_answers_cost_alike() -> None:
    small = rk.Decoder(name="small", layers=2, hidden=512, heads=4, kv_heads=4, head_dim=128, ffn=2048, vocab=8192)
    step = rk.train(small, cluster="dgx-h100", gpus=4, batch=8, seq=512)
    row = rk.costs(step, Pricing(table=rk.load_prices("example")), samples=1e9).table.iloc[0]
    assert row["run_cost"] == pytest.approx(4 * 4.0 * 1e9 / step.tokens_per_s / 3600)  # four GPUs at 4 an hour
    served = rk.serve(small, "nvidia-l4", batch=2, input=32, output=16)
    row = rk.costs([served], Price(currency="USD", hour=1.0)).table.iloc[0]
    assert row["per_million"] == pytest.approx(1e6 / served.tokens_per_s / 3600)
    assert row["energy_j"] == pytest.approx(served.joules_per_token * served.tokens_given)
    # two groups of one GPU; and one GPU that reads prompts beside two that answer
    mixture = small.with_changes(experts=4, experts_per_token=2)
    groups = rk.serve(mixture, cluster="dgx-h100", dp=2, ep=2, batch=2, input=32, output=16)
    apart = rk.serve_traffic(
        small, "nvidia-l4", traffic=rk.Traffic(rate=9, input=32, output=16, requests=8),
        disaggregation=rk.Disaggregation(prefill=1, decode=2, link_bytes_per_s=1e10),
    )  # fmt: skip
    rows = rk.costs([groups, apart], Price(currency="USD", hour=1.0)).table
    assert [*rows["gpus"]] == [2, 3]
    assert rows["per_million"].iloc[0] == pytest.approx(2 * 1e6 / groups.tokens_per_s / 3600)


def test_compared_by_cost_and_held_by_bounds() -> None:
    graph = rk.trace(nn.Linear(1024, 1024), rk.Input("batch", 1024))
    gpus = ["nvidia-k80", "nvidia-a40", "nvidia-t4"]
    priced = {"price": Pricing(table=rk.load_prices("example")), "batch": 512, "gpus": gpus}
    found = rk.compare_gpus(graph, sort="cost", **priced)
    assert found.currency == "USD"
    assert [row["gpu"] for row in found.rows][-1] == "nvidia-k80"  # without a price it stands last
    each = {row["gpu"]: row for row in found.rows}
    assert each["nvidia-t4"]["per_million"] == pytest.approx(0.5 / 3600 * each["nvidia-t4"]["total_s"] * 1e6 / 512)
    held = rk.compare_gpus(graph, max_watts="100 W", **priced)
    assert [*each["nvidia-a40"].keys()] == [*held.rows[0].keys()]
    assert held.refused.keys() == {gpu for gpu, row in each.items() if not (row["drawn_w"] or 1e9) <= 100}
    with pytest.raises(InputError, match="no GPU is left: nvidia-k80: what it costs is not known, of at most 1e-12"):
        rk.compare_gpus(graph, max_cost=1e-12, **priced)
    with pytest.raises(InputError, match="sort 'cost': a price is missing"):
        rk.compare_gpus(graph, sort="cost", gpus=gpus, batch=512)
    with pytest.raises(InputError, match="max watts: expected a positive number; got -1"):
        rk.compare_gpus(graph, max_watts=-1, gpus=gpus, batch=512)
