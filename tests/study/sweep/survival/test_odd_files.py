"""What is no file of a sweep, where one should be: it is made again, or named; nothing hangs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused
from small_sweeps import NAMES, PIECES, Patch, check, counted, half_done, parts_of, swept, warned

import rooflinekit as rk
from rooflinekit.errors import OutputError


def deep(manifest: Path) -> None:
    manifest.write_text("[" * 100_000)


def huge(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(2**40)  # without a byte on the disk


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
@pytest.mark.parametrize("make", [deep, huge])
def test_a_manifest_that_nobody_can_read_is_a_damaged_one(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, make: Callable[[Path], None]
) -> None:
    out = tmp_path / name
    half_done(graph, out, monkeypatch)
    make(parts_of(out) / "_sweep.json")
    calls = counted(monkeypatch)
    swept(graph, out=out)
    assert calls == [*range(5, PIECES)]
    check(out, rows)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def nowhere(file: Path) -> None:
    file.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
@pytest.mark.parametrize("make", [huge, endless, nowhere, os.mkfifo])
def test_a_piece_that_never_ends_is_made_again(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, make: Callable[[Path], None]
) -> None:
    out = tmp_path / name
    piece = half_done(graph, out, monkeypatch)[2]
    piece.unlink()
    make(piece)
    with warned() as said:
        swept(graph, out=out)
    assert said == [f"{piece}: is damaged; it is made again"]
    check(out, rows)


#: What has the name of a file of a sweep, and what is said of it.
IN_THE_WAY: list[Any] = [
    ("_sweep.json", os.mkfifo, "is no file; remove it, or choose another name"),
    ("_sweep.json", endless, "is no file; remove it, or choose another name"),
    ("_sweep.json", os.mkdir, "is no file; remove it, or choose another name"),
    ("part-0000002-0123456789abcdef.{}", os.mkdir, "is a folder and no piece of a sweep; remove it, or choose another "
     "name"),
    ("_lock", os.mkdir, "cannot be written: Is a directory"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
@pytest.mark.parametrize(("what", "make", "message"), IN_THE_WAY)
def test_what_is_in_the_way_is_named(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch,
    name: str, what: str, make: Callable[[Path], None], message: str,
) -> None:  # fmt: skip
    out = tmp_path / name
    half_done(graph, out, monkeypatch)
    file = parts_of(out) / what.format("parquet" if out == parts_of(out) else "npz")
    file.unlink(missing_ok=True)
    make(file)
    with refused(OutputError, f"{file}: {message}"):
        swept(graph, out=out)
    file.rmdir() if file.is_dir() else file.unlink()
    calls = counted(monkeypatch)
    swept(graph, out=out)
    assert calls == [*range(5, PIECES)]
    check(out, rows)
