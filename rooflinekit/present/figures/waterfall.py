"""Draws what lies between two predicted times, term by term."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import shown
from rooflinekit.present.figures.labels import Box, Ruler
from rooflinekit.present.figures.style import (
    BLUE,
    FAINT,
    INK,
    VERMILLION,
    Style,
    Venue,
    Width,
    called,
    in_unit,
    plain_frame,
    sheet,
    unit_of,
)
from rooflinekit.step.labels import MEANING
from rooflinekit.study.compare import scaling
from rooflinekit.study.explain.explanation import Explanation

Compared: TypeAlias = Explanation | scaling.Scaling
Told: TypeAlias = Compared | ParallelPrediction | Sequence[ParallelPrediction]
_TRIES = 4  # of the axis' height: with it change the places of labels


@checked
def waterfall(told: Told, ax: Axes | None = None, *, width: Width = "column", venue: Venue | None = None) -> Axes:
    """Draws the way from one time to another: a bar for each, and one step for each term.

    told: an Explanation; a step on several devices, to be reached from that of one; or two such steps. Communication
        that is hidden stands as an outline beside the exposed one, and is no part of the sum; terms too small to be
        seen are one. Where one device takes more than three times as long, its part of the batch stands for it.
    ax: where to draw; by default a new figure. width, venue: presets of sizes, as of `roofline`. Raises InputError for
    others.
    """
    compared = _compared(told)
    steps, totals = _steps(compared), compared.totals
    with sheet(ax, width, venue, below=0.72) as page:
        axes, style = page.ax, page.style
        last = len(steps) + 1
        low, high = _span(steps, totals)
        for place, total in ((0, totals[0]), (last, totals[1])):
            axes.bar(place, total - low, bottom=low, width=_BAR, color=FAINT, zorder=2)
        for i, step in enumerate(steps, 1):
            bottom = min(step.start, step.end)
            axes.bar(i, abs(step.end - step.start), bottom=bottom, width=_BAR, zorder=2, **_look(step))
        for i, level in enumerate((totals[0], *(step.end if step.counts else step.start for step in steps))):
            axes.plot([i + _BAR / 2, i + 1 - _BAR / 2], [level, level], color=INK, linewidth=0.5, zorder=1)
        _frame(axes, compared, [step.name for step in steps], (low, high), style)
        page.settle([], spare=0.1)  # names first: the key's columns go by the width that they leave
        seen = {step.said: step for step in steps if step.seconds}
        page.settle([Patch(**_look(step), label=said) for said, step in seen.items()], spare=0.1)
        rise = 0.02 * (high - low)  # of two slanted white lines through each total's bar: it begins at 0, the axis not
        for place, level in product((0, last), (low + 3 * rise, low + 5 * rise)) if low else ():
            axes.plot([place - 0.55 * _BAR, place + 0.55 * _BAR], [level - rise, level + rise], color="white",
                      linewidth=1.6, zorder=3)  # fmt: skip
        _label(axes, steps, totals, style)
    return axes


_BAR = 0.66  # of the distance between bars
_TURNS = (30.0, 45.0, 60.0)  # degrees
_TALLER = 3.0  # times the total: a taller bar would leave no room for the others
_SMALL = 0.2  # of the shorter total: where all changes lie within so much, the axis begins near them
_SEEN = 0.005  # of the longer total: on several devices there are too many terms to show smaller ones


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A bar between two levels, in seconds; one that does not count leaves the level where it was."""

    name: str
    start: float
    seconds: float
    counts: bool = True

    @property
    def end(self) -> float:
        """Where it leads; upwards, where it would lead below nothing, if it does not count."""
        below = not self.counts and self.start + self.seconds < 0
        return self.start + (abs(self.seconds) if below else self.seconds)

    @property
    def said(self) -> str:
        """The meaning of its colour."""
        return ("adds time" if self.seconds > 0 else "saves time") if self.counts else "hidden, adds none"

    @property
    def top(self) -> float:
        """The higher of both levels."""
        return max(self.start, self.end)


def _compared(told: object) -> Compared:
    if isinstance(told, ParallelPrediction):
        return scaling.from_one(told, whole=told.one_gpu.total_s < _TALLER * told.total_s)
    if isinstance(told, Compared):
        return told
    if not isinstance(told, Sequence):
        raise InputError(f"told: expected an Explanation, or one or two steps on several devices; got {shown(told)}")
    if len(told) != 2 or not all(isinstance(p, ParallelPrediction) for p in told):
        given = ", ".join(type(p).__name__ for p in told) or "none"
        raise InputError(f"waterfall: expected two steps on several devices; got {given}")
    return scaling.between(*told)


def _span(steps: Sequence[_Step], totals: tuple[float, float]) -> tuple[float, float]:
    """Where the axis begins and what it must hold: from 0, unless bars of small differences would vanish."""
    ends = [*totals, *(step.start for step in steps), *(step.end for step in steps)]
    low, high = min(ends), max(ends)
    reach = high - low
    return (low - reach / 2 if 0 < reach < _SMALL * min(totals) else 0.0), high


