"""`rooflinekit report`: the file, the program in it, and what is said of wrong use."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

#: See the fixture `net`.
NET = """
from torch import nn
Net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
Small = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
"""
SIZE = ("-i", "batch,3,32,32", "--batch", 16, "--gpu", "l4")
TRAINING = ("--mode", "training", "--optimizer", "sgd", "--autocast", "bf16", "--loss", "cross_entropy")
OPTIONS = (*TRAINING, "--target", "batch:int64", "--copy", "pinned", "--channels-last", "--host", "xeon-server-2018")
LIMITED = ("--power-limit", "40 W")


def test_it_writes_one_file_and_says_so(run: Run, net: str, tmp_path: Path) -> None:
    out = tmp_path / "review.html"
    result = run("report", net, *SIZE, "--gpu", "t4", "--out", out, "--no-advice")
    assert (result.status, result.out, result.err) == (0, f"report written to {out}\n", "")
    page = out.read_text(encoding="utf-8")
    assert "The GPUs named for this report." in page
    assert {"nvidia-l4", "nvidia-t4"} <= set(re.findall(r'<th scope="row">([\w-]+)', page))


@pytest.mark.parametrize("options", [LIMITED, OPTIONS], ids=["limited", "training"])
def test_the_program_in_it_predicts_the_same(run: Run, net: str, tmp_path: Path, options: tuple[object, ...]) -> None:
    out = tmp_path / "review.html"
    given = (net, *SIZE, *options)
    run("report", *given, "--against", net.replace(":Net", ":Small"), "--out", out, "--no-advice")
    page = out.read_text(encoding="utf-8")
    command, program = (html.unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL))
    assert command.startswith(f"rooflinekit report {net} -i batch,3,32,32 --batch 16 --gpu l4")
    names: dict[str, Any] = {}
    exec(program, names)
    (predicted,) = run("predict", *given, "--json").document["predictions"]
    del predicted["memory"]["verdict"]  # which the command alone works out
    assert names["prediction"].to_dict() == predicted
    # It has written the same page, but for the command, which Python does not have.
    again = out.read_text(encoding="utf-8")
    assert again.split('id="reproduce"')[0] == page.split('id="reproduce"')[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--out", "review.pdf"), "review.pdf: expected a file name that ends in .html"),
        (("--out", "r.html", "--gpu", "l5"), "unknown device 'l5'"),
        (("--out", "r.html", "--gpu", "nvidia-l4", "--gpu", "t4", "--gpu", "t4"), "gpus: 'nvidia-t4' is given twice"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str, here: Path) -> None:
    run("report", net, *SIZE, *args).refused(message)
    assert not list(here.glob("*.html"))
