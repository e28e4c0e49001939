"""Traces that are kept between commands: the same answer, made once, and never of other code or options."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

from rooflinekit.api import trace_basis, trace_store
from rooflinekit.api.trace_basis import Record
from rooflinekit.api.trace_store import TraceStore, surroundings

NET = """
import pathlib
from torch import nn
from helper import WIDTH
with open(pathlib.Path(__file__).with_name("made"), "a") as made:
    made.write("x")
DEPTH = int(pathlib.Path(__file__).with_name("depth.txt").read_text())
Net = lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "helper.py").write_text("WIDTH = 64\n")
    (tmp_path / "depth.txt").write_text("2")
    monkeypatch.setenv(trace_store.FOLDER, str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def flop(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def predicted(*options: object) -> tuple[int, int]:
        """The FLOP of a prediction, and how often the model's file has run so far."""
        monkeypatch.delitem(sys.modules, "helper", raising=False)
        monkeypatch.setattr(trace_basis, "_record", Record())
        args = ("predict", f"{folder / 'net.py'}:Net", "-i", "batch,64", "--gpu", "l4", "--json")
        said = run(*args, *(() if "--batch" in options else ("--batch", 8)), *options).answered()
        made = folder / "made"
        return json.loads(said)["predictions"][0]["flop"], len(made.read_text()) if made.exists() else 0

    return predicted


# Two products of [8, 64] with [64, 64]: 2 · 2·8·64·64.
FLOP = 2 * 2 * 8 * 64 * 64


def test_the_second_command_does_not_run_the_model(flop, folder: Path) -> None:
    assert flop() == (FLOP, 1)
    assert flop() == (FLOP, 1)
    assert flop("--gpu", "t4") == (FLOP, 1)
    assert flop("--no-cache") == (FLOP, 2)


def test_other_options_are_other_traces(flop) -> None:
    flop()
    assert flop("--batch", 16) == (2 * FLOP, 2)
    assert flop("--autocast", "fp16")[1] == 3
    assert flop("--mode", "training", "--optimizer", "SGD")[1] == 4
    assert flop("--mode", "training", "--optimizer", "sgd")[1] == 4
    assert flop() == (FLOP, 4)


@pytest.mark.parametrize(
    ("file", "text", "factor"),
    [
        ("depth.txt", "3", 1.5),  # read by the model's code
        ("net.py", NET.replace("range(DEPTH)", "range(2 * DEPTH)"), 2),
        ("helper.py", "WIDTH = 64\n#\n", 1),  # imported; the same result, but nobody could know
    ],
)
def test_what_the_model_rests_on_is_looked_at(flop, folder: Path, file: str, text: str, factor: float) -> None:
    flop()
    (folder / file).write_text(text)
    assert flop() == (factor * FLOP, 2)


def test_a_file_that_was_written_again_as_it_was_is_the_same(flop, folder: Path) -> None:
    flop()
    (folder / "net.py").touch()
    assert flop() == (FLOP, 1)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, b"\xff" * 8, None])
def test_a_damaged_file_is_traced_anew(flop, folder: Path, damage: bytes | None) -> None:
    flop()
    (kept,) = (folder / "cache").glob("*.graph")
    data = kept.read_bytes()
    kept.write_bytes(data[:-40] + b"x" + data[-39:] if damage is None else damage)
    assert flop() == (FLOP, 2)
    assert flop() == (FLOP, 2)  # and kept again


def test_a_pipe_in_the_place_of_a_trace_is_not_waited_for(flop, folder: Path) -> None:
    flop()
    (kept,) = (folder / "cache").glob("*.graph")
    kept.unlink()
    os.mkfifo(kept)
    assert flop() == (FLOP, 2)


def test_a_folder_that_others_can_write_to_is_not_used(flop, folder: Path) -> None:
    flop()
    (folder / "cache").chmod(0o777)
    assert flop() == (FLOP, 2)
    assert flop() == (FLOP, 3)


def test_the_folder_is_bounded(flop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flop()
    (first,) = (folder / "cache").glob("*.graph")
    monkeypatch.setattr(trace_store, "MOST_BYTES", int(1.5 * first.stat().st_size))
    flop("--batch", 16)
    (second,) = (folder / "cache").glob("*.graph")
    assert second != first


def test_no_folder_is_no_reason_to_fail(flop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trace_store.FOLDER, str(folder / "net.py" / "below"))
    assert flop() == (FLOP, 1)
    monkeypatch.setenv(trace_store.FOLDER, "")
    assert flop() == (FLOP, 2)


def test_a_kept_trace_can_be_traced_again(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("advise", f"{folder / 'net.py'}:Net", "-i", "batch,64", "--batch", 8, "--gpu", "l4", "--json")
    first = run(*args).document
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    assert run(*args).document == first
    assert "autocast in float16" in [one["what"] for one in first["suggestions"]]


def test_the_second_command_loads_neither_torch_nor_what_formulas_and_tables_need(folder: Path) -> None:
    call = (
        "import sys; from rooflinekit.cli.app import main; sys.argv = ['rooflinekit', 'predict', 'net.py:Net', '-i',"
        " 'batch,64', '--batch', '8', '--gpu', 'l4']\n"
        "main()\nprint(*sorted({'torch', 'sympy', 'pandas', 'scipy'} & sys.modules.keys()))"
    )
    said = [
        subprocess.run([sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [text.splitlines()[-1] for text in said] == ["sympy torch", ""]
    assert said[0].splitlines()[:-1] == said[1].splitlines()[:-1]


def test_a_store_without_a_folder_has_nothing(tmp_path: Path) -> None:
    assert TraceStore(tmp_path / "none").load("key") is None


def test_what_a_library_s_model_is_called_with_is_asked_once(tmp_path: Path) -> None:
    store, asked = TraceStore(tmp_path / "cache"), []

    def ask(target: str) -> tuple[str | int, ...]:
        asked.append(target)
        return "batch", 3, 224, 224

    for _ in range(2):
        assert store.usual_shape("timm:resnet50", ask) == ("batch", 3, 224, 224)
    assert asked == ["timm:resnet50"]
    (kept,) = store.folder.iterdir()
    for damaged in (b"", b"{}", b"[1, true]", b"[" * 4000, b"[" * 5000):
        kept.write_bytes(damaged)
        assert store.usual_shape("timm:resnet50", ask) == ("batch", 3, 224, 224)
    assert len(asked) == 6
    for _ in range(2):  # no package tells whether it is as it was
        store.usual_shape("net.py:Net", ask)
    assert len(asked) == 8
    store.clear()
    assert not list(store.folder.iterdir())


def test_what_a_library_sets_while_it_is_asked_is_in_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_OF_THIS_TEST", "given")  # gone again after the test
    monkeypatch.delenv("TORCH_OF_THIS_TEST")

    def ask(target: str) -> tuple[str | int, ...]:
        os.environ["TORCH_OF_THIS_TEST"] = "made"
        return "batch", 3, 224, 224

    before = surroundings()
    TraceStore(tmp_path / "cache").usual_shape("timm:resnet50", ask)
    assert os.environ["TORCH_OF_THIS_TEST"] == "made"
    assert surroundings() == before
