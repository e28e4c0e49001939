"""A campaign's file survives whatever ends the run, and is refused when somebody else has been at it."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from programs import line_of, started
from records import case
from refusals import refused

from rooflinekit.calibrate.bench import record_file
from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, read_record, recording, write_record
from rooflinekit.errors import CampaignError, OutputError
from rooflinekit.files import write_text

HEAD = Head(device="nvidia-t4", plan="tiny", digest="d1", units=6, environment={"torch": "2.13", "driver": "580"})


def measurement(rows: int, turn: int = 0) -> Measurement:
    made, seconds = case("add", rows=rows, cols=8), (rows * 1e-6, rows * 1.1e-6)
    return Measurement(case=made, round=turn, status="ok", timing="graph", inner=10, seconds=seconds)


def written(file: Path, count: int = 3, *, finish: bool = False) -> None:
    with recording(file, HEAD, 1000) as recorder:
        for rows in range(1, count + 1):
            recorder.append(measurement(rows))
        if finish:
            recorder.finish()


# --- round trip -------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "run.jsonl"
    written(file)
    failed = replace(
        measurement(9, 1), status="out of memory", seconds=(), note='tried 2 GiB — "no"', state={"power": 70.5}
    )
    with recording(file, HEAD, 1000) as recorder:
        assert set(recorder.done) == {(measurement(rows).case.key, 0) for rows in (1, 2, 3)}
        recorder.append(failed)
    found = read_record(file)
    assert found.head == HEAD
    assert found.measurements == (*(measurement(rows) for rows in (1, 2, 3)), failed)
    assert not found.finished
    with recording(file, HEAD, 1000) as recorder:
        recorder.finish()
        recorder.finish()  # once is enough
    assert read_record(file).finished
    assert len(file.read_text().splitlines()) == 1 + 4 + 1


@pytest.mark.parametrize("finish", [True, False])
def test_a_record_written_as_a_whole_is_the_one_that_grew(tmp_path: Path, finish: bool) -> None:
    grown, whole = tmp_path / "grown.jsonl", tmp_path / "whole.jsonl"
    written(grown, 3, finish=finish)
    write_record(read_record(grown), whole)
    assert whole.read_bytes() == grown.read_bytes()
    with refused(OutputError, f"{whole}: exists; choose another file, or replace it with --force"):
        write_record(read_record(grown), whole)
    write_record(Recorded(head=HEAD, measurements=(), finished=False), whole, force=True)
    assert read_record(whole).measurements == ()


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_cut_off_anywhere_in_the_last_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    written(file, 2)
    whole = file.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for length in range(last + 1, len(whole)):
        file.write_bytes(whole[:length])
        with refused(
            CampaignError, f"{file}: line 3: is cut off; 'rooflinekit calibrate' with the same --out measures it again"
        ):
            read_record(file)
        with recording(file, HEAD, 10) as recorder:
            assert list(recorder.done) == [(measurement(1).case.key, 0)]
            recorder.append(measurement(2))
        assert file.read_bytes() == whole


def test_a_line_that_is_written_outlives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write = tmp_path / "run.jsonl", os.write

    def told(descriptor: int, line: bytes) -> int:
        write(descriptor, line)
        raise KeyboardInterrupt  # which comes before the number of bytes does

    with recording(file, HEAD, 10) as recorder:
        monkeypatch.setattr(os, "write", told)
        with pytest.raises(KeyboardInterrupt):
            recorder.append(measurement(1))
        monkeypatch.undo()
    assert read_record(file).measurements == (measurement(1),)


def test_cut_off_anywhere_in_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    written(file, 0)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with recording(file, HEAD, 10):
            pass
        assert file.read_bytes() == whole


@pytest.mark.parametrize("whole", [0, 20])
def test_zeros_that_a_crash_of_the_machine_has_left(tmp_path: Path, whole: int) -> None:
    file = tmp_path / "run.jsonl"
    written(file, 1)
    content = file.read_bytes()
    head = content[: content.index(b"\n")]
    file.write_bytes(head[:whole] + bytes(3000))  # of the first line
    written(file, 1)
    assert file.read_bytes() == content
    file.write_bytes(content + bytes(3000))  # of a further one
    opened(file)
    assert file.read_bytes() == content


#: Imports once, then forks a run for each line that it is sent: says its process, and how it ended.
DRIVER = """
import os, sys, time
from pathlib import Path
from rooflinekit.calibrate.bench.plan import load_plan
from rooflinekit.calibrate.bench.record_file import Measurement, recording
from rooflinekit.calibrate.bench.session import head_of, measure

