"""Draws a predicted step over time: what the CPU issues and the GPU executes, where it waits, and the memory in use."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rooflinekit.distributed.prediction import ParallelPrediction, Share
from rooflinekit.distributed.queues import Message
from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.op import Op
from rooflinekit.present.figures.labels import Ruler
from rooflinekit.present.figures.style import (
    BLUE,
    BOUND_COLOURS,
    BOUND_HATCHES,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Style,
    Venue,
    Width,
    in_unit,
    plain_frame,
    sheet,
    whole_page,
)
from rooflinekit.step.memory import STANDING
from rooflinekit.step.memory_course import Moment, memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.timeline import Span
from rooflinekit.study.compare.scaling import exposed_intervals, split
from rooflinekit.units import format_quantity

Run = tuple[float, float, Hashable]  # start and end in seconds, and what it is

HALF = 0.36  # of the height of a lane
SEEN = 1 / 700  # of the step: shorter gaps between spans of one kind are not seen, and closed
IDLE = "#f0f0f0"


def merged(runs: Iterable[Run], least_gap_s: float) -> list[Run]:
    """Neighbours of one kind in one, where no gap of this length lies between them.

    >>> merged([(0, 1, "a"), (1, 2, "a"), (2.5, 3, "a"), (3, 4, "b")], 0.1)
    [(0, 2, 'a'), (2.5, 3, 'a'), (3, 4, 'b')]
    """
    found: list[Run] = []
    for start, end, what in runs:
        if found and found[-1][2] == what and start - found[-1][1] < least_gap_s:
            found[-1] = (found[-1][0], max(end, found[-1][1]), what)
        else:
            found.append((start, end, what))
    return found


def time_axis(ax: Axes, total_s: float, style: Style) -> None:
    """The step's time from left to right, its end marked; lanes have names instead of ticks."""
    time_scale(ax, total_s * 1.005, style)
    plain_frame(ax, style, grid="x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.axvline(total_s, color=INK, linewidth=0.6, linestyle=":")


def time_scale(ax: Axes, end_s: float, style: Style) -> None:
    """Time from left to right in the unit in which it reads best."""
    ax.set_xlim(0, end_s or 1.0)
    ax.set_xlabel(f"Time in the step ({in_unit(ax.xaxis, end_s, 's')})", fontsize=style.axis_font)


def draw_bars(ax: Axes, lane: float, runs: Sequence[Run], colour: str, hatch: str, edge: str = "") -> None:
    """Bars of one kind in the lane at this height; hatches have the colour of the edge, which is not drawn else."""
    if runs:
        ax.broken_barh(
            [(start, end - start) for start, end, _ in runs], (lane - HALF, 2 * HALF), facecolor=colour,
            edgecolor=edge or (FAINT if colour == "white" else "white"), hatch=hatch or None,
            linewidth=0.5 if edge else 0.0, zorder=2,
        )  # fmt: skip


def draw_kernels(ax: Axes, lane: float, spans: Iterable[Span], least_gap_s: float) -> None:
    """Kernels by what bounds them."""
    kernels = merged(((span.start_s, span.end_s, span.timing.bound) for span in spans), least_gap_s)
    for bound, colour in BOUND_COLOURS.items():
        draw_bars(ax, lane, [run for run in kernels if run[2] == bound], colour, BOUND_HATCHES[bound])


def _patch(label: str, colour: str, hatch: str = "", edge: str = "white", width: float = 0.0) -> Patch:
    return Patch(facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=width, label=label)


def kernel_handles(bounds: Collection[str]) -> list[Patch]:
    """The key to kernels that are bound by these."""
    seen = ((bound, colour) for bound, colour in BOUND_COLOURS.items() if bound in bounds)
    return [_patch(f"{bound}-bound kernels", colour, BOUND_HATCHES[bound]) for bound, colour in seen]


LANES = {"CPU": 2.0, "GPU": 1.0}  # their middles
_CPU, _GPU = LANES.values()
_MODULES = 0.25
_PARENTS = -0.28  # below the modules: what numbers are of
_MOST_BLOCKS = 36  # of modules


@checked
def timeline(
    prediction: Prediction | ParallelPrediction, ax: Axes | None = None, *, width: Width = "page",
    venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws one step: the CPU's ops and waits, the GPU's kernels by what bounds them, and the modules they are of.

    Of a step on several devices: those lanes for each kind of device, a pipeline's stages, and the links, with what is
    hidden and exposed. Neighbours of one kind are one bar where the gap between them is less than 1/700 of the step;
    longer gaps stay open: the GPU waits. ax, width, venue: as of `roofline`, with a page as the default. Raises
    InputError for others.
    """
    if isinstance(prediction, ParallelPrediction):
        return _parallel_timeline(prediction, ax, width, venue)
    with sheet(ax, width, venue, high=0.09, inches=1.7) as page:
        page.ax.set_ylim(-0.2, _CPU + HALF + 0.4)
        queues = ("CPU", "GPU") if prediction.machine.device.kind == "gpu" else ("issue", "kernels")
        page.ax.set_yticks([*LANES.values(), _MODULES], [*queues, "module"])
        time_axis(page.ax, prediction.total_s, page.style)
        _lanes(page.ax, prediction)
        page.settle(_handles(prediction))
        _blocks(page.ax, prediction, page.style)
        _phases(page.ax, prediction, page.style)
    return page.ax


def _lanes(ax: Axes, p: Prediction) -> None:
    least = SEEN * p.total_s
    for lane in (_CPU, _GPU):
        ax.axhspan(lane - HALF, lane + HALF, facecolor=IDLE, linewidth=0, zorder=0.5)
    issued = merged(((work.start_s, work.end_s, work.waits) for work in p.timeline.cpu), least)
    draw_bars(ax, _CPU, [run for run in issued if not run[2]], SKY, "")
    draw_bars(ax, _CPU, [run for run in issued if run[2]], "white", "xxxx")
    draw_kernels(ax, _GPU, p.spans, least)
    copies = merged(((copy.start_s, copy.end_s, "copy") for copy in p.timeline.copies), least)
    starved = p.timeline.starved_s
    waits = [(p.total_s - starved, p.total_s, "loader")] if starved else []
    draw_bars(ax, _GPU, [*copies, *waits], FAINT, "")


def _blocks(ax: Axes, p: Prediction, style: Style) -> None:
    """The modules one after another, as deep as there are not too many; named where the name fits.

    Numbers alone would tell nobody what they are of: where they stand for paths, a line below says whose they are.
    """
    runs = _module_runs(p)
    paths = [str(what[1]) if isinstance(what, tuple) else "" for _, _, what in runs]
    bars = _Bars(ax, style)
    numbered = [_numbered(path) and not bars.fits(path, a, b) for path, (a, b, _) in zip(paths, runs, strict=True)]
    for i, (path, (start, end, _)) in enumerate(zip(paths, runs, strict=True)):
        ax.broken_barh([(start, end - start)], (_MODULES - 0.28, 0.56), facecolor=("#e2e2e2", "#cfcfcf")[i % 2],
                       edgecolor="white", linewidth=0.4, zorder=2)  # fmt: skip
        last = path.rpartition(".")[2]
        forms = (last,) if any(numbered) and _numbered(path) else (path,) if last.isdecimal() else (path, last)
        bars.write(_MODULES, start, end, forms)
    if not any(numbered):
        return
    ax.set_ylim(_PARENTS - 0.2, ax.get_ylim()[1])
    parents = [(a, b, path.rpartition(".")[0] if _numbered(path) else i)
               for i, (path, (a, b, _)) in enumerate(zip(paths, runs, strict=True))]  # fmt: skip
    for start, end, parent in merged(parents, float("inf")):
        if isinstance(parent, str):
            ax.plot([start, end], [_PARENTS + 0.21] * 2, color=FAINT, linewidth=0.6, solid_capstyle="butt")
            bars.write(_PARENTS, start, end, [t for t in (parent, parent.rpartition(".")[2]) if not t.isdecimal()])


class _Bars:
    """Writes into the middle of bars what fits into them."""

    def __init__(self, ax: Axes, style: Style) -> None:
        self._ax, self._ruler, self._font = ax, Ruler(ax), style.label_font - 0.5
        self._points = self._ruler.across(ax) / (ax.get_xlim()[1] - ax.get_xlim()[0])

    def fits(self, text: str, start: float, end: float, margin: float = 0.0) -> bool:
        """Whether a text, with so many points beside it, is no longer than a bar."""
        room = (end - start) * self._points - margin
        return bool(text) and room > margin and self._ruler.size(text, self._font)[0] <= room

    def write(self, lane: float, start: float, end: float, forms: Iterable[str], margin: float = 0.0) -> None:
        """The first of the forms that fits, if any does; on a margin it stands out from hatches."""
        if text := next((text for text in forms if self.fits(text, start, end, margin)), ""):
            behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.8, "linewidth": 0}
            self._ax.text((start + end) / 2, lane, text, ha="center", va="center", fontsize=self._font, color=INK,
                          zorder=3, clip_on=True, bbox=behind if margin else None)  # fmt: skip


def _numbered(path: str) -> bool:
    """Whether a path ends in a number below a name: "layer1.0", and not "0" or "0.1"."""
    parent, _, last = path.rpartition(".")
    return last.isdecimal() and any(letter.isalpha() for letter in parent)


def _module_runs(p: Prediction) -> list[Run]:
    """Kernels in a row of one phase and module, with its path cut where there would be too many."""
    kernels = [(span.start_s, span.end_s, span.timing.kernel) for span in p.spans]
    deepest = max((kernel.module.count(".") + 1 for _, _, kernel in kernels), default=1)
    best: list[Run] = []
    for depth in range(1, deepest + 1):
        cut = [(a, b, (k.phase, ".".join(k.module.split(".")[:depth]))) for a, b, k in kernels]
        runs = merged(cut, float("inf"))
        if best and len(runs) > _MOST_BLOCKS:
            break
        best = runs
    return best


def _phase_runs(spans: Iterable[Span]) -> list[Run]:
    """Kernels in a row of one phase; neighbours are of different ones."""
    return merged(((span.start_s, span.end_s, span.timing.kernel.phase.value) for span in spans), float("inf"))


def _phases(ax: Axes, p: Prediction, style: Style) -> None:
    """Marks where backward and the optimizer begin."""
    runs = _phase_runs(p.spans)
    if len({what for _, _, what in runs}) < 2:
        return
    for start, _, _ in runs[1:]:
        ax.axvline(start, color=INK, linewidth=0.6, linestyle="--", zorder=3)
    long = [run for run in runs if run[1] - run[0] > 0.1 * p.total_s]
    for start, _, what in long:
        ax.text(start + 0.004 * p.total_s, _CPU + HALF + 0.05, str(what), fontsize=style.label_font, va="bottom")


def _handles(p: Prediction) -> list[Patch]:
    seen = {timing.bound for timing in p.timings}
    found = [Patch(facecolor=SKY, label="CPU issues")]
    if any(work.waits for work in p.timeline.cpu if not isinstance(work.what, Op)):
        found.append(_patch("CPU waits", "white", "xxxx", FAINT))
    found += kernel_handles(seen)
    if p.timeline.copies or p.timeline.starved_s:
        found.append(Patch(facecolor=FAINT, label="waits for inputs"))
    return [*found, _patch("idle", IDLE, edge=FAINT, width=0.4)]


_LANE_INCHES = 0.27
_MARGIN = 4.0  # points around a text within a hatched bar
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


def _parallel_timeline(p: ParallelPrediction, ax: Axes | None, width: str, venue: str | None) -> Axes:
    lanes = list(_parallel_lanes(p))
    inches = 1.0 + _LANE_INCHES * (lanes[0].height - lanes[-1].height + 1.5)
    with sheet(ax, width, venue, high=0.0, inches=inches) as page:
        axes, style = page.ax, page.style
        axes.set_ylim(lanes[-1].height - 0.5, lanes[0].height + 0.95)
        axes.set_yticks([lane.height for lane in lanes], [lane.name for lane in lanes])
        time_axis(axes, p.total_s, style)
        exposed = exposed_intervals(p)
        for lane in lanes:
            axes.axhspan(lane.height - HALF, lane.height + HALF, facecolor=IDLE, linewidth=0, zorder=0.5)
            if lane.share is not None:
                _device(axes, lane, lane.share, p.total_s)
            else:
                _links(axes, lane, exposed, SEEN * p.total_s)
        page.settle(_parallel_handles(p, exposed is not None))
        if page.new:
            _grow(axes, style)
        bars = _Bars(axes, style)
        for lane in lanes:
            if lane.head:
                place = 0.004 * p.total_s, lane.height + HALF + 0.06
                axes.text(*place, lane.head, fontsize=style.label_font, va="bottom", color=INK)
            for what, start, end in () if lane.share is None else lane.share.run.slots:  # a piece's number
                bars.write(lane.height, start, end, [what.partition(",")[0].rpartition(" ")[2]], _MARGIN)
            for message in lane.messages:
                bars.write(lane.height, message.start_s, message.end_s, [message.key], _MARGIN)
    return axes


def _parallel_lanes(p: ParallelPrediction) -> Iterator[_Lane]:
    """From the top: of each share CPU and GPU, or its stage; then the links, group by group."""
    height, told = 0.0, ""
    for share in p.shares:
        head = f"{len(share.numbers)} × {share.prediction.machine.device.title}, {share.batch} samples"
        if share.run.slots:
            head = f"{len(p.shares)} stages of {head}"
        elif len(share.numbers) > 1:
            head = f"{head} each"
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
    links = dict.fromkeys(link.name for message in p.messages for link in message.timing.route.links)
    hidden, exposed = (format_quantity(seconds, "s") for seconds in (p.hidden_s, p.exposed_s))
    totals = f"{' and '.join(links)}: {exposed} exposed, {hidden} hidden"
    for i, group in enumerate(groups):
        height -= _NEXT if i else _NEXT_HEAD
        own = tuple(message for message in p.messages if message.group == group)
        name = f"links: {group}" if len(groups) > 1 else "links"
        yield _Lane(height=height, name=name, head="" if i else totals, messages=own)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers with neighbours as one.

    >>> _ranges([0, 1, 2, 5])
    '0–2, 5'
    """
    runs = ([*run] for _, run in groupby(enumerate(sorted(numbers)), lambda one: one[1] - one[0]))
    return ", ".join(f"{run[0][1]}–{run[-1][1]}" if run[1:] else str(run[0][1]) for run in runs)


def _grow(ax: Axes, style: Style) -> None:
    """Makes the page as much taller as its key has taken from the lanes; text between them needs the room."""
    page = whole_page(ax)
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
        for start, _, _ in _phase_runs(run.spans)[1:]:
            ax.vlines(start, lane.height - HALF, lane.height + 0.85 + HALF, color=INK, linewidth=0.6, linestyle="--",
                      zorder=3)  # fmt: skip
    else:
        draw_bars(ax, lane.height, merged(((start, end, "") for _, start, end in run.cpu), least), SKY, "")


def _links(ax: Axes, lane: _Lane, exposed: Sequence[tuple[float, float]] | None, least: float) -> None:
    """Draws what is sent, coloured by whether a device waits for it."""
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


def _parallel_handles(p: ParallelPrediction, known: bool) -> list[Patch]:
    runs = [share.run for share in p.shares]
    found = []
    if any(run.slots for run in runs):
        found += [_patch(task, colour, hatch) for task, (colour, hatch) in _TASKS.items()]
    else:
        found.append(Patch(facecolor=SKY, label="CPU issues"))
        found += kernel_handles({span.timing.bound for run in runs for span in run.spans})
        if any(run.waits for run in runs):
            found.append(_patch("waits for others", "white", "xxxx", FAINT))
    names = {_EXPOSED: "sent, exposed", _HIDDEN: "sent, hidden"} if known else {_SENT: "sent"}
    for what, name in names.items() if p.messages else ():
        colour, hatch, edge = _LINKS[what]
        found.append(_patch(name, colour, hatch, edge or "white", 0.5))
    return [*found, _patch("idle", IDLE, edge=FAINT, width=0.4)]


_FRAGMENTS = "fragments"
_ACCOUNTS = {
    "weights": BLUE, "optimizer state": PURPLE, "inputs": INK, "gradients": GREEN, "activations": SKY,
    "workspace": FAINT, _FRAGMENTS: ORANGE,
}  # fmt: skip
_NEAR = 3.0  # times the peak: a capacity further up is stated, not drawn


@checked
def memory(
    prediction: Prediction | ParallelPrediction, ax: Axes | None = None, *, by: Literal["kind", "module"] = "kind",
    width: Width = "column", venue: Venue | None = None,
) -> Axes:  # fmt: skip
    """Draws the bytes alive over one step by what they hold, the peak with its op, and the device's capacity.

    by: "module" parts the activations by the modules whose ops make them, for a step on one device. The key also tells
    what the allocator's segments hold at most.

    Bytes are those of PyTorch's blocks, as `prediction.memory.peak_bytes` counts them. Fragments lie upon them: what is
    free in segments with a block in use, `inactive_split_bytes`. Of a step on several devices it shows the fullest one.
    ax, width, venue: as of `roofline`. Raises InputError for others.
    """
    step = prediction.fullest if isinstance(prediction, ParallelPrediction) else prediction
    if by == "module" and isinstance(step, Share):
        raise InputError("by='module': modules are drawn of a step on one device; got one on several")
    course = step.course if isinstance(step, Share) else memory_course(step, by_module=by == "module")
    with sheet(ax, width, venue, high=1.1) as page:
        areas = _areas(page.ax, course, step.total_s)
        most = max((one.total_bytes + one.fragment_bytes for one in course), default=0)
        _memory_frame(page.ax, step, most, page.style)
        use = step.memory
        taken, needed = (format_quantity(size, "byte") for size in (use.capacity, use.context_bytes))
        told = f"capacity {taken}, CUDA takes {needed}{'' if use.fits else ': does not fit'}"
        colour = VERMILLION if _room(step)[1] else "none"
        segments = f"segments hold up to {format_quantity(use.reserved_bytes, 'byte')}"
        drawn = Line2D([], [], color=colour, linewidth=1.0, linestyle="--", label=told)
        lines = (Line2D([], [], color="none", label=segments), drawn)
        page.settle([*areas, *lines[use.reserved_bytes == use.peak_bytes :]])
        if course:
            _peak(page.ax, step, max(course, key=lambda moment: moment.total_bytes), page.style)
    return page.ax


def _areas(ax: Axes, course: Sequence[Moment], end_s: float) -> list[Artist]:
    """An area for each account that holds anything, one upon the other; of a stretch too short to see the fullest."""
    shown: dict[int, Moment] = {}
    for moment in course:
        place = int(min(moment.start_s, end_s) / (SEEN * end_s or 1.0))
        if place not in shown or moment.total_bytes > shown[place].total_bytes:
            shown[place] = moment
    moments = [shown[place] for place in sorted(shown)]
    times = np.array([*(min(moment.start_s, end_s) for moment in moments), end_s])
    found: list[Artist] = []
    below = np.zeros(len(times))
    for account, colour in _colours((*moments[0].bytes_of, _FRAGMENTS) if moments else ()).items():
        held = [moment.bytes_of.get(account, moment.fragment_bytes) for moment in moments]
        if any(held):
            above = below + np.array([*held, held[-1]])
            turns = [0, *(np.flatnonzero(np.diff(below) + 1j * np.diff(above)) + 1), len(times) - 1]
            look: dict[str, Any] = {"edgecolor": "white", "hatch": "////"} if account in STANDING else {}
            found.append(
                ax.fill_between(
                    times[turns], below[turns], above[turns], step="post", facecolor=colour, linewidth=0, zorder=2,
                    label=account, **look,
                )
            )  # fmt: skip
            below = above
    return found


def _colours(accounts: Iterable[str]) -> dict[str, Any]:
    """The colour of each account; parts of the activations in tints, the first the lightest."""
    parts = [account for account in accounts if account not in _ACCOUNTS]
    tints = LinearSegmentedColormap.from_list("activations", ("#dff1fb", SKY, "#1f6f9f"))(np.linspace(0, 1, len(parts)))
    return {account: _ACCOUNTS.get(account) or tuple(tints[parts.index(account)]) for account in accounts}


def _memory_frame(ax: Axes, p: Prediction | Share, most: int, style: Style) -> None:
    room, near = _room(p)
    highest = max(most, room if near else 0.0) or 1.0
    ax.set_ylim(0, highest * 1.22)
    symbol = in_unit(ax.yaxis, highest, "byte", binary=style.on_screen)
    ax.set_ylabel(f"Memory in use ({symbol})", fontsize=style.axis_font)
    time_scale(ax, p.total_s, style)
    machine = (p.prediction if isinstance(p, Share) else p).machine
    ax.set_xlabel(f"{ax.get_xlabel()} on {machine.device.short_title}")
    plain_frame(ax, style)
    if near:
        ax.axhline(room, color=VERMILLION, linewidth=1.0, linestyle="--", zorder=3)


def _room(p: Prediction | Share) -> tuple[float, bool]:
    """Bytes that the allocator may take, and whether that is near enough to the peak to be drawn."""
    room = p.memory.room
    return room, room < _NEAR * p.memory.peak_bytes


def _peak(ax: Axes, p: Prediction | Share, moment: Moment, style: Style) -> None:
    """The peak with its op, above the highest line at its height."""
    peak, at = moment.total_bytes, moment.start_s
    ruler = Ruler(ax)
    across = ruler.across(ax)
    told = f"peak {format_quantity(peak, 'byte', binary=style.on_screen)}"  # as the texts of pages count
    text, half = next(
        (text, half) for text in (f"{told} at {moment.op}", told)
        if (half := ruler.size(text, style.label_font)[0] / 2) < across / 2 or text == told
    )  # fmt: skip
    middle = min(max(at / p.total_s * across, half), across - half)
    ax.plot([at], [peak], marker="v", markersize=4, color=INK, zorder=4)
    ax.annotate(text, (middle / across, peak), xycoords=("axes fraction", "data"), xytext=(0, 3.5),
                textcoords="offset points", ha="center", va="bottom", fontsize=style.label_font, color=INK, zorder=4,
                bbox=style.behind)  # fmt: skip
    ax.axhline(peak, color=FAINT, linewidth=0.4, linestyle=":", zorder=1)
