"""Files appear whole or not at all."""

import contextlib
from pathlib import Path

import pytest

from rooflinekit.errors import OutputError
from rooflinekit.files import replacing, write_text


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
