"""A roofline figure before its marks: axes, the rail for kernels without FLOP, and roofs with their labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rooflinekit.ir.keyed import lists
from rooflinekit.present.figures.labels import PAD, Box, Ground, Numbers, Offer, crossings
from rooflinekit.present.figures.records.caption import three_digits
from rooflinekit.present.figures.records.figure import Figure, Point, Roof, RoofKind
from rooflinekit.present.figures.style import DASHES, FAINT, INK, RAIL_GREY, Style, series_colours, whole_page

_WIDE = 300.0  # points: more than a column
_PREFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BEYOND = 200.0  # what a label costs beyond another line than its own, to which it would seem to belong


class Frame(Ground):
    """An Axes prepared for a roofline figure, and the room that is left in it."""

    def __init__(self, ax: Axes, figure: Figure, style: Style) -> None:
        super().__init__(ax, style)
        self.figure = figure
        extent = ax.get_window_extent()
        wide = self.ruler.across(ax) > _WIDE
        self.limits = limits_of(figure, extent.width / extent.height, wide=wide)
        _prepare(ax, self.limits, style, figure)
        self._label_across()  # before the layout settles, which makes room for it
        self.settle()
        for label in ax.get_xticklabels():  # a tick at the edge has no number where half of it would lie beyond
            if label.get_window_extent().x1 > whole_page(ax).bbox.x1:
                label.set_visible(False)

    def _label_across(self) -> None:
        """Labels the x axis, in as many words as there is room for."""
        figure, font = self.figure, self.style.axis_font
        level = "traffic of each level" if figure.by_level else "DRAM"
        words = [f"Arithmetic intensity (FLOP/byte, {level})", "Arithmetic intensity (FLOP/byte)", "FLOP/byte"]
        if figure.links:
            words[:2] = ["FLOP per byte: sent (filled), of DRAM (hollow)"]
        if figure.normalized:
            words = ["Intensity / ridge of its own roof", "Intensity / ridge"]
        width = self.ruler.across(self.ax)
        fitting = [text for text in words if self.ruler.size(text, font)[0] <= width]
        self.ax.set_xlabel([*fitting, words[-1]][0], fontsize=font)

    def colour(self, roof: Roof) -> str:
        """The device's colour; where there is one device alone, links have a colour of their own."""
        link = roof.kind == "link" and len(self.figure.devices) == 1
        return _LINK if link else roof_colours(self.figure)[roof.device]

    @property
    def rail(self) -> float:
        """The intensity at which the rail stands; there a bandwidth b lies at the performance rail · b."""
        assert self.limits.rail is not None, "a figure without rail"
        return 10.0**self.limits.rail

    def places(self, point: Point) -> list[tuple[Place, tuple[float, float]]]:
        """Where the marks of a point belong, the one that its name stands at last, and where the axes hold each."""
        found = places_of(self.figure, point, self.rail if not point.flop else 0.0)
        spots = (self.limits.clipped(*place.at) for place in found)
        return [(place, spot if point.flop else (self.rail, spot[1])) for place, spot in zip(found, spots, strict=True)]


def _prepare(ax: Axes, limits: Limits, style: Style, figure: Figure) -> None:
    ax.set(xscale="log", yscale="log")
    ax.set(xlim=(10**limits.left, 10**limits.right), ylim=(10**limits.bottom, 10**limits.top))
    # Memory roofs keep their angle, and what is written along them, after a resize too. Two shared axes leave the box
    # alone to adjust.
    shared = len(ax.get_shared_x_axes().get_siblings(ax)) > 1 and len(ax.get_shared_y_axes().get_siblings(ax)) > 1
    ax.set_aspect(1 / limits.stretch, adjustable="box" if shared else "datalim")
    up = "Share of its own roof" if figure.normalized else "Performance (FLOP/s)"
    ax.set_ylabel(up, fontsize=style.axis_font)
    said = power if figure.normalized else si
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10, numticks=20))
        axis.set_minor_locator(LogLocator(10, subs=range(2, 10), numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize=style.tick_font, which="both")
    ax.grid(which="major", color="#dddddd", linewidth=0.4, zorder=0)
    ax.set_axisbelow(True)
    if limits.rail is not None:
        rail = 10.0**limits.rail
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < 1.5 * rail else said(x)))
        # A strip at the left where a bandwidth b stands at rail · b: as far below the memory roof as any other point.
        ax.axvspan(10**limits.left, 10 ** (limits.rail + RAIL_HALF), facecolor=RAIL_GREY, linewidth=0, zorder=0.5)
        for _, (edge, height) in limits.rail_ticks():
            ax.plot([edge, edge * 0.8], [height] * 2, color=FAINT, linewidth=0.5, zorder=1)


