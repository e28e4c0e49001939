"""README.md and the first pages show what their commands print, and a newcomer's own module goes the same way."""

import difflib
import re
import shlex
from pathlib import Path

import pytest
from command_line import Run

ROOT = Path(__file__).parent.parent
README, INDEX, START = (
    (ROOT / f"{name}.md").read_text(encoding="utf-8") for name in ("README", "docs/index", "docs/start")
)
SHOWN = re.findall(r"```console\n\$ (rooflinekit [^\n]*)\n(.*?)```", README + INDEX + START, re.DOTALL)
OWN = re.findall(r"^rooflinekit ([^\n]* net\.py:Net [^\n]*)$", START, re.MULTILINE)


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


@pytest.mark.parametrize("command", OWN)
def test_the_newcomers_own_module(command: str, run: Run, here: Path, kept_traces: None) -> None:
    (block,) = re.findall(r"```python\n(.*?class Net.*?)```", START, re.DOTALL)
    (here / "net.py").write_text(block, encoding="utf-8")
    assert re.match(r"Net\b", run(*shlex.split(command)).answered())


def test_there_is_something_to_test() -> None:
    assert {command.split()[1] for command, _ in SHOWN} >= {"predict", "summary", "explain"}
    assert [command.split()[0] for command in OWN] == ["predict", "predict", "advise"]


def test_the_readme_is_a_screen() -> None:
    assert len(README.splitlines()) <= 60
    assert "![" in README


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target
