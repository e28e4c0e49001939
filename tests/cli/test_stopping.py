"""`rooflinekit calibrate` told to stop: in time, with a whole record, and nothing but the last case measured again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from machines import AVX512, folder_of
from programs import awaited, line_of, started

from rooflinekit.calibrate.bench.record_file import read_record
from rooflinekit.cli import measuring
from rooflinekit.hardware.detection import ROOT

#: Forks the program for each line of its input: where it hangs, after how many cases, what SIGINT and SIGTERM were set
#: to when it was started, where its output goes; and its arguments. Answers with its number, and how it ended.
DRIVER = """
import hashlib, os, signal, sys, time, weakref
from rooflinekit.api import calibrate
from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.calibrate.hosts import draft as host_draft
from rooflinekit.calibrate.links import fitting as link_own
from rooflinekit.calibrate.fitting import refit
from rooflinekit.calibrate.bench import timers
from rooflinekit.calibrate.bench.record_file import Measurement
from rooflinekit.cli import measuring
from rooflinekit.cli.app import main
from rooflinekit.present.text import calibration

measuring._GRACE_S = float(sys.argv[1])

class Timer:
    def __init__(self, where, after):
        self.where, self.left = where, after

    def environment(self):
        return {"torch": "1"}

    def time(self, case, *, turn, warmup, samples, precision):
        print(case.key, turn, flush=True)
        self.left -= 1
        if self.left < 0:
            try:
                HANGS[self.where]()
            except RuntimeError as error:
                return Measurement(case=case, round=turn, status="unsupported", note=str(error))
        # 131 GFLOP/s
        seconds = tuple(case.sizes["m"] * (100 + i) * 1e-8 for i in range(samples))
        return Measurement(case=case, round=turn, status="ok", timing="backend", inner=1, seconds=seconds)

def in_python():
    while True:
        time.sleep(0.01)

def in_one_step():  # as a large product: others may run, but this thread is not back in Python for minutes
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

def heedless():
    while True:
        try:
            in_python()
        except BaseException:
            pass

def in_a_callback():  # of which nothing can be raised
    while True:
        thing = type("", (), {})()
        there = weakref.ref(thing, lambda _: time.sleep(0.2))
        del thing

def turned():  # as a library may make an error of its own of an interrupt
    try:
        in_python()
    except KeyboardInterrupt:
        raise RuntimeError("something went wrong in a kernel")

