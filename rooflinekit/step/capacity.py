"""The largest step that fits a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rooflinekit.errors import SizeError
from rooflinekit.ir.graph import opened
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import memory_of

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.ir.graph import Graph
    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction

#: Where the search ends.
MOST = 2**30


def fits_on(graph: Graph, device: Device, execution: Execution) -> bool:
    """Whether a step, run so, fits the device's memory; no kernel is timed."""
    return memory_of(graph, issues_for(graph, device, execution), device, fused=execution.fused).fits


def largest_size(p: Prediction, size: str) -> int:
    """The largest value of a named size at which the step fits, the other sizes as they are; 0 where 1 does not.

    Each value is tried exactly, by the blocks of its tensors; no kernel is timed. Raises SizeError for an unknown
    name, for a size that the model forces to a number, and where memory does not grow with the size.
    """
    whole = opened(p.graph, size)
    others = {name: value for name, value in p.sizes.items() if name in whole.dims and name != size}
    device, execution = p.machine.device, p.execution

    def fits(value: int) -> bool:
        return fits_on(whole.at(**others, **{size: value}), device, execution)

    found = largest(fits)
    if found >= MOST:
        raise SizeError(f"size {size!r}: memory does not grow with it: even {MOST} fits")
    return found


def largest(fits: Callable[[int], bool], most: int = MOST, start: int = 1) -> int:
    """The largest number that fits, up to `most`, where all smaller ones do; 0 for none. Found soonest near `start`.

    `most` is a power of 2 times `start`.

    >>> largest(lambda value: value <= 100), largest(lambda value: False)
    (100, 0)
    """
    above = start
    while above < most and fits(above):
        above *= 2
    fitting = above // 2 if above > start else 0
    if above == most and fits(most):
        fitting = most
    while above - fitting > 1:
        middle = (fitting + above) // 2
        fitting, above = (middle, above) if fits(middle) else (fitting, middle)
    return fitting
