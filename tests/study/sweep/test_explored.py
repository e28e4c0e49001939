"""A grid to explore says at every state what a single prediction says, to within the error that it states."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.errors import InputError
from rooflinekit.hardware.specs import host_of
from rooflinekit.step.execution import execution_of
from rooflinekit.study.sweep.explored import EXACT, REGIMES, TIMES, TOLERANCE, Explored, explored, usual
from rooflinekit.timing.energy import PowerLaw

GPUS = ("nvidia-l4", "nvidia-a100-sxm4-80gb")
ROUNDING = 1e-4  # six digits of logarithms and shares


def grid_of(
    workloads: Mapping[str, rk.Graph], *, hosts: tuple[str, ...] = ("unnamed",), limits: tuple[float, ...] = (1.0, 0.6),
    executions: tuple[Any, ...] = ("eager", "compiled"), gpus: tuple[str, ...] = GPUS, **sizes: Any,
) -> Explored:  # fmt: skip
    ways = [execution_of(way) for way in executions]
    return explored(workloads, machines_of(gpus), ways, [host_of(name) for name in hosts], limits, sizes)


def state_at(grid: Explored, **state: Any) -> dict[str, Any]:
    """What the page's script shows: lines in logarithms between the kept states; a choice alone has no name."""

    def place(axis: str, known: Sequence[Any]) -> int:
        return known.index(state[axis]) if axis in state else 0

    series = 0
    for axis, known in grid.choices.items():
        series = series * len(known) + place(axis, known)
    lists = grid.sizes[state.get("workload", next(iter(grid.sizes)))]
    *others, (name, values) = lists.items() or [("", (1,))]
    line = 0
    for other, listed in others:
        line = line * len(listed) + place(other, listed)
    i, found = place(name, values), grid.series[series]
    kept, rows = list(found.lines[line].kept), np.array(found.lines[line].rows, dtype=float)
    logs = np.hstack((np.log(rows[:, : len(TIMES)]), rows[:, len(TIMES) :]))
    here = [np.interp(np.log(values[i]), np.log(np.array(values)[kept]), column) for column in logs.T]
    here[: len(TIMES)] = np.exp(here[: len(TIMES)])
    numbers = {
        name: None if np.isnan(value) else float(value) for name, value in zip((*TIMES, *REGIMES), here, strict=True)
    }
    exact = dict(zip(EXACT, found.exact[line * len(values) + i], strict=True))
    return {**numbers, **exact, "interpolated": i not in kept}


def off_at(grid: Explored, state: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    """How far the grid is from `predict` at a state; counts must be equal."""
    machine = next(m for m in grid.machines if m.name == state["gpu"])
    law = PowerLaw.of(machine)
    limit = None if state["limit"] == 1 or law is None else state["limit"] * law.board_w
    p = rk.predict(
        grid.workloads[state["workload"]], state["gpu"], host=state["host"], execution=state["execution"],
        power_limit=limit, **sizes,
    )  # fmt: skip
    found = state_at(grid, **state, **sizes)
    assert (found["flop"], found["bytes"], found["peak_bytes"], bool(found["fits"])) == (
        p.flop, p.bytes, p.memory.peak_bytes, p.memory.fits,
    )  # fmt: skip
    low, high = p.interval(0.9)
    said = {"total_s": p.total_s, "low_s": low, "high_s": high, "cpu_s": p.cpu_s, "energy_j": p.energy_j}
    times = [abs(found[name] / value - 1) for name, value in said.items() if value is not None]
    return max(*times, *(abs(found[name] - p.shares[name]) for name in REGIMES))


def random_states(grid: Explored, count: int) -> list[tuple[dict[str, Any], dict[str, int]]]:
    rng = random.Random(count)
    found = []
    for _ in range(count):
        state = {axis: rng.choice(known) for axis, known in grid.choices.items()}
        sizes = {name: rng.choice(values) for name, values in grid.sizes[state["workload"]].items()}
        found.append((state, sizes))
    return found


@pytest.fixture(scope="module")
def net() -> rk.Graph:
    return rk.trace(
        nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512), nn.LayerNorm(512)),
        rk.Input("batch", "seq", 512),
    )