def _steps(compared: Compared) -> list[_Step]:
    """The terms one after another; what is told aside stands behind exposed communication."""
    found: list[_Step] = []
    level = compared.totals[0]
    for name, seconds in _seen(compared).items():
        found.append(_Step(name=MEANING.get(name, name), start=level, seconds=seconds))
        level = found[-1].end
        if isinstance(compared, scaling.Scaling) and name == scaling.EXPOSED:
            found += [_Step(name=other, start=level, seconds=s, counts=False) for other, s in compared.aside.items()]
    return found


def _seen(compared: Compared) -> dict[str, float]:
    terms = {name: seconds for name, seconds in compared.terms().items() if seconds or name != "input"}
    if not isinstance(compared, scaling.Scaling):
        return terms
    least = _SEEN * max(compared.totals)
    always = (scaling.EXPOSED, scaling.PARTED)
    small = [name for name, seconds in terms.items() if abs(seconds) < least and not name.startswith(always)]
    if len(small) < 2:
        return terms
    rest = sum(terms[name] for name in small)
    return {name: seconds for name, seconds in terms.items() if name not in small} | {"other terms": rest}


def _look(step: _Step) -> dict[str, Any]:
    """Longer is red and hatched, shorter is blue: told apart in grey too. What does not count is an outline."""
    if not step.counts:
        return {
            "facecolor": "white", "edgecolor": VERMILLION, "hatch": "////", "linestyle": "--", "linewidth": 0.7,
        }  # fmt: skip
    if step.seconds > 0:
        return {"facecolor": VERMILLION, "edgecolor": "white", "hatch": "////", "linewidth": 0}
    return {"facecolor": BLUE, "edgecolor": "none", "linewidth": 0}


def _frame(axes: Axes, explanation: Compared, terms: list[str], span: tuple[float, float], style: Style) -> None:
    names = [called(name) for name in explanation.labels]
    bars = [names[0], *terms, names[1]]
    across = 0.9 * Ruler(axes).across(axes) / len(bars)  # between names, which are turned the more, the less it is
    turn = next((a for a in _TURNS if across * math.sin(math.radians(a)) > 1.2 * style.tick_font), 90.0)
    axes.set_xticks(range(len(bars)), bars, rotation=turn, ha="right", rotation_mode="anchor")
    low, high = span
    axes.set_ylim(low, low + (high - low) * 1.12 or 1.0)
    scale, unit = unit_of(high, "s")
    in_unit(axes.yaxis, high, "s")
    begins = f", from {low / scale:.3g}" if low else ""
    axes.set_ylabel(f"Time of a {explanation.per} ({unit}{begins})", fontsize=style.axis_font)
    plain_frame(axes, style)
    axes.tick_params(axis="x", length=0)


def _label(axes: Axes, steps: Sequence[_Step], totals: tuple[float, float], style: Style) -> None:
    """The value of each bar above it: totals, changes with their sign, and in brackets what does not count."""
    highest = max(*totals, *(step.top for step in steps))
    scale, _ = unit_of(highest, "s")
    least = max((abs(step.seconds) for step in steps), default=highest) if axes.get_ylim()[0] else highest
    digits = max(0, 2 - math.floor(math.log10(max(least, scale * 1e-3) / scale)))
    texts = [
        (totals[0], f"{totals[0] / scale:.{digits}f}"),
        *((step.top, _signed(step, scale, digits)) for step in steps),
        (totals[1], f"{totals[1] / scale:.{digits}f}"),
    ]
    ruler = Ruler(axes)
    for _ in range(_TRIES):
        placed = _places(axes, ruler, texts, style)
        above = axes.get_window_extent().y1 * ruler.points
        over = max(box.y + box.height / 2 for box in placed) + 1.5 - above
        if over <= 0:
            break
        low, high = axes.get_ylim()  # more room above, for labels that stand over others
        height = axes.get_window_extent().height * ruler.points
        axes.set_ylim(low, low + (high - low) * height / max(height - over, height / 2))
    for i, ((top, text), box) in enumerate(zip(texts, placed, strict=True)):
        y = float(axes.transData.transform((i, top))[1]) * ruler.points
        axes.annotate(
            text, xy=(i, top), xytext=(0, box.y - y - box.height / 2), textcoords="offset points", ha="center",
            va="bottom", fontsize=style.label_font, color=INK,
        )  # fmt: skip


def _signed(step: _Step, scale: float, digits: int) -> str:
    """A change as it stands over its bar. What rounds to nothing has no sign."""
    number = f"{abs(step.seconds) / scale:.{digits}f}"
    signed = f"{('+' if step.seconds > 0 else '−') if float(number) else ''}{number}"
    return signed if step.counts else f"({number if step.seconds >= 0 else signed})"


def _places(axes: Axes, ruler: Ruler, texts: Sequence[tuple[float, str]], style: Style) -> list[Box]:
    """Each label over its bar, or so far above as labels of neighbours reach."""
    placed: list[Box] = []
    for i, (top, text) in enumerate(texts):
        width, height = ruler.size(text, style.label_font)
        x, y = (float(place) * ruler.points for place in axes.transData.transform((i, top)))
        boxes = (Box(x=x, y=y + 1.5 + height * (up + 0.5), width=width, height=height) for up in range(len(texts) + 1))
        placed.append(next(box for box in boxes if not any(box.overlaps(other) for other in placed)))
    return placed
