"""Whether a trace is of the predicted step: the shapes and formats that it recorded beside those of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op
from rooflinekit.study.profile.matching import kind_of

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

_Shapes = tuple[tuple[int, ...], ...]


def check_shapes(ops: Sequence[ProfiledOp], graph: Graph, source: str) -> bool:
    """Whether shapes were recorded of convolutions or products, if there are any calls of these.

    Raises InputError where most of them are none of the graph's: another batch, another network, or another format.
    """
    seen = [(kind_of(op.name), _matrices(op.shapes)) for op in ops if kind_of(op.name) in _TOLD_BY]
    told = [(kind, shapes) for kind, shapes in seen if shapes]
    if not told:
        return not seen
    own = [(kind_of(op.kind), _matrices(_numbers(op))) for op in graph.ops]
    known = {(kind, _sorted(shapes)) for kind, shapes in own}
    foreign = [one for one in told if (one[0], _sorted(one[1])) not in known]
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


def shape_class(shapes: Sequence[tuple[int, ...]]) -> _Shapes:
    """What calls of one kind with equal work have in common: the sizes of arguments, less vectors, in any order."""
    return _sorted(_matrices(shapes))


def shape_classes(graph: Graph) -> dict[str, _Shapes]:
    """Of each op by name."""
    return {op.name: shape_class(_numbers(op)) for op in graph.ops}


def _numbers(op: Op) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in spec.shape) for spec in op.inputs]


def _matrices(shapes: Sequence[tuple[int, ...]]) -> _Shapes:
    """Those of two dimensions or more: a bias is no part of the work."""
    return tuple(one for one in shapes if len(one) > 1)


def _sorted(shapes: _Shapes) -> _Shapes:
    """In an order that transposed arguments share."""
    return tuple(sorted(tuple(sorted(one)) for one in shapes))


def _text(shapes: _Shapes) -> str:
    return " and ".join("×".join(map(str, one)) for one in shapes)
