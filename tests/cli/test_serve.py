"""`rooflinekit serve`, what is said of wrong use, and the commands of docs/serving.md."""

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import Run

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "examples" / "decoders" / "llama-3.1-8b.json")
PAGE = ROOT / "docs" / "serving.md"


def test_a_served_model(run: Run) -> None:
    result = run("serve", CONFIG, "--gpu", "l40s", "--batch", 4, "--output", 16, "--weights", "fp8", "--kv", "fp8")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "llama-3.1-8b on nvidia-l40s: 4 clients, 1024 tokens in, 16 out, weights fp8, cache fp8"
    assert "at 64.0 KiB a token" in lines[-1]


def test_a_table_and_a_document(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "--batch", "1,4", "-i", "64,128", "--output", 8)
    assert len(re.findall(r"^ nvidia-l40s", run(*args).out, re.MULTILINE)) == 4
    document = json.loads(run(*args, "--json").out)
    assert [(one["input"], one["batch"]) for one in document["servings"]] == [(64, 1), (64, 4), (128, 1), (128, 4)]


def test_a_gpu_that_it_does_not_fit_is_a_row(run: Run) -> None:
    # 8 G weights of 2 bytes are more than the 16 GB of a T4.
    args = ("serve", CONFIG, "--gpu", "t4", "--gpu", "l40s", "--batch", 1, "-i", 64, "--output", 8)
    result = run(*args)
    assert (result.status, result.err) == (0, "")
    assert re.search(r"^ nvidia-l40s +1 +64 +8 +\d", result.out, re.MULTILINE)
    assert re.search(r"^ t4 +1 +64 +8 +does not fit +–", result.out, re.MULTILINE)
    assert "left out: llama-3.1-8b does not fit nvidia-t4: one request needs " in result.out
    document = json.loads(run(*args, "--json").out)
    assert [one["gpu"] for one in document["servings"]] == ["nvidia-l40s"]
    assert [(one["gpu"], one["batch"], one["input"]) for one in document["refused"]] == [("t4", 1, 64)]
    alone = run("serve", CONFIG, "--gpu", "t4")
    assert (alone.status, alone.out) == (2, "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--gpu is missing"),
        (("--gpu", "l4", "--batch", "x"), "--batch 'x': expected a positive integer, or several as 1,8,64\n"),
        (("--gpu", "l4", "--policy", "x"), "engine policy 'x': expected mixed or prefill-first\n"),
        (("--gpu", "l4", "--tp", "2"), "tp 2: the GPUs sum their results over a link"),
    ],
)
def test_wrong_use_is_one_line(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run("serve", CONFIG, *args)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"rooflinekit: {message}")
    assert result.err.count("\n") == 1


def test_the_commands_of_the_page_print_what_it_shows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"```console\n\$ rooflinekit ([^\n]*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(shown) == 2
    for command, text in shown:
        printed = run(*shlex.split(command)).out
        assert [line.rstrip() for line in printed.splitlines() if line.strip()] == [
            line.rstrip() for line in text.splitlines() if line.strip()
        ]
