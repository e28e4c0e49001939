"""The kernels of a report: rows of its table, which are the marks of its roofline, and what they are filtered by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.ir.op import Phase
from rooflinekit.present.figures.inline import inline
from rooflinekit.present.figures.plot import roofline
from rooflinekit.present.figures.records.build import kernel_figure
from rooflinekit.present.figures.records.caption import caption, three_digits
from rooflinekit.present.figures.records.figure import Figure, Point, by_time
from rooflinekit.present.figures.records.groups import path_pattern
from rooflinekit.present.page.templating import View
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

MOST_ROWS = 300
_MOST_AREAS = 40
ROOT = "(root)"


def kernels_of(p: Prediction) -> View:
    """Rows and marks of a prediction, the longest first; MOST_ROWS of them."""
    figure = kernel_figure(p)
    every = by_time((*figure.points, *figure.rail))
    points, left = every[:MOST_ROWS], every[MOST_ROWS:]
    rows = tuple(_row(point, figure) for point in points)
    shown = {id(point) for point in points}
    drawn = replace(
        figure, points=tuple(point for point in figure.points if id(point) in shown),
        rail=tuple(point for point in figure.rail if id(point) in shown),
    )  # fmt: skip
    titles = [f"{r['name']}, {r['module']}: {r['time']['text']} ({r['share']['text']})" for r in rows]
    label = f"Roofline of {p.graph_name}: FLOP/s by FLOP per byte; the table below holds the same kernels"
    return {
        "charts": inline(lambda: roofline(drawn), "roofline", label, (500, 330), titles=titles),
        "rows": rows,
        "rest": _rest(left, figure),
        "modules": _areas(points, rows),
        "maths": _choices(points, [point.math for point in points]),
        "phases": _choices(points, [point.phase for point in points], [phase.value for phase in Phase]),
        "caption": caption(figure),
    }


def _row(point: Point, figure: Figure) -> View:
    memory = figure.memory_roof(point.device)
    roofs = {roof.name: roof for roof in figure.roofs if roof.provenance == "datasheet"}
    if point.flop:
        attainable = min(roofs[point.roof].value, point.intensity * memory.value)
        rate, value, of_roof = format_quantity(point.performance, "flop/s"), point.performance, point.performance
    else:
        attainable = memory.value
        rate, value, of_roof = format_quantity(point.bandwidth, "byte/s"), 0.0, point.bandwidth
    lower = point.flop and point.intensity * memory.value < roofs[point.roof].value
    roof = memory.name if lower or not point.flop else point.roof
    return {
        "name": f"{point.word}{f' ({point.algorithm})' if point.algorithm else ''}",
        "module": _pattern(point.modules),
        "phase": point.phase,
        "math": point.math,
        "bound": point.bound,
        "count": point.kernels,
        "time": {"text": format_quantity(point.time_s, "s"), "value": point.time_s},
        "share": {"text": f"{point.share:.1%}", "value": point.share},
        "flop": {"text": format_quantity(point.flop, "flop") if point.flop else "–", "value": point.flop},
        "bytes": {"text": format_quantity(point.bytes, "byte"), "value": point.bytes},
        "intensity": {"text": _number(point.intensity) if point.flop else "–", "value": point.intensity},
        "rate": {"text": rate, "value": value},
        "of_roof": {"text": f"{of_roof / attainable:.0%}", "value": of_roof / attainable},
        "roof": roof,
    }


def _number(value: float) -> str:
    return three_digits(value) if value >= 0.01 else f"{value:.1e}"


def _pattern(modules: Sequence[str]) -> str:
    """Paths that numbers alone tell apart as one; the root has a name."""
    return ".".join("/".join(part) for part in path_pattern(modules)) or ROOT


def _rest(left: Sequence[Point], figure: Figure) -> str:
    parts = []
    if left:
        kernels, share = sum(point.kernels for point in left), sum(point.share for point in left)
        time = format_quantity(sum(point.time_s for point in left), "s")
        parts.append(
            f"{len(left)} more rows, {kernels} kernels that together take {time} ({share:.1%} of the GPU’s time), are "
            "neither in the chart nor in the table."
        )
    if figure.omitted:
        parts.append(f"Without a place on either axis, for they move no bytes: {figure.omitted} kernels.")
    return " ".join(parts)


def _choices(points: Sequence[Point], values: Sequence[str], order: Sequence[str] = ()) -> tuple[View, ...]:
    """Each value with its share of the time; in this order, or the largest share first."""
    shares: dict[str, float] = defaultdict(float)
    for point, value in zip(points, values, strict=True):
        shares[value] += point.share
    ranked = [value for value in order if value in shares] or sorted(shares, key=lambda value: -shares[value])
    return tuple({"value": value, "text": f"{value} ({shares[value]:.0%})"} for value in ranked if value)


def _areas(points: Sequence[Point], rows: Sequence[View]) -> tuple[View, ...]:
    """The beginnings of module paths, as deep as they stay few, each with its share of the time."""
    found: dict[str, float] = {}
    for depth in range(1, 6):
        shares: dict[str, float] = defaultdict(float)
        for point, row in zip(points, rows, strict=True):
            parts = row["module"].split(".")
            for end in range(1, min(depth, len(parts)) + 1):
                shares[".".join(parts[:end])] += point.share
        if len(shares) > _MOST_AREAS and found:
            break
        found = shares
    # In the order of paths, so that each stands under what it is part of; the longest where there are too many.
    kept = sorted(sorted(found, key=lambda path: -found[path])[:_MOST_AREAS], key=lambda path: path.split("."))
    return tuple({"value": path, "text": f"{path} ({found[path]:.0%})"} for path in kept)