def si(value: float) -> str:
    """A tick's value with an SI prefix: 1e13 is "10 T".

    >>> si(1e13), si(0.01), si(1000.0)
    ('10 T', '0.01', '1 k')
    """
    exponent = max(0, min(18, 3 * math.floor(math.log10(value) / 3 + 1e-9))) if value > 0 else 0
    number = f"{value / 10**exponent:g}"
    return f"{number} {_PREFIXES[exponent]}".strip()


def power(value: float) -> str:
    """A tick of an axis of shares: 0.001 is "10⁻³".

    >>> power(0.001), power(1.0), power(10.0)
    ('10⁻³', '1', '10')
    """
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent in (0, 1):
        return f"{10**exponent}"
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] if digit != "-" else "⁻" for digit in str(exponent))


RAIL_HALF = 0.22  # decades on either side of the rail's middle
_MOST_SPARE = 0.08  # of the width of wide axes: beyond, decades of intensity are drawn wider than those of FLOP/s
_MOST_DECADES = 7.0  # of either axis; what lies further out is drawn at the edge
_SAME_LEVEL = 0.02  # decades between marks of two levels that would be one


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The range of both axes in decades, and the intensity at which the rail stands."""

    left: float
    right: float
    bottom: float
    top: float
    rail: int | None
    fastest: int  # decade of byte/s of the highest memory roof
    stretch: float = 1.0  # the width of a decade of intensity over the height of one of FLOP/s

    def clipped(self, x: float, y: float) -> tuple[float, float]:
        """The nearest place inside, a little off the edge. Intensity and FLOP/s in and out."""
        inset = 0.02 * (self.top - self.bottom)
        left = self.left if self.rail is None else self.rail + RAIL_HALF
        across = min(max(math.log10(x), left + inset), self.right - inset)
        up = min(max(math.log10(y), self.bottom + inset), self.top - inset)
        return 10**across, 10**up

    def rail_ticks(self) -> list[tuple[int, tuple[float, float]]]:
        """The decades of byte/s on the rail's scale that the axes hold, with the places of their ticks."""
        if self.rail is None:
            return []
        edge = 10 ** (self.rail + RAIL_HALF)
        decades = range(math.ceil(self.bottom - self.rail), min(math.floor(self.top - self.rail), self.fastest) + 1)
        return [(decade, (edge, 10.0 ** (self.rail + decade))) for decade in decades]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a mark belongs, in FLOP/byte and FLOP/s, on the axes or not."""

    at: tuple[float, float]
    filled: bool


def places_of(figure: Figure, point: Point, rail: float) -> list[Place]:
    """One place; two of a point that was measured (hollow as predicted), or that is shown by level of memory.

    rail: the intensity at which points without FLOP stand.
    """
    taken = [(point.time_s, not figure.measured), (point.measured_s, True)][: 1 + bool(point.measured_s)]
    if not point.flop:
        return [Place(at=(rail, rail * (point.bytes / seconds)), filled=filled) for seconds, filled in taken]
    if figure.by_level and point.l2_bytes:
        slowest, *others = (moved for moved in figure.level_bytes(point).values() if moved)
        near = [other for other in others if abs(math.log10(other / slowest)) > _SAME_LEVEL]
        places = [Place(at=(point.flop / moved, point.performance), filled=False) for moved in near]
        return [*places, Place(at=(point.flop / slowest, point.performance), filled=True)]
    return [Place(at=(point.intensity, point.flop / seconds), filled=filled) for seconds, filled in taken]


def limits_of(figure: Figure, aspect: float, *, wide: bool = False) -> Limits:
    """Limits that hold all roofs and ridges, and points that count; `aspect`: width over height of the axes.

    Decades are equal, and memory roofs at 45°, but on wide axes, where much would hold nothing.
    """
    compute = [roof.value for roof in figure.roofs if roof.kind == "compute"]
    memory = [roof.value for roof in figure.roofs if roof.kind == "memory"]
    ridges = [figure.ridge(r) for r in figure.roofs if r.kind == "compute" and r.provenance == "datasheet"] or [1.0]
    points = [place.at for point in _weighty(figure) if point.flop for place in places_of(figure, point, 0.0)]
    points += [(x, stop.performance) for path in figure.trajectories for stop in path.stops for x in stop.intensities]
    intensities = [x for x, _ in points]
    fastest = math.floor(math.log10(max(memory)))
    over = 0.35 if len(figure.devices) == 1 else 0.6  # of several, a label has to stand over the highest level
    highest = math.log10(max(compute, default=10 * max(memory))) + over
    top = max(highest, *(min(highest + 1, math.log10(y) + 0.2) for _, y in points), -300.0)
    reach = [12 * max(ridges), *(8 * x for x in intensities), *(6 * figure.link_ridge(link) for link in figure.links)]
    right = math.log10(max(reach)) + (0.0 if points else 0.2)  # levels have room for labels after the last mark
    least = (0.05 if figure.links else 0.1) * min(ridges)  # beside links the slopes are short
    left = max(math.log10(min([least, *(x / 1.7 for x in intensities)])), right - _MOST_DECADES)
    rail = math.floor(left - 0.3) if figure.rail else None
    if rail is not None:
        left = rail - RAIL_HALF
    bottoms = [math.log10(min(memory)) + left + 0.2, *(math.log10(y) - 0.25 for _, y in points)]
    if rail is not None:
        bottoms.append(fastest + rail - 0.2)  # one tick of its scale at least
        bottoms += [math.log10(point.bandwidth) + rail - 0.25 for point in _weighty(figure) if not point.flop]
    bottom = max(min(bottoms), top - _MOST_DECADES)
    stretch = max(1.0, (top - bottom) * aspect * (1 - _MOST_SPARE) / (right - left)) if wide else 1.0
    spare = (top - bottom) * aspect / stretch - (right - left)
    if spare < 0:
        bottom += spare / aspect
    elif rail is None:
        left, right = left - 0.3 * spare, right + 0.7 * spare
    else:
        right += spare
    return Limits(left=left, right=right, bottom=bottom, top=top, rail=rail, fastest=fastest, stretch=stretch)


def _weighty(figure: Figure) -> list[Point]:
    """The points that decide how far the axes reach: those of 1 % of the time, or all where none has so much."""
    points = [*figure.points, *figure.rail]
    return [point for point in points if point.share >= 0.01] or points


_OVERHANG = 0.6  # share of a level's label that may stand before its ridge
_BEFORE, _AWAY = 1.15, 25.0  # beside a ridge over which nothing is drawn: so much of it, which costs so much
_LINK = "#8f3d6d"  # darker than the purple of series, and dark enough for text
_MOST = 150.0  # what a share's label may cost: beyond, it would lie on marks, and the caption says it
_RIDGE, _EDGE = 2.6, 0.7  # points of a ridge's mark, and of its edge
_SAME = 0.01  # roofs of one device that differ by less are one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Roofs of one value, drawn once, from where the line begins to where it ends, in FLOP/byte and FLOP/s."""

    roofs: tuple[Roof, ...]
    start: tuple[float, float]
    end: tuple[float, float]

    @property
    def first(self) -> Roof:
        """The roof that speaks for all."""
        return self.roofs[0]

    @property
    def dashed(self) -> bool:
        """Datasheet and other origins differ in line style everywhere."""
        return self.first.provenance != "datasheet"

    @property
    def named_beside(self) -> bool:
        """Whether it is a share of a datasheet's roof, whose own line says the name."""
        return self.dashed and self.first.provenance not in ("fitted", "default")

    def texts(self, prefix: str) -> list[tuple[float, str]]:
        """What may stand on the line, the fullest first, and what it costs to leave the rest out.

        prefix: whose roof it is, which of several devices is left out last.
        """
        name, origin = _joined(self.roofs), self.first.origin
        # Where integers share the line, the unit is that of the others.
        rate = max((roof.rate for roof in self.roofs), key=lambda text: "FLOP" in text)
        math_name, short = name.partition(" ")[0], rate.replace("FLOP/s", "").replace("OP/s", "")  # as the axis' ticks
        compute = self.first.kind == "compute"
        if self.named_beside:
            least = f"{math_name} {short}" if compute else rate
            said = f"{math_name} {rate}" if compute else rate
            return [(0, f"{name} {rate} ({origin})"), (14, f"{said} ({origin})"), (24, said), (34, least)]
        if self.dashed:  # no datasheet states it
            return [(0, f"{name} {rate} ({origin})"), (14, f"{name} {rate}")]
        found: list[tuple[float, str]] = [(0, f"{prefix}{name} {rate} ({origin})"), (14, f"{prefix}{name} {rate}")]
        less: list[tuple[float, str]] = [(40, f"{name} {rate}"), (55, f"{math_name} {rate}")]
        less.append((70, f"{math_name} {short}" if compute else rate))
        if not prefix:
            return found + less
        return found + [(cost, prefix + text) for cost, text in less[1:]] + [(cost + 60, text) for cost, text in less]


