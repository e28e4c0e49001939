"""Bytes alive over a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.tensor import Role, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a step needs of the device's memory, in bytes. Without the CUDA context and the allocator's rounding."""

    weight_bytes: int  # parameters and buffers
    gradient_bytes: int
    state_bytes: int  # the optimizer's
    peak_bytes: int  # all that is alive at the fullest moment
    peak_op: str  # the op at which that is
    capacity: float  # the device's

    @property
    def fits(self) -> bool:
        """Whether the peak is within the device's capacity."""
        return self.peak_bytes <= self.capacity


def memory_of(graph: Graph, capacity: float) -> MemoryUse:
    """Follows each tensor from the op that makes it to the last one that uses it.

    Weights, inputs and the optimizer's state live throughout; outputs and gradients from when they are made on.
    """
    ops = graph.ops
    standing = _standing(graph)
    kept = {spec.memory for spec in (*graph.outputs, *graph.gradients)}
    size: dict[str, int] = {}
    life: dict[str, tuple[int, int]] = {}  # first and last op
    for i, op in enumerate(ops):
        for spec in (*op.inputs, *op.outputs):
            name = spec.memory
            if name not in standing:
                life[name] = (life.get(name, (i, i))[0], i)
                size[name] = max(size.get(name, 0), int(spec.bytes))
    change = [0] * (len(ops) + 1)
    for name, (first, last) in life.items():
        change[first] += size[name]
        change[len(ops) if name in kept else last + 1] -= size[name]
    peak, where = _peak(change)
    by_role = {role: sum(int(s.bytes) for s in standing.values() if s.role is role) for role in Role}
    return MemoryUse(
        weight_bytes=by_role[Role.WEIGHT] + by_role[Role.BUFFER],
        gradient_bytes=sum({spec.memory: int(spec.bytes) for spec in graph.gradients}.values()),
        state_bytes=by_role[Role.STATE],
        peak_bytes=sum(by_role.values()) + peak,
        peak_op=ops[where].name if ops else "",
        capacity=capacity,
    )


def _standing(graph: Graph) -> dict[str, TensorSpec]:
    """What is there before the step and stays, by its memory: weights, inputs, and tensors that no op makes."""
    standing: dict[str, TensorSpec] = {}
    made: set[str] = set()
    for spec in (*graph.weights, *graph.inputs):
        standing.setdefault(spec.memory, spec)
    for op in graph.ops:
        for spec in op.inputs:
            if spec.memory not in made:
                standing.setdefault(spec.memory, spec)
        made.update(spec.memory for spec in op.outputs if spec.memory not in standing)
    return standing


def _peak(change: Iterable[int]) -> tuple[int, int]:
    """The highest running sum, and where it is first reached."""
    alive = peak = where = 0
    for i, delta in enumerate(change):
        alive += delta
        if alive > peak:
            peak, where = alive, i
    return peak, where
