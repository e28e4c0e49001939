"""The commands of docs/choosing.md run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import Run

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ rooflinekit ([^\n]*)$", PAGE, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[0] for command in COMMANDS])
def test_the_commands_run(command: str, run: Run, monkeypatch: pytest.MonkeyPatch, kept_traces: None) -> None:
    monkeypatch.chdir(ROOT)
    result = run(*shlex.split(command))
    assert (result.status, result.err) == (0, "")
    assert re.search("resnet18|layer1", result.out)


def test_there_is_something_to_test() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["compare", "compare", "advise", "crossover"]
