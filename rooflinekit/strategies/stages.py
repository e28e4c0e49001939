"""A graph cut into stages at its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, PricedOp
from rooflinekit.ir.tensor import Role, TensorSpec
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.blocks import block_of, blocks_of
from rooflinekit.strategies.pipeline import balanced


def stage_of_blocks(p: Prediction, parts: int) -> dict[str, int]:
    """The stage of each block, such that the slowest stage of the predicted step is fastest.

    Raises InputError for a model of fewer blocks.
    """
    blocks = blocks_of(p.graph)
    seconds = dict.fromkeys(blocks, 0.0)
    for span in p.spans:
        block = block_of(span.timing.kernel.module)
        if block in seconds and span.timing.kernel.phase is not Phase.OPTIMIZER:
            seconds[block] += span.timing.total_s + span.waited_s
    starts = balanced(list(seconds.values()), parts)
    return {block: max(k for k, start in enumerate(starts) if start <= i) for i, block in enumerate(blocks)}


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
    found = []
    for ops, own, size in zip(cut, made, sizes, strict=True):
        share = Fraction(size, max(1, sum(sizes)))
        found.append(
            replace(
                graph,
                priced=(*ops, *(_scaled(p, share) for p in steps)),
                inputs=tuple(spec for spec in graph.inputs if spec.memory in own),
                weights=tuple(spec for spec in graph.weights if spec.memory in own),
                gradients=tuple(
                    spec for spec in graph.gradients
                    if any(o.memory == spec.memory for p in ops if p.op.phase is Phase.BACKWARD for o in p.op.outputs)
                ),
            )
        )  # fmt: skip
    return found


def _scaled(priced: PricedOp, share: Fraction) -> PricedOp:
    """An optimizer's op on a stage's share of the weights; states as if each tensor gave that share."""

    def part(spec: TensorSpec) -> TensorSpec:
        if spec.role is Role.WEIGHT or not spec.shape:
            return spec
        return replace(spec, shape=(-(-int(spec.numel) * share.numerator // share.denominator),), stride=None)

    op = priced.op
    inputs = tuple(part(spec) for spec in op.inputs if spec.role is not Role.WEIGHT)
    outputs = tuple(part(spec) for spec in op.outputs if spec.role is not Role.WEIGHT)
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
    """Bytes that forward makes and backward reads: what a piece under way keeps."""
    made = {o.memory: int(o.bytes) for p in stage.priced if p.op.phase is Phase.FORWARD for o in p.op.outputs}
    standing = {spec.memory for spec in (*stage.weights, *stage.inputs)}
    read = {i.memory for p in stage.priced if p.op.phase is Phase.BACKWARD for i in p.op.inputs}
    return sum(size for memory, size in made.items() if memory in read and memory not in standing)
