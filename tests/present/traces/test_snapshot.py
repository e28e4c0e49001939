"""A predicted step as PyTorch's memory snapshot: the blocks of the prediction, as torch's own reader finds them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.cuda._memory_viz import segsum, trace

import rooflinekit as rk
from rooflinekit.errors import InputError, OutputError

MIB = 2**20


def snapshot(p: rk.Prediction, folder: Path) -> Any:
    return pickle.loads(rk.save_snapshot(p, folder / "step.pickle").read_bytes())


@pytest.fixture(scope="module")
def trained() -> rk.Prediction:
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 30 * 30, 10))
    return rk.predict(net, rk.Input(64, 3, 32, 32), gpu="nvidia-l4", mode="train", optimizer="Adam")


def test_peaks_are_those_of_the_prediction(trained: rk.Prediction, tmp_path: Path) -> None:
    (entries,) = snapshot(trained, tmp_path)["device_traces"]
    reserved = sum(e["size"] for e in entries if e["action"] == "segment_alloc")
    assert reserved == trained.memory.reserved_bytes
    alive = most = 0
    for entry in entries:
        whole = -(-entry["size"] // 512) * 512
        alive += {"alloc": whole, "free_completed": -whole}.get(entry["action"], 0)
        most = max(most, alive)
    # A large block keeps a rest of up to 1 MiB of its segment, which `peak_bytes` leaves out: both count as here.
    assert most == trained.memory.peak_bytes
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)


def test_a_forward_pass_by_hand(tmp_path: Path) -> None:
    # 1024 x 1024 weights in fp32 are 4 MiB, 256 x 1024 inputs and results 1 MiB each; cuBLAS keeps 8 MiB and 128 KiB.
    net = nn.Linear(1024, 1024, bias=False)
    found = snapshot(rk.predict(net, rk.Input(256, 1024), gpu="nvidia-l4"), tmp_path)
    taken = [e["size"] for e in found["device_traces"][0] if e["action"] == "alloc"]
    assert sorted(taken) == [MIB, MIB, 4 * MIB, 8 * MIB + 128 * 1024]
    # 1 + 1 in a small segment of 2 MiB; 4 + 8.125 in a large one of 20.
    assert sorted(s["total_size"] for s in found["segments"]) == [2 * MIB, 20 * MIB]
    assert [sum(b["size"] for b in s["blocks"]) for s in found["segments"]] == [
        s["total_size"] for s in found["segments"]
    ]


def test_torch_reads_it(trained: rk.Prediction, tmp_path: Path) -> None:
    found = snapshot(trained, tmp_path)
    assert f"segments: {len(found['segments'])}" in segsum(found)  # raises where blocks do not fill their segments
    assert "cudaMalloc" in trace(found)
    names = {frame["name"] for entry in found["device_traces"][0] for frame in entry["frames"]}
    assert {"weights", "optimizer state", "activations", "gradients", "aten.convolution (forward)"} <= names


def test_refusals(trained: rk.Prediction, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"ends in \.pickle"):
        rk.save_snapshot(trained, tmp_path / "step.json")
    on_cpu = rk.predict(nn.Linear(8, 8), rk.Input(2, 8), gpu="amd-epyc-7763")
    with pytest.raises(InputError, match="expected a GPU"):
        rk.save_snapshot(on_cpu, tmp_path / "step.pickle")
    with pytest.raises(OutputError, match="none"):
        rk.save_snapshot(trained, tmp_path / "none" / "step.pickle")