class Timer:
    def time(self, case, *, turn, warmup, samples, precision):
        time.sleep(0.004)
        seconds = tuple(case.sizes["rows"] * (turn + 1) * (1 + i) * 1e-6 for i in range(samples))
        return Measurement(case=case, round=turn, status="ok", timing="graph", inner=1, seconds=seconds)

plan = load_plan(sys.argv[1], "cuda")
for line in sys.stdin:
    process = os.fork()
    if not process:
        with recording(Path(line.strip()), head_of(plan, "nvidia-t4", {"torch": "1"}), 1000) as recorder:
            print(os.getpid(), flush=True)
            measure(plan, Timer(), recorder)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
TINY = """
schema: 1
name: tiny
cuda:
  warmup: 1
  samples: 40
  precision: 0.5
  rounds: 3
  cases: [{op: add, dtypes: [fp32, fp16], sizes: {rows: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], cols: [8, 16]}}]
"""


def content(found: Recorded) -> tuple[Head, dict[tuple[str, int], tuple[float, ...]], bool]:
    return found.head, {(one.case.key, one.round): one.seconds for one in found.measurements}, found.finished


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    undisturbed, file = tmp_path / "undisturbed.jsonl", tmp_path / "killed.jsonl"
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "tiny.yaml")]
    draw, seen, interrupted = random.Random(7), 0, 0
    with started(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as runs:

        def start(target: Path) -> int:
            print(target, file=runs.stdin, flush=True)
            return int(line_of(runs))

        start(undisturbed)
        assert int(line_of(runs)) == 0
        # 2 formats × 10 × 2 sizes, in 3 rounds
        assert len(read_record(undisturbed).measurements) == 120
        for _ in range(kills):
            process = start(file)
            time.sleep(draw.uniform(0, 0.8 / kills))
            os.kill(process, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
            interrupted += int(line_of(runs)) != 0
            lines = file.read_bytes().count(b"\n")
            assert lines >= seen  # nothing that was finished is lost
            seen = lines
        assert interrupted > kills // 2
        start(file)
        assert int(line_of(runs)) == 0
    found = read_record(file)
    assert content(found) == content(read_record(undisturbed))
    assert len(found.measurements) == 120  # and nothing was measured twice


# --- somebody else's --------------------------------------------------------------------------------------------------


def opened(file: Path, head: Head = HEAD) -> None:
    with recording(file, head, 10):
        pass


CHANGED = "was changed, added or taken from elsewhere after it was measured"
FOREIGN = "is not of a campaign that rooflinekit has measured"


@pytest.mark.parametrize(
    ("edit", "line", "reason"),
    [
        (lambda text: text.replace("1e-06", "2e-06", 1), 2, CHANGED),
        (lambda text: text.replace("nvidia-t4", "nvidia-t5", 1), 1, CHANGED),
        (lambda text: "".join(text.splitlines(keepends=True)[i] for i in (0, 2, 3)), 2, CHANGED),
        (lambda text: "".join(text.splitlines(keepends=True)[i] for i in (0, 1, 1, 2, 3)), 3, CHANGED),
        (lambda text: "op,dtype,seconds\n" + text, 1, FOREIGN),
        (lambda text: text[text.index("\n") + 1 :], 1, FOREIGN),
        (lambda text: text + "\n", 5, FOREIGN),
        (lambda text: text + '{"case": 1}\n', 5, CHANGED),
        (lambda text: text + "\udcff\n", 5, FOREIGN),
    ],
)
def test_an_edited_file(tmp_path: Path, edit, line: int, reason: str) -> None:
    file = tmp_path / "run.jsonl"
    written(file)
    edited = edit(file.read_text()).encode(errors="surrogateescape")
    file.write_bytes(edited)
    for use, remedy in ((read_record, ""), (opened, "; choose another --out to begin anew")):
        with refused(CampaignError, f"{file}: line {line}: {reason}{remedy}"):
            use(file)
    assert file.read_bytes() == edited


def test_a_foreign_file_without_an_end_of_line_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("It was a dark and stormy night")
    for use, remedy in ((read_record, ""), (opened, "; choose another --out to begin anew")):
        with refused(CampaignError, f"{file}: line 1: expected the head of a campaign; found none{remedy}"):
            use(file)
    assert file.read_text() == "It was a dark and stormy night"


@pytest.mark.parametrize(
    ("head", "name", "before", "now"),
    [
        (replace(HEAD, device="nvidia-l4"), "device", "nvidia-t4", "nvidia-l4"),
        (replace(HEAD, digest="d2"), "digest", "d1", "d2"),
        (replace(HEAD, environment={"torch": "2.14", "driver": "580"}), "torch", "2.13", "2.14"),
        (replace(HEAD, environment={"torch": "2.13", "driver": "580", "gpu": "T4"}), "gpu", None, "T4"),
    ],
)
def test_another_head(tmp_path: Path, head: Head, name: str, before: object, now: object) -> None:
    file = tmp_path / "run.jsonl"
    written(file)
    with refused(
        CampaignError, f"{file}: was measured with {name} {before!r}, here it is {now!r}; choose another --out"
    ):
        opened(file, head)


# --- taken away while it is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "take",
    [Path.unlink, lambda file: file.rename(file.with_name("kept")), lambda file: write_text(file.read_text(), file)],
    ids=["removed", "moved", "replaced"],
)
def test_a_file_that_is_gone_is_told_at_the_next_line(tmp_path: Path, take: Callable[[Path], object]) -> None:
    file = tmp_path / "run.jsonl"
    told = f"{file}: was moved, removed or replaced meanwhile; put it back, or begin anew"
    with refused(OutputError, told), recording(file, HEAD, 10) as recorder:
        recorder.append(measurement(1))
        take(file)
        recorder.append(measurement(2))
    if (tmp_path / "kept").exists():
        (tmp_path / "kept").rename(file)
        with recording(file, HEAD, 10) as recorder:
            assert list(recorder.done) == [(measurement(1).case.key, 0)]


@pytest.mark.parametrize("content", [b"", b"more\n"])
def test_a_file_that_another_program_writes(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.jsonl"
    told = f"{file}: was written by another program meanwhile; choose another --out"
    with refused(OutputError, told), recording(file, HEAD, 10) as recorder:
        recorder.append(measurement(1))
        file.write_bytes(file.read_bytes() + content if content else b"")
        recorder.append(measurement(2))


def test_nothing_is_taken_for_measured_once_it_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(record_file, "STOPPING", told)
    file = tmp_path / "run.jsonl"
    with recording(file, HEAD, 10) as recorder:
        recorder.append(measurement(1))
        told.set()
        with pytest.raises(KeyboardInterrupt):
            recorder.append(measurement(2))
    assert read_record(file).measurements == (measurement(1),)


# --- no place to write ------------------------------------------------------------------------------------------------


def test_in_use(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with recording(file, HEAD, 10) as first:
        with refused(
            OutputError, f"{file}: another 'rooflinekit calibrate' is writing it; wait, or choose another --out"
        ):
            opened(file)
        first.append(measurement(1))
    opened(file)  # free again
    assert len(read_record(file).measurements) == 1


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    written(tmp_path / "run.jsonl", 1)  # as if nobody else were at work
    assert len(read_record(tmp_path / "run.jsonl").measurements) == 1


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with refused(OutputError, f"{tmp_path}/taken/run.jsonl: cannot be written: File exists"):
        opened(tmp_path / "taken" / "run.jsonl")
    with refused(OutputError, f"{tmp_path}: cannot be written: Is a directory"):
        opened(tmp_path)


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Files may have so many bytes: as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_found_before_measuring(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    told = f"{file}: cannot be written: File too large"
    with refused(OutputError, told), limited(4096), recording(file, HEAD, 5000):
        raise AssertionError("measuring")
    with limited(8192), recording(file, HEAD, 5000):
        pass


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    told = f"{file}: cannot be written: File too large; what was measured is kept, the same command continues"
    with refused(OutputError, told), limited(2000), recording(file, HEAD, 10) as recorder:
        for rows in range(1, 100):
            recorder.append(measurement(rows))
    found = read_record(file)  # whole lines alone
    assert found.measurements == tuple(measurement(rows) for rows in range(1, len(found.measurements) + 1))
    assert 2 < len(found.measurements) < 20


def test_a_version_that_wrote_other_fields(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with recording(file, HEAD, 10) as recorder:
        recorder._write({"case": {}, "round": 0})
    with refused(
        CampaignError,
        f"{file}: line 2: case: op: the key is missing (and 3 more); it was written by another program, or another "
        "version of rooflinekit",
    ):
        read_record(file)
