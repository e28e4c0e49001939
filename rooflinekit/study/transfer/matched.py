"""Calls of a trace and predicted ops, matched by the shapes that both have, else by kind and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from rooflinekit.calibrate.at_hand.run_record import ProfiledOp
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import OpTime, PredictedOp, kind_of, match, op_name, predicted_ops, whole_calls
from rooflinekit.study.transfer.shapes import shape_class, shape_classes

_Shapes = tuple[tuple[int, ...], ...]
_Calls = dict[_Shapes, list[float]]


def matched(measured: Sequence[ProfiledOp], p: Prediction) -> tuple[OpTime, ...]:
    """What was measured of the prediction's ops.

    A call with shapes is one of an op of its kind with the same shapes: in order where there are as many, and where
    there are not (a trace of several steps, or of a part of one) each op took what these calls took in the mean. Kinds
    none of whose shapes are the trace's are matched as in a trace without shapes, see `match`.
    """
    ops: dict[str, list[PredictedOp]] = defaultdict(list)
    for op in predicted_ops(p.timings):
        ops[op.kind].append(op)
    calls: dict[str, _Calls] = defaultdict(lambda: defaultdict(list))
    for kind, call, seconds in whole_calls(measured, ops):
        if shapes := shape_class(call.shapes):
            calls[kind][shapes].append(seconds)
    classes = shape_classes(p.graph)
    found = [one for kind in ops for one in _by_shape(calls[kind], ops[kind], classes)]
    by_shape = {one.kind for one in found}
    rest = match(measured, [timing for timing in p.timings if kind_of(timing.kernel.kind) not in by_shape])
    place = {op_name(timing.kernel.name): i for i, timing in reversed(list(enumerate(p.timings)))}
    found += [one for one in rest if one.kind not in by_shape]
    return tuple(sorted(found, key=lambda one: place.get(one.name, len(place))))


def _by_shape(calls: _Calls, ops: Sequence[PredictedOp], classes: dict[str, _Shapes]) -> Iterator[OpTime]:
    alike: dict[_Shapes, list[PredictedOp]] = defaultdict(list)
    for op in ops:
        alike[classes.get(op.name, ())].append(op)
    for shapes, same in alike.items():
        seconds = calls.get(shapes, [])
        if shapes and seconds:
            each = seconds if len(seconds) == len(same) else [fmean(seconds)] * len(same)
            for op, s in zip(same, each, strict=True):
                yield OpTime(
                    kind=op.kind, name=op.name, module=op.module, count=1, measured_s=s, predicted_s=op.seconds
                )
