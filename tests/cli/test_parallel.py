"""`rooflinekit parallel` and `fit-into`: lines, JSON, time lines, and what is said of wrong use."""

import json
from pathlib import Path

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))\n"

SIZE = ("-i", "batch,32", "--batch", 64)


def test_a_step_on_four_gpus(run: Run, net: str) -> None:
    said = run("parallel", net, *SIZE, "--cluster", "dgx-a100", "--gpus", 4, "--optimizer", "Adam").answered()
    assert "training (batch=64), float32, eager on 4 of dgx-a100, DDP: " in said
    assert "hidden" in said
    assert "exposed" in said


def test_json_and_trace(run: Run, net: str, tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    place = ("--cluster", "titan-x-x2-gtx-1080", "--split", "proportional")
    document = run("parallel", net, *SIZE, *place, "--trace", trace, "--json").document
    assert sum(device["batch"] * len(device["numbers"]) for device in document["devices"]) == 64
    assert document["total_s"] == pytest.approx(sum(document["terms"].values()))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    processes = {event["args"]["name"].split(":")[0] for event in events if event["name"] == "process_name"}
    assert "links of titan-x-x2-gtx-1080" in processes
    assert len(processes) == 1 + len(document["devices"])
    sent = [event for event in events if event.get("cat") == "link"]
    assert sum(event["dur"] for event in sent) == pytest.approx(1e6 * document["communication_s"], rel=1e-6)
    for pid in range(1, 1 + len(document["devices"])):
        ends = [e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert max(ends) <= 1e6 * document["total_s"]


def test_a_mesh_with_savers(run: Run, net: str) -> None:
    options = ("--cluster", "dgx-a100", "--strategy", "mesh", "--tensor", 2, "--gpus", 4, "--accumulate", 2)
    document = run("parallel", net, *SIZE, *options, "--json").document
    assert document["strategy"]["tensor"] == 2
    assert document["savers"]["accumulate"] == 2


def test_activations_kept_and_sent_away(run: Run, net: str) -> None:
    options = ("--cluster", "dgx-a100", "--gpus", 1, "--checkpoint", "all", "--save", "0:aten.addmm", "--json")
    savers = run("parallel", net, *SIZE, *options).document["savers"]
    assert (savers["checkpoint"], savers["save"]) == (True, ["0:aten.addmm"])
    away = run("parallel", net, *SIZE, "--cluster", "dgx-a100", "--gpus", 1, "--offload-activations", "head")
    assert "offload_activations: 'head' is no block" in away.err


def test_a_measured_step(run: Run, net: str) -> None:
    place = ("--cluster", "dgx-a100", "--gpus", 1)
    document = run("parallel", net, *SIZE, *place, "--measured", "64:0.5", "--json").document
    assert document["total_s"] == pytest.approx(0.5)
    wrong = run("parallel", net, *SIZE, *place, "--measured", "0.5")
    assert "--measured: expected BATCH:SECONDS, as 32:0.18; got '0.5'" in wrong.err


@pytest.mark.parametrize("option", [("--power-limit", "100 W"), ("--sm-clock", "1 GHz"), ("--burst",)])
def test_what_an_answer_would_leave_out_is_refused(run: Run, net: str, option: tuple[str, ...]) -> None:
    asked = {"fit-into": ("--gpu", "nvidia-l4"), "sweep": ("--mode", "training", "--cluster", "dgx-a100")}
    for command, place in asked.items():
        result = run(command, net, *SIZE, *place, *option)
        result.refused(f"{option[0]}: ")
        assert result.err.endswith("does not take it; leave it out\n")


def test_what_fits(run: Run, net: str) -> None:
    said = run("fit-into", net, *SIZE, "--gpu", "nvidia-rtx-3070", "--optimizer", "Adam").answered()
    heading, chosen, *_ = said.splitlines()
    assert heading == "Net, training (no loss named, optimizer Adam), batch 64, float32, eager"
    assert chosen == "fastest that fits: as it is"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--cluster", "dgx-a1000"), "unknown cluster 'dgx-a1000'"),
        (("--cluster", "dgx-a100", "--strategy", "zero"), "strategy: expected dp, ddp, "),
        (("--cluster", "dgx-a100", "--tensor", 2), "--tensor belongs to --strategy mesh; got 'ddp'"),
        (("--cluster", "dgx-a100", "--mode", "inference"), "--cluster: steps on several devices are training steps"),
        (("--cluster", "dgx-a100", "--burst"), "--burst: a step on several GPUs does not take it; leave it out"),
        (("--cluster", "dgx-a100", "--gpu", "l4"), "--gpu: a cluster has GPUs of its own"),
        (("--cluster", "dgx-a100", "--gpus", 9), "dgx-a100 has 8 devices; got gpus=9"),
        (("--cluster", "dgx-a100", "--checkpoint", "head"), "Net: no op of forward is in module 'head'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[object, ...], message: str) -> None:
    run("parallel", net, *SIZE, *args).refused(has=message)


def test_gloo_is_a_strategy(run: Run, net: str) -> None:
    """Through the host's memory: the same step as DDP(backend="gloo"), slower than NCCL's where links are."""
    nccl, gloo = (
        run("parallel", net, *SIZE, "--cluster", "dgx-a100", "--strategy", word, "--json").document
        for word in ("ddp", "ddp-gloo")
    )
    assert (nccl["strategy"]["backend"], gloo["strategy"]["backend"]) == ("nccl", "gloo")
    assert gloo["communication_s"] > nccl["communication_s"]
