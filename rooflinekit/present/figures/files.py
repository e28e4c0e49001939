"""Writes figures to files: the same figure always gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflinekit.errors import InputError, OutputError
from rooflinekit.files import replacing
from rooflinekit.present.figures.pgf import pgf_of
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
    form = target.suffix.lower().removeprefix(".")
    if form not in _METADATA:
        known = ", ".join(f".{name}" for name in _METADATA)
        raise OutputError(f"{target}: expected a file name that ends in {known}")
    return form
