"""Full disks, limits, devices, and two processes that write one sweep."""

import os
import resource
import subprocess
import time
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
from programs import awaited
from refusals import refused
from small_sweeps import (
    NAMES,
    PIECES,
    Patch,
    before_each,
    check,
    counted,
    parts_of,
    raises,
    read,
    swept,
    swept_plan,
    warned,
)

import rooflinekit as rk
from rooflinekit.errors import OutputError
from rooflinekit.study.sweep import folder, run
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep.run import run_to_file


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
        kept = any(parts_of(out).glob("part-*"))
        told = "; finished pieces are kept: the same call continues" if kept else ""
        assert str(error).endswith(f": cannot be written: File too large{told}")  # noqa: PT017  some are no hindrance
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
        with pytest.raises(OutputError, match="cannot be written: No space left on device; finished pieces are kept"):
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
    with refused(OutputError, f"{tmp_path / name}: is no file but a device or pipe; choose another name"):
        swept(graph, out=tmp_path / name)
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

    def wait(piece: sweep_plan.Piece) -> None:
        if piece.number == 3:
            (tmp_path / "reached").write_text("x")
            time.sleep(600)

    with monkeypatch.context() as patch:
        before_each(patch, wait)
        other = get_context("fork").Process(target=swept, args=(graph,), kwargs={"out": out, "workers": 2})
        other.start()
    awaited((tmp_path / "reached").read_text, other)
    with refused(
        OutputError,
        f"{parts_of(out)}: another process is writing this sweep; wait until it ends, or choose another name",
    ):
        swept(graph, out=out)
    assert other.is_alive()
    other.kill()  # its own processes end a little later, and hold nothing
    other.join()
    swept(graph, out=out)
    check(out, rows)


# --- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [249, 300])
def test_a_name_that_is_too_long(tmp_path: Path, graph: rk.Graph, name: str, length: int) -> None:
    out = tmp_path / f"{'x' * length}{name}"
    with pytest.raises(OutputError) as caught:
        swept(graph, out=out)
    assert str(caught.value).endswith(": cannot be written: File name too long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only the administrator can become somebody else")
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_somebody_else(tmp_path: Path, graph: rk.Graph, name: str) -> None:
    plan = swept_plan(graph)
    (tmp_path / "theirs").mkdir(mode=0o700)

    def as_nobody() -> None:
        os.setuid(65534)
        with pytest.raises(OutputError, match=": cannot be written: "):
            run_to_file(plan, tmp_path / "theirs" / name, executor=None, workers=1, progress=None)
        os._exit(42)  # all was as expected

    other = get_context("fork").Process(target=as_nobody)
    other.start()
    other.join()
    assert other.exitcode == 42


def test_a_link_to_nowhere_is_no_folder(tmp_path: Path, graph: rk.Graph) -> None:
    out = tmp_path / "s.parquet"
    out.symlink_to("/nowhere/at/all")
    with refused(OutputError, f"{out}: is a link to what is not there; remove it, or choose another name"):
        swept(graph, out=out)


@pytest.mark.parametrize("name", ["s.csv", "s.json"])
def test_pieces_go_when_the_result_cannot_be_lost(
    tmp_path: Path, graph: rk.Graph, monkeypatch: Patch, name: str
) -> None:
    seen: list[tuple[str, bool]] = []
    remove = folder.SweepFolder.remove
    monkeypatch.setattr(run, "sync_folder", lambda path: seen.append(("synced", (path / name).exists())))
    monkeypatch.setattr(folder.SweepFolder, "remove", lambda self: seen.append(("removed", True)) or remove(self))
    swept(graph, out=tmp_path / name)
    assert seen == [("synced", True), ("removed", True)]


def test_a_text_that_there_is_no_room_for(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_json", lambda *_, **__: raises(OverflowError("Could not reserve memory block")))
        with pytest.raises(MemoryError):
            swept(graph, out=tmp_path / "s.json")
    assert len(list((tmp_path / "s.json.parts").glob("part-*"))) == PIECES
    swept(graph, out=tmp_path / "s.json")
    check(tmp_path / "s.json", rows)
