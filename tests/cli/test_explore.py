"""`rooflinekit explore`: the file, what it takes from the command line, and what is said of wrong use."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))\n"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_it_writes_one_file_and_says_so_and_again_the_same(run: Run, net: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    given = [
        "explore", net, "-i", "batch,64", "--batch", "1:8", "--gpu", "l4", "--gpu", "t4", "--step", "inference",
        "--step", "training,bf16", "--host", "unnamed,generic-cloud", "--execution", "eager,compiled",
        "--price-per-hour", "0.5 EUR", "--power", "100,60%", "--out", out,
    ]  # fmt: skip
    result = run(*given)
    # 2 steps · 2 GPUs · 2 executions · 2 hosts · 2 limits · 8 sizes
    assert (result.status, result.out, result.err) == (0, f"256 predicted states written to {out}\n", "")
    page = out.read_text(encoding="utf-8")
    data = data_of(page)
    assert data["choices"] == {
        "workload": ["inference", "training, bfloat16 autocast"], "gpu": ["nvidia-l4", "nvidia-t4"],
        "execution": ["eager", "compiled"], "host": ["unnamed", "generic-cloud"], "limit": [1.0, 0.6],
    }  # fmt: skip
    assert (data["prices"], data["currency"]) == ([0.5, 0.5], "EUR")
    (command,) = (html.unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL))
    assert command.startswith(f"rooflinekit explore {net} -i batch,64 --batch 1:8")
    run(*given)
    assert out.read_text(encoding="utf-8") == page


def test_a_language_model_is_served_from_its_dimensions(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    given = ("--gpu", "h100-sxm5-80gb", "--execution", "cuda-graph", "--power", "100", "--batch", "1,8")
    run("explore", "llama-3.1-8b", "--step", "decode", *given, "--out", out).answered()
    data = data_of(out.read_text(encoding="utf-8"))
    assert data["choices"]["workload"] == ["decode"]
    assert [name for name, _ in data["sizes"][0]] == ["context", "batch"]
    # Each of 8.03e9 weights but the embedding's (128256 · 4096) is multiplied and added; attention comes on top.
    flop = data["pool"][data["counts"][0][data["exact"].index("flop")]][0]
    assert 2 * (8.03e9 - 128256 * 4096) < flop < 1.1 * 2 * 8.03e9


def test_serving_is_of_language_models(run: Run, net: str, tmp_path: Path) -> None:
    given = ("-i", "batch,64", "--gpu", "l4", "--step", "decode", "--out", tmp_path / "page.html")
    run("explore", net, *given).refused()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--out", "page.pdf"), "page.pdf: expected a file name that ends in .html"),
        (("--out", "page.html", "--step", "fp7"), "--step 'fp7': expected inference, training, forward, bf16"),
        (("--out", "page.html", "--power", "half"), "--power 'half': expected percent"),
        (("--out", "page.html", "--power-limit", "50 W"), "name them with --power"),
        (("--out", "page.html", "--power", "120"), "above 0 and up to 1; got 1.2"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run("explore", net, "-i", "batch,64", "--gpu", "l4", *args).refused(has=message)
