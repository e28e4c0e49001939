"""Joules and watts of a step: they add up, stay below the board's limit, and say how sure they are."""

import json

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.step.energy import Energy


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Flatten())
    return rk.trace(net, rk.Input("batch", 3, 32, 32), mode="training", optimizer=torch.optim.SGD)


def test_parts_and_kernels_add_up(graph: rk.Graph) -> None:
    p = rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=256)
    assert p.energy is not None
    assert p.energy_j == pytest.approx(sum(p.energy.parts_j.values()))
    assert p.energy_j == pytest.approx(p.power_w * p.total_s)
    assert p.energy.idle_w < p.power_w <= p.energy.peak_w * (1 + 1e-9)
    assert p.energy.peak_w <= 400
    after_the_last = p.energy.idle_w * p.timeline.tail_s
    for table in (p.by_module(), p.by_kind(), p.by_phase()):
        assert table["energy_j"].sum() + after_the_last == pytest.approx(p.energy_j)
        assert (table["power_w"] * table["total_s"]).to_numpy() == pytest.approx(table["energy_j"].to_numpy())
        assert (table["power_w"] <= table["peak_w"] * (1 + 1e-9)).all()  # of no kernel is the mean above the highest
        assert table["peak_w"].max() <= 400


def test_a_step_that_waits_for_its_host_hardly_draws_more_than_idling(graph: rk.Graph) -> None:
    small = rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=1)
    large = rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=1024)
    assert small.energy is not None
    assert small.power_w < 1.5 * small.energy.idle_w < large.power_w


def test_intervals_hold_the_middle_and_grow_with_the_level(graph: rk.Graph) -> None:
    p = rk.predict(graph, "nvidia-a40", batch=256)
    assert p.energy is not None
    for bounds in (p.energy.power_interval, lambda level: p.energy.interval(p.interval(level), level)):
        narrow, wide = bounds(0.5), bounds(0.9)
        assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    low, high = p.energy.interval(p.interval(0.9), 0.9)
    assert low < p.energy_j < high
    with pytest.raises(ValueError, match="level: expected a probability between 0 and 1; got 1"):
        p.energy.power_interval(1)


def test_an_interval_by_hand() -> None:
    # watts and seconds a factor of e^0.3 and e^0.4 apart at one side: joules e^0.5, as 3² + 4² = 5²
    energy = Energy(
        total_s=1.0, idle_w=1.0, parts_j={"idle": 1.0, "dram": 99.0}, spans_j=(), peak_w=100.0, board_w=1e4,
        spread=0.3 / 1.6448536269514722,
    )  # fmt: skip
    low, high = energy.interval((0.670320046, 1.491824698), 0.9)  # e^-0.4, e^0.4
    assert (low, high) == pytest.approx((60.65306597, 164.8721271))  # 100·e^∓0.5


def test_limits_of_power_and_clock(graph: rk.Graph) -> None:
    free, held, slow = (
        rk.predict(graph, "nvidia-a40", batch=1024, **limits)
        for limits in ({}, {"power_limit": "150 W"}, {"sm_clock": 0.87e9})
    )
    assert held.power_w <= 150 < free.power_w
    assert held.total_s > free.total_s
    assert held.energy_j < free.energy_j
    assert slow.total_s > free.total_s
    for p in (held, slow):
        assert sum(p.terms().values()) == pytest.approx(p.total_s)
        assert p.underuse()["power"] > free.underuse()["power"]
    assert held.notes[0] == "nvidia-a40: power limit 150 W"
    assert slow.notes[0] == "nvidia-a40: clock of the SMs at most 870 MHz"
    with pytest.raises(InputError, match="nvidia-a40: power limit: expected more than"):
        rk.predict(graph, "nvidia-a40", batch=1024, power_limit=10)


def test_documents_and_words(graph: rk.Graph) -> None:
    known = rk.predict(graph, "nvidia-l4", batch=8)
    document = json.loads(json.dumps(known.to_dict()))
    assert document["energy"]["low_j"] < document["energy"]["joules"] == known.energy_j < document["energy"]["high_j"]
    assert "\nenergy: " in str(known)
    bare = rk.predict(graph, rk.load_device("nvidia-l4").replace(board_power=None), batch=8)
    assert (bare.energy, bare.energy_j, bare.power_w) == (None, None, None)
    assert bare.to_dict()["energy"] is None
    assert "energy" not in str(bare)
    assert "energy_j" not in bare.by_kind()


def test_sweeps_say_what_predictions_say(graph: rk.Graph) -> None:
    table = rk.sweep(graph, gpus=["nvidia-l4"], batch=[1, 2, 8, 16, 32])
    for row in table.itertuples():
        p = rk.predict(graph, "nvidia-l4", batch=row.batch)
        assert (row.energy_j, row.power_w) == pytest.approx((p.energy_j, p.power_w), rel=1e-6)


def test_sums_under_a_limit_take_what_a_sweep_says() -> None:
    # An L4 lowers its clock for streams even at its own limit; a lower limit counts from there.
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3))
    graph = rk.trace(net, rk.Input("batch", 3, 64, 64), mode="training", optimizer="sgd")
    row = rk.sweep(graph, gpus=["nvidia-l4"], power_limits=["43 W"], batch=32, memory=False)
    one = rk.predict(graph, "nvidia-l4", batch=32, power_limit="43 W")
    assert row["total_s"][0] == pytest.approx(one.total_s)
    assert row["power_w"][0] == pytest.approx(one.power_w)


def test_a_sweep_over_limits_of_power(graph: rk.Graph) -> None:
    table = rk.sweep(graph, gpus=["nvidia-l4"], power_limits=["40 W", 72], batch=64, memory=False)
    assert table["gpu"].tolist() == ["nvidia-l4 at 40.0 W", "nvidia-l4 at 72.0 W"]
    p = rk.predict(graph, "nvidia-l4", batch=64, power_limit="40 W")
    assert table["total_s"][0] == pytest.approx(p.total_s)
    assert table["power_w"][0] == pytest.approx(p.power_w)
    with pytest.raises(InputError, match=r"power_limits: expected a list, such as \['200 W', '250 W'\]; got '40 W'"):
        rk.sweep(graph, gpus=["nvidia-l4"], power_limits="40 W", batch=64)
