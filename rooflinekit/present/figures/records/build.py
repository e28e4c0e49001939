"""Predictions, measured steps and devices → the model of a roofline figure, which `plot` draws."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.ir import keyed
from rooflinekit.ir.op import Family
from rooflinekit.present.figures.records.figure import Figure, Point, PointBound, Series, by_time
from rooflinekit.present.figures.records.paths import link_figure, trajectories_of
from rooflinekit.present.figures.records.roofs import ceiling, facts_of, floor_of, highest, l2_roof, levels_of, roofs_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.scaling import told_apart
from rooflinekit.study.profile.matching import Validation, kind_of, op_name
from rooflinekit.study.profile.profile import ProfileComparison
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing
from rooflinekit.units import as_percent

Group = tuple[Timing, ...]
Measured: TypeAlias = ProfileComparison | Validation
Unit: TypeAlias = tuple[Group, float]  # kernels that were measured together, and the seconds; 0 where they were not
Part: TypeAlias = Prediction | Measured | Machine | Device
Subject: TypeAlias = Part | Sequence[Part] | ParallelPrediction | Sequence[ParallelPrediction]
MOST_MARKS = 60  # a figure with more of them shows one a kind
_NEAR = 0.1  # decades; marks of one kind that are closer than this cover each other
_MOST = 0.7  # share of a mark's kernels that its name has to be right for, and of the kernels that the name means


def roofline_figure(
    subject: Subject, *, by_kind: bool | None = None, path: bool | Sequence[str] = False, joined: bool = True,
    by_level: bool = False, normalized: bool = False,
) -> Figure:  # fmt: skip
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
    figure = _with_marks(_roofs(parts, by_level=by_level), sources, lambda marks: marks.grouped(coarse=coarse))
    floors = [floor_of(p, one.name) for p, one in zip(predictions, figure.series, strict=True) if p.timings]
    return replace(figure, floors=tuple(floors), normalized=normalized)


def kernel_figure(prediction: Prediction) -> Figure:
    """The roofline figure of one prediction with a mark for each set of equal kernels, however many there are."""
    return _with_marks(_roofs((prediction,)), (prediction,), lambda marks: marks.alike())


def _with_marks(
    roofs: Figure, sources: Sequence[Prediction | Measured], grouped: Callable[[_Marks], Iterable[tuple[Group, ...]]]
) -> Figure:
    predictions = [compared_prediction(source) for source in sources]
    names = told_apart([
        (p.graph_name, p.machine.device.title, p.mode,
         ", ".join(f"{name}={value}" for name, value in p.sizes.items()))
        for p in predictions
    ])  # fmt: skip
    series: list[Series] = []
    points: list[Point] = []
    for source, p, name in zip(sources, predictions, names, strict=True):
        measured = None if isinstance(source, Prediction) else source
        marks, measured_s = _Marks(p, name, measured), 0.0 if measured is None else measured.measured_s
        omitted = sum(not _has_place(timing) for timing in p.timings)
        series.append(Series(name=name, device=p.machine.name, prediction=p, omitted=omitted, measured_s=measured_s))
        points += by_time(map(marks.point, grouped(marks)))
    notes = [timing.note for prediction in predictions for timing in prediction.timings if timing.note]
    notes += [note for source in sources if (note := unmatched_note(source))]
    return replace(
        roofs,
        series=tuple(series),
        points=tuple(point for point in points if point.flop),
        rail=tuple(point for point in points if not point.flop),
        notes=tuple(dict.fromkeys(notes)),
    )


def _roofs(parts: Sequence[Part], *, by_level: bool = False) -> Figure:
    bare = [part if isinstance(part, Machine | Device) else compared_prediction(part) for part in parts]
    roofs = [roof for part in bare for roof in roofs_of(part)]
    if by_level:
        machines = [part.machine if isinstance(part, Prediction) else part for part in bare]
        roofs += [l2_roof(machine) for machine in machines if isinstance(machine, Machine)]
    devices = tuple(dict.fromkeys(map(facts_of, bare)))
    return Figure(devices=devices, series=(), roofs=highest(roofs), points=(), rail=(), by_level=by_level)


def _parts(given: Sequence[object]) -> tuple[Part, ...]:
    if wrong := [type(part).__name__ for part in given if not isinstance(part, Part)]:
        raise InputError(f"roofline: expected predictions, machines or devices; got {wrong[0]}")
    if not given:
        raise InputError("roofline: expected at least one prediction, machine or device; got none")
    return tuple(part for part in given if isinstance(part, Part))


def _has_place(timing: Timing) -> bool:
    """Without traffic there is neither an intensity nor a bandwidth."""
    return bool(timing.kernel.bytes) and timing.total_s > 0


class _Marks:
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

    def grouped(self, *, coarse: bool) -> list[tuple[Group, ...]]:
        """The units, single kernels or those of one op, that share a mark together.

        One mark holds units of one kind, roof and bound: those of the same cost, and those so near to each other on
        both axes that their marks would cover each other. With `coarse`, or where that leaves more than 60 marks, it
        holds all. Units that were measured never share one with others.
        """

        def kind(unit: Group) -> Hashable:
            first, kernel = head(unit), head(unit).kernel
            what = kernel.kind, kernel.part, kernel.family, bool(kernel.algorithm.name)
            return what, self._roof(unit), first.bound, self._measured_s[id(unit)] > 0

        whole = self._together(kind)
        fine = whole if coarse else [near for members in whole for near in _neighbours(members)]
        return fine if len(fine) <= MOST_MARKS else whole

    def alike(self) -> list[tuple[Group, ...]]:
        """The units, equal ones together: of one kind, cost, arithmetic, bound and phase, in modules that numbers alone
        tell apart, as the layers of a stack are.
        """

        def kind(unit: Group) -> Hashable:
            kernel = head(unit).kernel
            module = tuple("*" if part.isdigit() else part for part in kernel.module.split("."))
            what = kernel.kind, kernel.cost, kernel.algorithm.name, kernel.math, kernel.phase
            return what, self._roof(unit), head(unit).bound, module

        return self._together(kind)

    def _together(self, kind: Callable[[Group], Hashable]) -> list[tuple[Group, ...]]:
        return list(map(tuple, keyed.lists((kind(unit), unit) for unit in self._units).values()))

    def _roof(self, unit: Group) -> str:
        """The roof of the unit's longest kernel with FLOP."""
        counting = tuple(timing for timing in unit if timing.kernel.cost.flop)
        return self._roofs[id(head(counting))] if counting else self._memory

    def point(self, units: tuple[Group, ...]) -> Point:
        """The mark of these units."""
        group = tuple(timing for unit in units for timing in unit)
        kernel = head(group).kernel
        time_s = sum(timing.total_s for timing in group)
        bounds: dict[PointBound, float] = keyed.sums((timing.bound, timing.total_s) for timing in group)
        phases = {timing.kernel.phase.value for timing in group}
        return Point(
            series=self.series, device=self.prediction.machine.name, label=self._namer.label(group), kind=kernel.kind,
            modules=tuple(dict.fromkeys(timing.kernel.module for timing in group)), kernels=len(group),
            math=kernel.math.value, roof=self._roof(units[0]), algorithm=kernel.algorithm.name,
            flop=sum(float(timing.kernel.cost.flop) for timing in group),
            bytes=sum(float(timing.kernel.bytes) for timing in group),
            time_s=time_s, share=time_s / self.prediction.gpu_s, bound=max(bounds, key=bounds.__getitem__),
            measured_s=sum(self._measured_s[id(unit)] for unit in units),
            dram_bytes=sum(self._traffic[id(timing)][0] for timing in group),
            l2_bytes=sum(self._traffic[id(timing)][1] for timing in group),
            word=op_word(kernel.kind, kernel.family, kernel.part), phase=phases.pop() if len(phases) == 1 else "",
        )  # fmt: skip


