"""The lock file: people's lines stay as they are, what is locked is read as it was written, wrong lines are named."""

import re
import tomllib
from pathlib import Path

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import LockError
from rooflinekit.study.guard.check import Limits, locked_as, parse_lock

TEXT = """\
# ours
["a.b"]  # the dotted one
run = "net.py:A --gpu l4"
limits = { time = "+5 %" }   # agreed

[c]
run = "net.py:C --gpu l4"
"""


def test_updating_leaves_what_people_wrote(tmp_path: Path) -> None:
    p = rk.predict(nn.Linear(8, 8), rk.Input(4, 8), gpu="l4")
    lock = parse_lock(TEXT, tmp_path / "x.lock")
    for block in lock.blocks:
        lock = lock.updated(block.name, p.graph, {"nvidia-l4": locked_as(block, p)})
    written = lock.path.read_text()
    theirs = re.sub(r"\[[^\n]*\.locked\.[^\n]*\]\n(?:.+\n)+\n?", "", written)
    assert theirs.split() == TEXT.split()
    assert tomllib.loads(written)["a.b"]["locked"]["nvidia-l4"]["run"] == "net.py:A --gpu l4"
    again = parse_lock(written, lock.path)
    for block in again.blocks:
        again = again.updated(block.name, p.graph, {"nvidia-l4": locked_as(block, p)})
    assert again.text == written
    assert again.graph("a.b") == p.graph
    assert again.graph("none") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "is no TOML"),
        ("", "has no workload"),
        ("[a]\nruns = 'b'", "[a]: runs: unknown key; did you mean 'run'?"),
        ("[a]\nrun = 1", "run: expected text in quotes; got 1"),
        ("[a]\nrun = 'b'\nlimits = {tim = '+3 %'}", "unknown limit 'tim'; did you mean 'time'?"),
        ("[a]\nrun = 'b'\nlimits = {time = '+3'}", "time: expected a limit such as '12 ms', or growth"),
        ("[a]\nrun = 'b'\nlimits = {regime = 'fast'}", "regime: expected one of compute"),
        ("[a]\nrun = 'b'\n[a.locked.l4]\ntime_s = 1.0", "lock it again with --update"),
    ],
)
def test_wrong_lines_are_named(text: str, words: str) -> None:
    with pytest.raises(LockError, match=r"x\.lock") as error:
        parse_lock(text, Path("x.lock"))
    assert words in str(error.value)


def test_thresholds() -> None:
    p = rk.predict(nn.Linear(1024, 1024, bias=False), rk.Input(64, 1024), gpu="l4")
    flop = 2 * 64 * 1024 * 1024  # a multiplication and an addition each
    for sign, holds in (("<", False), ("<=", True), ("", True)):
        limits = Limits.parse({"flop": f"{sign}{flop} FLOP", "regime": p.regime}, "x")
        assert (not list(limits.exceeded(p))) is holds
    assert [*Limits.parse({"kernels": "<1"}, "x").exceeded(p)] == ["kernels 1, at most 1 allowed"]
    base = {"time": 1.0, "kernels": 10}
    (words,) = Limits.parse({"kernels": ["+10 %", "400"]}, "x").grown(base, {"time": 1.02, "kernels": 12})
    assert words == "kernels 10 → 12, +20.0%, at most +10.0% allowed"
    (words,) = Limits.parse({}, "x").grown(base, {"time": 1.04, "kernels": 99})
    assert words.startswith("time 1.00 s → 1.04 s, +4.0%, at most +3.0%")
