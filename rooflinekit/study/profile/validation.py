"""A step as it was measured beside its prediction: in total, by kind of op, by op."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

import rooflinekit
from rooflinekit.calibrate.bench.samples import Summary, summarize
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ModelRun
from rooflinekit.errors import CampaignError
from rooflinekit.files import read_json, write_text
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import OpTime, between_ops, match, table_by_kind, table_by_op
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

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
class Validation:
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

    def by_op(self) -> pd.DataFrame:
        """A row an op, in the order of the trace; where calls could not be told apart, a row for all of their kind."""
        return table_by_op(self._all)

    def by_kind(self) -> pd.DataFrame:
        """A row a kind of op, the largest difference first. Its columns add up to the times of the step."""
        return table_by_kind(self._all)

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

    def __repr__(self) -> str:
        return f"<Validation {str(self).splitlines()[0]}>"


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
