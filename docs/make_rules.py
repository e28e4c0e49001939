"""Writes the table of rules in counting.md from the rules themselves.

    python docs/make_rules.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rooflinekit.cost.table import described_rules

PAGE = Path(__file__).parent / "counting.md"
BEGIN, END = "<!-- rules: made by python docs/make_rules.py -->", "<!-- end of rules -->"


def table() -> str:
    """One section a module of rules: its purpose, then ops and formula a row."""
    lines = []
    for title, rows in described_rules().items():
        lines += ["", f"### {title}", "", "| ops | count |", "| --- | --- |"]
        for text, kinds in rows.items():
            names = ", ".join(f"`{kind.removeprefix('aten.')}`" for kind in kinds)
            lines.append(f"| {names} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def current(page: str) -> str:
    """The page with the table as it should be."""
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"{PAGE.name}: expected the lines {BEGIN!r} and {END!r}, between which the table stands")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    """Writes the page, or says whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    wanted = current(page)
    if arguments.check:
        sys.exit(0 if page == wanted else f"{PAGE.name} is behind the rules: run python docs/make_rules.py")
    beside = PAGE.with_suffix(".md.new")
    beside.write_text(wanted, encoding="utf-8")
    beside.replace(PAGE)


if __name__ == "__main__":
    main()
