"""Searches find what enumeration finds."""

from typing import Any

import numpy as np
import pytest
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.sweep import search as study

GPUS = ["nvidia-rtx-3060", "nvidia-rtx-4090", "nvidia-l4"]  # launch prices: 329, 1599, none


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)), rk.Input("batch", "seq", 512))


SIZES: dict[str, Any] = {"batch": range(1, 41), "seq": [64, 256]}


def test_the_least_time_under_bounds(graph: rk.Graph) -> None:
    rows = rk.sweep(graph, gpus=GPUS, **SIZES)
    rows = rows[(rows["throughput"] >= 5000) & (rows["seq"] >= 200) & rows["fits"]]
    expected = rows.loc[rows["total_s"].idxmin()]
    found = rk.search(graph, gpus=GPUS, minimize="time", require=["throughput>=5000", "seq>=200"], **SIZES)
    assert [found.best[name] for name in ("gpu", "batch", "seq")] == [expected[n] for n in ("gpu", "batch", "seq")]
    assert found.best["total_s"] == pytest.approx(expected["total_s"], rel=1e-9)
    assert (found.predicted, found.exhaustive) == (240, True)
    assert found.table["gpu"].is_unique  # then the best of each other GPU
    assert found.table["total_s"].is_monotonic_increasing


def test_a_bound_that_the_slow_end_of_the_interval_breaks_is_told(graph: rk.Graph) -> None:
    (row,) = rk.sweep(graph, gpus=["nvidia-l4"], batch=[8], seq=[64]).to_dict("records")
    between = (row["total_s"] + row["high_s"]) / 2

    def doubts(bound: str) -> tuple[str, ...]:
        return rk.search(graph, gpus=["nvidia-l4"], require=[bound], batch=[8], seq=[64]).doubts

    assert doubts(f"time<{between * 1e6:.6f} µs")[0].startswith(
        f"the interval's slow end misses time<{between * 1e6:.6f} µs: "
    )
    assert doubts(f"time<{row['high_s'] * 1.01} s") == doubts(f"high<{row['high_s'] * 1.01} s") == ()
    assert len(doubts(f"throughput>{8 / between}")) == 1
    assert doubts(f"throughput>{8 / (row['high_s'] * 1.01)}") == ()


def test_dollars_are_the_launch_price_by_throughput(graph: rk.Graph) -> None:
    found = rk.search(graph, gpus=GPUS, minimize="dollars", require=["high<=5 ms"], **SIZES)
    rows = rk.sweep(graph, gpus=GPUS[:2], **SIZES)
    rows = rows[rows["high_s"] <= 0.005]
    dollars = rows["gpu"].map({"nvidia-rtx-3060": 329, "nvidia-rtx-4090": 1599}) / rows["throughput"]
    assert found.best["dollars"] == pytest.approx(dollars.min(), rel=1e-9)
    assert found.unpriced == ("nvidia-l4",)
    assert "left out, for want of a launch price: nvidia-l4; to rank" in str(found)
    price = rk.search(graph, gpus=GPUS, minimize="price", **SIZES).best
    assert price["price"] == 329


def test_what_does_not_fit_is_not_chosen(graph: rk.Graph) -> None:
    # the largest batch has the highest throughput, but 24 GB hold no 5·10⁷ rows of 512 + 2048 numbers
    batches = [1000, 2000, 50_000_000]
    found = rk.search(graph, gpus=["nvidia-l4"], minimize="memory", require=["batch>1000"], batch=batches, seq=1)
    assert found.best["batch"] == 2000
    none = rk.search(graph, gpus=["nvidia-l4"], require=["batch>2000"], batch=batches, seq=1)
    assert none.best is None
    assert none.closest["batch"].tolist() == [50_000_000] or none.closest["misses"].notna().all()


def test_where_nothing_meets_it_the_closest_are_named(graph: rk.Graph) -> None:
    found = rk.search(graph, gpus=GPUS, require=["time<1 ns"], **SIZES)
    assert found.best is None
    fastest = rk.sweep(graph, gpus=GPUS, **SIZES)["total_s"].min()
    assert found.closest["total_s"][0] == pytest.approx(fastest, rel=1e-9)
    factor = fastest / 1e-9
    assert found.closest["misses"][0] == f"time<1 ns by a factor of {factor:.3g}"
    assert "none meets it; closest come:" in str(found)
    assert found.to_dict()["best"] is None


