"""A pipeline's schedule: in which order each device computes which piece of the batch, and when it can.

"gpipe" computes all pieces forward, then all backward. "1f1b" starts backward as early as it can, so that no more
pieces are under way than there are stages after a device, itself included. "interleaved" does so with several chunks of
the model on each device, as Megatron-LM does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of the batch through one stage, forward or backward."""

    stage: int
    piece: int
    backward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A task on its device, in seconds from the start of the step."""

    task: Task
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a piece takes in a stage, and what it takes to the next one."""

    forward_s: float
    backward_s: float
    onward_s: float = 0.0  # from this stage to the next one, and back from there


def orders(schedule: str, devices: int, pieces: int, chunks: int = 1) -> list[list[Task]]:
    """The tasks of each device in its order. Stage s runs on device s mod `devices`.

    Raises InputError for an interleaved schedule whose pieces are no multiple of the devices.
    """
    if schedule == "interleaved" and pieces % devices:
        raise InputError(f"interleaved schedule: expected a multiple of {devices} microbatches; got {pieces}")
    found = []
    for device in range(devices):
        if schedule == "interleaved":
            forward, backward = (_interleaved(device, devices, pieces, chunks, backward=b) for b in (False, True))
            warm = min(len(forward), 2 * (devices - device - 1) + (chunks - 1) * devices)
        else:
            forward, backward = (
                [Task(stage=device, piece=i, backward=b) for i in range(pieces)] for b in (False, True)
            )
            warm = pieces if schedule == "gpipe" else min(pieces, devices - device - 1)
        steady = [task for pair in zip(forward[warm:], backward, strict=False) for task in pair]
        found.append([*forward[:warm], *steady, *backward[len(forward) - warm :]])
    return found


def _interleaved(device: int, devices: int, pieces: int, chunks: int, *, backward: bool) -> list[Task]:
    """As many pieces as there are devices through each chunk in turn; backward begins with the last chunk."""
    found = []
    for group in range(pieces // devices):
        for chunk in reversed(range(chunks)) if backward else range(chunks):
            found += [
                Task(stage=chunk * devices + device, piece=group * devices + i, backward=backward)
                for i in range(devices)
            ]
    return found


def run_pipeline(stages: Sequence[Stage], queues: Sequence[Sequence[Task]]) -> list[list[Slot]]:
    """When each task runs: after the one before it on its device, and what it needs from its neighbours."""
    ends: dict[Task, float] = {}
    slots: list[list[Slot]] = [[] for _ in queues]
    places = [0] * len(queues)
    while any(place < len(queue) for place, queue in zip(places, queues, strict=True)):
        moved = False
        for device, queue in enumerate(queues):
            while places[device] < len(queue):
                task = queue[places[device]]
                ready = _ready_s(task, stages, ends)
                if ready is None:
                    break
                start = max(ready, slots[device][-1].end_s if slots[device] else 0.0)
                stage = stages[task.stage]
                ends[task] = start + (stage.backward_s if task.backward else stage.forward_s)
                slots[device].append(Slot(task=task, start_s=start, end_s=ends[task]))
                places[device] += 1
                moved = True
        assert moved, "tasks that wait for each other"
    return slots


def _ready_s(task: Task, stages: Sequence[Stage], ends: dict[Task, float]) -> float | None:
    """When a task's input is there; None while that is not known."""
    needs: list[tuple[Task, float]] = []
    last = len(stages) - 1
    if task.backward:
        needs.append((Task(stage=task.stage, piece=task.piece, backward=False), 0.0))
        if task.stage < last:
            needs.append((Task(stage=task.stage + 1, piece=task.piece, backward=True), stages[task.stage].onward_s))
    elif task.stage:
        needs.append((Task(stage=task.stage - 1, piece=task.piece, backward=False), stages[task.stage - 1].onward_s))
    if any(need not in ends for need, _ in needs):
        return None
    return max((ends[need] + seconds for need, seconds in needs), default=0.0)


def pieces_under_way(slots: Sequence[Slot]) -> int:
    """The most pieces at once whose forward a device has begun and whose backward it has not ended, all its stages."""
    events = [(slot.end_s, -1) if slot.task.backward else (slot.start_s, 1) for slot in slots]
    now = most = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


def balanced(weights: Sequence[float], parts: int) -> list[int]:
    """Where to cut a row of weights so that the heaviest part is lightest: the first of each part.

    Raises InputError for fewer weights than parts.

    >>> balanced([1, 1, 1, 3], 2)
    [0, 3]
    """
    count = len(weights)
    if count < parts:
        raise InputError(f"a pipeline of {parts} stages: the model has {count} blocks to put there")
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # best[j]: the heaviest part of the first j weights, and its last cut
    best: list[tuple[float, int]] = [(0.0, 0)] + [(sums[j], 0) for j in range(1, count + 1)]
    cuts = [[0] * (count + 1)]
    for part in range(1, parts):
        following: list[tuple[float, int]] = [(float("inf"), 0)] * (count + 1)
        for j in range(part + 1, count + 1):
            following[j] = min((max(best[i][0], sums[j] - sums[i]), i) for i in range(part, j))
        best = following
        cuts.append([cut for _, cut in best])
    found, end = [], count
    for part in reversed(range(parts)):
        end = cuts[part][end] if part else 0
        found.append(end)
    return found[::-1]
