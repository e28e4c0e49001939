"""Predictions, measured steps and devices → the model of a roofline figure, which `plot` draws and JSON carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import Timing
from rooflinekit.present.figures.records.figure import (
    Figure,
    Point,
    PointBound,
    Series,
    by_time,
)
from rooflinekit.present.figures.records.groups import (
    Group,
    Measured,
    Namer,
    alike,
    compared_prediction,
    grouped,
    head,
    measured_units,
    op_word,
    unmatched_note,
    wall_s,
)
from rooflinekit.present.figures.records.paths import link_figure, trajectories_of
from rooflinekit.present.figures.records.roofs import ceiling, facts_of, floor_of, highest, l2_roof, levels_of, roofs_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.scaling import told_apart

Part: TypeAlias = Prediction | Measured | Machine | Device
Subject: TypeAlias = Part | Sequence[Part] | ParallelPrediction | Sequence[ParallelPrediction]


def roofline_figure(
    subject: Subject,
    *,
    by_kind: bool | None = None,
    path: bool | Sequence[str] = False,
    joined: bool = True,
    by_level: bool = False,
    normalized: bool = False,
) -> Figure:
    """The roofline figure of predictions, of measured steps beside theirs, or of the roofs of devices alone.

    subject: a Prediction, Machine or Device, or several. A Prediction brings the roofs of the arithmetic that its
        kernels use, a Machine and a Device all of theirs; a Device has no sustained shares. A ProfileComparison or a
        Validation brings its prediction, and for each mark what was measured. Of ParallelPredictions, alone, each is
        two marks, by the bytes that it sends and by those of DRAM, under the roofs of links and memory.
    by_kind: whether one mark holds all kernels of a kind and bound; by default with several predictions, or where
        there would be more than 60 marks. Otherwise one mark holds the kernels that fall on the same place.
    path: one mark for each prediction, its whole step, joined in their order; or the words that name them. Steps on
        several devices are marks always, and joined where they differ in the number of devices.
    joined: whether arrows lead from mark to mark of a path. Without, several networks stand each for itself.
    by_level: points at the traffic that the model expects of DRAM and of the L2, with a roof for each.
    normalized: to be drawn as shares of each kernel's own roof, over intensities relative to its ridge.

    Raises InputError for something else or an empty sequence, and for a Validation without its prediction.
    """
    whole: object = subject
    given = tuple(whole) if isinstance(whole, Sequence) and not isinstance(whole, str) else (whole,)
    if any(isinstance(part, ParallelPrediction) for part in given):
        return link_figure(given, () if isinstance(path, bool) else path, other=by_level or normalized)
    parts = _parts(given)
    sources = [part for part in parts if not isinstance(part, Machine | Device)]
    predictions = [compared_prediction(part) for part in sources]
    if by_level and len(sources) > sum(isinstance(source, Prediction) for source in sources):
        raise InputError("by_level shows the traffic that is predicted; got a measured step: give its prediction")
    if path:
        words = () if isinstance(path, bool) else path
        trajectories = trajectories_of(predictions, words, joined=joined)
        return replace(_roofs(parts), trajectories=trajectories, normalized=normalized)
    coarse = len(predictions) > 1 if by_kind is None else by_kind

    def grouping(marks: _Marks) -> _Grouping:
        return partial(grouped, coarse=coarse, apart=marks.is_measured)

    figure = _with_marks(_roofs(parts, by_level=by_level), sources, grouping)
    floors = [floor_of(p, one.name) for p, one in zip(predictions, figure.series, strict=True) if p.timings]
    return replace(figure, floors=tuple(floors), normalized=normalized)


def kernel_figure(prediction: Prediction) -> Figure:
    """The roofline figure of one prediction with a mark for each set of equal kernels, however many there are."""
    return _with_marks(_roofs((prediction,)), (prediction,), lambda _: alike)


def _with_marks(
    roofs: Figure, sources: Sequence[Prediction | Measured], grouping: Callable[[_Marks], _Grouping]
) -> Figure:
    """The figure with a series for each source."""
    predictions = [compared_prediction(source) for source in sources]
    names = _series_names(predictions)
    points: list[Point] = []
    for source, prediction, name in zip(sources, predictions, names, strict=True):
        marks = _Marks(prediction, name, None if isinstance(source, Prediction) else source)
        points += marks.points(grouping(marks))
    notes = [timing.note for prediction in predictions for timing in prediction.timings if timing.note]
    notes += [note for source in sources if (note := unmatched_note(source))]
    return replace(
        roofs,
        series=tuple(_series(*each) for each in zip(sources, predictions, names, strict=True)),
        points=tuple(point for point in points if point.flop),
        rail=tuple(point for point in points if not point.flop),
        notes=tuple(dict.fromkeys(notes)),
    )


def _roofs(parts: Sequence[Part], *, by_level: bool = False) -> Figure:
    """A figure of roofs alone."""
    bare = [part if isinstance(part, Machine | Device) else compared_prediction(part) for part in parts]
    roofs = [roof for part in bare for roof in roofs_of(part)]
    if by_level:
        machines = [part.machine if isinstance(part, Prediction) else part for part in bare]
        roofs += [l2_roof(machine) for machine in machines if isinstance(machine, Machine)]
    return Figure(
        devices=tuple(dict.fromkeys(map(facts_of, bare))),
        series=(),
        roofs=highest(roofs),
        points=(),
        rail=(),
        by_level=by_level,
    )


def _parts(given: Sequence[object]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for part in given:
        if not isinstance(part, Part):
            raise InputError(f"roofline: expected predictions, machines or devices; got {type(part).__name__}")
        parts.append(part)
    if not parts:
        raise InputError("roofline: expected at least one prediction, machine or device; got none")
    return tuple(parts)


def _series(source: Prediction | Measured, prediction: Prediction, name: str) -> Series:
    omitted = [timing for timing in prediction.timings if not _has_place(timing)]
    memory = prediction.memory
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
        measured_s=wall_s(source),
        needed_bytes=float(memory.reserved_bytes + memory.context_bytes),
        capacity_bytes=float(memory.capacity),
        fits=memory.fits,
    )


def _series_names(predictions: Sequence[Prediction]) -> Sequence[str]:
    """For each prediction what tells it from the others: its model, device, mode, sizes, or at last a number."""
    return told_apart([
        (p.graph_name, p.machine.device.display_name or p.machine.name, p.mode,
         ", ".join(f"{name}={value}" for name, value in p.sizes.items()))
        for p in predictions
    ])  # fmt: skip


def _has_place(timing: Timing) -> bool:
    """Without traffic there is neither an intensity nor a bandwidth."""
    return bool(timing.kernel.bytes) and timing.total_s > 0


_Grouping: TypeAlias = Callable[[Sequence[Group], Callable[[Group], str]], list[tuple[Group, ...]]]


class _Marks:
    """The marks of one series."""

    def __init__(self, prediction: Prediction, series: str, measured: Measured | None) -> None:
        self.prediction = prediction
        self.series = series
        timings = [timing for timing in prediction.timings if _has_place(timing)]
        machine = prediction.machine
        memory = machine.device.dram.type or "DRAM"
        self._roofs = {id(t): ceiling(t.kernel, machine)[0].name if t.kernel.cost.flop else memory for t in timings}
        self._memory = memory
        self._traffic = levels_of(timings, machine)
        self._namer = Namer(prediction.timings)
        units = [((timing,), 0.0) for timing in timings] if measured is None else measured_units(measured, timings)
        self._units = [unit for unit, _ in units]
        self._measured_s = {id(unit): seconds for unit, seconds in units}  # two kernels of one layer may be equal

    def points(self, grouping: _Grouping) -> list[Point]:
        """All of them, the longest first."""
        return list(by_time(map(self._point, grouping(self._units, self._roof))))

    def is_measured(self, unit: Group) -> bool:
        """Whether a profiler saw it."""
        return self._measured_s[id(unit)] > 0

    def _roof(self, unit: Group) -> str:
        """That of the unit's longest kernel with FLOP."""
        counting = tuple(timing for timing in unit if timing.kernel.cost.flop)
        return self._roofs[id(head(counting))] if counting else self._memory

    def _point(self, units: tuple[Group, ...]) -> Point:
        group = tuple(timing for unit in units for timing in unit)
        kernel = head(group).kernel
        time_s = sum(timing.total_s for timing in group)
        bounds: dict[PointBound, float] = defaultdict(float)
        for timing in group:
            bounds[timing.bound] += timing.total_s
        phases = {timing.kernel.phase.value for timing in group}
        return Point(
            series=self.series,
            device=self.prediction.machine.name,
            label=self._namer.label(group),
            kind=kernel.kind,
            modules=tuple(dict.fromkeys(timing.kernel.module for timing in group)),
            kernels=len(group),
            math=kernel.math.value,
            roof=self._roof(units[0]),
            algorithm=kernel.algorithm.name,
            flop=sum(float(timing.kernel.cost.flop) for timing in group),
            bytes=sum(float(timing.kernel.bytes) for timing in group),
            time_s=time_s,
            share=time_s / self.prediction.gpu_s,
            bound=max(bounds, key=bounds.__getitem__),
            measured_s=sum(self._measured_s[id(unit)] for unit in units),
            dram_bytes=sum(self._traffic[id(timing)][0] for timing in group),
            l2_bytes=sum(self._traffic[id(timing)][1] for timing in group),
            word=op_word(kernel.kind, kernel.family, kernel.part),
            phase=phases.pop() if len(phases) == 1 else "",
        )
