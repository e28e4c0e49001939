"""Sweeps whose files and processes are killed, damaged, filled up, shared: the same rows, and nothing beside them."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.api import predict as workflows
from rooflinekit.errors import OutputError, SweepError, SweepWarning
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import crew
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep.clusters import predict_settings, unknown_settings
from rooflinekit.study.sweep.points import Setting

pytest.importorskip("pyarrow")
GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb"]
KEYS = ["gpu", "execution", "batch"]
NAMES = ["s.parquet", "s.csv", "s.json"]
PIECES = 12  # 2 GPUs × 2 executions, 25 sizes by ten


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), rk.Input("batch", 64), name="net")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 10 sizes and one case, so that there are many."""
    monkeypatch.setattr(sweep_plan, "BLOCK", 10)
    monkeypatch.setattr(sweep_plan, "_ROWS", 10)


@pytest.fixture(scope="module")
def rows(graph: rk.Graph) -> pd.DataFrame:
    return swept(graph)


def swept(graph: rk.Graph, **options: Any) -> Any:
    return rk.sweep(graph, **{"gpus": GPUS, "execution": ["eager", "compiled"], "batch": range(1, 26), **options})


def read(out: Path) -> pd.DataFrame:
    if out.suffix == ".parquet":
        found = pd.read_parquet(out)
    elif out.suffix == ".csv":
        found = pd.read_csv(out, keep_default_na=False)
    else:
        found = pd.DataFrame(json.loads(out.read_text()))
    return ordered(found)


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(KEYS, ignore_index=True)


def check(out: Path, rows: pd.DataFrame) -> None:
    """The rows, and nothing beside them."""
    pd.testing.assert_frame_equal(read(out), ordered(rows), rtol=1e-12, check_dtype=False)
    assert [file.name for file in out.parent.iterdir()] == [out.name]
    if out.is_dir():
        names = sorted(file.name for file in out.iterdir())
        assert names[0] == "_sweep.json"
        assert all(name.startswith("part-") and name.endswith(".parquet") for name in names[1:])
        assert len({name[:12] for name in names[1:]}) == len(names) - 1


class Stopped(BaseException):
    """As an interruption from the keyboard."""


Patch = pytest.MonkeyPatch
PREDICT = sweep_plan.Piece.predict


def parts_of(out: Path) -> Path:
    return out if out.suffix == ".parquet" else out.with_name(f"{out.name}.parts")


def half_done(graph: rk.Graph, out: Path, monkeypatch: Patch, pieces: int = 5) -> list[Path]:
    """The pieces of a sweep that was stopped."""
    calls: list[int] = []

    def stops(piece: sweep_plan.Piece) -> Any:
        if len(calls) == pieces:
            raise Stopped
        calls.append(piece.number)
        return PREDICT(piece)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_plan.Piece, "predict", stops)
        with pytest.raises(Stopped):
            swept(graph, out=out)
    found = sorted(parts_of(out).glob("part-*"))
    assert len(found) == pieces
    return found


def counted(monkeypatch: Patch) -> list[int]:
    """The numbers of the pieces that are worked out from now on, in this process."""
    calls: list[int] = []
    monkeypatch.setattr(sweep_plan.Piece, "predict", lambda piece: calls.append(piece.number) or PREDICT(piece))
    return calls


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught if one.category is SweepWarning]
    assert len(found) == len(caught), [str(one.message) for one in caught]


# --- killed at any moment ---------------------------------------------------------------------------------------------

