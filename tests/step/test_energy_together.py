"""What several GPUs draw: each its kernels, and all of them standing by until the step is over."""

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
