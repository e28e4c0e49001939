"""Joules and watts of a step: they add up, stay below the board's limit, and say how sure they are."""

import json

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.serving.replay import replay
from rooflinekit.serving.traffic import Stream
from rooflinekit.step.energy import Energy, Member, drawn_by, energy_together
from rooflinekit.timing.energy import PowerLaw

DECODER = rk.Decoder(name="small", layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=8192)


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


# --- several GPUs: each its kernels, and all of them standing by until the step is over ------------------------------


def test_two_kinds_by_hand(graph: rk.Graph) -> None:
    machines = [rk.predict(graph, name, batch=8).machine for name in ("nvidia-t4", "nvidia-a40")]
    idle = [PowerLaw.of(machine).idle_w for machine in machines]
    members = [
        Member(count=count, machine=machine, kernels_j={"dram": joules})
        for count, machine, joules in zip((3, 1), machines, (2.0, 5.0), strict=True)
    ]
    found = energy_together(members, 0.5)
    assert found.parts_j["dram"] == 11.0  # 3 · 2 + 5
    assert found.parts_j["idle"] == pytest.approx(0.5 * (3 * idle[0] + idle[1]))
    assert found.joules == pytest.approx(11.0 + found.parts_j["idle"])
    assert found.mean_w == pytest.approx(found.joules / 0.5)
    assert found.board_w == 3 * 70 + 300
    assert (found.gpus, found.mean_w_per_gpu) == (4, found.mean_w / 4)


def test_a_kernel_that_runs_twice_draws_twice(graph: rk.Graph) -> None:
    p = rk.predict(graph, "nvidia-a40", batch=64)
    once, thrice = drawn_by(p.timings, p.machine), drawn_by(p.timings * 3, p.machine)
    assert {name: 3 * joules for name, joules in once.items()} == pytest.approx(thrice)
    assert sum(once.values()) == pytest.approx(p.energy_j - p.energy.parts_j["idle"])
    cpu = rk.load_device("intel-core-i9-10940x")
    assert drawn_by(p.timings, rk.predict(graph, cpu, batch=8).machine) is None


def test_one_gpu_of_a_cluster_draws_what_it_draws_alone(graph: rk.Graph) -> None:
    alone = rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=64, host=rk.load_cluster("dgx-a100").host)
    one = rk.parallel(graph, cluster="dgx-a100", gpus=1, batch=64)
    assert one.energy_j == pytest.approx(alone.energy_j)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_waiting_for_links_costs_stand_by(graph: rk.Graph, strategy: str) -> None:
    p = rk.parallel(graph, cluster="two-nodes-25gbe", gpus=2, strategy=strategy, batch=64)
    law = PowerLaw.of(p.slowest.prediction.machine)
    assert p.energy.parts_j["idle"] == pytest.approx(2 * law.idle_w * p.total_s)
    assert p.energy_j == pytest.approx(sum(p.energy.parts_j.values()))
    low, high = p.energy.interval(p.interval())
    assert low < p.energy_j < high
    assert p.power_w <= p.energy.board_w
    held = rk.parallel(graph, cluster="two-nodes-25gbe", gpus=2, strategy=strategy, batch=64, sm_clock="1 GHz")
    assert held.total_s > p.total_s
    assert held.to_dict()["energy"]["gpus"] == 2


def test_a_limit_that_no_board_of_the_cluster_holds(graph: rk.Graph) -> None:
    with pytest.raises(InputError, match=r"power limit: expected more than .* and up to 400 W"):
        rk.parallel(graph, cluster="dgx-a100", batch=64, power_limit="500 W")


def test_a_training_step_draws_by_micro_batches() -> None:
    one, two = (rk.train(DECODER, cluster="dgx-h100", gpus=2, batch=batch, seq=16384) for batch in (4, 8))
    first, second = ({**step.energy.parts_j} for step in (one, two))
    for found, step in ((first, one), (second, two)):
        assert found.pop("idle") == pytest.approx(step.energy.idle_w * step.total_s)
    # the optimizer runs once in either: twice the batch draws less than twice, by what that draws
    update = {name: 2 * first[name] - second[name] for name in first}
    assert all(joules >= 0 for joules in update.values())
    assert update["arithmetic"] == min(update.values())  # it moves numbers and hardly computes
    held = rk.train(DECODER, cluster="dgx-h100", gpus=2, batch=8, seq=16384, power_limit="300 W")
    assert held.power_w < 2 * 300 < two.power_w
    assert held.total_s > two.total_s


def test_steps_of_an_engine_add_up_by_hand() -> None:
    # one client, twice: a prompt of 7 J, then three tokens of a step of 2 J each behind the prompt's own
    stream = Stream(clients=1, input=10, output=4, rounds=2, spread=0)
    engine = rk.Engine(request_s=0, input_s=0)
    played = replay(stream, lambda p, n, c: 1.0, engine, 100, step_j=lambda p, n, c: 7 * len(p) + 2 * n)
    assert played.kernels_j == 2 * (7 + 3 * 2)
    assert played.end_s == pytest.approx(2 * 4)
    assert replay(stream, lambda p, n, c: 1.0, engine, 100).kernels_j is None


def test_served_tokens_draw_what_their_steps_draw() -> None:
    served = rk.serve(DECODER, "nvidia-l4", batch=4, input=64, output=64, spread=0)
    assert served.energy_j == pytest.approx(served.power_w * served.played.end_s)
    assert served.joules_per_token * served.tokens_given == pytest.approx(served.energy_j)
    idle_w = PowerLaw.of(served.decode.machine).idle_w
    assert idle_w < served.power_w < 72
    # most steps decode: a token takes about a quarter of a step's kernels, and of standing by what a token's time says
    about = (served.decode.energy_j - idle_w * served.decode.total_s) / 4 + idle_w / served.tokens_per_s
    assert served.joules_per_token == pytest.approx(about, rel=0.15)
    rated = rk.serve_traffic(DECODER, "nvidia-l4", traffic=rk.Traffic(rate=1, input=64, output=64, requests=20))
    assert rated.power_w < served.power_w  # it waits for requests
    assert rated.joules_per_token > served.joules_per_token


def test_nothing_is_said_of_gpus_whose_power_nobody_states() -> None:
    device = rk.load_device("nvidia-l4").replace(board_power=None)
    served = rk.serve(DECODER, device, batch=1, input=8, output=8)
    assert (served.energy, served.energy_j, served.joules_per_token) == (None, None, None)
    assert served.to_dict()["joules_per_token"] is None
    assert "energy" not in str(served)
    assert Energy(total_s=0.0, idle_w=1.0, parts_j={}, board_w=2.0, spread=0.1, gpus=1).mean_w == 1.0
