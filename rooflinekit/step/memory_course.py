"""Bytes alive over a step, on the clock of its time line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflinekit.step.entry import by_issue
from rooflinekit.step.memory import Alive, alive_over
from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive from the time at which the device begins an op, in seconds from the start of the step."""

    start_s: float
    alive: Alive


def memory_course(p: Prediction, starts_s: Iterable[float] | None = None) -> tuple[Moment, ...]:
    """A moment for each op, in order; an op that launches nothing has the time of the one before it.

    Blocks are taken and given back in the order of ops, which PyTorch does while it issues them; they are set here
    where the device executes them: at `starts_s` of its kernels, by default those of the prediction.
    """
    starts = (span.start_s for span in p.spans) if starts_s is None else starts_s
    found: list[Moment] = []
    now = 0.0
    states = alive_over(p.graph, p.issues, p.machine.device, p.execution)
    for (_, begun), alive in zip(by_issue(p.issues, starts), states, strict=True):
        now = begun[0] if begun else now
        found.append(Moment(start_s=now, alive=alive))
    return tuple(found)
