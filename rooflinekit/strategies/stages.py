"""A graph cut into stages at its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from fractions import Fraction

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, PricedOp, Role, TensorSpec
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.blocks import block_of, blocks_of
from rooflinekit.strategies.pipeline import balanced_among


def stage_of_blocks(predicted: Sequence[Prediction]) -> dict[str, int]:
    """The stage of each block, such that the slowest stage is fastest.

    predicted: the whole step on the device of each stage. Raises InputError for a model of fewer blocks than stages.
    """
    starts = balanced_among([list(_seconds(p).values()) for p in predicted])
    blocks = blocks_of(predicted[0].graph)
    return {block: max(k for k, start in enumerate(starts) if start <= i) for i, block in enumerate(blocks)}


def _seconds(p: Prediction) -> dict[str, float]:
    """Of each block, without the optimizer and what the step waits for before its first kernel."""
    seconds = dict.fromkeys(blocks_of(p.graph), 0.0)
    for k, span in enumerate(p.spans):
        block = block_of(span.timing.kernel.module)
        if block in seconds and span.timing.kernel.phase is not Phase.OPTIMIZER:
            seconds[block] += span.timing.total_s + (span.waited_s if k else 0.0)
    return seconds


def stages_of(graph: Graph, stages: dict[str, int], parts: int) -> list[Graph]:
    """What each stage runs. Ops of the root go with the op before them, the optimizer with its weights."""
    if parts == 1:
        return [graph]
    now = 0
    cut: list[list[PricedOp]] = [[] for _ in range(parts)]
    for priced in graph.priced:
        if priced.op.phase is Phase.OPTIMIZER:
            continue
        now = stages.get(block_of(priced.op.module), now)
        cut[now].append(priced)
    made = [{spec.memory for p in ops for spec in (*p.op.inputs, *p.op.outputs)} for ops in cut]
    sizes = [sum(int(w.bytes) for w in graph.weights if w.memory in own and w.role is Role.WEIGHT) for own in made]
    steps = [p for p in graph.priced if p.op.phase is Phase.OPTIMIZER]
    split = {w.memory for w in graph.weights if w.role is Role.WEIGHT} | {spec.memory for spec in graph.gradients}
    found = []
    for ops, own, size in zip(cut, made, sizes, strict=True):
        share = Fraction(size, max(1, sum(sizes)))
        found.append(
            replace(
                graph,
                priced=(*ops, *_steps(steps, share, split, own)),
                inputs=tuple(spec for spec in graph.inputs if spec.memory in own),
                weights=tuple(spec for spec in graph.weights if spec.memory in own),
                gradients=tuple(
                    spec for spec in graph.gradients
                    if any(o.memory == spec.memory for p in ops if p.op.phase is Phase.BACKWARD for o in p.op.outputs)
                ),
            )
        )  # fmt: skip
    return found


def _steps(steps: Sequence[PricedOp], share: Fraction, split: Set[str], own: Set[str]) -> Iterator[PricedOp]:
    """The optimizer's ops on a stage's own weights and gradients, by their share of those that an op is given.

    split: memory of all weights and gradients; own: what the stage's ops use. States and scalars are not known by
    stage: of them each op has as large a share, or all ops together that of the stage's weights.
    """
    for priced in steps:
        known = [spec for spec in (*priced.op.inputs, *priced.op.outputs) if spec.memory in split]
        if known:
            kept = sum(int(spec.bytes) for spec in known if spec.memory in own)
            share_of_op = Fraction(kept, sum(int(spec.bytes) for spec in known))
        else:
            share_of_op = share
        if share_of_op:
            yield _scaled(priced, share_of_op, split, own)


def _scaled(priced: PricedOp, share: Fraction, split: Set[str], own: Set[str]) -> PricedOp:
    """An optimizer's op on a share of its work, without the weights and gradients of other stages."""
    others = split - own

    def part(spec: TensorSpec) -> TensorSpec:
        if spec.memory in split or not spec.shape:
            return spec
        return replace(spec, shape=(-(-int(spec.numel) * share.numerator // share.denominator),), stride=None)

    op = priced.op
    inputs = tuple(part(spec) for spec in op.inputs if spec.memory not in others)
    outputs = tuple(part(spec) for spec in op.outputs if spec.memory not in others)
    costs = tuple(cost.map(lambda size: -(-int(size) * share.numerator // share.denominator)) for cost in priced.costs)
    return replace(priced, op=replace(op, inputs=inputs, outputs=outputs), costs=costs)


def crossing_bytes(stages: Sequence[Graph]) -> list[int]:
    """Bytes that forward sends from each stage but the last to those after it; backward sends as many back."""
    made: dict[str, int] = {}
    used: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for k, stage in enumerate(stages):
        for priced in stage.priced:
            if priced.op.phase is Phase.FORWARD:
                for spec in priced.op.inputs:
                    if spec.memory in made:
                        used[spec.memory] = k
                for spec in priced.op.outputs:
                    made.setdefault(spec.memory, k)
                    sizes[spec.memory] = max(sizes.get(spec.memory, 0), int(spec.bytes))
    return [
        sum(sizes[memory] for memory, last in used.items() if made[memory] <= k < last) for k in range(len(stages) - 1)
    ]


def saved_bytes(stage: Graph) -> int:
    """Bytes that forward makes, or is given by other stages, and backward reads: what a piece under way keeps."""
    made: dict[str, int] = {}
    for op in stage.ops:
        for spec in (*op.inputs, *op.outputs) if op.phase is Phase.FORWARD else ():
            made[spec.memory] = max(made.get(spec.memory, 0), int(spec.bytes))
    standing = {spec.memory for spec in (*stage.weights, *stage.inputs)}
    read = {i.memory for p in stage.priced if p.op.phase is Phase.BACKWARD for i in p.op.inputs}
    return sum(size for memory, size in made.items() if memory in read and memory not in standing)
