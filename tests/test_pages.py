"""What programs write into the documentation is current."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["attention", "rules", "constants", "execution", "what_if", "figures", "links", "many_gpus", "schemas"]
)
def test_the_page_is_current(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part in ("what_if", "many_gpus") and find_spec("timm") is None:
        pytest.skip("shows a model of timm")
    program = DOCS / f"make_{part}.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--check"])
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    monkeypatch.chdir(DOCS.parent)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    assert end.value.code in (0, None), end.value.code


@pytest.mark.parametrize("page", ["serving", "strategies"])
def test_tables_of_commands_fit_beside_the_menu(page: str) -> None:
    """120 letters are as wide as 1280 pixels show without scrolling; a table cannot be wrapped."""
    blocks = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("```")[1::2]
    rows = [line for block in blocks for line in block.splitlines() if "   " in line.strip() or "───" in line]
    assert rows
    assert max(map(len, rows)) <= 120
