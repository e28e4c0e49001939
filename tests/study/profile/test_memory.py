"""Memory of a measured run beside a prediction: snapshots written by hand, and the one that the prediction writes."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.profile.memory import read_plain_pickle

MIB = 2**20


@pytest.fixture(scope="module")
def trained() -> rk.Prediction:
    net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 256))
    return rk.predict(net, rk.Input(512, 1024), gpu="nvidia-l4", mode="train", optimizer="Adam")


def entry(action: str, addr: int, size: int, *frames: tuple[str, int, str]) -> dict[str, Any]:
    stack = [dict(zip(("filename", "line", "name"), frame, strict=True)) for frame in frames]
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": stack}


def saved(folder: Path, segments: list[Any], *traces: list[Any]) -> Path:
    file = folder / "run.pickle"
    file.write_bytes(pickle.dumps({"segments": segments, "device_traces": list(traces)}))
    return file


def segment(address: int, total: int, *blocks: tuple[int, str], device: int = 0) -> dict[str, Any]:
    rest = total - sum(size for size, _ in blocks)
    held = [{"size": size, "requested_size": size, "state": state} for size, state in (*blocks, (rest, "inactive"))]
    return {"device": device, "address": address, "total_size": total, "blocks": held}


def test_what_is_written_is_read(trained: rk.Prediction, tmp_path: Path) -> None:
    found = rk.MemoryProfile.read(rk.save_snapshot(trained, tmp_path / "step.pickle"))
    assert (found.peak_bytes, found.reserved_bytes) == (trained.memory.peak_bytes, trained.memory.reserved_bytes)
    beside = found.beside(trained)
    assert (beside.more, beside.less) == ((), ())


def test_a_block_beyond_the_prediction_is_named_by_its_stack(trained: rk.Prediction, tmp_path: Path) -> None:
    file = rk.save_snapshot(trained, tmp_path / "step.pickle")
    snapshot = pickle.loads(file.read_bytes())
    stack = (("CUDACachingAllocator.cpp", 1, "malloc"), ("/x/torch/nn/functional.py", 9, "pad"), ("/u/net.py", 7, "f"))
    # Taken first and kept: 30 MiB that no op of the prediction makes, in a segment of their own.
    snapshot["device_traces"][0][:0] = [
        entry("segment_alloc", 512, 30 * MIB), entry("alloc", 512, 30 * MIB - 100, *stack),
    ]  # fmt: skip
    snapshot["segments"].append(segment(512, 30 * MIB, (30 * MIB, "active_allocated")))
    snapshot["segments"][-1]["blocks"][0]["requested_size"] -= 100
    file.write_bytes(pickle.dumps(snapshot))
    found = rk.MemoryProfile.read(file)
    assert found.reserved_bytes == trained.memory.reserved_bytes + 30 * MIB
    beside = found.beside(trained)
    assert [(one.where, one.count, one.bytes) for one in beside.more] == [("/u/net.py:7 f", 1, 30 * MIB)]
    assert found.peak_bytes - trained.memory.peak_bytes == 30 * MIB
    assert beside.less == ()


def test_a_history_that_begins_in_the_middle(tmp_path: Path) -> None:
    # At the end 1 MiB at 0. Before it 4 MiB from earlier are given back, 2 MiB come and go: 1 + 4, 1 + 4 + 2, …
    trace = [
        entry("alloc", 9 * MIB, 2 * MIB, ("/u/a.py", 3, "g")),
        entry("free_requested", 5 * MIB, 4 * MIB), entry("free_completed", 5 * MIB, 4 * MIB),
        entry("segment_free", 5 * MIB, 20 * MIB), entry("free_requested", 9 * MIB, 2 * MIB),
        {"action": "oom", "size": 1, "device_free": 3, "stream": 0},
    ]  # fmt: skip
    segments = [segment(0, 2 * MIB, (MIB, "active_allocated")), segment(40 * MIB, 20 * MIB)]
    found = rk.MemoryProfile.read(saved(tmp_path, segments, trace))
    assert (found.peak_bytes, found.reserved_bytes) == (7 * MIB, 42 * MIB)
    assert sorted(found.blocks) == [(MIB, "not recorded"), (2 * MIB, "/u/a.py:3 g"), (4 * MIB, "not recorded")]


def test_without_a_history_it_is_what_is_held_on_the_fullest_gpu(tmp_path: Path) -> None:
    segments = [
        segment(0, 2 * MIB, (512, "active_allocated")),
        segment(0, 20 * MIB, (3 * MIB, "active_pending_free"), (4 * MIB, "active_allocated"), device=1),
    ]
    found = rk.MemoryProfile.read(saved(tmp_path, segments))
    assert (found.device, found.devices, found.peak_bytes, found.reserved_bytes) == (1, 2, 4 * MIB, 20 * MIB)


def test_statistics_have_peaks_alone(trained: rk.Prediction, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    file.write_text(json.dumps({"allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 7, "num_ooms": 0}))
    beside = rk.MemoryProfile.read(file).beside(trained)
    document = beside.to_dict()
    assert document["allocated"] == {"measured_bytes": 5, "predicted_bytes": trained.memory.peak_bytes}
    assert (beside.more, beside.less) == ((), ())
    file.write_text('{"allocated_bytes.all.peak": "x"}')
    with pytest.raises(InputError, match=r"has no allocated_bytes\.all\.peak in bytes; expected .*\.pickle, or .*JSON"):
        rk.MemoryProfile.read(file)


class Runs:
    def __reduce__(self) -> Any:
        return print, ("run",)


def tuples(depth: int) -> bytes:
    """A dict whose key is a tuple in a tuple in …: to hash it takes as many calls."""
    return b"\x80\x04}" + b")" + b"\x85" * depth + b"Ns."


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Runs()), b"", b"\x80\x04N", b"no pickle", b"\x80\x04u.", b"\x80\x04)a.", tuples(10**6),
        b"\x80\x04\x96" + (2**60).to_bytes(8, "little") + b".",  # so many bytes are to be made ready
    ],
)  # fmt: skip
def test_a_pickle_of_more_than_plain_values_is_refused(content: bytes, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "bad.pickle"
    file.write_bytes(content)
    with pytest.raises(InputError, match="is no pickle of plain values"):
        read_plain_pickle(file)
    assert capsys.readouterr().out == ""


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no block of memory"):
        rk.MemoryProfile.read(saved(tmp_path, []))
    with pytest.raises(InputError, match=r"is no snapshot of torch\.cuda\.memory: segments\.0\.total_size"):
        rk.MemoryProfile.read(saved(tmp_path, [{"address": 0, "blocks": [], "total_size": -1}]))
    with pytest.raises(InputError, match="history of GPU 0 does not end in its segments"):
        rk.MemoryProfile.read(saved(tmp_path, [], [entry("alloc", 0, 1)]))
    net = rk.predict(nn.Linear(4, 4), rk.Input(4, 4), gpu="generic-cloud-cpu-avx512")
    with pytest.raises(InputError, match="has no caching allocator"):
        rk.MemoryProfile.read(saved(tmp_path, [segment(0, 512)])).beside(net)
