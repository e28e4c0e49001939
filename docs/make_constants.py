"""Writes the tables of constants.md (of an unmeasured GPU, and stated numbers), and in model.md the first ones.

    python docs/make_constants.py [--check]

With --check nothing is written, and the exit status is 1 where a page is behind.
"""

from __future__ import annotations

from page import FOLDER, run_all

from rooflinekit.calibrate.fitting.files import load_constants
from rooflinekit.published.stated import ENGINES, NUMBERS, PROGRAMS, SPREADS, Constant

#: The constants that carry most, with the term of the table of terms that says what each is worth; "" where it is a
#: scale, without which there is no prediction.
FIRST = {
    "issue_share": "", "memory_share": "", "overlap": "smooth overlap (sharp maximum instead)",
    "matrix_tile_loss": "tile loss, tensor core", "product_ramp_cycles": "ramp of product kernels",
    "matrix_energy": "power of the board", "cache_share": "what a call finds of itself in the cache",
    "l2_bytes_per_clock": "bandwidth of the cache (32 bytes a clock)", "access_cycles": "single accesses",
    "untuned_convolution": "volumes, wide windows, few channels",
}  # fmt: skip

#: What most constants are from, and the word that the page has for it.
CAMPAIGNS = "calibration/campaigns, all GPUs", "campaigns"


def first() -> str:
    """The constants that carry most: meaning, value, and the median errors with and without each, from the page."""
    worth: dict[str, tuple[str, str]] = {}
    for line in (FOLDER / "model.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and " / " in cells[2]:
            worth[cells[0]] = cells[2].split(" / ")[0], cells[3].split(" / ")[0]
    constants = load_constants().constants
    lines = ["", "| constant | value | meaning | error with it, % | without it, % |", "| --- | --- | --- | --- | --- |"]
    for name, term in FIRST.items():
        c, (there, gone) = constants[name], worth[term] if term else ("", "")
        unit = "" if c.unit == "1" else f" {c.unit}"
        lines.append(f"| `{name}` | {c.value:.4g}{unit} | {c.meaning} | {there} | {gone} |")
    return "\n".join([*lines, ""])


def value(constant: Constant) -> str:
    """A constant's value with its unit and its relative error."""
    unit = "" if constant.unit == "1" else f" {constant.unit}"
    return f"{constant.value:.4g}{unit} ± {100 * constant.stderr:.0f} %"


def table() -> str:
    """One constant a row, with the value and the spread that an unmeasured GPU has."""
    lines = ["", "| constant | value | meaning | from |", "| --- | --- | --- | --- |"]
    for name, constant in load_constants().constants.items():
        source = constant.source.removesuffix("; no measurement tells it").replace(*CAMPAIGNS)
        lines.append(f"| `{name}` | {value(constant)} | {constant.meaning} | {source} |")
    return "\n".join([*lines, ""])


def stated() -> str:
    """One stated number a row: of kernels, of programs, of engines, at last what answers are off together."""
    lines = ["", "| number | value | meaning |", "| --- | --- | --- |"]
    for name, one in {**NUMBERS, **PROGRAMS, **ENGINES, **SPREADS}.items():
        lines.append(f"| {name} | {value(one)} | {one.meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run_all({"model.md": {"ten": first}, "constants.md": {"constants": table, "stated": stated}}, __file__)