HANGS = {
    "python": in_python, "step": in_one_step, "heedless": heedless, "callback": in_a_callback, "turned": turned
}
while line := sys.stdin.readline():
    where, after, ignored, out, *arguments = line.split()
    number = os.fork()
    if not number:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored == "ignored" else signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored == "ignored" else signal.SIG_DFL)
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{out}.{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        timers.timer_of = lambda *_: Timer(where, int(after))
        sys.argv = ["rooflinekit", "calibrate", *arguments]
        main()
        sys.stdout.flush()
        os._exit(0)
    print(number, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
"""
#: Seconds that the programs here give to what does not end, and within which they end: with what users wait for
#: instead, 5 s.
GRACE_S = 0.3
WITHIN_S = 5 - (measuring._GRACE_S - GRACE_S)
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
"""


class Ended(NamedTuple):
    status: int
    seconds: float  # after the signal
    cases: list[str]  # that were begun
    err: str


class Program:
    """The program, started again and again."""

    def __init__(self, driver: subprocess.Popen[str], folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def run(self, where: str, after: int, ignored: bool, stop: signal.Signals | None, late: float = 0.1) -> Ended:
        out = self.folder / "run"
        arguments = f"--device cpu --spec {self.folder}/core.yaml --plan {self.folder}/tiny.yaml --out run.jsonl"
        word = "ignored" if ignored else "plain"
        Path(f"{out}.out").unlink(missing_ok=True)  # what the program before has printed is no sign of this one
        print(where, after, word, out, arguments, file=self.driver.stdin, flush=True)
        number = int(line_of(self.driver))
        seconds = 0.0
        if stop is not None:
            printed = Path(f"{out}.out")
            awaited(lambda: printed.exists() and printed.read_text().count("\n") > after, number)
            time.sleep(late)  # in the midst of it
            os.kill(number, stop)
            seconds = time.monotonic()
        status = int(line_of(self.driver))
        seconds = time.monotonic() - seconds
        cases = [line for line in Path(f"{out}.out").read_text().splitlines() if line.startswith("mm ")]
        return Ended(status, seconds, cases, Path(f"{out}.err").read_text())


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "tiny.yaml").write_text(PLAN)
    # One core of 8 GHz, which is faster than what is measured.
    core = ["new", "--from", "generic-cloud-cpu-avx512", "--set", "sm_count=1", "--set", "clock.boost=8 GHz"]
    new = [*core, "--name", "one-core", "--out", str(folder / "core.yaml")]
    subprocess.run([sys.executable, "-m", "rooflinekit", "specs", *new], check=True)
    machine = {**os.environ, ROOT: str(folder_of(folder / "machine", flags=AVX512))}
    command = [sys.executable, "-c", DRIVER, str(GRACE_S)]
    with started(command, stdin=subprocess.PIPE, cwd=folder, env=machine) as process:
        yield Program(process, folder)


@pytest.fixture
def program(driver: Program) -> Program:
    for file in driver.folder.glob("run*"):
        file.unlink()
    return driver


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["python", "step"])
def test_it_ends_in_time_and_goes_on_with_the_last_case(
    program: Program, where: str, stop: signal.Signals, ignored: bool
) -> None:
    found = program.run(where, 2, ignored, stop)
    assert found.seconds < WITHIN_S
    assert found.status == 128 + stop
    assert "what was measured is in run.jsonl; the same command continues\n" in found.err
    assert "Traceback" not in found.err
    record = read_record(program.folder / "run.jsonl")  # raises where it is cut off or changed
    assert len(record.measurements) == 2
    assert len(found.cases) == 3
    again = program.run(where, 1000, ignored, None)
    assert (again.status, again.err) == (0, "")
    # 3 cases in 2 rounds: the one that was interrupted, and the 3 after it
    assert again.cases[0] == found.cases[-1]
    assert len(set(again.cases)) == len(again.cases) == 4
    whole = read_record(program.folder / "run.jsonl")
    assert whole.finished
    assert len(whole.measurements) == 6
    assert {file.name for file in program.folder.glob("run*")} == {
        "run.jsonl", "run-backend.csv", "run.fit.yaml", "run.out", "run.err"
    }  # fmt: skip
    assert list(program.folder.glob(".*")) == []


@pytest.mark.parametrize("where", ["heedless", "callback"])
def test_what_does_not_heed_is_ended(program: Program, where: str) -> None:
    found = program.run(where, 3, False, signal.SIGINT)
    assert found.seconds < WITHIN_S
    assert (found.status, found.err) == (130, "\nwhat was measured is in run.jsonl; the same command continues\n")
    assert len(read_record(program.folder / "run.jsonl").measurements) == 3


@pytest.mark.slow
def test_stopped_again_and_again(program: Program) -> None:
    draw, record = random.Random(24), program.folder / "run.jsonl"
    for _ in range(50):
        stop = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        known = len(read_record(record).measurements) if record.exists() else 0
        after = draw.randrange(6 - known)
        where = draw.choice(["python", "python", "step", "callback", "turned"])
        found = program.run(where, after, draw.random() < 0.5, stop, draw.choice([0, 0.01, 0.1]))
        assert found.seconds < WITHIN_S
        assert found.status == (-stop if stop == signal.SIGKILL else 128 + stop)
        assert "Traceback" not in found.err
        kept = read_record(record).measurements
        assert len(kept) == known + after
        assert {one.status for one in kept} <= {"ok"}
        if len(kept) == 5:
            whole = program.run("python", 1000, False, None)
            assert (whole.status, whole.err) == (0, "")
            assert whole.cases == found.cases[-1:]  # the last alone
            assert len(read_record(record).measurements) == 6
            assert list(program.folder.glob(".*")) == []
            record.unlink()


def test_a_case_that_an_interrupt_has_spoilt_is_measured_again(program: Program) -> None:
    found = program.run("turned", 3, False, signal.SIGTERM)
    assert (found.status, found.err) == (143, "\nwhat was measured is in run.jsonl; the same command continues\n")
    assert [one.status for one in read_record(program.folder / "run.jsonl").measurements] == ["ok"] * 3


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_the_program_is_loaded_leaves_no_traceback() -> None:
    interrupted = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rooflinekit.cli.app':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "from rooflinekit.__main__ import main\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, "", "")
