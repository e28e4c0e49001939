"""What `--help` says, and that the examples in it do what they say."""

import glob
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Run
from records import record
from traces import one_block, two_steps, write

from rooflinekit.cli import guide
from rooflinekit.cli.app import COMMANDS, program

ROOT = Path(__file__).parents[2]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


ALL = dict(commands(typer.main.get_group(program(*COMMANDS))))
SLOW = {("calibrate",), ("explore",), ("fit",), ("measure",), ("report",)}  # tests of their own run them


def test_every_command_answers_one_question() -> None:
    grouped = [name for names in guide.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(path[0] for path in ALL if len(path) == 1)


def test_a_line_for_each_that_is_not_cut(run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").out.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":") and line[:-1] in guide.GROUPS] == list(guide.GROUPS)
    for (name, *rest), command in ALL.items():
        if not rest:
            (line,) = [line for line in lines if line.split()[:1] == [name]]
            assert line.split(None, 1)[1] == guide.summary(command)


def test_alone_it_shows_five_commands_to_begin_with(run) -> None:
    out = run().out
    assert len(guide.FIRST) == 5
    assert out.count("    rooflinekit ") == 5
    assert out.count("rooflinekit predict timm:resnet50") == 1


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_ends_with_an_example_in_one_line(run, path) -> None:
    for flag in ("--help", "-h"):
        lines = run(*path, flag).out.splitlines()
        assert lines[lines.index("  Example:") + 1].strip().startswith(f"rooflinekit {path[0]} ")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_traces: None) -> Path:
    """A folder with what the examples name."""
    for name in ("examples", "calibration"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "gpu_specs" / "nvidia-l4.yaml", tmp_path / "half.yaml")
    write(two_steps(), tmp_path / "trace.json.gz")
    write(one_block(), tmp_path / "shapes.json.gz")
    monkeypatch.chdir(tmp_path)
    record("monday.jsonl", (1, 2))
    record("tuesday.jsonl", (3,))
    return tmp_path


EXAMPLES = [(path, guide.split_example(command.help or "")[1]) for path, command in ALL.items()]
SMALL = "timm:test_resnet"  # as the ResNets of the examples, and traced in a tenth of their time
FIRST = [((name,), f"rooflinekit {name} {rest}") for name, rest in guide.FIRST.items()]


@pytest.mark.parametrize(
    ("path", "example"),
    [
        pytest.param(path, example, marks=[pytest.mark.slow] if path in SLOW else [], id=str(example))
        for path, example in dict.fromkeys([*EXAMPLES, *FIRST])
    ],
)
def test_the_example_runs(run, workplace: Path, path: tuple[str, ...], example: str) -> None:
    if path in {("specs", "new")}:
        (workplace / "half.yaml").unlink()
    words = shlex.split(re.sub(r"timm:resnet\d+", SMALL, example))[1:]
    result = run(*(one for word in words for one in (sorted(glob.glob(word)) if "*" in word else [word])))
    assert result.status == 0, result.err
    written = [words[words.index("--out") + 1]] if "--out" in words else []
    assert result.out or written
    assert all((workplace / name).stat().st_size for name in written)


def test_version(run) -> None:
    import rooflinekit

    assert run("--version").out == f"{rooflinekit.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rooflinekit cross", "crossover"),
        ("rooflinekit predict net.py:Net --gpu nvidia-l4", "nvidia-l40s"),
        ("rooflinekit predict net.py:Net --host gen", "generic-server"),
        ("rooflinekit parallel net.py:Net --cluster dgx-h", "dgx-h100"),
    ],
)
def test_a_shell_completes_commands_and_names(typed: str, completed: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_ROOFLINEKIT_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['rooflinekit']; from rooflinekit.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**words, "PYTHONPATH": str(ROOT)},
    )
    assert completed in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("command", ["predict", "compare", "sweep", "parallel", "profile"])
def test_help_begins_with_what_every_call_needs(run: Run, command: str) -> None:
    text = run(command, "--help").out
    themes = re.findall(r"^(\w[\w ]+):$", text, re.MULTILINE)
    assert themes[:2] == ["Arguments", "What every call needs"]
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    switched = {"--no-tf32", "--no-cache", "--no-memory", "--help"}  # behind the option that they switch off
    assert set(shown) >= {"--gpu", "--json", *guide.option_names(ALL[(command,)])} - switched
