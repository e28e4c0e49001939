"""`rooflinekit calibrate`, as a user meets it, on the CPU at hand."""

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from command_line import Run, caller
from documents import checked
from machines import AMX, AVX2, AVX512, stand_in
from programs import awaited, started

from rooflinekit.calibrate.bench.record_file import read_record
from rooflinekit.calibrate.campaigns.campaign import read_campaign
from rooflinekit.calibrate.local_hardware import hardware as local_hardware
from rooflinekit.calibrate.local_hardware.cpu import Rates
from rooflinekit.hardware.specs import load_device, load_host

PLAN = """
schema: 1
name: tiny
cpu:
  warmup: 1
  samples: 5
  precision: 0.5
  rounds: 2
  threads: [1]
  cases:
    - {op: mm, dtypes: [fp32], sizes: {m: [64, 128, 256], n: 256, k: 256}}
    - {op: add, dtypes: [fp32, fp8], sizes: {rows: [64, 1024], cols: 1024}}
"""
SPEC = ("--device", "cpu", "--spec", "one-core.yaml")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    stand_in(monkeypatch, tmp_path / "machine", flags=AVX512)
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capsys)


@pytest.fixture
def run(call: Run, tmp_path: Path) -> Run:
    (tmp_path / "tiny.yaml").write_text(PLAN)
    # One core of 8 GHz: measurements of a machine that is faster than its specification are refused.
    core = ("new", "--from", "generic-cloud-cpu-avx512", "--set", "sm_count=1", "--set", "clock.boost=8 GHz")
    assert call("specs", *core, "--name", "one-core", "--out", "one-core.yaml").status == 0
    return partial(call, "calibrate")


def test_measures_fits_and_goes_on(run: Run, tmp_path: Path) -> None:
    lines = run(*SPEC, "--plan", "tiny.yaml", "--only", "mm", "--out", "run.jsonl").answered().splitlines()
    # 3 products and 4 sums, each in 2 rounds
    assert lines[0] == "one-core, plan tiny: 6 of 14 measurements"
    assert lines[-1] == "samples in run.jsonl, medians in run-backend.csv, constants in run.fit.yaml"
    before = (tmp_path / "run.jsonl").read_bytes()

    said = run(*SPEC, "--plan", "tiny.yaml", "--out", "run.jsonl").answered()
    assert said.splitlines()[0] == "one-core, plan tiny: 14 of 14 measurements"
    assert "warning: 2 cases were unsupported, such as add fp8 " in said
    assert (tmp_path / "run.jsonl").read_bytes().startswith(before)
    assert read_record(tmp_path / "run.jsonl").finished
    found = read_campaign(tmp_path / "run-backend.csv")
    assert (found.gpu, found.timing, len(found.rows)) == ("one-core", "backend", 5)
    fit = (tmp_path / "run.fit.yaml").read_text().splitlines()
    assert fit[0] == "# Constants of one-core. Made by `rooflinekit calibrate` from run.jsonl."
    # Nothing is left to measure: the third run only fits.
    whole = (tmp_path / "run.jsonl").read_bytes()
    assert run(*SPEC, "--plan", "tiny.yaml", "--out", "run.jsonl").out == said
    assert (tmp_path / "run.jsonl").read_bytes() == whole


