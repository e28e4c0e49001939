"""Profilers' traces: what is read from a few events is what a person reads from them."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from traces import call, document, event, launched, step, two_steps, write

import rooflinekit as rk
from rooflinekit.calibrate.local_hardware.trace import read_trace
from rooflinekit.errors import CampaignError, ComparisonError, InputError
from rooflinekit.study.profile.profile import period

US = 1e-6


def read(content: Any, folder: Path, name: str = "trace.json", **options: Any) -> rk.Profile:
    return rk.Profile.read(write(content, folder / name), **options)


def micros(seconds: float) -> float:
    return round(seconds / US, 3)


def test_steps_that_nothing_marks_are_rounds_of_the_same_calls(tmp_path: Path) -> None:
    # 100 µs of setup, then three rounds of 40 µs: a product, relu and a product of elements, each with a kernel of 5 µs
    events = [call("aten::empty", 0, 10), call("aten::fill_", 20, 30)]
    for number, at in enumerate((100, 140, 180)):
        for place, name in enumerate(("aten::linear", "aten::relu", "aten::mul")):
            begin = at + 10 * place
            events += [call(name, begin, begin + 8), call("aten::within", begin + 1, begin + 7)]
            events += launched(name, begin + 2, begin + 4, begin + 9, 3 * number + place + 1)
    found = read(document(*events), tmp_path)
    assert (found.mark, found.steps, found.launched) == ("rounds of the same calls", 3, 3)
    # the last round ends with its last kernel, 29 µs after it began: (40 + 40 + 29) / 3
    assert (micros(found.wall_s), micros(found.busy_s)) == (round(109 / 3, 3), 15)
    whole = read(document(*events), tmp_path, mark="")
    assert (whole.mark, whole.steps, whole.launched) == ("", 1, 9)


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        ("abcabcabc", (3, 3)),
        ("xyabcdabcd", (4, 2)),
        ("abcdabcd", (4, 2)),
        ("abcbcbc", (0, 0)),  # two calls that repeat are layers of a step
        ("uvwxyzabcabc", (3, 2)),
        ("uvwxyzaabcabc", (0, 0)),  # less than half of the calls
        ("e" + "lnr" * 4 + "h" + "e" + "lnr" * 4 + "h", (14, 2)),  # layers repeat within a step, between its ends
        ("", (0, 0)),
    ],
)
def test_a_period_is_the_shortest_that_the_end_repeats(names: str, rounds: tuple[int, int]) -> None:
    assert period([*map(ord, names)]) == rounds


def test_the_sample_is_read_by_its_name() -> None:
    found = rk.Profile.read("sample")
    assert (found.steps, found.mark, found.regime) == (3, "ProfilerStep", "CPU only")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_two_steps_by_hand(tmp_path: Path, name: str) -> None:
    found = read(two_steps(), tmp_path, name)
    assert (found.mark, found.steps, found.device, found.devices) == ("ProfilerStep", 2, "NVIDIA L4", 1)
    assert micros(found.wall_s) == 100
    # 20 + 4 + 5 + 2 and 24 + 4 + 2, of two steps
    assert micros(found.busy_s) == (31 + 30) / 2
    # 0–30, 54–60, 65–80, 82–130, 158–180, 182–200; the copy of 54–60 had been launched at 41
    assert found.gaps == 6 / 2
    assert micros(found.late_s) == (30 + 15 + 48 + 22 + 18) / 2
    assert micros(found.idle_s - found.late_s) == 6 / 2
    assert found.unknown_s == 0
    assert found.regime == "CPU-bound"
    assert found.launched == 7 / 2
    assert micros(found.median_s) == 4  # of 2 2 4 4 5 20 24
    assert found.small_kernels
    kernels = {one.name: (one.count, micros(one.seconds)) for one in found.kernels}
    assert kernels == {"gemm": (1, 22), "relu": (1, 4), "Memcpy HtoD (Pageable -> Device)": (0, 2.5), "mul": (1, 2)}
    assert found.by_kernel()["share"].sum() == pytest.approx(1)
    # the last step made no copy, so that the first is not like it
    ops = [(op.depth, op.name, micros(op.seconds)) for op in found.ops]
    assert ops == [(0, "aten::linear", 24), (1, "aten::addmm", 24), (0, "aten::relu_", 4), (0, "aten::mul", 2)]


def test_a_busy_gpu_sets_the_pace(tmp_path: Path) -> None:
    # launched ahead of time, 10–55 and 55–98 of 100
    events = [*launched("a", 1, 10, 55, 1), *launched("b", 3, 55, 98, 2), step(1, 0, 100)]
    found = read(document(*events), tmp_path)
    assert (found.regime, micros(found.busy_s), found.small_kernels) == ("GPU-bound", 88, False)


def test_idle_with_work_in_the_queue_is_waiting(tmp_path: Path) -> None:
    # launched at 1 and 3, running 10–20 and 90–100: of 80 µs of gaps only the first 10 had nothing launched before
    events = [*launched("a", 1, 10, 20, 1), *launched("b", 3, 90, 100, 2), step(1, 0, 100)]
    found = read(document(*events), tmp_path)
    assert (found.regime, micros(found.idle_s), micros(found.late_s)) == ("waiting", 80, 10)
    unknown = read(document(events[1], events[3], events[4]), tmp_path)
    assert (unknown.regime, micros(unknown.late_s), micros(unknown.unknown_s)) == ("waiting", 0, 80)


def test_streams_that_overlap_are_busy_once(tmp_path: Path) -> None:
    events = [*launched("a", 1, 10, 60, 1), *launched("b", 2, 20, 40, 2), *launched("c", 3, 50, 90, 3), step(1, 0, 100)]
    found = read(document(*events), tmp_path)
    assert (micros(found.busy_s), found.gaps) == (80, 2)  # 10–90
    assert sum(micros(one.seconds) for one in found.kernels) == 50 + 20 + 40


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    # the second runs until 130, after its step has ended: the steps last 0–130
    events = [*launched("a", 5, 10, 60, 1), *launched("b", 95, 110, 130, 2), step(1, 0, 50), step(2, 50, 100)]
    found = read(document(*events, *launched("later", 120, 200, 300, 3)), tmp_path)
    assert (micros(found.wall_s), micros(found.busy_s), found.launched) == (65, 35, 1)


def test_autograd_launches_from_a_thread_of_its_own(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100), call("aten::mm", 10, 20), *launched("forward", 15, 20, 30, 1),
        call("MmBackward0", 40, 60, tid=2), call("aten::mm", 42, 58, tid=2),
        *launched("backward", 50, 55, 75, 2, tid=2),
        *launched("alone", 90, 92, 95, 3),
    ]  # fmt: skip
    ops = [(op.depth, op.name, micros(op.seconds)) for op in read(document(*events), tmp_path).ops]
    assert ops == [(0, "aten::mm", 10), (0, "MmBackward0", 20), (1, "aten::mm", 20), (0, "alone", 3)]


def test_the_busiest_of_several_gpus_is_read(tmp_path: Path) -> None:
    events = [*launched("a", 1, 10, 20, 1), *launched("b", 2, 10, 40, 2, device=1), step(1, 0, 50)]
    found = read(document(*events, devices=("NVIDIA L4", "NVIDIA T4")), tmp_path)
    assert (found.device, found.devices, [one.name for one in found.kernels]) == ("NVIDIA T4", 2, ["b"])


def test_marks_of_the_user_are_steps(tmp_path: Path) -> None:
    marks = [event("user_annotation", name, start, end) for name, start, end in (
        ("train", 0, 40), ("loss", 10, 20), ("train", 60, 100), ("Optimizer.step#SGD.step", 0, 1000)
    )]  # fmt: skip
    events = [*marks, *launched("a", 5, 10, 30, 1), *launched("b", 45, 50, 55, 2), *launched("c", 65, 70, 80, 3)]
    found = read(document(*events), tmp_path)
    # what lies between the marks is in no step
    assert (found.mark, found.steps, micros(found.wall_s), micros(found.busy_s)) == ("train", 2, 40, 15)
    assert read(document(*events), tmp_path, mark="loss").steps == 1
    with refused(InputError, "trace.json: no mark 'trian' in it; did you mean 'train'?"):
        read(document(*events), tmp_path, mark="trian")


def test_without_marks_the_trace_is_one_step_and_may_be_a_list(tmp_path: Path) -> None:
    found = read([*launched("a", 5, 10, 30, 1), call("aten::mul", 0, 8)], tmp_path)
    assert (found.mark, found.steps, micros(found.wall_s), found.device) == ("", 1, 30, "")


def test_measured_beside_predicted(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True))
    predicted = rk.predict(model, rk.Input(32, 64), gpu="nvidia-l4")
    found = read(two_steps(), tmp_path).beside(predicted)
    table = found.by_op()
    assert [(name, row["module"], micros(row["measured_s"])) for name, row in table.iterrows()] == [
        ("addmm", "0", 24), ("relu_", "1", 4), ("mul", "", 2), ("between ops", "", 70)  # 100 − 30
    ]  # fmt: skip
    assert table["predicted_s"].sum() == pytest.approx(predicted.total_s)
    assert found.by_kind()["measured_s"].sum() == pytest.approx(100 * US)
    assert found.error == pytest.approx(predicted.total_s / (100 * US) - 1)
    assert found.gpu_error == pytest.approx(predicted.gpu_s / (30 * US) - 1)
    assert json.loads(json.dumps(found.to_dict()))["profile"]["regime"] == "CPU-bound"


def test_a_gpu_is_not_compared_with_a_cpu(tmp_path: Path) -> None:
    relu = nn.ReLU()
    with refused(
        ComparisonError,
        "trace.json: the trace holds kernels of a GPU, and amd-epyc-7763 is a CPU; predict for what was profiled",
    ):
        read(two_steps(), tmp_path).beside(rk.predict(relu, rk.Input(8), gpu="amd-epyc-7763"))
    on_cpu = read(document(call("aten::relu", 0, 5)), tmp_path)
    with refused(
        ComparisonError,
        "trace.json: the trace holds no kernels of a GPU, and nvidia-l4 is a GPU; predict for what was profiled",
    ):
        on_cpu.beside(rk.predict(relu, rk.Input(8), gpu="nvidia-l4"))


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_real_trace_of_this_cpu(tmp_path: Path, suffix: str) -> None:
    model, x, file = nn.Sequential(nn.Linear(64, 128), nn.ReLU()), torch.randn(32, 64), tmp_path / f"real.{suffix}"
    with torch.no_grad(), profile(
        activities=[ProfilerActivity.CPU], with_stack=True, schedule=schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(file)), acc_events=True,
    ) as profiler:  # fmt: skip
        for _ in range(4):
            model(x)
            profiler.step()
    found = rk.Profile.read(file)
    assert (found.mark, found.steps, found.regime, found.kernels) == ("ProfilerStep", 3, "CPU only", ())
    names = [(op.depth, op.name) for op in found.ops]
    assert names[0] == (0, "aten::linear")
    assert [name for name in names if name[1] in ("aten::addmm", "aten::relu")] == [
        (1, "aten::addmm"),
        (0, "aten::relu"),
    ]
    assert 0 < sum(op.seconds for op in found.ops if op.depth == 0) <= found.wall_s * 3
    beside = found.beside(rk.predict(model, rk.Input(32, 64), gpu="amd-epyc-7763"))
    matched = {op.name: (op.module, op.count) for op in beside.ops if op.predicted_s}
    assert matched == {"addmm": ("0", 1), "relu": ("1", 1)}


def test_a_real_mark_of_record_function(tmp_path: Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            with record_function("train"):
                model(x).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "real.json"))
    found = rk.Profile.read(tmp_path / "real.json")
    assert (found.mark, found.steps) == ("train", 2)
    assert "AddmmBackward0" in {op.name for op in found.ops}


EXPECTED = "expected JSON of torch.profiler's export_chrome_trace; "
EARLY = EXPECTED + "the file ends early: export it again, or copy it whole"
EMPTY = EXPECTED + "got no kernel and no operator in it"
WHOLE = json.dumps(two_steps()).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (WHOLE[: len(WHOLE) // 2], EARLY),
        (WHOLE[:-1], EARLY),
        (b"", EARLY),
        (b"hello", EXPECTED + "got no JSON"),
        (b'{"traceEvents": [}', EXPECTED + "got no JSON"),
        (b"\x80\x81\x00", EXPECTED + "got no JSON"),
        (b'{"model": "a", "layers": [1, 2]}', EMPTY),
        (b'{"traceEvents": 3}', EMPTY),
        (b'{"traceEvents": [1, null, "x", [], {}]}', EMPTY),
        (b"[1, 2]", EMPTY),
        (b'"text"', EMPTY),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]}', EMPTY),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}', EMPTY),
        (b"\x1f\x8b\x08\x00damaged", "the compressed file is damaged or ends early; copy or export it again"),
    ],
    ids=range(14),
)
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with refused(CampaignError, f"{file}: {reason}"):
        rk.Profile.read(file)


def test_a_truncated_archive_and_no_file_are_refused(tmp_path: Path) -> None:
    file = write(two_steps(), tmp_path / "trace.json.gz")
    file.write_bytes(file.read_bytes()[:-200])
    with refused(CampaignError, f"{file}: the compressed file is damaged or ends early; copy or export it again"):
        rk.Profile.read(file)
    with refused(CampaignError, f"{tmp_path}/none.json: cannot be read: No such file or directory"):
        rk.Profile.read(tmp_path / "none.json")


# The peak of this process's own memory: getrusage's begins with that of the process that started it.
_PEAK = """
import re, sys
import rooflinekit as rk
seen = []
found = rk.Profile.read(sys.argv[1], progress=seen.append)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())
print(int(peak[1]) * 1024, found.steps, len(found.kernels))
assert seen == sorted(seen) and 0 <= seen[0] and 0.9 < seen[-1] <= 1 and len(seen) > 100
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_trace_of_200_mb_takes_little_memory(tmp_path: Path) -> None:
    """Almost all of it stacks and arguments, as with_stack and record_shapes write them."""

    def peak(file: Path) -> tuple[int, ...]:
        run = [sys.executable, "-c", _PEAK.replace("len(seen) > 100", "True") if file is small else _PEAK, str(file)]
        return tuple(map(int, subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()))

    small, large = write(two_steps(), tmp_path / "small.json"), tmp_path / "large.json"
    stack = json.dumps(event("python_function", f"{'f' * 1000}", 0, 5)).encode()
    head, tail = json.dumps(two_steps()).encode().split(b'"traceEvents": [')
    with large.open("wb") as out:
        out.write(head + b'"traceEvents": [')
        for i in range(2000):
            ops = [json.dumps(call("aten::mul", at / 200, at / 200 + 0.004)) for at in range(10 * i, 10 * i + 10)]
            out.write((stack + b",\n") * 90 + "".join(f"{op},\n" for op in ops).encode())
        out.write(tail)
    assert large.stat().st_size > 200e6
    (base, *_), (most, steps, kernels) = peak(small), peak(large)
    assert (steps, kernels) == (2, 4)
    assert most - base < 60e6


def test_of_an_event_that_counts_a_few_numbers_are_kept(tmp_path: Path) -> None:
    """300 MB of calls and kernels, a thousand letters each, need no 300 MB either."""

    def peak(count: int) -> int:
        calls = [call(f"aten::relu{i % 10}", 10 * i, 10 * i + 5) | {"padding": "x" * 800} for i in range(count)]
        file = write(document(*calls), tmp_path / f"{count}.json")
        tracemalloc.start()
        assert len(read_trace(file).calls) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    # six columns of 8 bytes, and once more while they become arrays; a list grows by an eighth beyond what it holds
    assert peak(6000) - peak(1000) < 5000 * 200
