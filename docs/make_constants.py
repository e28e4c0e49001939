"""Writes the table of constants in model.md from the fit of an unmeasured GPU.

    python docs/make_constants.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

from page import run

from rooflinekit.calibrate.fitting.files import load_constants


def table() -> str:
    """One constant a row, with the value and the spread that an unmeasured GPU has."""
    lines = ["", "| constant | value | ± | unit | meaning | from |", "| --- | --- | --- | --- | --- | --- |"]
    for name, constant in load_constants().constants.items():
        share = f"{100 * constant.stderr:.0f} %"
        lines.append(
            f"| `{name}` | {constant.value:.4g} | {share} | {constant.unit} | {constant.meaning} | {constant.source} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run("model.md", "constants", table, __file__)
