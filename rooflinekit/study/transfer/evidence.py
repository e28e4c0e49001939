"""What was measured of a step on the device at hand, as far as it says something of the same step elsewhere."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.calibrate.local_hardware.trace import Progress
from rooflinekit.errors import CampaignError, InputError, UnitError
from rooflinekit.ir import keyed
from rooflinekit.ir.arguments import expect
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op
from rooflinekit.ir.sizes import finite
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.components import MEASURED, Loaded, Part, kernel_parts, parts_of
from rooflinekit.study.profile.matching import OpTime, Validation, kind_of, match, op_name, predicted_ops, whole_calls
from rooflinekit.study.profile.profile import Profile
from rooflinekit.units import format_quantity, parse_quantity

_MOST = 400  # measured ops that are looked at one by one, the longest
_OP_NOISE = 0.05  # in ln, of one op's time in a trace: the profiler, clocks; stated
_NEARLY = 0.999  # of a step that is a single operator: still an operator's share
_COLLECTIVE = re.compile(r"ncclDevKernel|ncclKernel|rcclGenericKernel|rccl", re.IGNORECASE)
_DOUBTFUL = 3  # a measured time so many times off its prediction may be of something else
_BEYOND = 1e4  # a measured time so many times off its prediction is of something else
_HEAD = 4096  # bytes that tell a record from a trace
_LARGE = 64 * 2**20  # bytes: no record or table of a step is as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measurement on the source: what it was off by, and of which parts that consists."""

    ln: float  # ln(measured / predicted)
    parts: Mapping[Part, Loaded]
    noise: float = MEASURED
    share: float = 1.0  # of the step's time: 1 of the whole step, less of an operator


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
            ops = []
            for name, given in measured.items():
                fits = isinstance(name, str) and isinstance(given, int | float) and not isinstance(given, bool)
                expect(fits, "measured", "seconds by kind of op, such as {'aten::addmm': 1e-3}", name)
                ops.append(ProfiledOp(name=str(name), depth=0, seconds=_time(f"measured: {name}", given)))
            return cls(source=f"times of {len(measured)} kinds of op", ops=tuple(ops))
        kinds = "seconds, a Profile, a Validation or seconds by kind of op"
        expect(isinstance(measured, int | float) and not isinstance(measured, bool), "measured", kinds, measured)
        seconds = _time("measured", measured)
        return cls(source=f"a measured step of {format_quantity(seconds, 's')}", seconds=seconds)

    def seen(self, p: Prediction, names: Mapping[str, str]) -> list[Seen]:
        """What this says of the prediction's parts. Raises InputError where it cannot be of the predicted step."""
        found: list[Seen] = []
        check_shapes(self.ops, p.graph, self.source)
        if self.seconds is not None:
            if (times := _times(self.seconds, p.total_s)) > _BEYOND:
                raise InputError(
                    f"{self.source}: {format_quantity(self.seconds, 's')} is {times:.0e} "
                    f"times off the {format_quantity(p.total_s, 's')} predicted for {p.graph_name} on "
                    f"{p.machine.name}: it is of another network, batch or unit"
                )
            found.append(Seen(ln=math.log(self.seconds / p.total_s), parts=parts_of(p, names)))
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
        if self.seconds is not None and (times := _times(self.seconds, p.total_s)) > _DOUBTFUL:
            word = "longer" if self.seconds > p.total_s else "shorter"
            found.append(
                f"{self.source} is {times:.1f} times {word} than predicted there: is it of this batch, format and "
                "execution?"
            )
        return tuple(found)


def _time(name: str, given: Any) -> float:
    expect(finite(given) and given > 0, name, "a time above 0 seconds", given)
    return float(given)


def _times(one: float, other: float) -> float:
    """How many times the larger is the smaller."""
    return max(one / other, other / one)


