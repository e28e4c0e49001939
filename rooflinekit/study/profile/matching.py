"""Measured calls beside predicted kernels: matched by what they do, and where the counts agree by their order."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

import rooflinekit
from rooflinekit.calibrate.bench.samples import Summary, summarize
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ModelRun, ProfiledOp
from rooflinekit.errors import CampaignError
from rooflinekit.files import read_json, write_text
from rooflinekit.hardware.yaml_file import one_line
from rooflinekit.ir import keyed
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.timings import Timing
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
        """Seconds by which it took longer than predicted."""
        return self.measured_s - self.predicted_s


class Matched:
    """A measured step whose ops stand beside predicted ones. All times are seconds."""

    __slots__ = ()

    ops: tuple[OpTime, ...]

    @property
    def measured_s(self) -> float:
        """Measured time of a step."""
        raise NotImplementedError

    @property
    def predicted_s(self) -> float:
        """Predicted time of a step."""
        raise NotImplementedError

    @property
    def error(self) -> float:
        """predicted / measured − 1: above 0 where the prediction is too slow."""
        return self.predicted_s / self.measured_s - 1

    @property
    def between_ops(self) -> OpTime:
        """What of a step is in none of its ops: the device waits, or the profiler slowed the ops (then below 0)."""
        measured, predicted = (sum(getattr(op, name) for op in self.ops) for name in ("measured_s", "predicted_s"))
        return OpTime(
            kind=BETWEEN, name=BETWEEN, module="", count=0, measured_s=self.measured_s - measured,
            predicted_s=self.predicted_s - predicted,
        )  # fmt: skip

    def by_op(self) -> pd.DataFrame:
        """A row an op, in the order of the trace; where calls could not be told apart, a row for all of their kind."""
        return table_of((*self.ops, self.between_ops) if self.ops else ())

    def by_kind(self) -> pd.DataFrame:
        """A row a kind of op, the largest difference first. Its columns add up to the times of the step."""
        return by_kind(self.by_op())


def by_kind(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of ops by their kind, the largest difference first."""
    found = table.drop(columns="module").groupby("kind", sort=False).sum()
    return found.sort_values("difference_s", key=lambda column: -column.abs(), kind="stable")


def table_of(ops: Sequence[OpTime]) -> pd.DataFrame:
    """A row an op, by its name."""
    import pandas as pd

    names = ("kind", "name", "module", "count", "measured_s", "predicted_s", "difference_s")
    rows = [[getattr(op, name) for name in names] for op in ops]
    found = pd.DataFrame(rows, columns=list(names)).set_index("name")
    return found.astype(dict.fromkeys(names[4:], float) | {"count": int})


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
    ops = keyed.lists((op.kind, op) for op in traced)
    calls = keyed.lists((kind, seconds) for kind, _, seconds in whole_calls(measured, ops))
    found = [one for kind in {**ops, **calls} for one in _paired(kind, calls.get(kind, []), ops.get(kind, []))]
    place = {name: i for i, op in reversed(list(enumerate(traced))) for name in (op.kind, op.name)}
    return tuple(sorted(found, key=lambda one: place.get(one.name, len(traced))))


def predicted_ops(timings: Iterable[Timing]) -> list[OpTime]:
    """The predicted ops in order, each with all of its kernels, as if they took no time."""
    pairs = ((timing.kernel, timing.total_s) for timing in timings)
    seconds = keyed.sums(((kind_of(k.kind), op_name(k.name), k.module), total_s) for k, total_s in pairs)
    return [
        OpTime(kind=kind, name=name, module=module, count=1, measured_s=0.0, predicted_s=predicted_s)
        for (kind, name, module), predicted_s in seconds.items()
    ]


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
        elif (alone := op.seconds - sum(child.seconds for child in _children(measured, i))) > 0:
            yield kind, op, alone


def _children(measured: Sequence[ProfiledOp], parent: int) -> list[ProfiledOp]:
    depth = measured[parent].depth
    below = takewhile(lambda op: op.depth > depth, measured[parent + 1 :])
    return [op for op in below if op.depth == depth + 1]


