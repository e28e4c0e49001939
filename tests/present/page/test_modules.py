"""The page of modules: folded to the depth asked for, with the numbers of `rk.summary`, and nothing that could run."""

import re
from pathlib import Path

from command_line import Run

#: See the fixture `net`.
NET = """
from torch import nn

block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
Net = nn.Sequential(block, nn.Linear(16, 4, bias=False))
Odd = nn.Sequential()
Odd.add_module("<b>x", nn.Linear(16, 4))
"""


def test_the_page_holds_the_whole_tree_folded_to_the_depth(run: Run, net: str, tmp_path: Path) -> None:
    out = tmp_path / "net.html"
    printed = run("summary", net, "-i", "batch,16", "--batch", 8, "--gpu", "l4", "--depth", 1, "--out", out)
    page = out.read_text(encoding="utf-8")
    names = re.findall(r'class="name">([^<]*)<', page)
    assert names == ["module", "Net", "0", "0", "1", "1"]  # the block's own two between it and the last
    # The root stands open at depth 1, the block below it does not.
    assert re.findall(r"<details( open)?>", page) == [" open", ""]
    assert "<span>336</span>" in page  # 16 · 16 weights, 16 biases, 16 · 4 weights
    assert "<script" not in page
    assert 'content="default-src &#39;none&#39;;' in page
    assert printed.answered().endswith(f"page written to {out}\n")


def test_names_stay_text_and_another_suffix_is_refused(run: Run, net: str, tmp_path: Path) -> None:
    out, odd = tmp_path / "odd.html", net.replace(":Net", ":Odd")
    assert run("summary", odd, "-i", "8,16", "--out", out).status == 0
    page = out.read_text(encoding="utf-8")
    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page
    refused = run("summary", odd, "-i", "8,16", "--out", tmp_path / "odd.pdf")
    refused.refused(has="expected a file name that ends in .html")