#: Forks a process for each line of its input, which sweeps; answers with its number, and how it ended.
DRIVER = """
import os, sys, traceback, warnings
from pathlib import Path
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep.run import run_to_file
sweep_plan.BLOCK = sweep_plan._ROWS = 10
warnings.simplefilter("always")
graph, settings = sweep_plan.opened(Path(sys.argv[1]).read_bytes())
gpus = {one.machine.name: {"machine": one.machine} for one in settings}
ways = {str(one.execution): {"execution": one.execution} for one in settings}
axes = [sweep_plan.Axis(name="gpu", choices=gpus), sweep_plan.Axis(name="execution", choices=ways)]
plan = sweep_plan.plan_of(axes, {"graph": graph, "host": settings[0].host}, {"batch": range(1, 26)})
for piece in plan.pieces(): piece.predict()  # what is loaded late is there
while line := sys.stdin.readline():
    out, workers = line.split()
    number = os.fork()
    if not number:
        try:
            run_to_file(plan, Path(out), executor=None, workers=int(workers), progress=None)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(number, flush=True)
    sys.stdin.readline()  # until it is asked for, its number stays its own
    print(os.waitpid(number, 0)[1], flush=True)
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_again_and_again(tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, name: str, kills: int) -> None:
    host, machines = rk.load_host(DEFAULT_HOST), workflows.machines_of(GPUS)
    ways = [rk.Execution(), rk.Execution(backend="compiled")]
    settings = [Setting(machine=machine, host=host, execution=way) for machine in machines for way in ways]
    given, errors, out = tmp_path / "given", tmp_path / "errors", tmp_path / "place" / name
    given.write_bytes(sweep_plan.packed(graph, settings))
    out.parent.mkdir()
    draw, killed, whole, between, status = random.Random(kills), 0, 0, 0, 0
    command = [sys.executable, "-c", DRIVER, str(given)]
    with (
        errors.open("w") as err,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True) as runs,
    ):
        assert runs.stdin is not None
        assert runs.stdout is not None

        def start() -> int:
            print(out, draw.choice([1, 1, 2]), file=runs.stdin, flush=True)
            return int(runs.stdout.readline())

        def ended() -> int:
            print(file=runs.stdin, flush=True)
            return int(runs.stdout.readline())

        start()
        begun = time.monotonic()
        assert ended() == 0
        lasts = time.monotonic() - begun
        check(out, rows)
        while killed < kills:
            if status == 0:
                shutil.rmtree(out) if out.is_dir() else out.unlink()
            before = out.is_file()
            process = start()
            # Most runs are to get on by some pieces, some to reach their end, where files are put together.
            time.sleep(draw.uniform(0, lasts * draw.choice([0.1, 0.3, 1.0])))
            os.kill(process, signal.SIGKILL)
            status = ended()
            if status == 0:
                check(out, rows)
                whole += 1
                continue
            killed += 1
            if out.is_file() and not before:  # killed while pieces were taken away
                between += 1
                pd.testing.assert_frame_equal(read(out), ordered(rows), rtol=1e-12, check_dtype=False)
                if draw.random() < 0.5:
                    out.unlink()
        start()
        assert ended() == 0
        runs.stdin.close()
    check(out, rows)
    print(f"{name}: {killed} kills, {between} of them beside a result, {whole} runs were quicker")  # shown with -rP
    assert errors.read_text() == ""  # no traceback, and no piece was ever found damaged


# --- damaged ----------------------------------------------------------------------------------------------------------


def emptied(piece: Path) -> None:
    piece.write_bytes(b"")


def halved(piece: Path) -> None:
    piece.write_bytes(piece.read_bytes()[: piece.stat().st_size // 2])


def turned(piece: Path) -> None:
    content = bytearray(piece.read_bytes())
    content[len(content) // 2] ^= 1
    piece.write_bytes(bytes(content))


def swapped(piece: Path) -> None:
    other = next(one for one in sorted(piece.parent.glob("part-*")) if one != piece)
    piece.write_bytes(other.read_bytes())


def renumbered(piece: Path) -> None:
    piece.rename(piece.with_name(piece.name.replace("part-0000002", "part-0000009")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", [emptied, halved, turned, swapped, renumbered])
def test_a_damaged_piece_is_made_again_and_said(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / name
    piece = half_done(graph, out, monkeypatch)[2]
    damage(piece)
    calls = counted(monkeypatch)
    with warned() as said:
        swept(graph, out=out, workers=1)
    seen = piece if damage is not renumbered else Path(str(piece).replace("part-0000002", "part-0000009"))
    assert said == [f"{seen}: is damaged; it is made again"]
    assert calls == [2, *range(5, PIECES)]
    check(out, rows)


def test_a_finished_folder_is_checked_too(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch
) -> None:
    out = swept(graph, out=tmp_path / "s.parquet")
    piece = sorted(out.glob("part-*"))[7]
    shutil.copy(piece, out / "part-0000099-0123456789abcdef.parquet")  # rows that would be there twice
    halved(piece)
    calls = counted(monkeypatch)
    with warned() as said:
        swept(graph, out=out)
    assert (len(said), calls) == (2, [7])
    check(out, rows)


#: What may have become of a manifest; whether it then is of another version.
MANIFESTS: list[Any] = [
    None,
    "",
    "{",
    '{"schema": 2, "rows"',
    "[]",
    '{"schema": 2, "parts": []}',
    "\x00" * 40,
    b"\xff\xfe",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", MANIFESTS)
def test_a_damaged_manifest_loses_nothing(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, content: Any
) -> None:
    out = tmp_path / name
    pieces = half_done(graph, out, monkeypatch)
    manifest = parts_of(out) / "_sweep.json"
    damage(manifest, content)
    emptied(pieces[0])
    calls = counted(monkeypatch)
    with warned() as said:
        swept(graph, out=out)
    assert len(said) == 1
    assert calls == [0, *range(5, PIECES)]  # the pieces say themselves what they are of
    check(out, rows)


def damage(manifest: Path, content: str | bytes | None) -> None:
    if content is None:
        manifest.unlink()
    else:
        manifest.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", MANIFESTS[:3])
def test_where_nothing_says_what_pieces_are_of_it_is_said_what_to_remove(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, content: Any
) -> None:
    out = tmp_path / name
    half_done(graph, out, monkeypatch)
    folder = parts_of(out)
    damage(folder / "_sweep.json", content)
    with pytest.raises(OutputError) as caught:
        swept(graph, out=out, memory=False)
    assert str(caught.value) == (
        f"{folder}/_sweep.json: is damaged or not there, and no file beside it is a whole piece of this sweep; remove "
        f"{folder} to start anew, or choose another name"
    )
    assert len(list(folder.glob("part-*"))) == 5
    assert not (folder / "_lock").exists()
    shutil.rmtree(folder)
    swept(graph, out=out)
    check(out, rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [*MANIFESTS, '{"schema": 1, "parts": {}}', '{"schema": 2, "parts": {"gpu": "x"}}'])
def test_without_pieces_nothing_stands_in_the_way(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, name: str, content: Any
) -> None:
    out = tmp_path / name
    folder = parts_of(out)
    folder.mkdir()
    (folder / "_sweep.json").write_text("")
    damage(folder / "_sweep.json", content)
    for left in ("_lock", "._sweep.json.part", f".part-0000001-0123456789abcdef.{folder.suffix[1:]}.part"):
        (folder / left).write_text("half")
    (tmp_path / f".{name}.part").write_text("half of a table") if out != folder else None
    swept(graph, out=out)
    check(out, rows)


def test_another_version_s_pieces_and_other_files_are_left_alone(
    tmp_path: Path, graph: rk.Graph, monkeypatch: Patch
) -> None:
    out = tmp_path / "s.parquet"
    half_done(graph, out, monkeypatch)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"s\.parquet: holds notes\.txt, which is no piece of a sweep; move that"):
        swept(graph, out=out)
    (out / "notes.txt").unlink()
    damage(out / "_sweep.json", '{"schema": 1, "rows": 9, "parts": {}}')
    with pytest.raises(OutputError, match=r"s\.parquet: holds a sweep of another version of rooflinekit; remove it to"):
        swept(graph, out=out)
    assert len(list(out.glob("part-*"))) == 5


@pytest.mark.parametrize("name", NAMES)
def test_what_fails_before_the_first_piece_leaves_nothing(
    tmp_path: Path, graph: rk.Graph, monkeypatch: Patch, name: str
) -> None:
    monkeypatch.setattr(sweep_plan.Piece, "predict", lambda piece: raises(Stopped()))
    with pytest.raises(Stopped):
        swept(graph, out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def raises(error: BaseException) -> Any:
    raise error


# --- processes that the system ends -----------------------------------------------------------------------------------


def killed_at(monkeypatch: Patch, when: Callable[[sweep_plan.Piece], bool]) -> None:
    """Processes die over such pieces, as by the system when memory is out."""

    def predict(piece: sweep_plan.Piece) -> Any:
        if when(piece):
            os.kill(os.getpid(), signal.SIGKILL)
        return PREDICT(piece)

    monkeypatch.setattr(sweep_plan.Piece, "predict", predict)


HOW = "its process was ended by SIGKILL, as by the system when memory is out"


@pytest.mark.parametrize("name", [None, *NAMES])
def test_a_process_that_is_killed_once_is_replaced(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str | None
) -> None:
    flag = tmp_path / "flag"

    def first(piece: sweep_plan.Piece) -> bool:
        with contextlib.suppress(FileExistsError):
            if piece.number == 4:
                flag.touch(exist_ok=False)
                return True
        return False

    killed_at(monkeypatch, first)
    (tmp_path / "place").mkdir()
    with warned() as said:
        found = swept(graph, workers=2, out=None if name is None else tmp_path / "place" / name)
    assert said == [f"gpu=nvidia-l4, execution=compiled, batch=11…20: {HOW}; it is tried again"]
    pd.testing.assert_frame_equal(found, rows) if name is None else check(found, rows)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_a_point_that_ends_its_process_twice_has_a_row_that_says_so(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str | None
) -> None:
    monkeypatch.setattr(sweep_plan, "_ROWS", 20)  # two cases a piece, which have to be told apart too
    log = tmp_path / "log"

    def poison(piece: sweep_plan.Piece) -> bool:
        if 13 not in piece.sizes["batch"] or not piece.first <= 2 < piece.first + piece.cases:
            return False
        with log.open("a") as stream:
            stream.write(f"{piece.rows}\n")
        return True

    killed_at(monkeypatch, poison)
    (tmp_path / "place").mkdir()
    with warned() as said:
        found = swept(graph, workers=2, out=None if name is None else tmp_path / "place" / name)
    place = "gpu=nvidia-a100-sxm4-80gb, execution=eager"
    assert said == [
        f"gpu=nvidia-a100-sxm4-80gb, execution=eager…compiled, batch=11…20: {HOW}; it is tried again",
        f"{place}, batch=13: {HOW}; given up after two tries; `problem` in its rows says so",
    ]
    # 20 rows twice; batch 11…15, 13…15, 13 in both cases; the point alone twice
    assert log.read_text().split() == ["20", "20", "10", "6", "2", "1", "1"]
    back = ordered(found if name is None else read(found))
    lost = (back["gpu"] == GPUS[1]) & (back["execution"] == "eager") & (back["batch"] == 13)
    assert back[lost]["problem"].tolist() == [f"given up after two tries: {HOW}"]
    numbers = ["total_s", "low_s", "high_s", "gpu_s", "cpu_s", "energy_j", "power_w", "throughput", "peak_bytes"]
    assert pd.to_numeric(back[lost][numbers].stack(future_stack=True), errors="coerce").isna().all()
    assert (back[lost]["regime"].item(), bool(back[lost]["fits"].item())) == ("", False)
    rest = back[~lost].reset_index(drop=True)
    rest = rest.astype(dict.fromkeys(numbers, float))
    whole = ordered(rows)[~lost].reset_index(drop=True).astype(dict.fromkeys(numbers, float))
    pd.testing.assert_frame_equal(rest, whole, rtol=1e-12, check_dtype=False)
    assert (back["problem"] == "").sum() == len(rows) - 1


def test_where_every_process_dies_it_comes_to_an_end(tmp_path: Path, graph: rk.Graph, monkeypatch: Patch) -> None:
    log = tmp_path / "log"

    def every(piece: sweep_plan.Piece) -> bool:
        with log.open("a") as stream:
            stream.write("x")
        return True

    killed_at(monkeypatch, every)
    monkeypatch.setattr(sweep_plan, "BLOCK", 64)
    monkeypatch.setattr(sweep_plan, "_ROWS", 64)
    with warned() as said:
        found = rk.sweep(graph, gpus=GPUS, batch=range(1, 65), workers=2)
    # Of each of the two pieces 2 tries, then as many as finding one point takes twice over, 2 · 7, and a few: no 64.
    assert log.stat().st_size <= 2 * (2 + 2 * 7 + 8 + 1)
    assert len(found) == 128
    assert found["problem"].str.startswith("given up ").all()
    assert found["problem"].str.endswith(HOW).all()
    assert found["problem"].str.contains("with points beside it").any()
    assert len(said) < 60


def test_memory_that_runs_out_in_python(graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch) -> None:
    def predict(piece: sweep_plan.Piece) -> Any:
        if len(piece.sizes["batch"]) > 3 or 7 in piece.sizes["batch"]:
            raise MemoryError
        return PREDICT(piece)

    monkeypatch.setattr(sweep_plan.Piece, "predict", predict)
    for workers in (1, 2):
        with warned():
            found = swept(graph, workers=workers, batch=range(1, 16), execution=["eager"])
        lost = found["batch"] == 7
        assert (found[lost]["problem"] == "given up after two tries: memory ran out").all()
        known = rows[(rows["execution"] == "eager") & (rows["batch"] < 16) & (rows["batch"] != 7)]
        pd.testing.assert_frame_equal(
            found[~lost], known.reset_index(drop=True).set_axis(found.index[~lost]), rtol=1e-12, check_dtype=False
        )


def test_unknown_rows_have_the_columns_of_known_ones(graph: rk.Graph) -> None:
    for memory in (True, "peak", False):
        host, (machine,) = rk.load_host(DEFAULT_HOST), workflows.machines_of(GPUS[:1])
        setting = Setting(machine=machine, host=host, execution=rk.Execution())
        sizes = {"batch": np.array([3, 5])}
        (known,) = predict_settings(graph, [setting], sizes, memory=memory)
        (unknown,) = unknown_settings(graph, [setting], sizes, "why", memory=memory)
        assert [*known, "problem"] == [*unknown]
        assert {len(column) for column in unknown.values()} == {2}


def test_steps_on_several_devices(graph: rk.Graph, monkeypatch: Patch) -> None:
    step = rk.trace(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), rk.Input("batch", 64), mode="training", name="net")
    options: Any = {"clusters": ["dgx-a100"], "gpus": [2], "batch": [8, 16, 24, 32, 40], "workers": 2}
    whole = rk.sweep(step, **options)
    killed_at(monkeypatch, lambda piece: 24 in piece.sizes["batch"])
    with warned() as said:
        found = rk.sweep(step, **options)
    assert said[-1] == (
        f"cluster=dgx-a100, gpus=2, strategy=ddp, batch=24: {HOW}; given up after two tries; "
        "`problem` in its rows says so"
    )
    lost = found["batch"] == 24
    assert found[lost]["total_s"].isna().all()
    pd.testing.assert_frame_equal(found[~lost], whole[~lost], rtol=1e-12)


class Breaks(ProcessPoolExecutor):
    """Its process ends when it is given the seventh piece."""

    given = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.given += 1
        return super().submit(os._exit, 3) if self.given == 7 else super().submit(fn, *args, **kwargs)


def test_an_executor_that_breaks_is_named(tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame) -> None:
    out = tmp_path / "s.csv"
    with Breaks(1, mp_context=get_context("fork")) as pool, pytest.raises(SweepError, match=r"^executor: A process in"):
        swept(graph, executor=pool, out=out)
    assert len(list(parts_of(out).glob("part-*"))) == 6
    swept(graph, out=out)
    check(out, rows)


def test_processes_that_cannot_start_are_told(graph: rk.Graph, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(crew, "_serve", lambda pipe: os._exit(3))
        with pytest.raises(SweepError) as caught:
            swept(graph, workers=2)
    assert str(caught.value) == (
        "no process can be started here (its process ended with status 3); workers=1 works in this one"
    )
    monkeypatch.setattr(os, "fork", lambda: raises(BlockingIOError(11, "Resource temporarily unavailable")))
    with pytest.raises(SweepError) as caught:
        swept(graph, workers=2)
    assert str(caught.value) == (
        "no process can be started: Resource temporarily unavailable; workers=1 works in this one"
    )


def test_what_a_process_raises_is_raised_here(graph: rk.Graph, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sweep_plan.Piece, "predict", lambda piece: raises(KeyError("odd")))
    with pytest.raises(KeyError, match="odd") as caught:
        swept(graph, workers=2)
    assert "In a process of the sweep:\nTraceback" in caught.value.__notes__[0]


# --- no room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [0, 100, 1000, 3000, 4500, 9000])
def test_a_limit_on_files_costs_no_piece(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, limit: int
) -> None:
    out = tmp_path / name
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        swept(graph, out=out)
    except OutputError as error:
        assert str(error).endswith(": cannot be written: File too large")  # noqa: PT017  some limits are no hindrance
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # What is there is whole: no result that is half, no piece that is made again.
    done = {int(piece.stem[5:12]) for piece in parts_of(out).glob("part-*")}
    assert not out.is_file() or len(read(out)) == len(rows)
    calls = counted(monkeypatch)
    with warned() as said:
        swept(graph, out=out)
    assert said == []
    assert set(calls).isdisjoint(done)
    check(out, rows)


@pytest.mark.skipif(os.getuid() != 0, reason="only the administrator can mount a small disk")
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, name: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (disk / "other").write_bytes(bytes(40_000))
        with pytest.raises(OutputError, match=r"cannot be written: No space left on device$"):
            swept(graph, out=disk / name)
        kept = len(list(parts_of(disk / name).glob("part-*")))
        assert 0 < kept < PIECES
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        (disk / "other").unlink()
        with warned() as said:
            swept(graph, out=disk / name)
        assert said == []
        check(disk / name, rows)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_no_file(tmp_path: Path, graph: rk.Graph, name: str, device: str) -> None:
    (tmp_path / name).symlink_to(device)
    with pytest.raises(OutputError) as caught:
        swept(graph, out=tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: is no file but a device or pipe; choose another name"
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).is_symlink()


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_do_not_write_one_sweep(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str
) -> None:
    out = tmp_path / "place" / name
    out.parent.mkdir()
    (tmp_path / "reached").touch()

    def waits(piece: sweep_plan.Piece) -> Any:
        if piece.number == 3:
            (tmp_path / "reached").write_text("x")
            time.sleep(600)
        return PREDICT(piece)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_plan.Piece, "predict", waits)
        other = get_context("fork").Process(target=swept, args=(graph,), kwargs={"out": out, "workers": 2})
        other.start()
    while not (tmp_path / "reached").read_text():
        assert other.is_alive()
        time.sleep(0.01)
    with pytest.raises(OutputError) as caught:
        swept(graph, out=out)
    assert str(caught.value) == (
        f"{parts_of(out)}: another process is writing this sweep; wait until it ends, or choose another name"
    )
    assert other.is_alive()
    other.kill()  # its own processes end a little later, and hold nothing
    other.join()
    swept(graph, out=out)
    check(out, rows)