def test_differential_evolution_finds_the_optimum_too(graph: rk.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"gpus": ["nvidia-rtx-4090"], "minimize": "dollars", "require": ["time<1 ms"]}
    sizes = {"batch": range(1, 61), "seq": range(1, 61)}
    all_of_them = rk.search(graph, **options, **sizes)
    monkeypatch.setattr(study, "ENUMERATED", 100)
    found = rk.search(graph, **options, **sizes)
    assert not found.exhaustive
    assert found.predicted < all_of_them.predicted == 3600
    assert found.best["dollars"] <= 1.01 * all_of_them.best["dollars"]


def test_an_excess_is_0_where_a_bound_is_met() -> None:
    (below,) = study.requirements_of(["time<100 ms"], ())
    assert below.limit == 0.1
    assert below.excess(np.array([0.05, 0.2]))[0] == 0
    assert below.excess(np.array([0.05, 0.2]))[1] == pytest.approx(np.log(2))
    assert below.excess(np.array([0.1]))[0] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimize": "tme"},
         "minimize 'tme': expected 'time' or 'dollars' or 'memory' or 'price' or 'energy' or 'cost'; did you mean "
         "'time'?"),
        ({"require": ["time<20"]}, "require 'time<20': expected a quantity in s, such as '5 µs'; got '20'"),
        ({"require": ["latency<20 ms"]},
         "require 'latency<20 ms': 'latency' is not known: time, low, high, gpu-time, throughput, memory, price, "
         "dollars, cost, power, energy, batch, seq; write time<20 ms"),
        ({"require": ["time"]}, "require 'time': expected a quantity and its bound, such as 'time<0.1 s'"),
        ({"require": ["bacth<4"]},
         "require 'bacth<4': 'bacth' is not known: time, low, high, gpu-time, throughput, memory, price, dollars, "
         "cost, power, energy, batch, seq; did you mean 'batch'?"),
        ({"require": ["time<3 GB"]}, "require 'time<3 GB': expected a quantity in s, such as '5 µs'; got '3 GB'"),
        ({"require": ["batch<-1"]}, "require 'batch<-1': expected a positive number; got '-1'"),
        ({"minimize": "price", "gpus": ["nvidia-l4"]},
         "minimize 'price': no launch price is known of nvidia-l4; give prices={'nvidia-l4': …} (--price nvidia-l4=… "
         "on the command line)"),
    ],
)  # fmt: skip
def test_wrong_use(graph: rk.Graph, options: dict[str, Any], message: str) -> None:
    with refused(InputError, message):
        rk.search(graph, **{"gpus": GPUS, "batch": 1, "seq": 1, **options})


def test_least_energy_and_least_cost(graph: rk.Graph) -> None:
    sizes = {"batch": [1, 8, 64], "seq": 100}
    found = rk.search(graph, gpus=["nvidia-l4", "nvidia-t4"], minimize="energy", **sizes)
    table = rk.sweep(graph, gpus=["nvidia-l4", "nvidia-t4"], memory=False, **sizes)
    least = (table["energy_j"] / table["batch"]).idxmin()
    assert (found.best["gpu"], found.best["batch"]) == (table["gpu"][least], table["batch"][least])
    prices = {"nvidia-l4": 1e-3, "nvidia-t4": 1e3}
    cheap = rk.search(graph, gpus=["nvidia-l4", "nvidia-t4"], minimize="cost", prices=prices, **sizes)
    assert cheap.best["gpu"] == "nvidia-l4"
    with pytest.raises(InputError, match="minimize 'cost': no price of an hour is known of nvidia-l4, nvidia-t4"):
        rk.search(graph, gpus=["nvidia-l4", "nvidia-t4"], minimize="cost", **sizes)
    low = rk.search(graph, gpus=["nvidia-l4"], require=["power<1 W"], **sizes)
    assert low.best is None


def test_least_energy_and_cost_on_a_cluster() -> None:
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    graph = rk.trace(net, rk.Input("batch", 512), mode="training")
    where: dict[str, Any] = {"clusters": ["dgx-a100"], "gpus": [1, 2, 4], "batch": [256, 4096]}
    rows = rk.sweep(graph, **where)
    each = rows["energy_j"] / rows["batch"]
    found = rk.search(graph, minimize="energy", **where)
    assert found.best["joules"] == pytest.approx(each.min())
    assert (rows["power_w"] - rows["energy_j"] / rows["total_s"]).abs().max() < 1e-6
    cheap = rk.search(graph, minimize="cost", prices={"a100-sxm4-80gb": 2.0}, require=["power<=500 W"], **where)
    held = rows[rows["power_w"] <= 500]
    assert cheap.best["dollars"] == pytest.approx((2 * held["gpus"] / held["throughput"]).min())
