"""What programs write into the documentation is current."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("part", ["rules", "constants", "execution", "what_if", "figures", "links", "many_gpus"])
def test_the_page_is_current(part: str) -> None:
    if part in ("what_if", "many_gpus") and find_spec("timm") is None:
        pytest.skip("shows a model of timm")
    command = [sys.executable, DOCS / f"make_{part}.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DOCS.parent)
    assert done.returncode == 0, done.stderr