def roof_colours(figure: Figure) -> dict[str, str]:
    """The colour of each device's roofs: ink for one device, a colour each for several."""
    names = [device.name for device in figure.devices]
    return {names[0]: INK} if len(names) == 1 else series_colours(names)


def draw_roofs(frame: Frame) -> tuple[Line, ...]:
    """Lines and band. The labels come later, when the marks have their places."""
    lines = tuple(_lines(frame, frame.figure))
    for line in lines:
        highest = line.end[1] == max(other.end[1] for other in lines)
        frame.ax.plot(
            *zip(line.start, line.end, strict=True), color=frame.colour(line.first), solid_capstyle="round", zorder=2,
            linewidth=frame.style.roof_width * (0.5 if line.dashed else 1.0 if highest else 0.75),
            linestyle=DASHES if line.dashed else "-",
        )  # fmt: skip
        frame.room.add_line(frame.place(*line.start), frame.place(*line.end))
    if len(frame.figure.devices) == 1:
        _band(frame, lines)
    return lines


def _lines(frame: Frame, figure: Figure) -> Iterator[Line]:
    """What is drawn of each device and provenance: slopes up to their highest ridge, the levels from the memory's.

    Several devices show their datasheets alone.
    """
    left, right = 10**frame.limits.left, 10**frame.limits.right
    for device in figure.devices:
        for dashed in (False, True) if len(figure.devices) == 1 else (False,):
            mine = [r for r in figure.roofs if r.device == device.name and (r.provenance != "datasheet") == dashed]
            memory = [roof for roof in mine if roof.kind == "memory"]
            links = [roof for roof in mine if roof.kind == "link"]
            compute = sorted((roof for roof in mine if roof.kind == "compute"), key=lambda roof: -roof.value)
            for roof in (*memory, *links):
                ridge = compute[0].value / roof.value if compute else right
                # A slow link's roof comes in from below.
                start = left if roof.kind == "memory" else max(left, 10**frame.limits.bottom / roof.value)
                yield Line(roofs=(roof,), start=(start, start * roof.value), end=(ridge, ridge * roof.value))
            for roofs in _levels(compute):
                level = roofs[0].value
                ridge = level / memory[0].value if memory else left
                yield Line(roofs=roofs, start=(max(ridge, left), level), end=(right, level))


