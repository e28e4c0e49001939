"""Draws latency over the rate of requests, with the highest rate that keeps a service level."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rooflinekit.present.figures.style import (
    BLUE,
    DASHES,
    FAINT,
    INK,
    VERMILLION,
    Venue,
    Width,
    drawing,
    new_panels,
    plain_frame,
    style_of,
)
from rooflinekit.present.scales import unit_of
from rooflinekit.serving.fleet import Capacity

#: Beyond so many times the knee nothing is shown: there waiting grows with the number of requests.
_SHOWN = 1.6


def rates(capacity: Capacity, *, width: Width = "column", venue: Venue | None = None) -> list[Axes]:
    """Draws time to first token over time between tokens, both over requests a second: medians, 90 and 99 %.

    The promised times are dashed lines, the highest rate that keeps them (the knee) a vertical one. Returns the two
    Axes. Raises InputError for another width or venue.
    """
    style = style_of(width, venue)
    edge = capacity.rate * _SHOWN if capacity.rate else math.inf
    points = [point for point in capacity.points if point.rate <= edge] or list(capacity.points[:2])
    with drawing():
        panels = new_panels(style, 2)
        for axes, name, told, promised in (
            (panels[0], "ttft_s", "first token", capacity.level.ttft_s),
            (panels[1], "tpot_s", "per token", capacity.level.tpot_s),
        ):
            values = [getattr(point, name) for point in points]
            top = max((v for three in values for v in three if not math.isnan(v)), default=1.0)
            scale, unit = unit_of(top if promised is None else promised)
            for i, (share, colour) in enumerate(((50, BLUE), (90, VERMILLION), (99, FAINT))):
                axes.plot([p.rate for p in points], [v[i] / scale for v in values], color=colour, lw=1.0,
                          marker="o", ms=2.5, label=f"{share} %")  # fmt: skip
            if promised is not None:
                axes.axhline(promised / scale, color=INK, lw=0.7, ls=DASHES)
            if capacity.rate:
                axes.axvline(capacity.rate, color=INK, lw=0.7)
            axes.set_ylim(0, None if promised is None or top < 2 * promised else 2 * promised / scale)
            axes.set_ylabel(f"{told} [{unit}]", fontsize=style.axis_font)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            plain_frame(axes, style)
        panels[0].legend(fontsize=style.label_font, frameon=False, loc="upper left")
        panels[1].set_xlabel("requests a second", fontsize=style.axis_font)
        panels[1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if capacity.rate:
            panels[0].annotate(f"{capacity.rate:.3g}/s", (capacity.rate, 1), xycoords=("data", "axes fraction"),
                               xytext=(2, -7), textcoords="offset points", fontsize=style.label_font)  # fmt: skip
    return panels
