"""What the caching allocator holds over several steps whose sizes differ, such as padded batches of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rooflinekit.errors import SizeError
from rooflinekit.ir.graph import opened
from rooflinekit.ir.op import memories
from rooflinekit.step.allocator import Allocator, Block, OutOfMemoryError, Settings, allocator_of
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import Blocks, blocks_of

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """After one of several steps, in bytes."""

    value: int  # of the size that differs
    allocated_bytes: int  # torch.cuda.memory_allocated(): gradients and results are still there
    reserved_bytes: int  # torch.cuda.memory_reserved()


def memory_over(
    p: Prediction, size: str, values: Sequence[int], emptied: int | None, settings: Settings
) -> tuple[StepMemory, ...]:
    """One record a step, see `Prediction.memory_over`."""
    if not values or min(values) < 1 or (emptied is not None and emptied < 1):
        raise SizeError(
            f"memory_over: expected one value or more of {size!r}, each 1 or more, and `emptied` of 1 or more or None; "
            f"got {list(values)!r} and {emptied!r}"
        )
    (whole, others), device = opened(p.graph, size), p.machine.device

    @cache
    def blocks(value: int) -> Blocks:
        graph = whole.at(**others, **{size: value})
        return blocks_of(graph, issues_for(graph, device, p.execution), device, p.execution)

    first = blocks(values[0])
    allocator = allocator_of(p.memory.room if device.kind == "gpu" else float("inf"), settings)
    given = memories(whole.inputs)
    found: list[StepMemory] = []
    left: list[Block | None] = []
    names = [spec.memory for spec in first.standing]
    try:
        for name, bytes_ in zip((*names, ""), first.fixed, strict=True):
            if name not in given:
                allocator.take(bytes_)
        for number, value in enumerate(values, 1):
            for block in left:
                allocator.give_back(block)
            left = _run(allocator, blocks(value), given)
            found.append(
                StepMemory(value=value, allocated_bytes=allocator.allocated, reserved_bytes=allocator.reserved)
            )
            if emptied and number % emptied == 0:
                allocator.empty_cache()
    except OutOfMemoryError:
        raise SizeError(
            f"memory_over: {p.machine.name} has no room for step {len(found) + 1}, {size} {values[len(found)]}: "
            "expected sizes that fit together; empty the cache more often, or ask for fewer or smaller steps"
        ) from None
    return tuple(found)


def _run(allocator: Allocator, blocks: Blocks, given: set[str]) -> list[Block | None]:
    """Takes and gives back what one step does; the blocks that are left when it ends, and its inputs'."""
    inputs = [
        allocator.take(size)
        for spec, size in zip(blocks.standing, blocks.fixed, strict=False)
        if spec.memory in given
    ]  # fmt: skip
    taken: dict[str, Block | None] = {}
    for (begin, end, temporary), spared in zip(blocks.events(), blocks.spared, strict=True):
        for life in begin:
            taken[life.memory] = allocator.take(life.size)
        allocator.give_back(allocator.take(temporary, spared))
        for life in end:
            allocator.give_back(taken.pop(life.memory))
    return [*inputs, *taken.values()]
