"""KernelBench's problems as graphs: lists of operators, as they were traced, priced by the rules.

One thing is put right on reading. Problem b28d2… of level 5 sets torch's default format to bfloat16, and every list
after it, in the order of `blob`, was traced under that setting: 105 problems of levels 1 to 3 stand there in bfloat16.
They were timed in fp32 as all others were: a product of 4096³ took 7.7 ms on an A100, 17.8 TFLOP/s, which is what its
fp32 CUDA cores give and a twentieth of its tensor core. So their bfloat16 is read as float32.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rooflinekit as rk
from rooflinekit.cost.table import price_all
from rooflinekit.errors import RooflinekitError
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import Basis, DType, Op, Role, TensorSpec

#: What the times of January 2025 were taken with, and what stands in the collection's requirements since.
_RELEASE = Release.parse("2.5")

_DTYPES = {dtype.value: dtype for dtype in DType}

#: Levels whose problems are all in fp32, and what stands in a list that was traced in bfloat16 instead.
_PLAIN = ("level1", "level2", "level3")
_IN_FP32 = {"bfloat16": "float32"}
_KINDS_IN_FP32 = {"aten._scaled_dot_product_flash_attention": "aten._scaled_dot_product_efficient_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem in one of its versions: `blob` tells which."""

    blob: str
    level: str
    name: str
    record: Mapping[str, Any]

    def graph(self) -> rk.Graph:
        """Its operators, priced. Raises ValueError for a record that is no graph, or an operator without a rule."""
        return _graph(self)


def problems(file: Path) -> Iterator[Problem]:
    """Every line of the file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield Problem(blob=record["blob"], level=record["level"], name=record["problem"], record=record)


def _graph(problem: Problem) -> rk.Graph:
    formats = _IN_FP32 if problem.level in _PLAIN else {}
    kinds = _KINDS_IN_FP32 if problem.level in _PLAIN else {}
    tensors = {name: _tensor(name, fields, formats) for name, fields in problem.record["tensors"].items()}

    def named(names: list[str]) -> tuple[TensorSpec, ...]:
        missing = [name for name in names if name not in tensors]
        if missing:
            raise ValueError(f"tensor {missing[0]!r} is named and not described")
        return tuple(tensors[name] for name in names)

    def ops() -> Iterator[Op]:
        for i, op in enumerate(problem.record["ops"]):
            attrs = {name: _value(value, tensors) for name, value in op["attrs"].items()}
            yield Op(
                name=f"{op['kind'].rpartition('.')[2]}_{i}",
                kind=kinds.get(op["kind"], op["kind"]),
                module=op["module"],
                inputs=named(op["in"]),
                outputs=named(op["out"]),
                attrs=MappingProxyType(attrs),
            )

    priced = price_all(ops())
    unknown = sorted({p.op.kind for p in priced if p.basis is Basis.DEFAULT})
    if unknown:
        raise ValueError(f"no rule for {', '.join(unknown)}")
    record = problem.record
    return rk.Graph(
        name=f"{problem.level}/{problem.name.removesuffix('.py')}",
        mode="inference",
        inputs=named(record["inputs"]),
        weights=named(record["weights"]),
        outputs=named(record["outputs"]),
        priced=priced,
        like=_RELEASE,
    )


def _tensor(name: str, fields: list[Any], formats: Mapping[str, str]) -> TensorSpec:
    shape, dtype, role, stride, storage = fields
    dtype = formats.get(dtype, dtype)
    if dtype not in _DTYPES:
        raise ValueError(f"tensor {name!r}: no format {dtype!r}")
    return TensorSpec(
        name=name,
        shape=tuple(shape),
        dtype=_DTYPES[dtype],
        role=Role(role),
        stride=None if stride is None else tuple(stride),
        storage=storage,
    )


def _value(value: Any, tensors: Mapping[str, TensorSpec]) -> Any:
    """An argument as a trace holds it: tensors for their names, tuples for lists."""
    if isinstance(value, dict):
        return tensors[value["tensor"]]
    if isinstance(value, list):
        return tuple(_value(item, tensors) for item in value)
    return value


def readable(file: Path, note: Callable[[str, str], None]) -> Iterator[tuple[Problem, rk.Graph]]:
    """Problems with their graphs; `note` is told the blob of each other one, and why."""
    for problem in problems(file):
        try:
            graph = problem.graph()
        except (KeyError, ValueError, RooflinekitError) as error:
            note(problem.blob, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            yield problem, graph