# Kernels → marks: which kernels share a mark of the figure, and what it is called.


def head(group: Group) -> Timing:
    """The longest of a group's kernels, which speaks for the others."""
    return max(group, key=lambda timing: timing.total_s)


def _neighbours(units: Sequence[Group]) -> list[tuple[Group, ...]]:
    """Cut into sets whose members lie within a tenth of a decade of the longest of them, on both axes."""
    seconds, places = [], []
    for unit in units:
        flop = sum(float(timing.kernel.cost.flop) for timing in unit)
        moved = sum(float(timing.kernel.bytes) for timing in unit)
        seconds.append(sum(timing.total_s for timing in unit))
        # Decades of intensity and of rate: FLOP/s, or byte/s without FLOP.
        places.append((math.log10(flop / moved) if flop else 0.0, math.log10((flop or moved) / seconds[-1])))
    left = sorted(range(len(units)), key=lambda i: (-seconds[i], i))
    found: list[tuple[Group, ...]] = []
    while left:
        first = left[0]
        near = {i for i in left if all(abs(a - b) <= _NEAR for a, b in zip(places[i], places[first], strict=True))}
        found.append(tuple(units[i] for i in sorted(near)))
        left = [i for i in left if i not in near]
    return found


_WORDS = (
    (re.compile(r"^[^.]*\."), ""),  # the library
    (re.compile(r"^_+|_+$"), ""),  # marks of private and in-place ops
    (re.compile(r"^(native|foreach|fused|thnn|cudnn)_"), ""),
    (re.compile(r"convolution"), "conv"),
    (re.compile(r"_with_indices|_dense$"), ""),
    (re.compile(r"_backward"), " backward"),
)


def op_word(kind: str, family: Family | None = None, part: str = "") -> str:
    """A short name of a kind of op: "aten.native_batch_norm" is a "batch_norm".

    >>> op_word("aten.add_"), op_word("aten.convolution_backward", part="input gradient")
    ('add', 'conv input gradient')
    """
    word = kind
    for pattern, to in _WORDS:
        word = pattern.sub(to, word)
    if family is Family.ATTENTION:
        word = "attention backward" if "backward" in kind else "attention"
    return f"{word.removesuffix(' backward')} {part}" if part else word


