"""The largest step that fits a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from rooflinekit.errors import SizeError
from rooflinekit.ir.graph import opened
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import MemoryUse, memory_of

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
