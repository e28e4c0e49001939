"""Each tutorial runs as it stands: its claims hold, and its outputs and figures are those of the code beside them."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from make_tutorials import PAGES, made

NEEDS = {"choosing_a_gpu": ("timm", "transformers")}
TUTORIALS = sorted(file.stem for file in PAGES.glob("*.md"))
LARGEST = 120_000  # bytes of a figure


def labels(figure: Path) -> list[str]:
    """What is written in an SVG: its places may move with another matplotlib, its words may not."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_the_tutorial_is_current(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if missing := [needed for needed in NEEDS.get(name, ()) if find_spec(needed) is None]:
        pytest.skip(f"shows models of {missing[0]}")
    monkeypatch.syspath_prepend(PAGES.parents[1])  # for examples/
    monkeypatch.chdir(tmp_path)
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert made(page, name) == page, f"behind: run {Path(sys.executable).name} docs/make_tutorials.py {name}"
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    assert shown, "a tutorial ends in a figure"
    for figure in shown:
        assert (PAGES / figure).stat().st_size < LARGEST
        assert labels(tmp_path / figure) == labels(PAGES / figure)


def test_links_between_pages_lead_somewhere() -> None:
    for name in TUTORIALS:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (PAGES / f"{name}.md").read_text(encoding="utf-8")):
            assert target.startswith("http") or (PAGES / target).exists(), f"{name}: {target}"