def test_the_host_alone(run: Run, call: Run, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(
        "schema: 1\nname: host\ncpu: {warmup: 1, samples: 5, precision: 0.5, rounds: 1, cases: ["
        "{op: [issue_default, issue_view], dtypes: [fp32]}, {op: sync, dtypes: [fp32]}]}\n"
    )
    said = run(*SPEC, "--plan", "host.yaml", "--out", "run.jsonl").answered()
    lines = said.splitlines()
    assert lines[0] == "one-core, plan host: 3 of 3 measurements"
    assert [line.split()[0] for line in lines if line.startswith(" issue_")] == ["issue_default", "issue_view"]
    assert "warning: 1 cases were unsupported, such as sync fp32 threads=1: sync needs a GPU" in lines
    assert lines[-1] == "samples in run.jsonl, host in run-host.yaml"  # nothing to fit
    host = load_host(tmp_path / "run-host.yaml")
    assert host.name == "one-core-host"
    predicted = call(
        "predict", Path(__file__).parents[2] / "examples/bottlenecks.py:A", "--input", "1,64,32,32",
        "--gpu", "nvidia-l4", "--host", "run-host.yaml",
    )  # fmt: skip
    assert (predicted.status, predicted.err) == (0, "")
    # The same command again measures nothing and writes the same host.
    before = (tmp_path / "run-host.yaml").read_text()
    assert run(*SPEC, "--plan", "host.yaml", "--out", "run.jsonl").out == said
    assert (tmp_path / "run-host.yaml").read_text() == before
    document = checked("calibrate", run(*SPEC, "--plan", "host.yaml", "--out", "run.jsonl", "--json").out)
    assert document["files"] == {"samples": ["run.jsonl"], "host": ["run-host.yaml"]}
    assert (document["measurements"], document["left"], document["fit"]) == (3, 0, None)


def test_a_cpu_with_more_or_less_than_the_specification(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = (*SPEC, "--plan", "tiny.yaml", "--only", "mm", "--out", "run.jsonl")
    stand_in(monkeypatch, tmp_path / "amx", flags=AMX)
    found = run(*options)
    assert (found.status, found.err) == (
        0,
        "note: --spec one-core: its vectors are avx512, those of the CPU here avx512-amx: what PyTorch computes with "
        "more than the specification has may be faster than its peaks\n",
    )
    stand_in(monkeypatch, tmp_path / "avx2", flags=AVX2)
    run(*options).refused(
        "--spec one-core: its vectors are avx512, the CPU here has avx2 and lacks them: pass the specification of this "
        "CPU, or none\n"
    )


def test_a_budget(run: Run, tmp_path: Path) -> None:
    found = run(*SPEC, "--plan", "tiny.yaml", "--only", "product", "--budget", "0s")
    found.refused("one-core: no case is measured yet, so nothing can be fitted\n")
    assert read_record(tmp_path / "one-core-tiny.jsonl").measurements == ()


@pytest.mark.usefixtures("interruptible")
def test_interrupted(run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rooflinekit", "calibrate", *SPEC, "--plan", "standard", "--out", "run.jsonl"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with started(command, stderr=subprocess.PIPE, env=environment) as process:
        record = tmp_path / "run.jsonl"
        awaited(lambda: record.exists() and record.read_bytes().count(b"\n") >= 3, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # Versions of typer differ in whether they hand the interrupt on to be named once more.
    assert err.removesuffix("rooflinekit: interrupted\n") == (
        "\nwhat was measured is in run.jsonl; the same command continues\n"
    )
    assert len(read_record(tmp_path / "run.jsonl").measurements) >= 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--device", "tpu"), "--device 'tpu': expected cuda, cuda:N or cpu"),
        (("--device", "cuda:x"), "--device 'cuda:x': expected cuda, cuda:N or cpu"),
        ((*SPEC, "--budget", "10"),
         "--budget '10': expected a number of seconds, minutes or hours, such as 90s, 10m or 1h"),
        ((*SPEC, "--plan", "quik"),
         "no plan 'quik'; did you mean 'quick'? (known: full, quick, standard, or a FILE.yaml)"),
        ((*SPEC, "--plan", "tiny.yaml", "--only", "softmax"),
         "--only 'softmax': plan tiny has no such op or family (it has add, elementwise, mm, product)"),
        ((*SPEC, "--plan", "tiny.yaml", "--out", "tiny.yaml"),
         "tiny.yaml: line 1: is not of a campaign that rooflinekit has measured; choose another --out to begin anew"),
        ((*SPEC, "--plan", "tiny.yaml", "--out", "tiny.yaml/run.jsonl"),
         "tiny.yaml/run.jsonl: cannot be written: File exists"),
    ],
)  # fmt: skip
def test_wrong_arguments(run: Run, args: tuple[str, ...], message: str) -> None:
    run(*args).refused(f"{message}\n")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_no_record(run: Run, tmp_path: Path, device: str) -> None:
    (tmp_path / "run.jsonl").symlink_to(device)
    found = run(*SPEC, "--plan", "tiny.yaml", "--out", "run.jsonl")
    found.refused("run.jsonl: is no file but a device or pipe; choose another name\n")
    assert (tmp_path / "run.jsonl").is_symlink()


@pytest.mark.parametrize("limit", [0, 1000, 30_000])
def test_a_limit_on_files_is_one_line(run: Run, tmp_path: Path, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        found = run(*SPEC, "--plan", "tiny.yaml", "--only", "mm", "--out", "run.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if limit < 30_000:  # 14 lines of 870 bytes at most are tried out beforehand
        found.refused("run.jsonl: cannot be written: File too large\n")
        assert not (tmp_path / "run.jsonl").exists()
    else:
        assert (found.status, found.err) == (0, "")
        assert len(read_record(tmp_path / "run.jsonl").measurements) == 6


def test_what_is_made_of_samples_can_be_made_later(run: Run, tmp_path: Path) -> None:
    options = (*SPEC, "--plan", "tiny.yaml", "--only", "mm", "--out", "run.jsonl")
    (tmp_path / "run.fit.yaml").mkdir()
    run(*options).refused(
        "run.fit.yaml: cannot be written: Is a directory; what was measured is in run.jsonl, the same command "
        "continues\n"
    )
    before = (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "run.fit.yaml").rmdir()
    assert run(*options).status == 0
    assert (tmp_path / "run.jsonl").read_bytes() == before
    assert (tmp_path / "run.fit.yaml").is_file()


def test_a_cpu_without_a_specification(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_hardware, "usable_cores", lambda: 4)
    monkeypatch.setattr(
        "rooflinekit.calibrate.local_hardware.cpu.measured_rates",
        lambda cores: Rates(flops=cores * 1e11, bandwidth=4e10),
    )
    # for `measure`, which keeps no file
    assert local_hardware.specification("cpu", 0, None).display_name == "Some CPU @ 3.00GHz"
    assert not list(tmp_path.glob("some-cpu*"))
    # `calibrate` keeps it beside the samples
    found = run("--device", "cpu", "--plan", "tiny.yaml", "--budget", "0s", "--out", "run.jsonl")
    found.refused("some-cpu-3-00ghz: no case is measured yet, so nothing can be fitted\n")
    assert load_device(str(tmp_path / "run-cpu.yaml")).display_name == "Some CPU @ 3.00GHz"


def test_a_gpu_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--device", "cuda").err == "rooflinekit: --device cuda:0: PyTorch sees no CUDA GPU on this machine\n"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run("--device", "cuda:2").err == ("rooflinekit: --device cuda:2: PyTorch sees 2 CUDA GPUs, counted from 0\n")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA Z9000")
    assert run("--device", "cuda:1").err == (
        "rooflinekit: no specification of 'NVIDIA Z9000' is known; write one with `rooflinekit specs detect --out "
        "mine.yaml`, fill in what is left empty, and pass --spec mine.yaml\n"
    )
