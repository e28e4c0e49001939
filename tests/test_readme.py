"""What README.md shows is what its commands print."""

import difflib
import re
import shlex
from pathlib import Path

import pytest
from command_line import Run

ROOT = Path(__file__).parent.parent
SHOWN = re.findall(
    r"```console\n\$ (rooflinekit [^\n]*)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


def lines(text: str) -> list[str]:
    """Lines without trailing blanks, and without empty ones at both ends."""
    return [line.rstrip() for line in text.strip("\n").splitlines() if line.strip()]


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command.split()[1] for command, _ in SHOWN])
def test_the_output_shown_is_the_output(
    command: str, shown: str, run: Run, monkeypatch: pytest.MonkeyPatch, kept_traces: None
) -> None:
    monkeypatch.chdir(ROOT)
    printed = run(*shlex.split(command)[1:]).out
    assert lines(shown) == lines(printed), "\n".join(difflib.unified_diff(lines(shown), lines(printed), lineterm=""))


def test_there_is_something_to_test() -> None:
    assert len(SHOWN) == 2
