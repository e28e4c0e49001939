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
