"""Explanations in a terminal."""

from __future__ import annotations

from rooflinekit.present.text.tables import Cell, print_table, say, table, table_of
from rooflinekit.step.report import table_rows, title
from rooflinekit.study.explain.explanation import Explanation, sentences, signed

_ROWS = 25  # of groups of kernels; the rest is one line


def print_explanation(explanation: Explanation, *, details: bool = False) -> None:
    """The sentences, then both steps side by side; with `details` what is behind them, too."""
    say(*(f"{title(p)}, {p.machine.name}" for p in (explanation.a, explanation.b)))
    say(*sentences(explanation))
    rows = ((label, *values) for label, values in table_rows((explanation.a, explanation.b)))
    print_table(table(("", *explanation.labels), rows))
    if details:
        say(*explanation.details)
        _print_drivers(explanation)


def _print_drivers(explanation: Explanation) -> None:
    """The groups of kernels with the largest differences."""
    a, b = explanation.labels
    columns: dict[str, Cell] = {
        "module, kind of op": ("words", ""), a: ("a_s", "s"), b: ("b_s", "s"),
        "difference": lambda driver: signed(driver.delta_s),
    }  # fmt: skip
    shown = [driver for driver in explanation.drivers if driver.delta_s]
    print_table(table_of(columns, shown[:_ROWS]))
    if len(shown) > _ROWS:
        say(f"{len(shown) - _ROWS} more differ by less")
