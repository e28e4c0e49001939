r"""Figures as PGF for LaTeX, measured without TeX: text is laid out by matplotlib's own font, which is a wide one.

matplotlib's `savefig` asks an installed LaTeX how wide each text is, so that one figure differs between machines. Here
texts keep the places that they have in every other format, and LaTeX sets them, anchored as they are.
"""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure

from rooflinekit.errors import printable

# matplotlib takes care of the minus sign.
_ESCAPED = {
    "^": r"\textasciicircum{}",  # two of them and a letter are one letter, before TeX looks at anything else
    "%": r"\%",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\\": r"\textbackslash{}",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "…": r"\ldots{}",
    "×": r"\ensuremath{\times}",
    "µ": r"\ensuremath{\mu}",
    "·": r"\ensuremath{\cdot}",
    "±": r"\ensuremath{\pm}",
    "≥": r"\ensuremath{\geq}",
    "≤": r"\ensuremath{\leq}",
    "→": r"\ensuremath{\rightarrow}",
    "′": r"\ensuremath{{}'}",
    "–": "--",
    "⁻": r"\ensuremath{^{-}}",
    **{raised: rf"\ensuremath{{^{i}}}" for i, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPED)))


def escaped(text: str) -> str:
    """Text as LaTeX sets it letter by letter, on one line: nothing in it is a command.

    >>> print(escaped("layer_1 ×2"))
    layer\\_1 \\ensuremath{\\times}2
    """
    return _SPECIAL.sub(lambda match: _ESCAPED[match[0]], printable(" ".join(text.split())))


def pgf_of(figure: Figure) -> str:
    """The figure as a `pgfpicture`, which LaTeX draws after `usepackage{pgf}`."""
    width, height = figure.get_size_inches()
    written = io.StringIO()
    written.write("%% \\usepackage{pgf} in the preamble, and \\input{FILE} where it is to stand.\n")
    written.write("\\begingroup\n\\makeatletter\n\\begin{pgfpicture}\n")
    corner = f"\\pgfqpoint{{{width:f}in}}{{{height:f}in}}"
    written.write(f"\\pgfpathrectangle{{\\pgfpointorigin}}{{{corner}}}\n\\pgfusepath{{use as bounding box, clip}}\n")
    figure.draw(_Renderer(figure, written))
    written.write("\\end{pgfpicture}\n\\makeatother\n\\endgroup\n")
    return written.getvalue()


class _Renderer(RendererPgf):
    """Measures text as the other formats do."""

    def __init__(self, figure: Figure, file: io.StringIO) -> None:
        super().__init__(figure, file)  # type: ignore[no-untyped-call]
        width, height = figure.get_size_inches() * figure.dpi
        self._measured: Any = RendererAgg(width, height, figure.dpi)  # type: ignore[no-untyped-call]

    def draw_text(self, gc: Any, x: Any, y: Any, s: str, *rest: Any, **options: Any) -> None:
        super().draw_text(gc, x, y, escaped(s), *rest, **options)  # type: ignore[no-untyped-call]

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return self._measured.get_text_width_height_descent(s, prop, ismath)