def path_pattern(modules: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """What paths of one length have in common: the names of each part, "*" for numbers; () where more than three.

    >>> path_pattern(["layer3.0.conv2", "layer4.1.conv2"])
    (('layer3', 'layer4'), ('*',), ('conv2',))
    """
    parts = []
    for names in zip(*(module.split(".") for module in modules), strict=True):
        distinct = tuple(sorted(set(names)))
        if len(distinct) > 1 and all(name.isdigit() for name in distinct):
            distinct = ("*",)
        if len(distinct) > 3:
            return ()
        parts.append(distinct)
    return tuple(parts)


class Namer:
    """Names marks so that they can be told apart: by module where one module does one thing, by op otherwise."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        kinds = keyed.lists((timing.kernel.module, timing.kernel.kind) for timing in timings)
        self._modules = keyed.lists((_what(timing), timing.kernel.module) for timing in timings)
        self._all_modules = [module for found in self._modules.values() for module in found]
        inner = {module[:end] for module in kinds for end, char in enumerate(module) if char == "."}
        self._telling = {
            module
            for module, found in kinds.items()
            if len(set(found)) == 1 and module not in inner and not module.rpartition(".")[2].isdigit()
        }

    def label(self, group: Group) -> str:
        """The short name of a mark: a path where one fits it, else the op and how many kernels there are."""
        kernel = group[0].kernel
        part = kernel.part if len({timing.kernel.part for timing in group}) == 1 else ""
        word = op_word(kernel.kind, kernel.family, part)
        modules = [timing.kernel.module for timing in group]
        # The paths of the commonest length speak for the rest.
        dots, count = Counter(module.count(".") for module in modules).most_common(1)[0]
        speaking = [module for module in modules if module.count(".") == dots]
        alone = not part and self._telling.issuperset(speaking)
        others = self._all_modules if alone else self._modules[_what(group[0])]
        path = _shortest_path(speaking, others) if count >= _MOST * len(modules) else ""
        if not path or path in word:
            return f"{word} ×{len(group)}" if len(group) > 1 else word
        return path if alone else f"{word} {path}"


def _what(timing: Timing) -> tuple[str, str]:
    return timing.kernel.kind, timing.kernel.part


def _shortest_path(modules: Sequence[str], all_modules: Sequence[str]) -> str:
    """The shortest end of a path that means these modules among all; "" if there is none."""
    parts = path_pattern(modules)
    for start in reversed(range(len(parts))):
        if parts[start] in (("*",), ("",)):
            continue
        fitting = sum(_ends_with(module.split("."), parts[start:], whole=not start) for module in all_modules)
        # An end of a path reads as a name and has to be exact; a whole path reads as a place.
        if len(modules) >= (1.0 if start else _MOST) * fitting:
            return ".".join(map(_alternatives, parts[start:]))
    return ""


def _ends_with(path: Sequence[str], parts: Sequence[tuple[str, ...]], *, whole: bool) -> bool:
    if len(path) < len(parts) or (whole and len(path) != len(parts)):
        return False
    ends = path[len(path) - len(parts) :]
    return all(name.isdigit() if part == ("*",) else name in part for name, part in zip(ends, parts, strict=True))


def _alternatives(part: tuple[str, ...]) -> str:
    """Alternative names with what they share written once: "conv1/3"."""
    letters = zip(*part, strict=False) if len(part) > 1 else ()
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, letters)))
    return "/".join([part[0], *(name[shared:] for name in part[1:])])


def compared_prediction(part: Prediction | Measured) -> Prediction:
    """The prediction of a part. Raises InputError for a Validation that was read from a file, which has none."""
    prediction = part if isinstance(part, Prediction) else part.prediction
    if prediction is None:
        raise InputError(
            "roofline: a validation from a file has times of ops, but not their FLOP and bytes; add its prediction: "
            "dataclasses.replace(validation, prediction=rk.predict(…))"
        )
    return prediction


def unmatched_note(part: Prediction | Measured) -> str:
    """A sentence on what was measured and has no mark, for nothing was predicted there; "" for nothing."""
    if isinstance(part, Prediction):
        return ""
    alone = sum(op.measured_s for op in part.ops if not op.predicted_s)
    total = sum(op.measured_s for op in part.ops)
    if not total:
        return "the ops of the step were not measured one by one"
    share = as_percent(alone / total, 1)
    return f"not shown: {share} of the measured time of ops is in calls that nothing predicts" if alone else ""


def measured_units(part: Measured, timings: Sequence[Timing]) -> list[Unit]:
    """Every kernel once: those of one op together, or of a kind whose calls could not be told apart."""
    counts = Counter(op.kind for op in part.ops)

    def key(kind: str, name: str, module: str) -> tuple[str, ...]:
        return (kind,) if counts[kind] == 1 else (kind, name, module)

    kernels = ((timing.kernel, timing) for timing in timings)
    units = keyed.lists((key(kind_of(k.kind), op_name(k.name), k.module), timing) for k, timing in kernels)
    seconds = {key(op.kind, op.name, op.module): op.measured_s for op in part.ops}
    return [(tuple(members), seconds.get(key, 0.0)) for key, members in units.items()]
