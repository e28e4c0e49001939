"""The commands of docs/choosing.md run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (rooflinekit [^\n]*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[1] for command in COMMANDS])
def test_the_commands_run(command: str) -> None:
    run = [sys.executable, "-m", *shlex.split(command)]
    result = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search("resnet18|layer1", result.stdout)


def test_there_is_something_to_test() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["compare", "compare", "advise", "crossover"]
