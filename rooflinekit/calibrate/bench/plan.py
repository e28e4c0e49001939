"""What to measure: a plan's cases, from YAML.

    schema: 1
    name: quick
    cuda:                       # and cpu: each kind of device has its own cases
      warmup: 5                 # calls before the first sample
      samples: 40               # the most a case gets in a round
      precision: 0.01           # of the median; a case that reaches it gets no more samples
      rounds: 2                 # how often the whole plan is gone through
      threads: [all, 1]         # cpu alone
      cases:
        - op: add
          dtypes: [fp16, fp32]
          sizes: {rows: {from: 1, to: 65536, count: 9}, cols: 1024}

`op` may be a list of ops of the same sizes. Sizes are numbers, lists, or ranges whose steps are equal factors; a case
is measured at every combination. On a CPU kernels are measured on each number of threads, rates on the largest, and all
else of `host_ops` on one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rooflinekit.calibrate.campaigns.operators import STORED, MeasuredOp
from rooflinekit.calibrate.hosts.ops import ALL_OPS, HOST_OPS
from rooflinekit.errors import InputError, SpecError, nearest
from rooflinekit.hardware.fields import Record
from rooflinekit.hardware.specs import data_dir
from rooflinekit.hardware.yaml_file import read_record

Kind = Literal["cuda", "cpu"]

#: Ten times the plan `full`.
_MOST_CASES, _MOST_SAMPLES, _MOST_ROUNDS, _MOST_IN_ALL = 50_000, 10_000, 100, 50_000_000
_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op at one size, on `threads` CPU threads (0 on a GPU)."""

    op: str
    dtype: str
    sizes: Mapping[str, int]
    threads: int = 0

    @property
    def family(self) -> str:
        """The family of kernels that its op is fitted with, or the one of `host_ops`."""
        return ALL_OPS[self.op].family

    @property
    def key(self) -> str:
        """The name that tells cases apart: 'mm fp16 m=64 n=64 k=64'."""
        words = [self.op, self.dtype, *(f"{name}={value}" for name, value in self.sizes.items())]
        return " ".join([*words, *([f"threads={self.threads}"] if self.threads else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, in which order, and how carefully."""

    name: str
    kind: Kind
    cases: tuple[Case, ...]
    warmup: int
    samples: int
    precision: float
    rounds: int

    @property
    def digest(self) -> str:
        """Equal for plans that measure the same."""
        said = [self.kind, self.warmup, self.samples, self.precision, self.rounds, *(case.key for case in self.cases)]
        return hashlib.sha256("\n".join(map(str, said)).encode()).hexdigest()[:16]

    def units(self, only: Collection[str] = ()) -> tuple[tuple[Case, int], ...]:
        """Each case in each round, round by round. `only`: ops or families. Raises InputError for other words."""
        known = {word for case in self.cases for word in (case.op, case.family)}
        for word in only:
            if word not in known:
                raise InputError(
                    f"--only {word!r}: plan {self.name} has no such op or family{nearest(word, sorted(known))} "
                    f"(it has {', '.join(sorted(known))})"
                )
        chosen = [case for case in self.cases if not only or {case.op, case.family} & set(only)]
        return tuple((case, i) for i in range(self.rounds) for case in chosen)


class _Range(Record):
    start: Annotated[_Positive, Field(alias="from")]
    to: _Positive
    count: Annotated[int, Field(ge=2)]

    def values(self) -> list[int]:
        """Whole numbers whose steps are equal factors."""
        return list(dict.fromkeys(round(float(value)) for value in np.geomspace(self.start, self.to, self.count)))


class _Cases(Record):
    op: str | list[str]
    dtypes: list[str]
    sizes: dict[str, _Count | list[_Count] | _Range] = Field(default_factory=dict)

    @property
    def ops(self) -> list[str]:
        """The ops of these sizes."""
        return [self.op] if isinstance(self.op, str) else self.op


class _Part(Record):
    warmup: _Positive
    samples: Annotated[int, Field(ge=3)]
    precision: Annotated[float, Field(gt=0, lt=1)]
    rounds: _Positive
    threads: list[_Positive | Literal["all"]] | None = None
    cases: list[_Cases]


class _File(Record):
    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1)]
    name: str
    cuda: _Part | None = None
    cpu: _Part | None = None


def plan_names() -> tuple[str, ...]:
    """The plans that are shipped."""
    files = (data_dir("calibration") / "plans").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_plan(name_or_path: str, kind: Kind, threads: int = 1) -> Plan:
    """A plan's part for a device of `threads` CPU threads. Raises InputError for the name, SpecError for the file."""
    source, label = _source(name_or_path)
    file = read_record(_File, source, label)
    part = file.cuda if kind == "cuda" else file.cpu
    if part is None:
        raise SpecError(f"{label}: has no cases for {kind}; add a part '{kind}:'")
    counts = tuple(dict.fromkeys(threads if n == "all" else min(n, threads) for n in part.threads or ["all"]))
    _refuse_masses(part, label)
    cases = {case.key: case for case in _cases(part.cases, counts if kind == "cpu" else (0,), label)}
    return Plan(
        name=file.name,
        kind=kind,
        # an order that is always the same and mixes ops and sizes: a drift is then no trend in one of them
        cases=tuple(cases[key] for key in sorted(cases, key=lambda key: hashlib.sha256(key.encode()).hexdigest())),
        **part.model_dump(include={"warmup", "samples", "precision", "rounds"}),
    )


def _refuse_masses(part: _Part, label: str) -> None:
    """Raises SpecError for a plan that nobody lives to see the end of, before its cases are made."""
    samples = part.warmup + part.samples
    if samples > _MOST_SAMPLES or part.rounds > _MOST_ROUNDS:
        raise SpecError(
            f"{label}: expected at most {_MOST_SAMPLES:,} samples and warm-up calls, and {_MOST_ROUNDS} rounds; got "
            f"{samples:,} and {part.rounds:,}"
        )
    cases = 0
    for group in part.cases:
        sizes = math.prod(_length(value) for value in group.sizes.values())
        cases += sizes * len(group.ops) * len(group.dtypes) * max(1, len(part.threads or ()))
    if cases > _MOST_CASES:
        raise SpecError(f"{label}: expected at most {_MOST_CASES:,} cases; got {cases:,}")
    if cases * part.rounds * part.samples > _MOST_IN_ALL:
        raise SpecError(
            f"{label}: expected at most {_MOST_IN_ALL:,} samples in all; got {cases * part.rounds * part.samples:,}"
        )


def _length(value: int | list[int] | _Range) -> int:
    return 1 if isinstance(value, int) else value.count if isinstance(value, _Range) else len(value)


def _values(value: int | list[int] | _Range) -> list[int]:
    return [value] if isinstance(value, int) else value.values() if isinstance(value, _Range) else value


def _source(name_or_path: str) -> tuple[Path | Traversable, str]:
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path), name_or_path
    known = plan_names()
    if name_or_path not in known:
        raise InputError(
            f"no plan {name_or_path!r}{nearest(name_or_path, known)} (known: {', '.join(known)}, or a FILE.yaml)"
        )
    return data_dir("calibration") / "plans" / f"{name_or_path}.yaml", f"calibration/plans/{name_or_path}.yaml"


def _cases(groups: Iterable[_Cases], threads: Collection[int], label: str) -> Iterator[Case]:
    for i, group in enumerate(groups):
        _check(group, f"{label}: case {i + 1}")
        lists = [_values(value) for value in group.sizes.values()]
        sizes = [dict(zip(group.sizes, values, strict=True)) for values in product(*lists)]
        for op, dtype, one in product(group.ops, group.dtypes, sizes):
            alone = max(threads) if ALL_OPS[op].family == "rate" else min(*threads, 1)  # on a GPU all are 0
            for count in [alone] if op in HOST_OPS else threads:
                yield Case(op=op, dtype=dtype, sizes=MappingProxyType(one), threads=count)


def _check(group: _Cases, label: str) -> None:
    for op in group.ops:
        if op not in ALL_OPS:
            raise SpecError(f"{label}: no op is called {op!r}{nearest(op, ALL_OPS)} (known: {', '.join(ALL_OPS)})")
    for dtype in group.dtypes:
        if dtype not in STORED:
            raise SpecError(f"{label}: no number format is called {dtype!r} (known: {', '.join(STORED)})")
    for op in group.ops:
        _check_sizes(op, ALL_OPS[op], group, label)
    if not group.ops or not group.dtypes or not all(_values(value) for value in group.sizes.values()):
        raise SpecError(f"{label}: a list is empty; expected at least one op, one number format and one of each size")


def _check_sizes(op: str, about: MeasuredOp, group: _Cases, label: str) -> None:
    for name, value in group.sizes.items():
        if name not in about.sizes:
            has = ", ".join(about.sizes) or "none"
            raise SpecError(f"{label}: {op} has no size {name!r}; it has {has}")
        if name in about.needed and min(_values(value), default=1) < 1:
            raise SpecError(f"{label}: {name} of {op}: expected a positive integer; got 0")
    missing = [name for name in about.needed if name not in group.sizes]
    if missing:
        raise SpecError(f"{label}: {op} lacks the size {missing[0]!r}; it has {', '.join(about.needed)}")
