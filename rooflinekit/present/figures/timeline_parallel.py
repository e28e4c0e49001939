"""Draws a predicted step of several devices over time: each kind of device, a pipeline's stages, and the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rooflinekit.present.figures.labels import Ruler
from rooflinekit.present.figures.lanes import (
    HALF,
    IDLE,
    SEEN,
    Run,
    draw_bars,
    draw_kernels,
    kernel_handles,
    merged,
    time_axis,
)
from rooflinekit.present.figures.style import (
    BLUE,
    FAINT,
    INK,
    PURPLE,
    SKY,
    VERMILLION,
    Style,
    drawing,
    fit_page,
    key_above,
    new_axes,
)
from rooflinekit.strategies.prediction import ParallelPrediction, Share
from rooflinekit.strategies.queues import Message
from rooflinekit.study.compare.scaling import exposed_intervals, split
from rooflinekit.units import format_quantity

_LANE_INCHES = 0.27
_NEXT, _NEXT_HEAD = 0.85, 1.4  # from a lane to the next one below, without and with text between
_TOLD_APART = 0.01  # of the step: a line stands between collectives that both are longer
_TASKS = {"forward": (SKY, ""), "backward": (BLUE, "....")}
_EXPOSED, _HIDDEN, _SENT = "exposed", "hidden", "sent"
_LINKS = {_EXPOSED: (VERMILLION, "", ""), _HIDDEN: ("white", "////", VERMILLION), _SENT: (PURPLE, "", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """A row of bars: what stands at its left, the text over it, and what it shows."""

    height: float
    name: str
    head: str = ""
    share: Share | None = None
    messages: tuple[Message, ...] = ()
    kernels: bool = False  # of a share: whether it is the GPU's lane


def parallel_timeline(p: ParallelPrediction, ax: Axes | None, style: Style) -> Axes:
    """Lanes of each share, and of each group of devices that exchange something."""
    lanes = list(_lanes(p))
    style = replace(style, size=(style.size[0], 1.0 + _LANE_INCHES * (lanes[0].height - lanes[-1].height + 1.5)))
    with drawing():
        axes = new_axes(style) if ax is None else ax
        _prepare(axes, p, lanes, style)
        exposed = exposed_intervals(p)
        for lane in lanes:
            axes.axhspan(lane.height - HALF, lane.height + HALF, facecolor=IDLE, linewidth=0, zorder=0.5)
            if lane.share is not None:
                _device(axes, lane, lane.share, p.total_s)
            else:
                _links(axes, lane, exposed, SEEN * p.total_s)
        key_above(axes, _handles(p, exposed is not None), style)
        if ax is None:
            fit_page(axes)
            _grow(axes, style)
        for lane in lanes:
            _head(axes, lane, p, style)
            for start, end, text in _texts(lane):
                _inside(axes, lane.height, start, end, text, style)
    return axes


def _lanes(p: ParallelPrediction) -> Iterator[_Lane]:
    """From the top: of each share CPU and GPU, or its stage; then the links, group by group."""
    height, told = 0.0, ""
    for share in p.shares:
        head = _devices(p, share)
        if told:
            height -= _NEXT if head == told else _NEXT_HEAD
        shown, told = "" if head == told else head, head
        numbers = _ranges(share.numbers)
        if share.run.slots:
            yield _Lane(height=height, name=f"GPU {numbers}", head=shown, share=share)
            continue
        yield _Lane(height=height, name="CPU", head=shown, share=share)
        height -= _NEXT
        yield _Lane(height=height, name=f"GPU {numbers}", share=share, kernels=True)
    groups = list(dict.fromkeys(message.group for message in p.messages))
    for i, group in enumerate(groups):
        height -= _NEXT if i else _NEXT_HEAD
        own = tuple(message for message in p.messages if message.group == group)
        head = "" if i else _totals(p)
        yield _Lane(height=height, name=f"links: {group}" if len(groups) > 1 else "links", head=head, messages=own)


def _devices(p: ParallelPrediction, share: Share) -> str:
    """Who the lanes are of, and what they do."""
    device, count = share.prediction.machine.device, len(share.numbers)
    who = f"{count} × {device.display_name or device.name}"
    if share.run.slots:
        return f"{len(p.shares)} stages of {who}, {share.batch} samples"
    return f"{who}, {share.batch} samples{' each' if count > 1 else ''}"


def _totals(p: ParallelPrediction) -> str:
    links = dict.fromkeys(link.name for message in p.messages for link in message.timing.route.links)
    hidden, exposed = (format_quantity(seconds, "s") for seconds in (p.hidden_s, p.exposed_s))
    return f"{' and '.join(links)}: {exposed} exposed, {hidden} hidden"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers with neighbours as one.

    >>> _ranges([0, 1, 2, 5])
    '0–2, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _prepare(ax: Axes, p: ParallelPrediction, lanes: Sequence[_Lane], style: Style) -> None:
    ax.set_ylim(lanes[-1].height - 0.5, lanes[0].height + 0.95)
    ax.set_yticks([lane.height for lane in lanes], [lane.name for lane in lanes])
    time_axis(ax, p.total_s, style)


def _grow(ax: Axes, style: Style) -> None:
    """Makes the page as much taller as its key has taken from the lanes; text between them needs the room."""
    page = ax.get_figure(root=True)
    assert page is not None, "an Axes that was removed from its figure"
    width, height = page.get_size_inches()
    low, high = ax.get_ylim()
    sides, wanted = page.subplotpars, _LANE_INCHES * max(1.0, style.label_font / 6.5) * (high - low)
    below, above = sides.bottom * height, (1 - sides.top) * height
    page.set_size_inches(width, wanted + below + above)
    page.subplots_adjust(bottom=below / (wanted + below + above), top=1 - above / (wanted + below + above))


def _device(ax: Axes, lane: _Lane, share: Share, total_s: float) -> None:
    run, least = share.run, SEEN * total_s
    if run.slots:
        for task, (colour, hatch) in _TASKS.items():
            own: list[Run] = [(start, end, what) for what, start, end in run.slots if what.startswith(task)]
            draw_bars(ax, lane.height, own, colour, hatch, edge="white")
    elif lane.kernels:
        draw_kernels(ax, lane.height, run.spans, least)
        draw_bars(ax, lane.height, merged(((*wait, "waits") for wait in run.waits), least), "white", "xxxx")
        phases = merged(((s.start_s, s.end_s, s.timing.kernel.phase.value) for s in run.spans), float("inf"))
        for (_, _, before), (start, _, what) in pairwise(phases):
            if before != what:
                ax.vlines(start, lane.height - HALF, lane.height + 0.85 + HALF, color=INK, linewidth=0.6,
                          linestyle="--", zorder=3)  # fmt: skip
    else:
        draw_bars(ax, lane.height, merged(((start, end, "") for _, start, end in run.cpu), least), SKY, "")


def _links(ax: Axes, lane: _Lane, exposed: Sequence[tuple[float, float]] | None, least: float) -> None:
    """What is sent, by whether a device waits for it."""
    found: list[Run] = []
    for message in lane.messages:
        if exposed is None:
            found.append((message.start_s, message.end_s, _SENT))
            continue
        waited, beside = split(message, exposed)
        found += [(*part, _EXPOSED) for part in waited] + [(*part, _HIDDEN) for part in beside]
    runs = merged(sorted(found, key=lambda run: run[:2]), least)
    for what, (colour, hatch, edge) in _LINKS.items():
        draw_bars(ax, lane.height, [run for run in runs if run[2] == what], colour, hatch, edge)
    for one, other in pairwise(sorted(lane.messages, key=lambda message: message.start_s)):
        shorter = min(message.end_s - message.start_s for message in (one, other))
        if other.start_s - one.end_s < least and shorter > _TOLD_APART / SEEN * least:
            ax.vlines(other.start_s, lane.height - HALF, lane.height + HALF, color="white", linewidth=0.8, zorder=2.5)


def _head(ax: Axes, lane: _Lane, p: ParallelPrediction, style: Style) -> None:
    """What the lanes below are of."""
    if lane.head:
        ax.text(0.004 * p.total_s, lane.height + HALF + 0.06, lane.head, fontsize=style.label_font, va="bottom",
                color=INK)  # fmt: skip


def _texts(lane: _Lane) -> Iterator[Run]:
    """What stands in the bars: a piece's number, a collective's name."""
    if lane.share is not None:
        for what, start, end in lane.share.run.slots:
            yield start, end, what.partition(",")[0].rpartition(" ")[2]
    for message in lane.messages:
        yield message.start_s, message.end_s, message.key


def _inside(ax: Axes, height: float, start: float, end: float, text: object, style: Style) -> None:
    """Text in the middle of its bar, if it fits."""
    page = ax.get_figure(root=False)
    assert page is not None, "an Axes that was removed from its figure"
    ruler = Ruler(page)
    points = ax.get_window_extent().width * ruler.points / (ax.get_xlim()[1] - ax.get_xlim()[0])
    font = style.label_font - 0.5
    room = (end - start) * points - 4
    if room > font / 2 and ruler.size(str(text), font)[0] <= room:
        ax.text((start + end) / 2, height, str(text), ha="center", va="center", fontsize=font, color=INK, zorder=3,
                clip_on=True, bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.8,
                                    "linewidth": 0})  # fmt: skip


def _handles(p: ParallelPrediction, known: bool) -> list[Patch]:
    runs = [share.run for share in p.shares]
    found = []
    if any(run.slots for run in runs):
        found += [Patch(facecolor=colour, edgecolor="white", hatch=hatch, linewidth=0, label=task)
                  for task, (colour, hatch) in _TASKS.items()]  # fmt: skip
    else:
        found.append(Patch(facecolor=SKY, label="CPU issues"))
        found += kernel_handles({span.timing.bound for run in runs for span in run.spans})
        if any(run.waits for run in runs):
            found.append(Patch(facecolor="white", edgecolor=FAINT, hatch="xxxx", linewidth=0, label="waits for others"))
    names = {_EXPOSED: "sent, exposed", _HIDDEN: "sent, hidden"} if known else {_SENT: "sent"}
    for what, name in names.items() if p.messages else ():
        colour, hatch, edge = _LINKS[what]
        found.append(Patch(facecolor=colour, edgecolor=edge or "white", hatch=hatch, linewidth=0.5, label=name))
    return [*found, Patch(facecolor=IDLE, edgecolor=FAINT, linewidth=0.4, label="idle")]
