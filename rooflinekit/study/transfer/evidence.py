"""What was measured of a step on the device at hand, as far as it says something of the same step elsewhere."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.model.roofline import Timing
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.parts import Loaded, Part, kernel_parts, parts_of
from rooflinekit.study.profile.matching import OpTime, PredictedOp, kind_of, match, op_name, predicted_ops, whole_calls
from rooflinekit.study.profile.profile import Profile
from rooflinekit.study.profile.validation import Validation
from rooflinekit.study.transfer.posterior import Seen
from rooflinekit.study.transfer.shapes import NO_SHAPES, check_shapes, shape_class, shape_classes
from rooflinekit.units import format_quantity

_MOST = 400  # measured ops that are looked at one by one, the longest
_OP_NOISE = 0.05  # in ln, of one op's time in a trace: the profiler, clocks; stated
_NEARLY = 0.999  # of a step that is a single operator: still an operator's share
_COLLECTIVE = re.compile(r"ncclDevKernel|ncclKernel|rcclGenericKernel|rccl", re.IGNORECASE)
_DOUBTFUL = math.log(3)  # a measured time so far from its prediction may be of something else
_BEYOND = math.log(1e4)  # a measured time so far from its prediction is of something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A measured step: its wall time, its ops where they were seen, and where all that comes from."""

    source: str  # in words
    seconds: float | None = None  # of a step; None where only kernels were measured
    ops: tuple[ProfiledOp, ...] = ()
    matched: tuple[OpTime, ...] = ()  # by somebody else already
    device: str = ""  # the specification's name, or how the driver calls it; "" where it does not say
    traced: bool = False  # whether a profiler's trace holds the ops

    @classmethod
    def of(cls, measured: object) -> Evidence:
        """A number of seconds, a Profile, a Validation, or a mapping from kinds of op to seconds on the device.

        Raises InputError for something else.
        """
        if isinstance(measured, Evidence):
            return measured
        if isinstance(measured, Profile):
            if not measured.on_gpu:
                raise InputError(f"{measured.file}: the trace holds no kernels; record it with ProfilerActivity.CUDA")
            # A step that waits for other ranks tells of one GPU's step by its operators alone.
            alone = not any(_COLLECTIVE.match(kernel.name) for kernel in measured.kernels)
            told = "" if alone else ", whose step holds communication and is not counted as a whole"
            return cls(
                source=f"the trace {measured.file}{told}", seconds=measured.wall_s if alone else None,
                ops=measured.ops, device=measured.device, traced=True,
            )  # fmt: skip
        if isinstance(measured, Validation):
            return cls(
                source=f"a measurement on {measured.device}", seconds=measured.measured_s, matched=measured.ops,
                device=measured.device,
            )  # fmt: skip
        if isinstance(measured, Mapping):
            return cls(source=f"times of {len(measured)} kinds of op", ops=tuple(_calls(measured)))
        if isinstance(measured, bool) or not isinstance(measured, int | float):
            raise InputError(
                f"measured: expected seconds, a Profile, a Validation or seconds by kind of op; got {measured!r:.80}"
            )
        if not (finite(measured) and measured > 0):
            raise InputError(f"measured: expected a time above 0 seconds; got {shown(measured)}")
        return cls(source=f"a measured step of {format_quantity(float(measured), 's')}", seconds=float(measured))

    def seen(self, p: Prediction, names: Mapping[str, str]) -> list[Seen]:
        """What this says of the prediction's parts. Raises InputError where it cannot be of the predicted step."""
        found: list[Seen] = []
        check_shapes(self.ops, p.graph, self.source)
        if self.seconds is not None:
            found.append(Seen(ln=self._ln(self.seconds, p), parts=parts_of(p, names)))
        ops = self.matched or (matched(self.ops, p) if self.ops else ())
        found += _by_op(ops, p, names)
        if not found:
            raise InputError(
                f"{self.source}: none of its ops is one of {p.graph_name}; name the network, batch and execution that "
                "were measured, or give the time of a step"
            )
        return found

    def notes(self, p: Prediction) -> tuple[str, ...]:
        """What would make the evidence better, or makes it doubtful, beside the prediction of the measured step."""
        found = []
        if self.traced and not check_shapes(self.ops, p.graph, self.source):
            found.append(NO_SHAPES)
        if self.seconds is not None and abs(math.log(self.seconds / p.total_s)) > _DOUBTFUL:
            times = max(self.seconds / p.total_s, p.total_s / self.seconds)
            word = "longer" if self.seconds > p.total_s else "shorter"
            found.append(
                f"{self.source} is {times:.1f} times {word} than predicted there: is it of this batch, format and "
                "execution?"
            )
        return tuple(found)

    def _ln(self, seconds: float, p: Prediction) -> float:
        ln = math.log(seconds / p.total_s)
        if abs(ln) > _BEYOND:
            times = max(seconds / p.total_s, p.total_s / seconds)
            raise InputError(
                f"{self.source}: {format_quantity(seconds, 's')} is {times:.0e} "
                f"times off the {format_quantity(p.total_s, 's')} predicted for {p.graph_name} on {p.machine.name}: it "
                "is of another network, batch or unit"
            )
        return ln


def _calls(measured: Mapping[object, object]) -> Iterator[ProfiledOp]:
    for name, seconds in measured.items():
        if not isinstance(name, str) or isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise InputError(
                f"measured: expected seconds by kind of op, such as {{'aten::addmm': 1e-3}}; got {name!r:.80}"
            )
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"measured: {name}: expected a time above 0 seconds; got {seconds!r}")
        yield ProfiledOp(name=name, depth=0, seconds=float(seconds))


def _by_op(ops: Sequence[OpTime], p: Prediction, names: Mapping[str, str]) -> list[Seen]:
    """Each matched op, or kind of op: equal work counts as one measurement, in the mean."""
    by_name: dict[str, list[Timing]] = defaultdict(list)
    by_kind: dict[str, list[Timing]] = defaultdict(list)
    for timing in p.timings:
        by_name[op_name(timing.kernel.name)].append(timing)
        by_kind[kind_of(timing.kernel.kind)].append(timing)
    alike: dict[frozenset[Part], list[tuple[float, float, Mapping[Part, Loaded]]]] = defaultdict(list)
    for op in sorted((op for op in ops if op.measured_s > 0 and op.predicted_s > 0), key=lambda op: -op.measured_s):
        timings = by_name[op.name] if op.name in by_name else by_kind.get(op.kind, [])
        ln = math.log(op.measured_s / op.predicted_s)
        if timings and abs(ln) < _BEYOND:
            parts = kernel_parts(p, names, timings)
            alike[frozenset(parts)].append((ln, op.measured_s, parts))
    total = sum(s for group in alike.values() for _, s, _ in group)
    found = [
        Seen(
            ln=sum(ln * s for ln, s, _ in group) / sum(s for _, s, _ in group), parts=group[0][2],
            noise=_OP_NOISE / math.sqrt(len(group)), share=min(sum(s for _, s, _ in group) / total, _NEARLY),
        )
        for group in alike.values()
    ]  # fmt: skip
    return found[:_MOST]


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