@pytest.fixture(scope="module")
def grid(net: rk.Graph) -> Explored:
    return grid_of({"inference": net}, hosts=("unnamed", "generic-cloud"), batch=range(1, 257), seq=[64, 512])


def test_it_says_what_single_predictions_say(grid: Explored) -> None:
    assert grid.states == 2 * 2 * 2 * 2 * 256 * 2
    assert grid.kept < grid.states / 2
    assert grid.error <= TOLERANCE < 0.005
    assert max(off_at(grid, *one) for one in random_states(grid, 40)) <= grid.error + ROUNDING


def test_a_kept_state_is_the_prediction_and_a_dropped_one_is_marked(grid: Explored) -> None:
    state = {axis: known[0] for axis, known in grid.choices.items()}
    marked = [state_at(grid, **state, batch=batch, seq=64)["interpolated"] for batch in range(1, 257)]
    assert not marked[0]
    assert not marked[-1]
    assert True in marked
    first = marked.index(False, 1) + 1
    assert off_at(grid, state, {"batch": first, "seq": 64}) <= ROUNDING


def test_traffic_is_that_of_the_algorithms_that_run() -> None:
    """The weights' gradient of a network's first convolution has several, which move different numbers of bytes."""
    net = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.ReLU())
    graph = rk.trace(net, rk.Input("batch", 3, 112, 112), mode="training", autocast="bf16")
    grid = grid_of({"training": graph}, limits=(1.0,), executions=("eager",), gpus=("nvidia-l4",), batch=range(1, 33))
    for batch in (1, 2, 3, 7, 16, 32):
        assert state_at(grid, batch=batch)["bytes"] == rk.predict(graph, "nvidia-l4", batch=batch).bytes


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(1.0,), (0.6,)])
def test_two_hundred_random_states_of_resnet50(limits: tuple[float, ...]) -> None:
    steps = {
        "fp32": rk.trace("timm:resnet50"),
        "training": rk.trace("timm:resnet50", mode="training", optimizer="SGD", autocast="bf16"),
    }
    grid = grid_of(steps, gpus=(*GPUS, "nvidia-h100-sxm5-80gb"), limits=limits, batch=range(4, 257, 9))
    assert max(off_at(grid, *one) for one in random_states(grid, 200)) <= grid.error + ROUNDING < 0.005


def test_a_workload_without_open_sizes_has_one_state() -> None:
    graph = rk.trace(nn.Linear(64, 64), rk.Input(8, 64))
    grid = grid_of({"inference": graph}, limits=(1.0,), executions=("eager",), gpus=("nvidia-l4",))
    assert grid.states == grid.kept == 1
    assert state_at(grid)["total_s"] == pytest.approx(rk.predict(graph, "nvidia-l4").total_s, rel=ROUNDING)


def test_a_gpu_of_unknown_power_has_its_times_without_watts(net: rk.Graph) -> None:
    device = rk.load_device("nvidia-l4").model_copy(update={"board_power": None})
    ways, hosts = [execution_of("eager")], [host_of("unnamed")]
    found = explored({"x": net}, machines_of([device]), ways, hosts, (1.0, 0.5), {"batch": 4, "seq": 64})
    for limit in (1.0, 0.5):
        answer = state_at(found, limit=limit, batch=4, seq=64)
        assert answer["energy_j"] is None
        assert answer["total_s"] == pytest.approx(rk.predict(net, device, batch=4, seq=64).total_s, rel=ROUNDING)


def test_usual_sizes_begin_small_and_grow_by_doubling() -> None:
    assert usual("batch", 256) == tuple(range(1, 257))
    assert usual("seq", 4) == (512, 1024, 2048, 4096)
    assert usual("batch", 3) == (2, 4, 8)
    assert usual("seq", 50)[-1] == 8192


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limits": (1.0, 1.2)}, "above 0 and up to 1; got 1.2"),
        ({"beam": 3}, "no workload has an open size 'beam': expected batch, seq"),
        ({"batch": range(1, 20_000), "seq": range(1, 30)}, "states are more than"),
    ],
)
def test_what_cannot_be_explored_is_named(net: rk.Graph, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grid_of({"inference": net}, **changes)
