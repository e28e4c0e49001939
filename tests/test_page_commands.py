"""The commands of docs/choosing.md and docs/serving.md run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import Run

ROOT = Path(__file__).parent.parent
CHOOSING, SERVING = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("choosing.md", "serving.md"))
COMMANDS = re.findall(r"^\$ rooflinekit ([^\n]*)$", CHOOSING, re.MULTILINE)
SHOWN = re.findall(r"```console\n\$ rooflinekit ([^\n]*)\n(.*?)```", SERVING, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=[command.split()[0] for command in COMMANDS])
def test_the_commands_run(command: str, run: Run, monkeypatch: pytest.MonkeyPatch, kept_traces: None) -> None:
    monkeypatch.chdir(ROOT)
    assert re.search("resnet18|layer1", run(*shlex.split(command)).answered())


@pytest.mark.slow
@pytest.mark.parametrize(("command", "text"), SHOWN)
def test_the_commands_print_what_the_page_shows(
    command: str, text: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    printed = run(*shlex.split(command)).out
    assert [line.rstrip() for line in printed.splitlines() if line.strip()] == [
        line.rstrip() for line in text.splitlines() if line.strip()
    ]


def test_there_is_something_to_test() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["compare", "compare", "advise", "crossover"]
    assert len(SHOWN) == 6