def _paired(kind: str, calls: Sequence[float], ops: Sequence[OpTime]) -> Iterator[OpTime]:
    if len(calls) == len(ops) and kind != "fused":
        yield from (replace(op, measured_s=seconds) for seconds, op in zip(calls, ops, strict=True))
    else:
        yield OpTime(
            kind=kind, name=kind, module="", count=len(calls) or len(ops), measured_s=sum(calls),
            predicted_s=sum(op.predicted_s for op in ops),
        )  # fmt: skip


_KIND, _SCHEMA = "rooflinekit validation", 1  # of the file
LEVEL = 0.9  # of the interval
_WORST = 3

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The numbers of a prediction, in seconds."""

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
            low_s=low, high_s=high, terms=prediction.terms(), constants=prediction.machine.constants.name,
            rooflinekit=rooflinekit.__version__,
            **{name: getattr(prediction, name) for name in ("total_s", "gpu_s", "cpu_s", "regime")},
        )  # fmt: skip


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
    def inside(self) -> bool:
        """Whether the median lies in the prediction's 90 % interval."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s

    @property
    def worst(self) -> tuple[OpTime, ...]:
        """The three ops, or kinds of ops, whose times are furthest from predicted, in seconds."""
        return tuple(sorted(self.ops, key=lambda op: -abs(op.difference_s))[:_WORST])

    def save(self, file: str | Path, *, force: bool = False) -> None:
        """Writes it as JSON; an existing file is replaced with `force` alone. Raises OutputError."""
        document = {"kind": _KIND, "schema": _SCHEMA, **document_of(self)}
        write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", Path(file), force=force)

    @classmethod
    def load(cls, file: str | Path) -> Validation:
        """What `save` has written, without the prediction's kernels.

        Raises CampaignError for another file, with the field that is wrong.
        """
        document = read_json(Path(file), CampaignError)
        if not isinstance(document, dict) or document.pop("kind", None) != _KIND:
            raise CampaignError(f"{file}: expected a file that `rooflinekit measure --out` has written; it is none")
        schema = document.pop("schema", None)
        if schema != _SCHEMA:
            raise CampaignError(f"{file}: schema: expected {_SCHEMA}; got {schema!r:.60}")
        try:
            return _adapter().validate_json(json.dumps(document), strict=True)
        except ValidationError as error:
            raise CampaignError(one_line(error, cls, str(file))) from error

    def __str__(self) -> str:
        text = partial(format_quantity, unit="s")
        low, high = text(self.predicted.low_s), text(self.predicted.high_s)
        where = "inside" if self.inside else "outside"
        lines = [
            f"{self.model} {self.mode} on {self.device}: measured {text(self.measured_s)}, predicted "
            f"{text(self.predicted_s)} ({self.error:+.0%}), {where} the 90 % interval {low} to {high}",
            *(f"{op.name}: measured {text(op.measured_s)}, predicted {text(op.predicted_s)}" for op in self.worst),
        ]
        return "\n".join(lines)


def compare_run(
    run: ModelRun, prediction: Prediction, *, inputs: Sequence[str], options: Mapping[str, str | bool | None],
    threads: int,
) -> Validation:  # fmt: skip
    """A measured run beside the prediction of the same step."""
    execution = prediction.execution
    return Validation(
        model=prediction.graph_name, inputs=tuple(inputs), mode=prediction.mode, sizes=dict(prediction.sizes),
        execution={"backend": execution.backend, "sync": execution.sync}, device=prediction.machine.name,
        host=prediction.host.name, threads=threads, options={**options, "burst": prediction.machine.burst},
        seconds=run.seconds, steps=run.steps, warmup=run.warmup, predicted=Predicted.of(prediction),
        ops=match(run.ops, prediction.timings) if run.ops else (), kernels=run.kernels,
        environment=dict(run.environment), prediction=prediction,
    )  # fmt: skip


def document_of(validation: Validation) -> dict[str, Any]:
    """Its fields for JSON, without the prediction's kernels."""
    return _adapter().dump_python(validation, mode="json")  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Validation]:
    return TypeAdapter(Validation)
