"""Figures with matplotlib. Each function draws on the Axes that it is given, or a new one, and returns it.

Nothing is shown, and no setting of matplotlib is changed for figures drawn elsewhere.

>>> import rooflinekit as rk
>>> ax = rk.plot.roofline(rk.load_device("nvidia-l4"))
>>> ax.get_xscale(), ax.get_title()
('log', '')
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from matplotlib.axes import Axes

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.present.figures import marks
from rooflinekit.present.figures.curves import attention, energy_roofline, errors, layouts, sweep, time_energy
from rooflinekit.present.figures.files import save
from rooflinekit.present.figures.frame import Frame, Line, draw_ridges, draw_roofs, label_roofs
from rooflinekit.present.figures.records.build import Subject, roofline_figure
from rooflinekit.present.figures.records.caption import caption as caption_of
from rooflinekit.present.figures.records.figure import Figure, Point
from rooflinekit.present.figures.records.roofs import normalized_view
from rooflinekit.present.figures.style import Sheet, Venue, Width, sheet
from rooflinekit.present.figures.timeline import memory, timeline
from rooflinekit.present.figures.waterfall import waterfall

__all__ = [
    "attention", "caption", "energy_roofline", "errors", "layouts", "memory", "roofline", "save", "sweep",
    "time_energy", "timeline", "waterfall",
]  # fmt: skip
_INSIDE = 2  # devices whose key finds a place inside the axes of a column
_NARROW = 4.0  # inches


@checked
def roofline(
    subject: Figure | Subject, ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None,
    names: int | None = None, by_kind: bool | None = None, path: bool | Sequence[str] = False, joined: bool = True,
    by_level: bool = False, normalized: bool = False, launch: bool = False,
) -> Axes:  # fmt: skip
    """Draws a roofline figure: performance in FLOP/s against arithmetic intensity in FLOP per byte of DRAM traffic.

    subject: a Prediction, Machine or Device, or several, or a `Figure` made from them; or a ProfileComparison or a
        Validation, whose marks are joined pairs, hollow as predicted and filled as measured; or ParallelPredictions,
        whose steps stand over FLOP per byte sent, under the roofs of their links, and hollow over those of DRAM.
    ax: where to draw; its scales and limits are set. By default a new figure.
    width: the preset of sizes, "column" (3.5 in wide) or "page" (7.1 in).
    venue: "ieee", "acm", "lncs", "neurips" or "slides": widths and sizes of text of its template instead.
    names: the most marks that are named; by default as many as fit the width. 0 names none.
    by_kind: one mark for each kind of op and bound; see `roofline_figure`.
    path: each prediction is one mark, its whole step, joined by arrows in their order; True, or a name for each.
    joined: False leaves the arrows out: several networks, each one mark.
    by_level: two joined marks a kernel, at its traffic to DRAM and to the L2; the level that takes longer is filled.
    normalized: shares of each kernel's own roof, so that all GPUs and formats have one.
    launch: also what a kernel of the median size reaches with its start, as a dotted curve.

    `caption` states the facts that a reader needs beside it. Raises InputError for another subject, width or venue.
    """
    figure = _figure(subject, by_kind=by_kind, path=path, joined=joined, by_level=by_level, normalized=normalized)
    if figure.normalized:
        figure = normalized_view(figure)
    with sheet(ax, width, venue) as page:
        named = marks.named_points(figure, page.style.names if names is None else names)
        narrow = page.style.size[0] < _NARROW
        outside = page.new and bool(figure.series) and len(figure.devices) > _INSIDE and narrow
        frame = _drawn(page, figure, named, launch=launch, outside=outside)
        if frame is None:
            page.ax.clear()
            frame = _drawn(page, figure, named, launch=launch, outside=True)
    assert frame is not None, "a key outside hides nothing"
    return frame.ax


def _drawn(page: Sheet, figure: Figure, named: Sequence[Point], *, launch: bool, outside: bool) -> Frame | None:
    """Everything, with the key in the axes or over them; None where a key in the axes would hide marks.

    Axes that a caller gave have the key inside, whatever it hides.
    """
    if outside:
        marks.key_outside(page.ax, figure, page.style, named)
    frame = Frame(page.ax, figure, page.style)
    lines = draw_roofs(frame)
    ridges, paths, points, crossings = (
        draw_ridges(frame, lines), marks.draw_paths(frame), marks.draw_points(frame, named), marks.draw_crossings(frame)
    )  # fmt: skip
    floors = [marks.draw_floors(frame)] * launch
    for layer in (ridges, paths, *floors, points, crossings):
        next(layer)
    _label_slopes(frame, lines)
    if not outside:
        moved = marks.draw_key(frame, named, hiding=not page.new)
        if moved is None:
            return None
        if moved:
            _label_slopes(frame, lines)
    label_roofs(frame, lines, "compute")
    for layer in (ridges, *floors, crossings, paths, points):
        next(layer, None)
    return frame


@checked
def caption(
    subject: Figure | Subject, *, by_kind: bool | None = None, path: bool | Sequence[str] = False, joined: bool = True,
    by_level: bool = False, normalized: bool = False,
) -> str:  # fmt: skip
    """What a reader has to know beside a roofline figure, in plain sentences.

    subject: what `roofline` draws, or the `Figure` made of it; the rest is as there. Raises InputError for another
    subject.
    """
    return caption_of(
        _figure(subject, by_kind=by_kind, path=path, joined=joined, by_level=by_level, normalized=normalized)
    )


def _figure(subject: Figure | Subject, **how: Any) -> Figure:
    return subject if isinstance(subject, Figure) else roofline_figure(subject, **how)


def _label_slopes(frame: Frame, lines: Sequence[Line]) -> None:
    marks.draw_rail_scale(frame)
    label_roofs(frame, lines, "memory")
    label_roofs(frame, lines, "link")


class _Figures(ModuleType):
    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raises InputError: what is called is the module."""
        raise InputError("name a figure, such as rk.plot.roofline(…), .timeline(…), .memory(…) or .waterfall(…)")


sys.modules[__name__].__class__ = _Figures
