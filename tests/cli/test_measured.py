"""`--measured` of compare, report, advise and search: all rest on what `rooflinekit transfer` says."""

import html
import re
from pathlib import Path

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())\n"

INPUT = ("-i", "batch,3,224,224")
SIZE = (*INPUT, "--batch", 16)
MEASURED = ("--measured", "5 ms", "--measured-on", "t4")


@pytest.fixture
def total_s(run: Run, net: str) -> float:
    """Of the step on an L4, as the transfer has it."""
    (found,) = run("transfer", net, *SIZE, *MEASURED, "--gpu", "l4", "--json").document["predictions"]
    (plain,) = run("predict", net, *SIZE, "--gpu", "l4", "--json").document["predictions"]
    assert found["total_s"] > 1.2 * plain["total_s"]
    return float(found["total_s"])


def test_all_four_rest_on_the_transfer(run: Run, net: str, total_s: float, tmp_path: Path) -> None:
    compared = run("compare", net, *SIZE, *MEASURED, "--gpu", "l4", "--gpu", "t4", "--json").document
    assert {row["gpu"]: row["total_s"] for row in compared["gpus"]}["nvidia-l4"] == pytest.approx(total_s)
    advised = run("advise", net, *SIZE, *MEASURED, "--gpu", "l4", "--other-gpu", "t4", "--json").document
    assert advised["base"]["total_s"] == pytest.approx(total_s)
    assert all("correction" in one["saved_terms"] for one in advised["suggestions"])
    # sizes to choose from, of which the transfer's is one: exact there
    at = ("--measured-at", "batch=16", "--require", "batch<=16", "--require", "batch>=16")
    found = run("search", net, *INPUT, "--batch", "1:64", *MEASURED, *at, "--gpu", "l4", "--json").document
    assert found["best"]["batch"] == 16
    assert found["best"]["total_s"] == pytest.approx(total_s)
    assert found["best"]["throughput"] == pytest.approx(16 / total_s)
    out = tmp_path / "review.html"
    run("report", net, *SIZE, *MEASURED, "--gpu", "l4", "--out", out, "--no-advice")
    page = html.unescape(out.read_text(encoding="utf-8"))
    assert "Correction as measured" in page
    assert "measured='5 ms', measured_on='t4'" in page
    (shown,) = re.findall(r"<th scope=\"row\">nvidia-l4.*?<td[^>]*>([\d.]+)\sms", page, re.DOTALL)[:1]
    assert float(shown) == pytest.approx(1e3 * total_s, rel=0.01)


def test_another_batch_than_the_measured_one(run: Run, net: str) -> None:
    # measured at 16, predicted at 32: --measured-at names the one, --there the other
    same = ("--gpu", "l4", "--json")
    at = ("--measured-at", "batch=16")
    here = run("compare", net, *INPUT, "--batch", 32, *MEASURED, *at, *same).document["gpus"][0]
    there = ("--there", "batch=32")
    (found,) = run("transfer", net, *SIZE, *MEASURED, *there, *same).document["predictions"]
    assert here["total_s"] == pytest.approx(found["total_s"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("compare", "--measured-on", "t4"),
            "measured_on: belongs to measured, a time or a file of the step, which is",
        ),
        (("advise", "--measured-at", "batch=8"), "measured_at: belongs to measured"),
        (("compare", "--measured", "2 ms"), "measured_on: name the device that was measured"),
        (("compare", "--measured", "2 mm", "--measured-on", "t4"), "--measured '2 mm': expected a time"),
        (("compare", *MEASURED, "--measured-at", "batch=8,9"), "--measured-at batch: expected one value; got 2"),
        (("compare", *MEASURED, "--measured-at", "batch"), "--measured-at 'batch': expected NAME=VALUE"),
        (("compare", "--measured", "2 ms", "--measured-on", "t44"), "unknown device 't44'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    command, *options = args
    run(command, net, *SIZE, "--gpu", "l4", *options).refused(message)


def test_a_search_asks_which_size_was_measured(run: Run, net: str) -> None:
    result = run("search", net, *INPUT, "--batch", "8,16", *MEASURED, "--gpu", "l4")
    result.refused("measured_at: 2 values of batch are compared; say which was measured")
