"""`rooflinekit measure`, as a user meets it, on the CPU at hand."""

import json
from pathlib import Path

import pytest
import torch
from command_line import Run, caller
from documents import checked

import rooflinekit as rk
from rooflinekit.calibrate.hosts import draft as host_draft
from rooflinekit.hardware.specs import load_host

NET = """
import torch
from torch import nn
from torch._subclasses import FakeTensor

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 2))

class Words(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(10, 4), nn.Linear(4, 2))

with torch.device("meta"):
    unborn = Net()

class Broken(nn.Module):
    def forward(self, x):
        return x if isinstance(x, FakeTensor) else self.lost(x)

def function():
    return torch.relu
"""
CPU = ("--device", "cpu", "--gpu", "generic-cloud-cpu-avx512", "--threads", 1, "--precision", 0.5, "--samples", 5)
IMAGE = ("--input", "batch,3,16,16", "--batch", 2)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)

    called = caller(monkeypatch, capfd)
    return lambda *args: called("measure", *args)


def test_the_comparison(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = [line.rstrip() for line in run("net.py:Net", *IMAGE, *CPU, "--out", "pair.json").answered().splitlines()]
    assert lines[0] == "Net, inference, batch 2, eager, on generic-cloud-cpu-avx512, 1 thread"
    for word in ("time of a step", "half of the samples, 90 % interval", "regime", "convolution", "between ops"):
        assert any(line.strip().startswith(word) for line in lines), word
    assert any(line.startswith("predicted / measured − 1: ") and " the interval" in line for line in lines)
    worst = lines[lines.index("furthest from predicted:") + 1 :]
    assert all(": measured " in line and ", predicted " in line for line in worst[:3])
    assert lines[-1] == "both written to pair.json"
    pair = rk.Validation.load(tmp_path / "pair.json")
    assert (pair.model, pair.sizes, pair.inputs) == ("Net", {"batch": 2}, ("batch,3,16,16:float32",))
    again = run("net.py:Net", *IMAGE, *CPU, "--out", "pair.json")
    again.refused("pair.json: exists; choose another file, or replace it with --force\n")
    training = run(
        "net.py:Net", *IMAGE, *CPU, "--out", "pair.json", "--force", "--mode", "training", "--optimizer", "SGD"
    )
    assert training.status == 0
    assert json.loads((tmp_path / "pair.json").read_text())["mode"] == "training"


@pytest.mark.parametrize(
    "args",
    [("net.py:Words", "--input", "batch,seq:int64", "--batch", 2, "--seq", 3), ("net.py:unborn", *IMAGE)],
    ids=["token ids", "a model on the meta device"],
)
def test_random_numbers_are_such_as_the_model_can_take(run: Run, args: tuple[object, ...]) -> None:
    assert "furthest" not in run(*args, *CPU, "--no-by-op", "--sync", "none").answered()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("net.py:Net", *IMAGE, *CPU, "--device", "tpu"), "--device 'tpu': expected cuda, cuda:N or cpu"),
        (("net.py:Net", *CPU),
         "--input is missing: the sizes that the model is called with, such as --input batch,3,224,224"),
        (("net.py:Net", *IMAGE, *CPU, "--gpu", "nvidia-l4"), "--gpu: one device is measured; got 2 specifications"),
        (("net.py:Net", *IMAGE, "--device", "cpu", "--gpu", "nvidia-l4"),
         "nvidia-l4 is a GPU, but the model is to run on cpu; name the specification of that"),
        (("net.py:Net", *IMAGE, *CPU, "--execution", "reduce-overhead"),
         "execution 'reduce-overhead': a CPU has no CUDA graphs; choose 'eager' or 'compiled', or a GPU"),
        (("net.py:Net", *IMAGE, *CPU, "--budget", "10"),
         "--budget '10': expected a number of seconds, minutes or hours, such as 90s, 10m or 1h"),
        (("net.py:Net", *IMAGE, *CPU, "--precision", 2),
         "precision: expected a share between 0 and 1, such as 0.01; got 2.0"),
        (("net.py:Net", *IMAGE, *CPU, "--out", "none/pair.json"),
         "none/pair.json: cannot be written: none is no folder"),
        (("net.py:Nett", *IMAGE, *CPU), "net.py has no 'Nett'; did you mean 'Net'?"),
        (("net.py:function", *IMAGE, *CPU), "model: expected a torch.nn.Module to run; got builtin_function_or_method"),
        (("net.py:Net", *IMAGE, *CPU, "--constants", "none.yaml"), "none.yaml: no such file"),
    ],
)  # fmt: skip
def test_wrong_arguments(run: Run, args: tuple[object, ...], message: str) -> None:
    run(*args).refused(f"{message}\n")


def test_the_comparison_as_a_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked("measure", run("net.py:Net", *IMAGE, *CPU, "--no-by-op", "--json").out)
    assert found["error"] == pytest.approx(found["predicted_s"] / found["measured_s"] - 1)
    assert (found["validation"]["model"], found["file"]) == ("Net", None)
    monkeypatch.setattr(host_draft, "measure_host", lambda *_, **__: load_host("generic-server"))
    host = checked("host", run("--host-only", "--device", "cpu", "--json").out)
    assert (host["file"], host["op_s"]) == ("my-host.yaml", load_host("generic-server").dispatch_s("default"))


def test_a_model_that_traces_and_does_not_run(run: Run) -> None:
    run("net.py:Broken", "--input", "4,4", *CPU).refused("Broken", has="has no attribute 'lost'")


def test_a_gpu_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = run("net.py:Net", *IMAGE, "--device", "cuda", "--gpu", "nvidia-l4")
    assert found.err == "rooflinekit: --device cuda:0: PyTorch sees no CUDA GPU on this machine\n"
