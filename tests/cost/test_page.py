"""The table of rules in the documentation is that of the rules."""

import subprocess
import sys
from pathlib import Path

from rooflinekit.cost.table import described_rules

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    done = subprocess.run(
        [sys.executable, DOCS / "make_rules.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_rule_says_what_it_counts():
    assert [kinds for rows in described_rules().values() for text, kinds in rows.items() if not text] == []
