"""Writes the table of constants in model.md from the fit of an unmeasured GPU.

    python docs/make_constants.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rooflinekit.calibrate.fits import load_constants

PAGE = Path(__file__).parent / "model.md"
BEGIN, END = "<!-- constants: made by python docs/make_constants.py -->", "<!-- end of constants -->"


def table() -> str:
    """One constant a row, with the value and the spread that an unmeasured GPU has."""
    lines = ["", "| constant | value | ± | unit | meaning | from |", "| --- | --- | --- | --- | --- | --- |"]
    for name, constant in load_constants().constants.items():
        share = f"{100 * constant.stderr:.0f} %"
        lines.append(
            f"| `{name}` | {constant.value:.4g} | {share} | {constant.unit} | {constant.meaning} | {constant.source} |"
        )
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
        sys.exit(0 if page == wanted else f"{PAGE.name} is behind the fits: run python docs/make_constants.py")
    beside = PAGE.with_suffix(".md.new")
    beside.write_text(wanted, encoding="utf-8")
    beside.replace(PAGE)


if __name__ == "__main__":
    main()
