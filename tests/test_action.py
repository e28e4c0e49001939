"""The GitHub action: its steps run as a shell runs them, with a stand-in for `gh` and for `python -m pip`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
STEPS = {step["name"]: step for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]}
NET = "from torch import nn\ndef Net():\n    return nn.Linear(512, {width})\n"


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A repository with a lock file, and programs that say how they were called."""
    for name in ("gh", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> "$RUNNER_TEMP/called"\n')
        program.chmod(0o755)
    guard = tmp_path / "bin" / "rooflinekit"
    guard.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rooflinekit "$@"\n')
    guard.chmod(0o755)
    (tmp_path / "net.py").write_text(NET.format(width=512))
    (tmp_path / "rooflinekit.lock").write_text('[net]\nrun = "net.py:Net -i 8192,512 --gpu l4"\n')
    return tmp_path


def ran(name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    paths = {key: str(folder / key) for key in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    known = {"PYTHONPATH": str(ROOT), "PATH": f"{folder}/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(folder)}
    known["ROOFLINEKIT_CACHE_DIR"] = str(folder / "cache")
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEPS[name]["run"]],  # as GitHub calls it
        cwd=folder, env={**os.environ, **known, **paths, **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_guard_writes_and_the_result_tells(runner: Path) -> None:
    done = ran("guard", runner, LOCK="rooflinekit.lock")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("::error file=rooflinekit.lock,line=1,title=net on nvidia-l4")
    assert (runner / "GITHUB_STEP_SUMMARY").read_text().startswith("### rooflinekit guard: 1 of 1 exceed")
    assert (runner / "GITHUB_OUTPUT").read_text() == "status=1\n"
    assert [ran("result", runner, STATUS=status).returncode for status in "012"] == [0, 1, 2]


def test_a_missing_file_is_wrong_use(runner: Path) -> None:
    done = ran("guard", runner, LOCK="none.lock")
    assert done.returncode == 0
    assert "none.lock: is not there" in done.stderr
    assert (runner / "GITHUB_OUTPUT").read_text() == "status=2\n"


def test_what_is_installed_and_where_it_comments(runner: Path) -> None:
    ran("install", runner, INSTALL="", HERE="/action")
    ran("install", runner, INSTALL="rooflinekit", HERE="/action")
    ran("comment", runner, REQUEST="7")
    assert (runner / "called").read_text().splitlines() == [
        "python -m pip install --quiet /action[models]",
        "python -m pip install --quiet rooflinekit",
        f"gh pr comment 7 --body-file {runner}/guard.md --edit-last",
    ]


def test_the_hook_runs_the_guard() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["entry"], hook["pass_filenames"]) == ("rooflinekit guard", False)
