"""A step under every limit of watts."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.compare.limits import PowerLimits, power_limits, power_limits_together


@pytest.fixture(scope="module")
def prediction() -> rk.Prediction:
    net = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    return rk.predict(net, rk.Input("batch", 4096), gpu="nvidia-a40", batch=4096, dtype="float16")


def test_the_table_and_what_is_least(prediction: rk.Prediction) -> None:
    found = power_limits(prediction)
    table = found.table
    assert table["limit_w"].tolist() == [100, 125, 150, 175, 200, 225, 250, 275, 300]
    assert table["total_s"].is_monotonic_decreasing
    assert table["total_s"].iloc[-1] == pytest.approx(prediction.total_s)
    assert (table["energy_delay"] == table["energy_j"] * table["total_s"]).all()
    assert found.least_energy.energy_j == table["energy_j"].min()
    least = found.least_energy.machine.power_limit
    assert 100 < least < 300  # near idling the time grows, at the top the voltage
    assert least <= found.least_energy_delay.machine.power_limit
    assert str(found).startswith(f"least energy at {least:.0f} W: ")


def test_watts_above_the_limit_are_marked(prediction: rk.Prediction) -> None:
    # the same step said to have been under a limit of half of what it draws, then of twice that, on one GPU and on two
    watts = prediction.power_w
    for gpus, limits, above in ((1, (watts / 2, 2 * watts), [True, False]), (2, (watts / 4, watts), [True, False])):
        found = PowerLimits(
            predictions=(prediction,) * 2, limits_w=limits, sizes={}, batch=1, gpus=gpus, heading=("net", "m", "gpu")
        )
        assert found.table["above"].tolist() == above
        assert "at limits of" in str(found)


def test_a_rack_in_a_day(prediction: rk.Prediction) -> None:
    found = power_limits(prediction, 100.0)
    rack = found.rack(6000.0, pue=1.5).set_index("limit_w")
    assert rack["gpus"].to_dict() == {100: 40, 200: 20, 300: 13}  # 4000 W of limits
    assert rack["samples_a_day"][300] == pytest.approx(13 * 4096 * 86400 / prediction.total_s)
    with pytest.raises(InputError, match="rack: expected positive watts"):
        found.rack(-1.0)


@pytest.mark.parametrize("step", [0.0, -5.0, 1000.0, float("nan")])
def test_steps_that_make_no_table(prediction: rk.Prediction, step: float) -> None:
    with pytest.raises(InputError, match="step: expected 300 mW to "):
        power_limits(prediction, step)


def test_a_board_without_power_data() -> None:
    device = rk.load_device("nvidia-a40").replace(board_power=None)
    p = rk.predict(nn.Linear(8, 8), rk.Input("batch", 8), gpu=device, batch=8)
    with pytest.raises(InputError, match="states no board_power or no process_nm"):
        power_limits(p)


def test_a_rack_of_clusters_by_hand() -> None:
    graph = rk.trace(nn.Linear(1024, 1024), rk.Input("batch", 1024), mode="training", optimizer=torch.optim.SGD)
    graph = graph.at(batch=512)
    first = rk.parallel(graph, cluster="dgx-a100", gpus=4)
    found = power_limits_together(
        lambda power_limit: rk.parallel(graph, cluster="dgx-a100", gpus=4, power_limit=power_limit), first, 100.0
    )
    assert found.limits_w == (100.0, 200.0, 300.0, 400.0)
    assert found.table["energy_j"].iloc[-1] == pytest.approx(first.energy_j)
    rack = found.rack(10_000.0, 1.25)
    assert rack["gpus"].tolist() == [80, 40, 24, 20]  # 8 kW / (4 · 100 W) = 20 groups of four, then 10, 6, 5
    assert rack["samples_a_day"].iloc[-1] == pytest.approx(5 * 512 * 86_400 / first.total_s)
    assert found.to_dict()["least_energy_w"] in found.limits_w
    assert " W a GPU: " in str(found)
