"""Files appear whole or not at all."""

import contextlib
import os
import signal
import stat
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from programs import awaited, lives

from rooflinekit.errors import OutputError
from rooflinekit.files import locked, replacing, sync_folder, write_text


def test_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    with pytest.raises(OutputError) as caught:
        write_text("yours", path, force=False)
    assert str(caught.value) == f"{path}: exists; choose another file, or replace it with --force"
    assert path.read_text() == "mine"
    write_text("yours", path, force=True)
    assert path.read_text() == "yours"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.yaml"]
    with pytest.raises(OutputError) as caught:
        write_text("lost", tmp_path / "no" / "x.yaml")
    assert str(caught.value) == f"{tmp_path / 'no' / 'x.yaml'}: cannot be written: No such file or directory"


def test_what_fails_on_the_way_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    with contextlib.suppress(KeyboardInterrupt), replacing(path) as beside:
        beside.write_text("half of")
        raise KeyboardInterrupt
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("x.yaml", "mine")]


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_not_replaced(tmp_path: Path, device: str) -> None:
    path = tmp_path / "x.yaml"
    path.symlink_to(device)
    os.mkfifo(tmp_path / "pipe")
    for place in (path, tmp_path / "pipe"):
        with pytest.raises(OutputError) as caught:
            write_text("x", place)
        assert str(caught.value) == f"{place}: is no file but a device or pipe; choose another name"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert path.is_symlink()


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".x.yaml.a1b2c3.part").write_text("half of a text that is longer than the next")
    write_text("whole", tmp_path / "x.yaml")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("x.yaml", "whole")]


def test_no_link_is_written_through(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("mine")
    for name in (".x.yaml.part", ".x.yaml.a1b2c3.part"):  # a link that somebody has put where it might be written first
        (tmp_path / name).symlink_to(own)
    write_text("whole", tmp_path / "x.yaml")
    assert (own.read_text(), (tmp_path / "x.yaml").read_text()) == ("mine", "whole")
    assert not (tmp_path / "x.yaml").is_symlink()


def test_rights_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text("x", tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_asked_to_last_is_left_as_it_is(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    sync_folder(tmp_path / "none")


def _writes(path: Path, word: str, times: int) -> None:
    for _ in range(times):
        with replacing(path) as beside, beside.open("w") as stream:
            for _ in range(50):
                stream.write(word)
                stream.flush()


def test_processes_that_write_one_file_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    fork = get_context("fork")
    writers = [fork.Process(target=_writes, args=(path, word * 10, 40)) for word in "abc"]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.read_text())
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert seen <= {"a" * 500, "b" * 500, "c" * 500}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.txt"]


def _holds(path: Path) -> None:
    with locked(path):
        child = os.fork()  # goes on when its parent has ended, and holds nothing
        if child:
            path.write_text(str(child))
        time.sleep(60)
        os._exit(0)


def test_a_lock_ends_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    owner = get_context("fork").Process(target=_holds, args=(path,))
    owner.start()
    awaited(path.read_text, owner)
    child = int(path.read_text())
    try:
        with pytest.raises(BlockingIOError), locked(path):
            pass
        owner.kill()
        owner.join()
        assert lives(child)
        with locked(path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
