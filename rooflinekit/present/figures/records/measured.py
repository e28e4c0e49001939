"""What was measured of a step, set beside the kernels that were predicted for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from rooflinekit.errors import InputError
from rooflinekit.model.roofline import Timing
from rooflinekit.present.figures.records.groups import Group
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import OpTime, Validation, kind_of
from rooflinekit.study.profile.profile import ProfileComparison

Measured: TypeAlias = ProfileComparison | Validation
Unit: TypeAlias = tuple[Group, float]  # kernels that were measured together, and the seconds; 0 where they were not


def compared_prediction(part: Prediction | Measured) -> Prediction:
    """The prediction of a part. Raises InputError for a Validation that was read from a file, which has none."""
    prediction = part if isinstance(part, Prediction) else part.prediction
    if prediction is None:
        raise InputError(
            "roofline: a validation from a file has times of ops, but not their FLOP and bytes; add its prediction: "
            "dataclasses.replace(validation, prediction=rk.predict(…))"
        )
    return prediction


def wall_s(part: Prediction | Measured) -> float:
    """Measured wall time of the step in seconds; 0 of a prediction alone."""
    if isinstance(part, Prediction):
        return 0.0
    return part.profile.wall_s if isinstance(part, ProfileComparison) else part.measured_s


def unmatched_note(part: Prediction | Measured) -> str:
    """A sentence on what was measured and has no mark, for nothing was predicted there; "" for nothing."""
    if isinstance(part, Prediction):
        return ""
    alone = sum(op.measured_s for op in part.ops if not op.predicted_s)
    total = sum(op.measured_s for op in part.ops)
    if not total:
        return "the ops of the step were not measured one by one"
    share = f"{alone / total:.1%}".replace("%", " %")
    return f"not shown: {share} of the measured time of ops is in calls that nothing predicts" if alone else ""


def measured_units(part: Measured, timings: Sequence[Timing]) -> list[Unit]:
    """Every kernel once: those of one op together, or of a kind whose calls could not be told apart."""
    times: dict[str, list[OpTime]] = defaultdict(list)
    for op in part.ops:
        times[op.kind].append(op)
    units: dict[tuple[str, ...], list[Timing]] = defaultdict(list)
    for timing in timings:
        kind = kind_of(timing.kernel.kind)
        units[(kind,) if len(times[kind]) == 1 else (kind, _op(timing), timing.kernel.module)].append(timing)
    seconds: dict[tuple[str, ...], float] = {}
    for kind, ops in times.items():
        seconds |= {(kind,) if len(ops) == 1 else (kind, op.name, op.module): op.measured_s for op in ops}
    return [(tuple(members), seconds.get(key, 0.0)) for key, members in units.items()]


def _op(timing: Timing) -> str:
    """The name of the op that a kernel is of, without which part of it."""
    return re.split(r": | \(", timing.kernel.name, maxsplit=1)[0]
