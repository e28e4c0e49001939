"""Energy rooflines and fronts: the numbers behind them, and what is drawn."""

import numpy as np
import pytest
from matplotlib import pyplot as plt
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.present.figures.records.roofs import energy_figure
from rooflinekit.study.compare.limits import power_limits
from rooflinekit.timing.energy import PowerLaw


@pytest.fixture(scope="module")
def prediction() -> rk.Prediction:
    net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
    return rk.predict(net, rk.Input("batch", 2048), gpu="nvidia-a40", batch=4096, dtype="float16")


def test_roofs_rise_with_intensity_to_what_arithmetic_costs(prediction: rk.Prediction) -> None:
    figure = energy_figure(prediction)
    law = PowerLaw.of(prediction.machine)
    assert law is not None
    ((name, roof),) = figure.roofs.items()
    assert name == "fp16"
    assert (np.diff(roof) >= 0).all()
    # at low intensity a byte costs its passage, and the board's idling and clocks while it passes
    a_byte = law.dram_j + law.cache_j + (law.idle_w + law.clocks_w) / prediction.machine.bandwidth
    assert roof[0] / figure.intensity[0] == pytest.approx(1 / a_byte, rel=0.05)


def test_points_hold_all_that_kernels_draw(prediction: rk.Prediction) -> None:
    figure = energy_figure(prediction)
    energy = prediction.energy
    assert energy is not None
    waits = energy.idle_w * (prediction.total_s - prediction.gpu_s)
    assert sum(point.joules for point in figure.points) == pytest.approx(energy.joules - waits)
    assert [point.kind for point in figure.points][:1] == ["aten.addmm"]
    (roof,) = figure.roofs.values()
    for point in figure.points:  # none is better than the best
        assert point.flop_per_joule <= np.interp(point.intensity, figure.intensity, roof) * 1.001


def test_nothing_to_draw_says_why(prediction: rk.Prediction) -> None:
    bare = rk.predict(prediction.graph, rk.load_device("nvidia-a40").replace(board_power=None))
    with pytest.raises(InputError, match="states no board_power or no process_nm"):
        energy_figure(bare)


def test_figures_are_drawn(prediction: rk.Prediction) -> None:
    axes = rk.plot.energy_roofline(prediction)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.texts[0].get_text().startswith("addmm ")
    plt.close(axes.figure)
    axes = rk.plot.time_energy(power_limits(prediction, 50.0))
    assert axes.get_ylabel().startswith("Energy of a step (")
    assert "300 W" in [text.get_text() for text in axes.texts]
    plt.close(axes.figure)
