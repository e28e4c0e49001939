"""The command that lists kept traces: what each rests on, why one is not kept, and that clearing removes all."""

from pathlib import Path

import pytest
from command_line import Run

from rooflinekit.api import trace_basis, trace_store

NET = """
import os, time
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*[nn.Linear(4, 4) for _ in range(int(os.environ["RK_DEPTH"]))])
class Clock(Net):
    def __init__(self):
        super().__init__()
        self.made = time.time()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setenv(trace_store.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setenv("RK_DEPTH", "2")
    monkeypatch.setattr(trace_basis, "_record", trace_basis.Record())
    return tmp_path


def test_what_is_kept_and_why_not(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Net", "Clock"):
        monkeypatch.setattr(trace_basis, "_record", trace_basis.Record())
        run("predict", f"{folder}/net.py:{name}", "-i", "batch,4", "--batch", 8, "--gpu", "l4")
    assert run("cache").out.startswith(f"2 traces in {folder}/cache\n")
    kept = run("cache", "net.py:Net").out
    assert "net.py:Net, inference: kept; rests on " in kept
    assert "  variable RK_DEPTH=2\n" in kept
    assert f"  file {folder}/net.py\n" in kept
    assert "not kept: calls time.time" in run("cache", "Clock").out
    assert run("cache", "--clear").out == f"2 traces removed from {folder}/cache\n"
    assert run("cache").out == f"0 traces in {folder}/cache\n"


def test_verbose_says_on_standard_error_why_a_trace_is_not_kept(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, *options: str) -> str:
        monkeypatch.setattr(trace_basis, "_record", trace_basis.Record())
        return run("predict", f"{folder}/net.py:{name}", "-i", "batch,4", "--batch", 8, "--gpu", "l4", *options).err

    line = told("Clock", "--verbose")
    assert line.startswith(f"rooflinekit: the trace of {folder}/net.py:Clock is not kept: calls time.time (")
    assert line.count("\n") == 1
    assert told("Clock") == told("Net", "--verbose") == told("Clock", "--verbose", "--no-cache") == ""
    (folder / "cache").chmod(0o777)
    assert f"not kept: others can write to {folder}/cache\n" in told("Net", "--verbose")


def test_no_folder_and_contradictions(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("cache", "net", "--clear").refused("--clear: removes all traces; leave out the word, or --clear\n")
    assert run("cache").out == f"0 traces in {folder}/cache\n"
    monkeypatch.setenv(trace_store.FOLDER, "")
    assert run("cache").out == "no traces are kept: ROOFLINEKIT_CACHE_DIR is empty\n"