def _by_op(ops: Sequence[OpTime], p: Prediction, names: Mapping[str, str]) -> list[Seen]:
    """Each matched op, or kind of op: equal work counts as one measurement, in the mean."""
    by_name = keyed.lists((op_name(timing.kernel.name), timing) for timing in p.timings)
    by_kind = keyed.lists((kind_of(timing.kernel.kind), timing) for timing in p.timings)
    alike: dict[frozenset[Part], list[tuple[float, float, Mapping[Part, Loaded]]]] = defaultdict(list)
    for op in sorted((op for op in ops if op.measured_s > 0 and op.predicted_s > 0), key=lambda op: -op.measured_s):
        timings = by_name[op.name] if op.name in by_name else by_kind.get(op.kind, [])
        if timings and _times(op.measured_s, op.predicted_s) < _BEYOND:
            parts = kernel_parts(p, names, timings)
            alike[frozenset(parts)].append((math.log(op.measured_s / op.predicted_s), op.measured_s, parts))
    total = sum(s for group in alike.values() for _, s, _ in group)
    found = [
        Seen(
            ln=sum(ln * s for ln, s, _ in group) / sum(s for _, s, _ in group), parts=group[0][2],
            noise=_OP_NOISE / math.sqrt(len(group)), share=min(sum(s for _, s, _ in group) / total, _NEARLY),
        )
        for group in alike.values()
    ]  # fmt: skip
    return found[:_MOST]


_Shapes = Sequence[tuple[int, ...]]


def matched(measured: Sequence[ProfiledOp], p: Prediction) -> tuple[OpTime, ...]:
    """What was measured of the prediction's ops.

    A call with shapes is one of an op of its kind with the same shapes: in order where there are as many, and where
    there are not (a trace of several steps, or of a part of one) each op took what these calls took in the mean. Kinds
    none of whose shapes are the trace's are matched as in a trace without shapes, see `match`.
    """
    ops = predicted_ops(p.timings)
    whole = whole_calls(measured, {op.kind for op in ops})
    calls = keyed.lists(((kind, _shape_class(call.shapes)), seconds) for kind, call, seconds in whole)
    classes = {op.name: _shape_class(_numbers(op)) for op in p.graph.ops}
    found: list[OpTime] = []
    for key, same in keyed.lists(((op.kind, classes.get(op.name, ())), op) for op in ops).items():
        if key[1] and (seconds := calls.get(key)):
            each = seconds if len(seconds) == len(same) else [fmean(seconds)] * len(same)
            found += (replace(op, measured_s=s) for op, s in zip(same, each, strict=True))
    by_shape = {one.kind for one in found}
    rest = match(measured, [timing for timing in p.timings if kind_of(timing.kernel.kind) not in by_shape])
    place = {op_name(timing.kernel.name): i for i, timing in reversed(list(enumerate(p.timings)))}
    found += [one for one in rest if one.kind not in by_shape]
    return tuple(sorted(found, key=lambda one: place.get(one.name, len(place))))


def read_measured(
    text: str, *, mark: str | None = None, rank: int | None = None, progress: Progress | None = None
) -> Evidence:
    """What `--measured` says: "31.2 ms", or a file.

    Files: a trace of torch.profiler (.json, .json.gz), or a folder of such, one a rank; a record of `rooflinekit
    measure --out`; or a table (.csv) with the columns name and seconds, of operators on the device in one step. mark:
    of a trace, see `Profile.read`. rank: of a folder, by default all in the mean. Raises InputError for text that is
    neither a time nor a file, CampaignError for a file that is none of these.
    """
    file = Path(text)
    if not (os.path.isfile(file) or os.path.isdir(file)):
        try:
            seconds = parse_quantity(text, "s")
        except UnitError as error:
            raise InputError(
                f"--measured {text!r}: expected a time, such as '31.2 ms', or a file: a trace of torch.profiler or a "
                "folder of them, a record of `rooflinekit measure --out`, or a .csv with the columns name and seconds"
            ) from error
        if (mark, rank) != (None, None):
            raise InputError(f"--{'rank' if mark is None else 'mark'}: belongs to a trace; got the time {text!r}")
        return Evidence.of(seconds)
    if os.path.isfile(file):
        if file.suffix == ".csv":
            return Evidence.of(_table(file))
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
        if b'"rooflinekit validation"' in head:
            return Evidence.of(Validation.load(file))
    return Evidence.of(Profile.read(file, rank=rank, mark=mark, progress=progress))


