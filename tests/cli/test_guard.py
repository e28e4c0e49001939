"""The guard as a user calls it: locked, unchanged, changed, above a threshold; and whose change it is."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import Run

from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.graph_file import opened

NET = """
from torch import nn
def Net():
    return nn.Sequential(nn.Linear(512, {width}), nn.ReLU(), nn.Linear({width}, 4096))
"""


@pytest.fixture
def folder(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one workload, locked."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET.format(width=512))
    Path("rooflinekit.lock").write_text('[net]\nrun = "net.py:Net -i batch,512 --batch 8192 --gpu l4"\n')
    assert run("guard").status == 1  # nothing is locked
    assert run("guard", "--update").status == 0
    return tmp_path


def test_nothing_changed(run: Run, folder: Path) -> None:
    before = Path("rooflinekit.lock").read_text()
    assert run("guard").answered().startswith("ok    net on nvidia-l4: ")
    run("guard", "--update")
    assert Path("rooflinekit.lock").read_text() == before


def test_a_wider_layer_fails_and_is_blamed_in_every_form(run: Run, folder: Path) -> None:
    Path("net.py").write_text(NET.format(width=2048))
    told = run("guard")
    assert told.status == 1
    assert "because of aten.addmm in 0: " in told.out
    assert "8192×512 and 512×2048 → 8192×2048, before 8192×512 and 512×512 → 8192×512" in told.out
    assert "for certain: with 90 % probability " in told.out
    table = run("guard", "--format", "markdown").out
    assert re.search(r"^\| ❌ \| net \| nvidia-l4 \| .* → .* \(\+\d+\.\d%\)", table, re.MULTILINE)
    heights = [len(line.split("s", 1)[1].strip()) for line in table.splitlines() if line.startswith(("locked", "now "))]
    assert heights[0] < heights[1]
    case = ElementTree.fromstring(run("guard", "--format", "junit").out).find("testcase")
    assert case is not None
    assert case.find("failure") is not None
    annotation = run("guard", "--format", "github").out
    assert re.match(r"::error file=rooflinekit\.lock,line=3,title=net on nvidia-l4%3A .*::exceeded: time ", annotation)
    assert len(annotation.splitlines()) == 1
    assert run("guard", "--update").status == 0
    assert run("guard").status == 0


def test_a_change_of_rooflinekit_s_own_is_told_apart(run: Run, folder: Path) -> None:
    lock = Path("rooflinekit.lock")
    time_s = tomllib.loads(lock.read_text())["net"]["locked"]["nvidia-l4"]["time_s"]
    # As if an earlier release had said half of it.
    lock.write_text(lock.read_text().replace(f"time_s = {time_s:.5e}", f"time_s = {time_s / 2:.5e}"))
    result = run("guard")
    assert result.status == 0
    assert "rooflinekit itself: +" in result.out
    assert "because of" not in result.out


def test_without_the_graph_numbers_are_compared_and_nobody_is_blamed(run: Run, folder: Path) -> None:
    graph = Path("rooflinekit.lock.d/net.graph")
    assert opened(graph.read_bytes()).name == "Net"
    graph.write_bytes(b"damaged")
    Path("net.py").write_text(NET.format(width=2048))
    result = run("guard")
    assert result.status == 1
    assert "because of" not in result.out
    assert "not readable" in result.out


def test_another_way_of_running_blames_no_module(run: Run, folder: Path) -> None:
    lock = Path("rooflinekit.lock")
    lock.write_text(lock.read_text().replace("8192 --gpu l4", "16384 --gpu l4", 1))
    result = run("guard")
    assert result.status == 1
    assert "run in another way" in result.out
    assert load_device("l4").name in result.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run = 'net.py:Nut -i 1,512 --gpu l4'", "[net] run: "),
        ("run = 'net.py:Net -i 1,512 --gpu nvidia-l5'", "[net] run: "),
        ("run = 'net.py:Net -i 1,512'", "[net] run: --gpu is missing"),
        ("run = 'net.py:Net --help'", "[net] run: unknown option or argument '--help'"),
        ("run = 'net.py:Net --gup l4'", "[net] run: "),
    ],
)
def test_a_wrong_workload_is_named(run: Run, folder: Path, text: str, words: str) -> None:
    Path("rooflinekit.lock").write_text(f"[net]\n{text}\n")
    result = run("guard")
    assert result.status == 2
    assert words in result.err


def test_no_file_no_such_name(run: Run, folder: Path) -> None:
    assert "has no workload 'nat'; did you mean 'net'?" in run("guard", "nat").err
    assert 'run = "timm:resnet50' in run("guard", "--lock", "none.lock").err