def _levels(compute: Sequence[Roof]) -> list[tuple[Roof, ...]]:
    """Roofs that would be drawn on one another, together; `compute` is sorted by value."""
    found: list[list[Roof]] = []
    for roof in compute:
        if found and abs(roof.value / found[-1][0].value - 1) < _SAME:
            found[-1].append(roof)
        else:
            found.append([roof])
    return [tuple(roofs) for roofs in found]


def _joined(roofs: Sequence[Roof]) -> str:
    """Names with what they share written once: "bf16/fp16 matrix, fp32 vector"."""
    parted = (roof.name.partition(" ") for roof in roofs)
    units = lists((unit, math_name) for math_name, _, unit in parted)
    return ", ".join("/".join(names) + (f" {unit}" if unit else "") for unit, names in units.items())


def _band(frame: Frame, lines: Sequence[Line]) -> None:
    """Between the datasheet's outermost roof and the sustained one: where a point is predicted to end."""

    def outline(dashed: bool) -> list[tuple[float, float]]:
        chosen = [line for line in lines if line.dashed == dashed]
        slopes = [line for line in chosen if line.first.kind == "memory"]
        levels = [line for line in chosen if line.first.kind == "compute"]
        if not slopes or not levels:
            return []
        return [slopes[0].start, slopes[0].end, levels[0].end]

    upper, lower = outline(False), outline(True)
    if upper and lower:
        xs, ys = zip(*upper, *reversed(lower), strict=True)
        frame.ax.fill(xs, ys, facecolor=INK, alpha=0.07, linewidth=0, zorder=1)