def _table(file: Path) -> dict[str, float]:
    """Seconds by name of operator, those of one name together."""
    import pandas as pd

    if file.stat().st_size > _LARGE:
        raise CampaignError(
            f"{file}: is {file.stat().st_size / 2**20:.0f} MiB: expected a table of one step's operators"
        )
    try:
        rows = pd.read_csv(io.BytesIO(file.read_bytes()), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # ValueError: what pandas raises for what is no table
        raise CampaignError(f"{file}: cannot be read: {error}") from error
    if not {"name", "seconds"} <= set(rows.columns):
        raise CampaignError(f"{file}: expected the columns name and seconds; got {', '.join(rows.columns)[:200]}")
    seconds = pd.to_numeric(rows["seconds"], errors="coerce")
    wrong = np.flatnonzero(~((seconds > 0) & (seconds < math.inf)))
    if wrong.size:
        got = json.dumps(rows["seconds"].tolist()[wrong[0]])
        raise CampaignError(f"{file}: line {wrong[0] + 2}: seconds: expected a number above 0; got {got}")
    if rows.empty:
        raise CampaignError(f"{file}: has no rows")
    return {str(name): float(s) for name, s in seconds.groupby(rows["name"], sort=False).sum().items()}


#: Operators whose arguments are the same under all names that PyTorch has for them.
_TOLD_BY = ("convolution", "addmm", "mm", "bmm", "baddbmm")
_LEAST = 0.5  # of their calls: fewer with a shape of the graph, and it is another step

NO_SHAPES = (
    "the trace has no shapes, so operators are matched by kind and order alone: record it with "
    "torch.profiler.profile(record_shapes=True) to have them checked"
)

_FORMATS = {
    "float": DType.FLOAT32, "double": DType.FLOAT64, "c10::Half": DType.FLOAT16, "c10::BFloat16": DType.BFLOAT16,
}  # fmt: skip


def check_shapes(ops: Sequence[ProfiledOp], graph: Graph, source: str) -> bool:
    """Whether shapes were recorded of convolutions or products, if there are any calls of these.

    Raises InputError where most of them are none of the graph's: another batch, another network, or another format.
    """
    seen = [(kind_of(op.name), op.shapes) for op in ops if kind_of(op.name) in _TOLD_BY]
    told = [(kind, shapes) for kind, shapes in seen if _shape_class(shapes)]
    if not told:
        return not seen
    own = [(kind_of(op.kind), _numbers(op)) for op in graph.ops]
    known = {(kind, _shape_class(shapes)) for kind, shapes in own}
    foreign = [(kind, shapes) for kind, shapes in told if (kind, _shape_class(shapes)) not in known]
    kinds = {kind for kind, _ in own}
    if len(foreign) <= (1 - _LEAST) * len(told) or not kinds & {kind for kind, _ in told}:
        _check_formats(ops, graph, source)
        return True
    kind, shapes = next((one for one in foreign if one[0] in kinds), foreign[0])
    ours = next((theirs for name, theirs in own if name == kind), ())
    sizes = ", ".join(f"{name}={value}" for name, value in graph.sizes.items())
    raise InputError(
        f"{source}: is of another batch or network: its first {kind} takes {_text(shapes)}, but in {graph.name}"
        f"{f' at {sizes}' if sizes else ''} {_text(ours)}; give the sizes that were profiled, and those to predict for "
        "as there={…} (--there)"
    )


def _check_formats(ops: Sequence[ProfiledOp], graph: Graph, source: str) -> None:
    seen = Counter(_FORMATS[op.format] for op in ops if kind_of(op.name) in _TOLD_BY and op.format in _FORMATS)
    own = Counter(op.inputs[0].dtype for op in graph.ops if kind_of(op.kind) in _TOLD_BY and op.inputs)
    if not seen or not own:
        return
    (theirs, _), (ours, _) = seen.most_common(1)[0], own.most_common(1)[0]
    if theirs != ours:
        raise InputError(
            f"{source}: computes in {theirs}, {graph.name} in {ours}: give the format that was profiled "
            f"(dtype={theirs.value!r}, --dtype {theirs}; or autocast)"
        )


def _shape_class(shapes: _Shapes) -> tuple[tuple[int, ...], ...]:
    """What calls of one kind with equal work have in common: the sizes of arguments, in an order that transposed ones
    share, less vectors, as a bias is no part of the work.
    """
    return tuple(sorted(tuple(sorted(one)) for one in shapes if len(one) > 1))


def _numbers(op: Op) -> _Shapes:
    return [tuple(int(size) for size in spec.shape) for spec in op.inputs]


def _text(shapes: _Shapes) -> str:
    return " and ".join("×".join(map(str, one)) for one in shapes if len(one) > 1)
