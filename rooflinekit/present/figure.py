"""Predictions and devices → the model of a roofline figure, which `plot` draws and JSON carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Timing
from rooflinekit.present.figure_caption import caption
from rooflinekit.present.figure_groups import Group, Namer, alike, grouped, op_word
from rooflinekit.present.figure_records import DeviceFacts, Figure, Point, PointBound, Roof, Series, by_time, leading
from rooflinekit.present.figure_roofs import ceiling, highest, roofs_of
from rooflinekit.step.prediction import Prediction

__all__ = [
    "DeviceFacts",
    "Figure",
    "Point",
    "Roof",
    "Series",
    "Subject",
    "caption",
    "kernel_figure",
    "leading",
    "roofline_figure",
]

Part: TypeAlias = Prediction | Machine | Device
Subject: TypeAlias = Part | Sequence[Part]


def roofline_figure(subject: Subject, *, by_kind: bool | None = None) -> Figure:
    """The roofline figure of predictions, or of the roofs of devices alone.

    subject: a Prediction, Machine or Device, or several. A Prediction brings the roofs of the arithmetic that its
        kernels use, a Machine and a Device all of theirs; a Device has no sustained shares.
    by_kind: whether one mark holds all kernels of a kind and bound; by default with several predictions, or where
        there would be more than 60 marks. Otherwise one mark holds the kernels that fall on the same place.

    Raises InputError for something else or an empty sequence.
    """
    parts = _parts(subject)
    predictions = [part for part in parts if isinstance(part, Prediction)]
    coarse = len(predictions) > 1 if by_kind is None else by_kind
    series: list[Series] = []
    points: list[Point] = []
    for prediction, name in zip(predictions, _series_names(predictions), strict=True):
        points += _points(prediction, name, partial(grouped, coarse=coarse))
        series.append(_series(prediction, name))
    return _figure(parts, series, points)


def kernel_figure(prediction: Prediction) -> Figure:
    """The roofline figure of one prediction with a mark for each set of equal kernels, however many there are."""
    name = prediction.graph_name
    return _figure((prediction,), [_series(prediction, name)], _points(prediction, name, alike))


def _figure(parts: Sequence[Part], series: Sequence[Series], points: Sequence[Point]) -> Figure:
    predictions = [part for part in parts if isinstance(part, Prediction)]
    return Figure(
        devices=tuple(dict.fromkeys(map(_facts, parts))),
        series=tuple(series),
        roofs=highest(roof for part in parts for roof in roofs_of(part)),
        points=tuple(point for point in points if point.flop),
        rail=tuple(point for point in points if not point.flop),
        notes=tuple(dict.fromkeys(t.note for prediction in predictions for t in prediction.timings if t.note)),
    )


def _parts(subject: object) -> tuple[Part, ...]:
    parts = tuple(subject) if isinstance(subject, Sequence) and not isinstance(subject, str) else (subject,)
    for part in parts:
        if not isinstance(part, Prediction | Machine | Device):
            raise InputError(f"roofline: expected predictions, machines or devices; got {type(part).__name__}")
    if not parts:
        raise InputError("roofline: expected at least one prediction, machine or device; got none")
    return parts


def _facts(part: Part) -> DeviceFacts:
    device = part if isinstance(part, Device) else part.device if isinstance(part, Machine) else part.machine.device
    return DeviceFacts(
        name=device.name,
        display_name=device.display_name or device.name,
        clock_hz=device.clock.boost,
        matrix_clock_hz=device.tensor_clock if device.matrix_peak else device.clock.boost,
    )


def _series(prediction: Prediction, name: str) -> Series:
    omitted = [timing for timing in prediction.timings if not _has_place(timing)]
    return Series(
        name=name,
        model=prediction.graph_name,
        mode=prediction.mode,
        sizes=tuple(prediction.sizes.items()),
        device=prediction.machine.name,
        total_s=prediction.total_s,
        gpu_s=prediction.gpu_s,
        kernels=len(prediction.timings),
        omitted=len(omitted),
        omitted_s=sum(timing.total_s for timing in omitted),
    )


def _series_names(predictions: Sequence[Prediction]) -> list[str]:
    """For each prediction what tells it from the others: its model, device, mode, sizes, or at last a number."""
    sizes = [", ".join(f"{name}={value}" for name, value in p.sizes.items()) for p in predictions]
    columns = [
        [p.graph_name for p in predictions],
        [p.machine.device.display_name or p.machine.name for p in predictions],
        [p.mode for p in predictions],
        sizes,
    ]
    differing = [column for column in columns if len(set(column)) > 1] or columns[:1]
    names = [", ".join(filter(None, words)) for words in zip(*differing, strict=True)]
    doubled = {name for name in names if names.count(name) > 1}
    return [f"{name} #{i}" if name in doubled else name for i, name in enumerate(names, 1)]


def _has_place(timing: Timing) -> bool:
    """Without traffic there is neither an intensity nor a bandwidth."""
    return bool(timing.kernel.cost.bytes) and timing.total_s > 0


_Grouping = Callable[[Sequence[Timing], Callable[[Timing], str]], list[Group]]


def _points(prediction: Prediction, series: str, grouping: _Grouping) -> list[Point]:
    timings = [timing for timing in prediction.timings if _has_place(timing)]
    machine = prediction.machine
    memory = machine.device.dram.type or "DRAM"
    roof_of = {id(t): ceiling(t.kernel, machine)[0].name if t.kernel.cost.flop else memory for t in timings}
    groups = grouping(timings, lambda timing: roof_of[id(timing)])
    namer = Namer(prediction.timings)
    make = partial(_point, series=series, prediction=prediction, namer=namer)
    return list(by_time(make(group, roof=roof_of[id(group[0])]) for group in groups))


def _point(group: Group, *, series: str, prediction: Prediction, namer: Namer, roof: str) -> Point:
    kernel = group[0].kernel
    time_s = sum(timing.total_s for timing in group)
    bounds: dict[PointBound, float] = defaultdict(float)
    for timing in group:
        bounds[timing.bound] += timing.total_s
    phases = {timing.kernel.phase.value for timing in group}
    return Point(
        series=series,
        device=prediction.machine.name,
        label=namer.label(group),
        kind=kernel.kind,
        modules=tuple(dict.fromkeys(timing.kernel.module for timing in group)),
        kernels=len(group),
        math=kernel.math.value,
        roof=roof,
        algorithm=kernel.algorithm,
        flop=sum(float(timing.kernel.cost.flop) for timing in group),
        bytes=sum(float(timing.kernel.cost.bytes) for timing in group),
        time_s=time_s,
        share=time_s / prediction.gpu_s,
        bound=max(bounds, key=bounds.__getitem__),
        word=op_word(kernel.kind, kernel.family, kernel.cost.label),
        phase=phases.pop() if len(phases) == 1 else "",
    )