def draw_ridges(frame: Frame, lines: Sequence[Line]) -> Iterator[None]:
    """Draws the ridges that the axes hold: the datasheets' of memory, and those of all links. Then writes the intensity
    of each along its drop line, as near to the axis as there is room.
    """
    figure, bottom, font = frame.figure, 10**frame.limits.bottom, frame.style.label_font - 0.5
    alone, drawn = len(figure.devices) == 1, []
    for line in lines:
        link, colour = line.first.kind == "link", frame.colour(line.first)
        if not link and (line.dashed or line.first.kind == "memory"):
            continue
        ridge, level = figure.link_ridge(line.first) if link else figure.ridge(line.first), line.end[1]
        if not frame.limits.left < math.log10(ridge) < frame.limits.right:
            continue
        frame.ax.plot([ridge] * 2, [bottom, level], color=colour, linewidth=0.4, linestyle=":", zorder=1)
        frame.ax.plot([ridge], [level], marker="D", markersize=_RIDGE, markerfacecolor="white",
                      markeredgecolor=colour, markeredgewidth=_EDGE, zorder=3)  # fmt: skip
        x, y = frame.place(ridge, level)
        frame.room.small.append(Box(x=x, y=y, width=_RIDGE + _EDGE, height=_RIDGE + _EDGE, angle=math.pi / 4))
        drawn.append((ridge, (x, y), "#555555" if alone and not link else colour))
    yield
    for ridge, (x, head), colour in drawn:
        _, foot = frame.place(ridge, bottom)
        offers = []
        for penalty, text in ((0.0, f"ridge {three_digits(ridge)}"), (10.0, three_digits(ridge))):
            width, height = frame.ruler.size(text, font)
            # Of several devices near the axis, or not at all: further up it would stand among the marks.
            room = head - foot if alone else min(head - foot, 2.2 * width)
            steps = np.repeat(np.arange(0, int(room - width - 4), 3), 2)
            right = np.tile([False, True], len(steps) // 2)
            centres = np.column_stack([x + np.where(right, height / 2, -height / 2), foot + 2 + width / 2 + steps])
            offers.append(Offer(text, (width, height), penalty + 0.2 * steps + right, centres, math.pi / 2))
        frame.label(offers, (ridge, bottom), font=font, colour=colour)


def label_roofs(frame: Frame, lines: Sequence[Line], kind: RoofKind) -> None:
    """Writes name, value and origin along the lines of one kind; where there is no room, less of it."""
    figure = frame.figure
    shown = _apart({device.name: device.short_name for device in figure.devices})
    chosen = [line for line in lines if line.first.kind == kind and (frame.style.sustained or not line.dashed)]
    chosen = [line for line in chosen if not line.named_beside or line.first.share < 1 - _SAME]  # else both are one
    highest = max(roof.value for roof in figure.roofs if roof.kind == "memory" and roof.provenance == "datasheet")
    # The solid ones first: they say what the dashed ones are a share of.
    for line in sorted(chosen, key=lambda line: (line.dashed, -line.first.value)):
        prefix = f"{shown[line.first.device]} " if len(figure.devices) > 1 else ""
        alone = figure.memory_roof(line.first.device).value == highest
        beside = [one for one in lines if one is not line and len(figure.devices) > 1]
        others = [(*frame.place(*one.start), *frame.place(*one.end)) for one in beside]
        offers = [
            replace(offer, costs=offer.costs + _BEYOND * _passed(frame, line, offer, np.array(others).reshape(-1, 4)))
            for cost, text in line.texts(prefix) for offer in _along(frame, line, text, cost, alone=alone)
        ]  # fmt: skip
        anchor = line.end if kind == "compute" else line.start
        most = _MOST if line.named_beside else math.inf
        frame.label(offers, anchor, font=frame.style.label_font, colour=frame.colour(line.first), most=most)


def _apart(names: Mapping[str, str]) -> dict[str, str]:
    """The fewest words that tell the names apart, from the first with a digit on, which is the model's.

    >>> _apart({"a": "GeForce RTX 3090", "b": "H100 SXM5 80 GB"})
    {'a': '3090', 'b': 'H100'}
    >>> _apart({"a": "H100 PCIe 80 GB", "b": "H100 SXM5 80 GB"})
    {'a': 'H100 PCIe', 'b': 'H100 SXM5'}
    """
    words = {key: re.sub(r"^([^\d ]+ )+(?=\S*\d)", "", name).split() for key, name in names.items()}
    for count in range(1, max(map(len, words.values()), default=0)):
        found = {key: " ".join(each[:count]) for key, each in words.items()}
        if len(set(found.values())) == len(found):
            return found
    return dict(names)


def _passed(frame: Frame, line: Line, offer: Offer, others: Numbers) -> Numbers:
    """How many other lines lie between each place of a label and its own line."""
    if not len(others):
        return np.zeros(len(offer.centres))
    (x0, y0), (x1, y1) = frame.place(*line.start), frame.place(*line.end)
    along = np.array([math.cos(offer.angle), math.sin(offer.angle)])
    middles = np.clip((offer.centres - (x0, y0)) @ along, 0, math.dist((x0, y0), (x1, y1)))
    return crossings(np.hstack([(x0, y0) + middles[:, None] * along, offer.centres]), others)


def _along(frame: Frame, line: Line, text: str, penalty: float, *, alone: bool) -> Iterator[Offer]:
    """Places along a line: above solid ones and below dashed ones, if possible close to it.

    A label of a level may begin before its ridge: over the memory roof there is nothing else. alone: not even a roof of
    another device, so that all of the label may stand there.
    """
    (x0, y0), (x1, y1) = frame.place(*line.start), frame.place(*line.end)
    angle = math.atan2(y1 - y0, x1 - x0)
    cos, sin = math.cos(angle), math.sin(angle)
    length = math.dist((x0, y0), (x1, y1))
    width, height = frame.ruler.size(text, frame.style.label_font)
    level = line.first.kind == "compute"
    before = (_BEFORE if alone else _OVERHANG) * width if level else 0.0
    steps = int((length + before - width - 4) / 3) + 1
    gaps = (0.8, 3.0, 6.0, 10.0) if level else (0.8, 3.0)
    right_side = -1 if line.dashed else 1
    if level and not line.dashed:  # or before its ridge, which it then touches
        beside = np.array([[x0 - (width + _RIDGE) / 2 - gap, y0] for gap in (3.0, 5.0, 8.0)])
        yield Offer(text, (width, height), np.array([1.0, 2.0, 4.0]) + penalty + _AWAY / 2, beside, angle)
    # On the wrong side a label touches its line, or it would seem to be another's.
    places = [(right_side, gap, height, 3 * gap) for gap in gaps]
    places += [(-right_side, gap, height, 120.0 + 3 * gap) for gap in (0.8, 2.0)]
    if level:  # without the room that text has around it, for levels that lie as near to one another
        places.append((right_side, 0.5, height - 1.5 * PAD, 110.0))
    for side, gap, high, dislike in places:
        away, step = side * (high / 2 + gap), 3.0 * np.arange(steps)
        # Levels are read from the right end, slopes from the middle of the line.
        middle = length - 2 - width / 2 - step if level else 2 + width / 2 + step
        off = step if level else np.abs(middle - length * 0.45)
        x, y = x0 + middle * cos - away * sin, y0 + middle * sin + away * cos
        costs = np.asarray(penalty + dislike + 0.06 * off + _AWAY * (middle < (0.5 - _OVERHANG) * width), dtype=float)
        yield Offer(text, (width, high), costs, np.column_stack([x, y]), angle)
