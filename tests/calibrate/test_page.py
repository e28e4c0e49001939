"""The table of constants in the documentation is that of the fits."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "make_constants.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
