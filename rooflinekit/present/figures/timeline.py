"""Draws a predicted step over time: what the CPU issues, what the GPU executes, and where it waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rooflinekit.ir.arguments import checked
from rooflinekit.ir.op import Op
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
    FAINT,
    INK,
    SKY,
    Style,
    Venue,
    Width,
    drawing,
    fit_page,
    key_above,
    new_axes,
    style_of,
)
from rooflinekit.present.figures.timeline_parallel import parallel_timeline
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.prediction import ParallelPrediction

_CPU, _GPU, _MODULES = 2.0, 1.0, 0.25  # the lanes
_PARENTS = -0.28  # below the modules: what numbers are of
_MOST_BLOCKS = 36  # of modules


@checked
def timeline(
    prediction: Prediction | ParallelPrediction,
    ax: Axes | None = None,
    *,
    width: Width = "page",
    venue: Venue | None = None,
) -> Axes:
    """Draws one step: the CPU's ops and waits, the GPU's kernels by what bounds them, and the modules they are of.

    Of a step on several devices: those lanes for each kind of device, a pipeline's stages, and the links, with what is
    hidden and exposed. Neighbours of one kind are one bar where the gap between them is less than 1/700 of the step;
    longer gaps stay open: the GPU waits. ax, width, venue: as of `roofline`, with a page as the default. Raises
    InputError for others.
    """
    style = style_of(width, venue)
    if isinstance(prediction, ParallelPrediction):
        return parallel_timeline(prediction, ax, style)
    style = replace(style, size=(style.size[0], 1.7 + 0.09 * style.size[0]))
    with drawing():
        axes = new_axes(style) if ax is None else ax
        _prepare(axes, prediction, style)
        _lanes(axes, prediction)
        key_above(axes, _handles(prediction), style)
        if ax is None:
            fit_page(axes)
        _blocks(axes, prediction, style)
        _phases(axes, prediction, style)
    return axes


def _prepare(ax: Axes, p: Prediction, style: Style) -> None:
    ax.set_ylim(-0.2, _CPU + HALF + 0.4)
    ax.set_yticks([_CPU, _GPU, _MODULES], ["CPU", "GPU", "module"])
    time_axis(ax, p.total_s, style)


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
    font = style.label_font - 0.5
    page = ax.get_figure(root=False)
    assert page is not None, "an Axes that was removed from its figure"
    ruler = Ruler(page)
    points = ax.get_window_extent().width * ruler.points / (ax.get_xlim()[1] - ax.get_xlim()[0])

    def fits(text: str, start: float, end: float) -> bool:
        return bool(text) and ruler.size(text, font)[0] <= (end - start) * points

    numbered = [_numbered(path) and not fits(path, a, b) for path, (a, b, _) in zip(paths, runs, strict=True)]
    for i, (path, (start, end, _)) in enumerate(zip(paths, runs, strict=True)):
        ax.broken_barh([(start, end - start)], (_MODULES - 0.28, 0.56), facecolor=("#e2e2e2", "#cfcfcf")[i % 2],
                       edgecolor="white", linewidth=0.4, zorder=2)  # fmt: skip
        last = path.rpartition(".")[2]
        forms = (last,) if any(numbered) and _numbered(path) else (path,) if last.isdecimal() else (path, last)
        text = next((text for text in forms if fits(text, start, end)), "")
        if text:
            ax.text((start + end) / 2, _MODULES, text, ha="center", va="center", fontsize=font, color=INK, zorder=3,
                    clip_on=True)  # fmt: skip
    if not any(numbered):
        return
    ax.set_ylim(_PARENTS - 0.2, ax.get_ylim()[1])
    parents = [(a, b, path.rpartition(".")[0] if _numbered(path) else i)
               for i, (path, (a, b, _)) in enumerate(zip(paths, runs, strict=True))]  # fmt: skip
    for start, end, parent in merged(parents, float("inf")):
        forms = (str(parent), str(parent).rpartition(".")[2])
        text = next((t for t in forms if fits(t, start, end) and not t.isdecimal()), "")
        if isinstance(parent, str):
            ax.plot([start, end], [_PARENTS + 0.21] * 2, color=FAINT, linewidth=0.6, solid_capstyle="butt")
            if text:
                ax.text((start + end) / 2, _PARENTS, text, ha="center", va="center", fontsize=font, color=INK)


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


def _phases(ax: Axes, p: Prediction, style: Style) -> None:
    """Where backward and the optimizer begin."""
    runs = merged(((s.start_s, s.end_s, s.timing.kernel.phase.value) for s in p.spans), float("inf"))
    if len({what for _, _, what in runs}) < 2:
        return
    for (_, _, before), (start, _, what) in pairwise(runs):
        if before != what:
            ax.axvline(start, color=INK, linewidth=0.6, linestyle="--", zorder=3)
    long = [run for run in runs if run[1] - run[0] > 0.1 * p.total_s]
    for start, _, what in long:
        ax.text(start + 0.004 * p.total_s, _CPU + HALF + 0.05, str(what), fontsize=style.label_font, va="bottom")


def _handles(p: Prediction) -> list[Patch]:
    seen = {timing.bound for timing in p.timings}
    found = [Patch(facecolor=SKY, label="CPU issues")]
    if any(work.waits for work in p.timeline.cpu if not isinstance(work.what, Op)):
        found.append(Patch(facecolor="white", edgecolor=FAINT, hatch="xxxx", linewidth=0, label="CPU waits"))
    found += kernel_handles(seen)
    if p.timeline.copies or p.timeline.starved_s:
        found.append(Patch(facecolor=FAINT, label="waits for inputs"))
    found.append(Patch(facecolor=IDLE, edgecolor=FAINT, linewidth=0.4, label="idle"))
    return found
