"""Pieces and manifests that are damaged: made again, which is said, or it is said what to remove."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused
from small_sweeps import (
    NAMES,
    PIECES,
    Patch,
    Stopped,
    before_each,
    check,
    counted,
    half_done,
    parts_of,
    raises,
    swept,
    warned,
)

import rooflinekit as rk
from rooflinekit.errors import OutputError
from rooflinekit.study.sweep import plan as sweep_plan


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


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
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


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
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


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
@pytest.mark.parametrize("content", MANIFESTS[:3])
def test_where_nothing_says_what_pieces_are_of_it_is_said_what_to_remove(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str, content: Any
) -> None:
    out = tmp_path / name
    half_done(graph, out, monkeypatch)
    folder = parts_of(out)
    damage(folder / "_sweep.json", content)
    with refused(
        OutputError,
        f"{folder}/_sweep.json: is damaged or not there, and no file beside it is a whole piece of this sweep; remove "
        f"{folder} to start anew, or choose another name",
    ):
        swept(graph, out=out, memory=False)
    assert len(list(folder.glob("part-*"))) == 5
    assert not (folder / "_lock").exists()
    shutil.rmtree(folder)
    swept(graph, out=out)
    check(out, rows)


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
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
    (tmp_path / f".{name}.0a1b2c.part").write_text("half of a table") if out != folder else None
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


# --- while it is being written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "damage", "message"), [
    ("s.parquet", Path.unlink, "was taken away while the sweep was on its way"),
    ("s.csv", Path.unlink, "cannot be read: No such file or directory"),
    ("s.json", Path.unlink, "cannot be read: No such file or directory"),
    ("s.csv", emptied, "was damaged while the sweep was on its way"),
    ("s.csv", turned, "was damaged while the sweep was on its way"),
    ("s.json", halved, "was damaged while the sweep was on its way"),
])  # fmt: skip
def test_a_piece_that_is_lost_meanwhile_is_made_again_by_the_same_call(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch,
    name: str, damage: Callable[[Path], None], message: str,
) -> None:  # fmt: skip
    out = tmp_path / name
    lost: list[Path] = []

    def lose(piece: sweep_plan.Piece) -> None:
        if piece.number == 9:
            lost.append(sorted(parts_of(out).glob("part-*"))[4])
            damage(lost[0])

    with monkeypatch.context() as patch:
        before_each(patch, lose)
        with pytest.raises(OutputError) as caught:
            swept(graph, out=out)
    assert str(caught.value) == f"{lost[0]}: {message}; finished pieces are kept: the same call continues"
    assert not out.is_file()
    calls = counted(monkeypatch)
    with warned():
        swept(graph, out=out)
    assert calls == [4]
    check(out, rows)


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_folder_that_is_taken_away_meanwhile(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str
) -> None:
    out = tmp_path / name
    with monkeypatch.context() as patch:
        before_each(patch, lambda piece: piece.number == 9 and shutil.rmtree(parts_of(out)))
        with pytest.raises(OutputError, match=r"cannot be written: No such file or directory$"):
            swept(graph, out=out)
    swept(graph, out=out)
    check(out, rows)
