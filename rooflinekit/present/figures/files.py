"""Writes figures to files: the same figure always gives the same bytes."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure

from rooflinekit.errors import InputError, printable
from rooflinekit.files import check_ending, replacing
from rooflinekit.step.made import fingerprint, versions

# Dates would make two files of one figure differ.
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None},
    "pgf": {},
    "png": {},
    "svg": {"Date": None},
}
_DESCRIPTION = {"pdf": "Subject", "png": "Description", "svg": "Description"}  # where a format keeps such a text
_DPI = 300


def save(drawn: Axes | Figure, path: str | Path, *, command: str = "") -> Path:
    r"""Writes a figure as .pdf, .svg, .png or .pgf, at its own size; text stays text in all but .png. Returns the path.

    A .pgf is drawn by LaTeX (\usepackage{pgf}, \input{FILE}) in the document's own sans-serif font; writing it takes
    no TeX. The file appears whole or not at all: it is written beside its place and renamed. Two files of one figure
    are equal byte by byte. command: how the figure is made again, for the file to hold with the versions and a hash of
    the figure; programs show it as the file's description. Raises OutputError for another suffix and for a place that
    cannot be written.
    """
    target = Path(path)
    form = check_name(target)
    figure = drawn.get_figure(root=True) if isinstance(drawn, Axes) else drawn
    if not isinstance(figure, Figure):
        raise InputError(f"save: expected an Axes in a figure, or a Figure; got {type(drawn).__name__}")
    style: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "rooflinekit"}
    with replacing(target) as beside, mpl.rc_context(style):
        if form == "pgf":
            text = pgf_of(figure)
            beside.write_text(text + (f"% {_made(command, text)}\n" if command else ""), encoding="utf-8")
            return target
        figure.savefig(beside, format=form, dpi=_DPI, metadata=_METADATA[form])
        if command:
            made = {_DESCRIPTION[form]: _made(command, beside.read_bytes())}
            figure.savefig(beside, format=form, dpi=_DPI, metadata=_METADATA[form] | made)
    return target


def _made(command: str, drawn: str | bytes) -> str:
    """How a figure is made again, on one line."""
    return f"{' '.join(command.split())}. Made by {versions()}. The same figure has the hash {fingerprint(drawn)}."


def check_name(target: Path) -> str:
    """The format that a file's name asks for, such as "pdf". Raises OutputError for one that cannot be written."""
    return check_ending(target, *(f".{name}" for name in _METADATA)).suffix.lower().removeprefix(".")


# Figures as PGF for LaTeX, measured without TeX: text is laid out by matplotlib's own font, which is a wide one.
#
# matplotlib's `savefig` asks an installed LaTeX how wide each text is, so that one figure differs between machines.
# Here texts keep the places that they have in every other format, and LaTeX sets them, anchored as they are.


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
    drawn = io.StringIO()
    figure.draw(_Renderer(figure, drawn))
    return (
        "%% \\usepackage{pgf} in the preamble, and \\input{FILE} where it is to stand.\n"
        "\\begingroup\n\\makeatletter\n\\begin{pgfpicture}\n"
        f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}\n"
        f"\\pgfusepath{{use as bounding box, clip}}\n{drawn.getvalue()}"
        "\\end{pgfpicture}\n\\makeatother\n\\endgroup\n"
    )


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
