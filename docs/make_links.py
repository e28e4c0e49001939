"""Writes the table of constants in clusters.md from `calibration/fits/links.yaml`.

    python docs/make_links.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

from page import run

from rooflinekit.calibrate.fitting.constants import LINK_CONSTANTS
from rooflinekit.calibrate.fitting.files import load_links


def table() -> str:
    """What each constant is, and one row for its value of each kind of link or generation of GPUs."""
    lines = ["", "| constant | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {about.unit} | {about.meaning} |" for name, about in LINK_CONSTANTS.items()]
    lines += ["", "| constant | of | value | ± | from |", "| --- | --- | --- | --- | --- |"]
    constants = load_links().constants
    for name in LINK_CONSTANTS:
        for key in sorted((key for key in constants if key.split()[0] == name), key=lambda key: (" " in key, key)):
            found = constants[key]
            of = key.removeprefix(name).strip() or "any other"
            source = found.source.replace("calibration/campaigns/links", "campaigns").removesuffix(f": {of}")
            lines.append(f"| `{name}` | {of} | {found.value:.3g} | {100 * found.stderr:.0f} % | {source} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run("clusters.md", "constants", table, __file__)
