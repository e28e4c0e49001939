"""What is missing is said with what to install; what is there has its version."""

from importlib import metadata
from pathlib import Path

import pytest
from command_line import Run

from rooflinekit.api import doctor, trace_store
from rooflinekit.api.doctor import Finding, diagnose


def found() -> dict[str, Finding]:
    return {one.what: one for one in diagnose()}


def test_ten_lines(run: Run) -> None:
    lines = run("doctor").out.splitlines()
    assert len(lines) == 10
    assert lines[1].split()[:2] == ["torch", metadata.version("torch")]


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none)
    assert found()["timm"] == Finding(
        what="timm", found="missing", to_do="pip install 'rooflinekit[models]', for targets timm:NAME"
    )


@pytest.mark.parametrize(("code", "matches"), [("", True), ("raise RuntimeError('no operator')", False)])
def test_torchvision_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, matches: bool) -> None:
    (tmp_path / "torchvision.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1")
    one = found()["torchvision"]
    assert (one.to_do == "") is matches
    assert ("does not match torch: RuntimeError: no operator" in one.found) is not matches


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "")  # no process that tries torchvision
    monkeypatch.setenv(trace_store.FOLDER, str(tmp_path / "new" / "traces"))
    assert found()["kept traces"] == Finding(what="kept traces", found=str(tmp_path / "new" / "traces"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(trace_store.FOLDER, str(tmp_path / "file" / "traces"))
    assert trace_store.FOLDER in found()["kept traces"].to_do
