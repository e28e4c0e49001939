"""A predicted time line as a Chrome trace: complete, in order, and as long as the prediction says."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from round_numbers import constants
from several import slow_cluster, step
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import OutputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.machine import Machine

HOSTILE = "</script><script>alert(1)</script>"
CPU, KERNELS, WAITS, COPIES, LOADER = range(1, 6)


class Net(nn.Module):
    def __init__(self, name: str = "body") -> None:
        super().__init__()
        self.add_module(name, nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body = next(iter(self.children()))
        return self.head(body(x).mean((2, 3)))


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(Net(), rk.Input("batch", 3, 32, 32), mode="training", optimizer=torch.optim.SGD)


def saved(prediction: Any, folder: Path) -> list[dict[str, Any]]:
    document = json.loads(rk.save_trace(prediction, folder / "trace.json").read_text())
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def micros(events: list[dict[str, Any]], *tracks: int) -> float:
    return sum(event["dur"] for event in events if event["tid"] in tracks)


WAYS = [
    {},
    {"sync": "none"},
    {"sync": "op"},
    {"backend": "compiled"},
    {"backend": "cuda-graph", "copy": "pageable"},
    {"copy": "pinned", "non_blocking": True, "loader_rate": 1000.0},
    {"copy": "pinned", "sync": "none", "loader_rate": 1e9},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("gpu", ["nvidia-a100-sxm4-80gb", "nvidia-p100-pcie-16gb"])
def test_durations_add_up_to_the_prediction(graph: rk.Graph, tmp_path: Path, way: dict[str, Any], gpu: str) -> None:
    p = rk.predict(graph, gpu, batch=64, execution=rk.Execution(**way))
    events = saved(p, tmp_path)
    assert micros(events, KERNELS, WAITS, COPIES) == pytest.approx(p.total_s * 1e6)
    assert micros(events, KERNELS) == pytest.approx(p.gpu_s * 1e6)
    busy = [event for event in events if event["tid"] == CPU and "waits" not in event["args"]]
    assert micros(busy, CPU) == pytest.approx(p.cpu_s * 1e6)
    for name in ("ideal", "underuse", "memory", "launch"):
        of_kernels = sum(event["args"]["terms_s"][name] for event in events if event["tid"] == KERNELS)
        assert of_kernels == pytest.approx(p.terms()[name])
    for track in (CPU, KERNELS, WAITS, COPIES):
        line = sorted((event for event in events if event["tid"] == track), key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-5 for a, b in itertools.pairwise(line))


def test_a_step_by_hand(device: Device, host: Host, tmp_path: Path) -> None:
    # 2^20 fp32 in and out at 1 TB/s, where an L2 of 2 MB holds none of it: 8.388608 µs each, after 10 µs of issuing;
    # the second is issued at 20 µs and starts then, for the first has ended at 18.388608 µs.
    machine = Machine.of(device.replace(l2_capacity=2e6), constants())
    found = predict_graph(rk.trace(nn.Sequential(nn.ReLU(), nn.ReLU()), rk.Input(2**20)), machine, host, rk.Execution())
    seen = [(e["tid"], e["name"], e["ts"], round(e["dur"], 5)) for e in saved(found, tmp_path)]
    first, second = (span.timing.kernel.name for span in found.spans)
    assert [one for one in seen if one[0] == CPU] == [
        (CPU, first, 0, 10), (CPU, second, 10, 10), (CPU, "waits for the GPU", 20, 8.38861)
    ]  # fmt: skip
    assert [one[2:] for one in seen if one[0] == KERNELS] == [(10, 8.38861), (20, 8.38861)]
    assert [one[1:] for one in seen if one[0] == WAITS] == [
        ("waits for the CPU", 0, 10), ("waits for the CPU", pytest.approx(18.388608), 1.61139)
    ]  # fmt: skip
    (kernel, _) = (event for event in saved(found, tmp_path) if event["tid"] == KERNELS)
    args = kernel["args"]
    assert (args["module"], args["phase"], args["bound"], args["bytes"]) == ("0", "forward", "memory", 8 * 2**20)


def test_the_loader_and_the_copies_have_tracks(graph: rk.Graph, tmp_path: Path) -> None:
    way = rk.Execution(copy="pageable", loader_rate=1000.0)
    events = saved(rk.predict(graph, "nvidia-l4", batch=64, execution=way), tmp_path)
    assert [event["dur"] for event in events if event["tid"] == LOADER] == [64e3]  # 64 samples at 1000 a second
    assert [event["args"]["bytes"] for event in events if event["tid"] == COPIES] == [64 * 3 * 32 * 32 * 4]


def test_equal_predictions_give_equal_bytes_and_several_stand_apart(graph: rk.Graph, tmp_path: Path) -> None:
    def both() -> list[rk.Prediction]:
        return [rk.predict(graph, gpu, batch=8) for gpu in ("nvidia-l4", "nvidia-rtx-4090")]

    one, two = (rk.save_trace(both(), tmp_path / name) for name in ("one.json", "two.json"))
    assert one.read_bytes() == two.read_bytes()
    events = json.loads(one.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == [f"Net training (batch=8) on {gpu}, predicted" for gpu in ("nvidia-l4", "nvidia-rtx-4090")]


def test_collectives_say_how_long_they_are_exposed(tmp_path: Path) -> None:
    p = step(cluster=slow_cluster(1e9), batch=65536)
    path = rk.save_trace(p, tmp_path / "trace.json")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    sent = [event["args"] for event in events if event.get("cat") == "link"]
    assert sum(args["exposed_s"] for args in sent) == pytest.approx(p.exposed_s)
    assert sum(args["hidden_s"] for args in sent) == pytest.approx(p.hidden_s)
    # the slowest device, here any, stands still for nothing else
    waits = [event["dur"] for event in events if event.get("cat") == "wait"]
    assert sum(waits) == pytest.approx(1e6 * p.exposed_s)


def test_a_hostile_module_name_stays_text(tmp_path: Path) -> None:
    p = rk.predict(Net(HOSTILE), rk.Input(1, 3, 8, 8), gpu="nvidia-l4")
    events = saved(p, tmp_path)
    assert f"{HOSTILE}.0" in {event["args"].get("module") for event in events}
    assert "<" not in (tmp_path / "trace.json").read_text()


def test_the_place_is_checked(graph: rk.Graph, tmp_path: Path) -> None:
    p = rk.predict(graph, "nvidia-l4", batch=8)
    said = refusal(OutputError, rk.save_trace, p, tmp_path / "trace.txt")
    assert said == f"{tmp_path}/trace.txt: expected a file name that ends in .json"
    said = refusal(OutputError, rk.save_trace, p, tmp_path / "none" / "trace.json")
    assert said == f"{tmp_path}/none/trace.json: cannot be written: {tmp_path}/none is no folder"
    assert list(tmp_path.iterdir()) == []
