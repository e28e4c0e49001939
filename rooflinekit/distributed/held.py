"""What a device of several holds over a traced step, by account: task by task where it is a pipeline's stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from rooflinekit.distributed.queues import DeviceRun
from rooflinekit.ir.op import Phase
from rooflinekit.step.memory import STANDING
from rooflinekit.step.memory_course import Moment, memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_bytes, format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a stage keeps of the pieces of its batch."""

    piece_bytes: int  # from a piece's forward to its backward
    under_way: tuple[tuple[float, Phase, int], ...]  # of each task: when it begins, its phase, pieces then under way
    fullest: int  # of its chunks the one that needs most while it computes
    beside: Mapping[str, int]  # by account: what the other chunks have standing, and the inputs of further pieces

    @property
    def most(self) -> int:
        """Pieces under way at once."""
        return max(count for _, _, count in self.under_way)


def course_of(chunks: Sequence[Prediction], run: DeviceRun, kept: Kept | None) -> tuple[Moment, ...]:
    """Moments in their order, on the clock of all devices; the largest sum is the peak of the device's memory, or less
    where a stage's optimizer is fullest, beside which no piece is under way.

    A stage has one for each task: the fullest that its chunk comes to in this phase, with what the other chunks have
    standing, the inputs of all pieces, and what the pieces then under way keep. Its last one is the optimizer's.
    """
    if kept is None:
        return memory_course(chunks[0], [span.start_s for span in run.spans])
    fullest = fullest_of(memory_course(chunks[kept.fullest]))

    def moment(start_s: float, phase: Phase, count: int) -> Moment:
        alive, more = fullest[phase].alive, {**kept.beside, "activations": (count - 1) * kept.piece_bytes}
        held = {name: size + more.get(name, 0) for name, size in alive.bytes_of.items()}
        return Moment(start_s=start_s, alive=replace(alive, bytes_of=MappingProxyType(held)))

    found = [moment(*task) for task in kept.under_way if task[1] in fullest]
    end_s = max((end for _, _, end in run.slots), default=0.0)
    return (*found, *([moment(end_s, Phase.OPTIMIZER, 1)] if Phase.OPTIMIZER in fullest else []))


def fullest_of(course: Sequence[Moment]) -> dict[Phase, Moment]:
    """The fullest moment of each phase."""
    phases = dict.fromkeys(moment.alive.phase for moment in course)
    of_phase = {phase: [moment for moment in course if moment.alive.phase is phase] for phase in phases}
    return {phase: max(own, key=lambda moment: moment.alive.total_bytes) for phase, own in of_phase.items()}


#: So many stretches of a step are told apart, each by its fullest moment.
_STRETCHES = 48
_LEVELS = " ▁▂▃▄▅▆▇█"


def levels(course: Sequence[Moment], end_s: float) -> list[int]:
    """Bytes at the fullest moment of equal stretches of the step; before the first moment what stands."""
    before = course[0].alive.bytes_of if course else {}
    found = [sum(before.get(account, 0) for account in STANDING)] * _STRETCHES
    places = [min(int(s / (end_s or 1.0) * _STRETCHES), _STRETCHES - 1) for s in (*(m.start_s for m in course), end_s)]
    for moment, (first, last) in zip(course, pairwise(places), strict=True):
        found[first : last + 1] = [max(size, moment.alive.total_bytes) for size in found[first : last + 1]]
    return found


def strip(sizes: Sequence[int]) -> str:
    """Levels as a line of blocks, the highest a full one.

    >>> strip([0, 1, 50, 100])
    ' ▁▄█'
    """
    top, most = len(_LEVELS) - 1, max(sizes, default=0) or 1
    return "".join(_LEVELS[max(int(size > 0), round(size / most * top))] for size in sizes)


def told(
    name: str, moments: Mapping[str, Mapping[str, float]], course: Sequence[Moment] = (), end_s: float = 0.0
) -> str:
    """Devices' memory in lines: at each moment the sum and what it consists of; and over time, where that is known."""
    lines = [f"memory of {name}"]
    for moment, held in moments.items():
        parts = ", ".join(f"{account} {format_bytes(size)}" for account, size in held.items() if size)
        lines.append(f"  {moment}: {format_bytes(sum(held.values()))} = {parts}")
    if course:
        lines.append(f"  {strip(levels(course, end_s))} over {format_quantity(end_s, 's')}")
    return "\n".join(lines)


def document(course: Sequence[Moment], end_s: float) -> dict[str, Any]:
    """Ready for JSON: accounts at the fullest moment of each phase, and levels over time."""
    moments = {
        phase.value: {
            "op": one.alive.op, "start_s": one.start_s, "allocated": one.alive.total_bytes,
            **{account.replace(" ", "_"): size for account, size in one.alive.bytes_of.items()},
        } for phase, one in fullest_of(course).items()
    }  # fmt: skip
    return {"moments": moments, "levels": {"stretch_s": end_s / _STRETCHES, "bytes": levels(course, end_s)}}
