"""What fits a device's memory: the largest step, and steps in a row whose sizes differ, such as padded texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rooflinekit.errors import SizeError
from rooflinekit.ir.graph import opened
from rooflinekit.ir.op import memories
from rooflinekit.step.allocator import Allocator, Block, OutOfMemoryError, Settings, allocator_of
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import Blocks, MemoryUse, blocks_of, memory_of

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.ir.graph import Graph
    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction

#: Where the search ends.
MOST = 2**30


def memory_on(graph: Graph, device: Device, execution: Execution, nccl_bytes: int = 0) -> MemoryUse:
    """What a step, run so, needs of the device's memory; no kernel is timed."""
    return memory_of(graph, issues_for(graph, device, execution), device, execution, nccl_bytes)


def largest_size(p: Prediction, size: str) -> int:
    """The largest value of a named size at which the step fits, the other sizes as they are; 0 where 1 does not.

    Each value is tried exactly, by the blocks of its tensors; no kernel is timed. Raises SizeError for an unknown
    name, for a size that the model forces to a number, and where memory does not grow with the size.
    """
    whole, others = opened(p.graph, size)
    device, execution = p.machine.device, p.execution

    @cache
    def memory(value: int) -> MemoryUse:
        return memory_on(whole.at(**others, **{size: value}), device, execution)

    value = p.sizes[size]
    guess = min(guessed(p.memory, value), MOST)
    if guess != value:  # by two points, as memory grows in proportion to most sizes but for what stands
        slope = (memory(guess).peak_bytes - p.memory.peak_bytes) / (guess - value)
        guess = max(1, int(value + (p.memory.room - p.memory.peak_bytes) / slope)) if slope > 0 else MOST
    found = largest(lambda value: memory(value).fits, guess=guess)
    if found >= MOST:
        raise SizeError(f"size {size!r}: memory does not grow with it: even {MOST} fits")
    return found


def guessed(memory: MemoryUse, value: int) -> int:
    """About the largest value of a size, by what a step needs at one value: what does not stand grows in proportion."""
    stands = memory.weight_bytes + memory.state_bytes
    return max(1, int(value * (memory.room - stands) / max(1, memory.peak_bytes - stands)))


def largest(fits: Callable[[int], bool], most: int = MOST, guess: int = 1) -> int:
    """The largest number that fits, up to `most`, where all smaller ones do; 0 for none. Found soonest near `guess`.

    >>> largest(lambda value: value <= 100), largest(lambda value: False), largest(lambda value: True, 7, guess=3)
    (100, 0, 7)
    """
    value, step = max(1, min(guess, most)), max(1, guess // 64)
    fitting, above = 0, most + 1
    while above - fitting > 1:
        if fits(value):
            fitting = value
        else:
            above = value
        if fitting and above <= most:
            value = (fitting + above) // 2
        else:  # away from the guess in strides that double
            value = min(fitting + step, most) if fitting else max(above - step, 1)
            step *= 2
    return fitting


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
    for _ in blocks.run(allocator, taken):
        pass
    return [*inputs, *taken.values()]
