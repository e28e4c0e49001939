"""Writes the table of rules in rules.md from the rules themselves.

    python docs/make_rules.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

from page import run

from rooflinekit.cost.table import described_rules


def table() -> str:
    """One section a module of rules: its purpose, then ops and formula a row."""
    lines = []
    for title, rows in described_rules().items():
        lines += ["", f"### {title}", "", "| ops | count |", "| --- | --- |"]
        for text, kinds in rows.items():
            names = ", ".join(f"`{kind.removeprefix('aten.')}`" for kind in kinds)
            lines.append(f"| {names} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run("rules.md", "rules", table, __file__)
