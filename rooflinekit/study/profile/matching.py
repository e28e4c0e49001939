"""Measured calls beside predicted kernels: matched by what they do, and where the counts agree by their order."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

import rooflinekit
from rooflinekit.calibrate.bench.samples import Summary, summarize
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ModelRun, ProfiledOp
from rooflinekit.errors import CampaignError
from rooflinekit.files import read_json, write_text
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.model.timing import Timing
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd


BETWEEN = "between ops"

#: Calls of one kind under several names: PyTorch picks by device, and the trace has the GPU's choice.
_KINDS = (
    (re.compile(r"scaled_dot_product"), "attention"),
    (re.compile(r"^(?:\w*_)?conv(?:olution|_depthwise|_transpose)?\d?d?(?=_backward|_overrideable|$)"), "convolution"),
    (re.compile(r"^(?:\w*_)?(?:rnn(?:_layer|_tanh|_relu)?|lstm|gru)(?=_backward|$)"), "recurrent"),
    (re.compile(r"^\w*batch_norm"), "batch_norm"),
    (re.compile(r"^\w*layer_norm"), "layer_norm"),
    (re.compile(r"^\w*group_norm"), "group_norm"),
    (re.compile(r"^(?:feature_|alpha_|native_)*dropout"), "dropout"),
    (re.compile(r"Backward\d+$|^autograd::|^torch::autograd"), "autograd's engine"),
    (re.compile(r"^Optimizer\."), "optimizer's own code"),
    (
        re.compile(
            r"^inductor\b|^triton_|^cpp_fused|^graph_\d+_cpp_fused|^Torch-Compiled|^Compiled|CompiledFx|^TorchDynamo|^Pregraph|^AOTDispatcher"
        ),
        "fused",
    ),
)
_BACKWARD = "_backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """A predicted op, or all of a kind, as measured and as predicted."""

    kind: str
    name: str  # of the op in the trace; the kind where its calls could not be told apart
    module: str
    count: int  # of measured calls; of predicted ops where none was measured
    measured_s: float
    predicted_s: float

    @property
    def difference_s(self) -> float:
        """By how much it took longer than predicted."""
        return self.measured_s - self.predicted_s


def between_ops(ops: Sequence[OpTime], measured_s: float, predicted_s: float) -> OpTime:
    """What of a step is in none of its ops: the device waits, or the profiler slowed the ops (then below 0)."""
    rest = _sum(BETWEEN, ops)
    return replace(rest, count=0, measured_s=measured_s - rest.measured_s, predicted_s=predicted_s - rest.predicted_s)


class Matched:
    """Tables of a measured step whose ops stand beside predicted ones."""

    __slots__ = ()

    @property
    def _all(self) -> Sequence[OpTime]:
        raise NotImplementedError

    def by_op(self) -> pd.DataFrame:
        """A row an op, in the order of the trace; where calls could not be told apart, a row for all of their kind."""
        return _table(self._all).set_index("name")

    def by_kind(self) -> pd.DataFrame:
        """A row a kind of op, the largest difference first. Its columns add up to the times of the step."""
        return table_by_kind(self._all)


def table_by_kind(ops: Sequence[OpTime]) -> pd.DataFrame:
    """A row a kind of op, the largest difference first."""
    kinds: dict[str, list[OpTime]] = defaultdict(list)
    for op in ops:
        kinds[op.kind].append(op)
    table = _table([_sum(kind, ops) for kind, ops in kinds.items()]).set_index("kind").drop(columns=["name", "module"])
    return table.sort_values("difference_s", key=lambda column: -column.abs(), kind="stable")


def _sum(kind: str, ops: Sequence[OpTime]) -> OpTime:
    return OpTime(
        kind=kind,
        name=kind,
        module="",
        count=sum(op.count for op in ops),
        measured_s=sum(op.measured_s for op in ops),
        predicted_s=sum(op.predicted_s for op in ops),
    )


def _table(ops: Sequence[OpTime]) -> pd.DataFrame:
    import pandas as pd

    names = ("kind", "name", "module", "count", "measured_s", "predicted_s", "difference_s")
    return pd.DataFrame([[getattr(op, name) for name in names] for op in ops], columns=list(names))


def kind_of(name: str) -> str:
    """What a call does, without how PyTorch names it on one device or another.

    >>> kind_of("aten::cudnn_convolution"), kind_of("aten.convolution"), kind_of("aten::conv2d")
    ('convolution', 'convolution', 'convolution')
    >>> kind_of("aten::_scaled_dot_product_flash_attention_for_cpu_backward"), kind_of("aten::add_")
    ('attention_backward', 'add')
    """
    word = re.sub(r"^aten(::|\.)", "", name).strip("_")
    for pattern, kind in _KINDS:
        if pattern.search(word):
            return kind + (_BACKWARD if word.endswith(_BACKWARD) else "")
    return word


def op_name(kernel: str) -> str:
    """The op of a kernel, by its name: without the part of the op, or what is copied for it."""
    return re.split(r": | \(", kernel, maxsplit=1)[0]


def match(measured: Sequence[ProfiledOp], predicted: Sequence[Timing]) -> tuple[OpTime, ...]:
    """Every measured and predicted second once: by op where a kind has as many calls as ops, else by kind.

    In the order of the trace, calls that nothing predicts last. A call whose kind is predicted stands with all that it
    calls in turn; of any other, what it spends itself.
    """
    traced = predicted_ops(predicted)
    ops = _by_kind(traced)
    calls: dict[str, list[float]] = defaultdict(list)
    for kind, _, seconds in whole_calls(measured, ops):
        calls[kind].append(seconds)
    found = [one for kind in {**ops, **calls} for one in _paired(kind, calls.get(kind, []), ops.get(kind, []))]
    place = {name: i for i, op in reversed(list(enumerate(traced))) for name in (op.kind, op.name)}
    return tuple(sorted(found, key=lambda one: place.get(one.name, len(traced))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOp:
    """An op with all of its kernels."""

    kind: str
    name: str
    module: str
    seconds: float


def predicted_ops(timings: Iterable[Timing]) -> list[PredictedOp]:
    """The predicted ops in order, each with all of its kernels."""
    seconds: dict[tuple[str, str, str], float] = defaultdict(float)
    for timing in timings:
        kernel = timing.kernel
        seconds[kind_of(kernel.kind), op_name(kernel.name), kernel.module] += timing.total_s
    return [PredictedOp(kind=kind, name=name, module=module, seconds=s) for (kind, name, module), s in seconds.items()]


def _by_kind(ops: Iterable[PredictedOp]) -> dict[str, list[PredictedOp]]:
    found: dict[str, list[PredictedOp]] = defaultdict(list)
    for op in ops:
        found[op.kind].append(op)
    return dict(found)


def whole_calls(measured: Sequence[ProfiledOp], kinds: Collection[str]) -> Iterator[tuple[str, ProfiledOp, float]]:
    """Kind and seconds of each call of a predicted kind, whole, and of each other one, alone."""
    within = float("inf")  # the depth below which calls belong to one that was counted whole
    for i, op in enumerate(measured):
        if op.depth > within:
            continue
        within = float("inf")
        kind = kind_of(op.name)
        if kind in kinds and kind != "fused":
            within = op.depth
            yield kind, op, op.seconds
        elif (alone := op.seconds - sum(_children(measured, i))) > 0:
            yield kind, op, alone


def _children(measured: Sequence[ProfiledOp], parent: int) -> Iterator[float]:
    """Seconds of the calls that one makes itself."""
    depth = measured[parent].depth
    for op in measured[parent + 1 :]:
        if op.depth <= depth:
            return
        if op.depth == depth + 1:
            yield op.seconds


def _paired(kind: str, calls: Sequence[float], ops: Sequence[PredictedOp]) -> Iterator[OpTime]:
    if len(calls) == len(ops) and kind != "fused":
        for seconds, op in zip(calls, ops, strict=True):
            yield OpTime(kind=kind, name=op.name, module=op.module, count=1, measured_s=seconds, predicted_s=op.seconds)
        return
    yield OpTime(
        kind=kind,
        name=kind,
        module="",
        count=len(calls) or len(ops),
        measured_s=sum(calls),
        predicted_s=sum(op.seconds for op in ops),
    )


# A step as it was measured beside its prediction: in total, by kind of op, by op.


LEVEL = 0.9  # of the interval
_WORST = 3

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What a prediction said, in seconds."""

    total_s: _Seconds
    low_s: _Seconds  # of the 90 % interval
    high_s: _Seconds
    gpu_s: _Share
    cpu_s: _Share
    regime: str
    terms: Mapping[str, float]
    constants: str  # the fit that it rests on
    rooflinekit: str  # version

    @classmethod
    def of(cls, prediction: Prediction) -> Predicted:
        """The numbers of a prediction."""
        low, high = prediction.interval(LEVEL)
        return cls(
            total_s=prediction.total_s,
            low_s=low,
            high_s=high,
            gpu_s=prediction.gpu_s,
            cpu_s=prediction.cpu_s,
            regime=prediction.regime,
            terms=prediction.terms(),
            constants=prediction.machine.constants.name,
            rooflinekit=rooflinekit.__version__,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Validation(Matched, FirstLine):
    """A measured step beside its prediction. All times are seconds.

    Times of ops on a GPU are those of their kernels; on a CPU those of their calls, under the profiler.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str
    inputs: tuple[str, ...]  # what it was called with
    mode: str
    sizes: Mapping[str, int]
    execution: Mapping[str, str]  # backend and sync
    device: str  # name of the specification
    host: str
    threads: Annotated[int, Field(ge=0)]  # of a CPU; 0 on a GPU
    options: Mapping[str, str | bool | None]  # dtype, autocast, tf32, optimizer, burst
    seconds: Annotated[tuple[_Seconds, ...], Field(min_length=1)]  # of one step, by sample
    steps: Annotated[int, Field(ge=1)]  # in each sample
    warmup: Annotated[int, Field(ge=1)]
    predicted: Predicted
    ops: tuple[OpTime, ...]
    kernels: tuple[KernelTime, ...]
    environment: Mapping[str, str]
    prediction: Annotated[InstanceOf[Prediction] | None, Field(exclude=True)] = field(default=None, compare=False)

    @property
    def summary(self) -> Summary:
        """Median, middle half, outliers of the samples."""
        return summarize(self.seconds)

    @property
    def measured_s(self) -> float:
        """Median time of a step."""
        return self.summary.median

    @property
    def predicted_s(self) -> float:
        """Predicted time of a step."""
        return self.predicted.total_s

    @property
    def error(self) -> float:
        """predicted / measured − 1: above 0 where the prediction is too slow."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the median lies in the prediction's 90 % interval."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s

    @property
    def between_ops(self) -> OpTime:
        """What of a step is in none of its ops: the device waits, or the profiler slowed the ops (then below 0)."""
        return between_ops(self.ops, self.measured_s, self.predicted_s)

    @property
    def worst(self) -> tuple[OpTime, ...]:
        """The three ops, or kinds of ops, whose times are furthest from predicted, in seconds."""
        return tuple(sorted(self.ops, key=lambda op: -abs(op.difference_s))[:_WORST])

    @property
    def _all(self) -> list[OpTime]:
        return [*self.ops, *([self.between_ops] if self.ops else [])]

    def save(self, file: str | Path, *, force: bool = False) -> None:
        """Writes it as JSON; an existing file is replaced with `force` alone. Raises OutputError."""
        write_validation(self, Path(file), force=force)

    @classmethod
    def load(cls, file: str | Path) -> Validation:
        """What `save` has written, without the prediction's kernels. Raises CampaignError for another file."""
        return read_validation(Path(file))

    def __str__(self) -> str:
        def text(seconds: float) -> str:
            return format_quantity(seconds, "s")

        low, high = text(self.predicted.low_s), text(self.predicted.high_s)
        where = "inside" if self.inside else "outside"
        lines = [
            f"{self.model} {self.mode} on {self.device}: measured {text(self.measured_s)}, predicted "
            f"{text(self.predicted_s)} ({self.error:+.0%}), {where} the 90 % interval {low} to {high}",
            *(f"{op.name}: measured {text(op.measured_s)}, predicted {text(op.predicted_s)}" for op in self.worst),
        ]
        return "\n".join(lines)


def compare_run(
    run: ModelRun,
    prediction: Prediction,
    *,
    inputs: Sequence[str],
    options: Mapping[str, str | bool | None],
    threads: int,
) -> Validation:
    """A measured run beside the prediction of the same step."""
    execution = prediction.execution
    return Validation(
        model=prediction.graph_name,
        inputs=tuple(inputs),
        mode=prediction.mode,
        sizes=dict(prediction.sizes),
        execution={"backend": execution.backend, "sync": execution.sync},
        device=prediction.machine.name,
        host=prediction.host.name,
        threads=threads,
        options={**options, "burst": prediction.machine.burst},
        seconds=run.seconds,
        steps=run.steps,
        warmup=run.warmup,
        predicted=Predicted.of(prediction),
        ops=match(run.ops, prediction.timings) if run.ops else (),
        kernels=run.kernels,
        environment=dict(run.environment),
        prediction=prediction,
    )


_KIND = "rooflinekit validation"
_SCHEMA = 1


def write_validation(validation: Validation, file: Path, *, force: bool = False) -> None:
    """Writes beside, then renames. Raises OutputError for a file that cannot be written, or exists without `force`."""
    document = {"kind": _KIND, "schema": _SCHEMA, **document_of(validation)}
    write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", file, force=force)


def document_of(validation: Validation) -> dict[str, Any]:
    """Its fields for JSON, without the prediction's kernels."""
    return _adapter().dump_python(validation, mode="json")  # type: ignore[no-any-return]


def read_validation(file: Path) -> Validation:
    """What was written. Raises CampaignError with the field that is wrong for another file."""
    document = read_json(file, CampaignError)
    if not isinstance(document, dict) or document.pop("kind", None) != _KIND:
        raise CampaignError(f"{file}: expected a file that `rooflinekit measure --out` has written; it is none")
    schema = document.pop("schema", None)
    if schema != _SCHEMA:
        raise CampaignError(f"{file}: schema: expected {_SCHEMA}; got {schema!r:.60}")
    try:
        return _adapter().validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise CampaignError(f"{file}: {': '.join(map(str, first['loc']))}: {first['msg']}") from error


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Validation]:
    return TypeAdapter(Validation)
