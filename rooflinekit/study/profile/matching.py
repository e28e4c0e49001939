"""Measured calls beside predicted kernels: matched by what they do, and where the counts agree by their order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.model.roofline import Timing

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


def table_by_op(ops: Sequence[OpTime]) -> pd.DataFrame:
    """A row an op, in their order."""
    return _table(ops).set_index("name")


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
