"""A pipeline's schedule: in which order each device computes which piece of the batch, and when it can.

"gpipe" computes all pieces forward, then all backward. "1f1b" starts backward as early as it can, so that no more
pieces are under way than there are stages after a device, itself included. "interleaved" does so with several chunks of
the model on each device, as Megatron-LM does.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from rooflinekit.distributed.queues import Barrier, Interval, Item, Pace, Run, Transmission, overlap, run_devices
from rooflinekit.errors import InputError
from rooflinekit.timing.collectives import CollectiveTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of the batch through one stage, forward or backward."""

    stage: int
    piece: int
    backward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A task on its device, or what it sends to its neighbour on a link, in seconds from the start of the step."""

    task: Task
    start_s: float
    end_s: float


def orders(schedule: str, devices: int, pieces: int, chunks: int = 1) -> list[list[Task]]:
    """The tasks of each device in its order. Stage s runs on device s mod `devices`.

    Raises InputError for an interleaved schedule whose pieces are no multiple of the devices.
    """
    if schedule == "interleaved" and pieces % devices:
        raise InputError(f"interleaved schedule: expected a multiple of {devices} microbatches; got {pieces}")
    found = []
    for device in range(devices):
        forward, backward = (_tasks(device, devices, pieces, chunks, backward=b) for b in (False, True))
        ahead = devices - device - 1
        warm = {"gpipe": pieces, "1f1b": ahead, "interleaved": 2 * ahead + (chunks - 1) * devices}[schedule]
        warm = min(len(forward), warm)
        steady = [task for pair in zip(forward[warm:], backward, strict=False) for task in pair]
        found.append([*forward[:warm], *steady, *backward[len(forward) - warm :]])
    return found


def _tasks(device: int, devices: int, pieces: int, chunks: int, *, backward: bool) -> list[Task]:
    """Tasks in rounds of as many pieces as there are devices; backward begins with the last chunk."""
    return [
        Task(stage=chunk * devices + device, piece=piece, backward=backward)
        for group in range(0, pieces, devices)
        for chunk in (reversed(range(chunks)) if backward else range(chunks))
        for piece in range(group, min(group + devices, pieces))
    ]


def run_pipeline(
    onward_s: Sequence[float], queues: Sequence[Sequence[Task]], perform: Callable[[int, Task, float], Slot]
) -> tuple[list[list[Slot]], list[Slot]]:
    """When each task runs, after the one before it on its device and what it needs from its neighbours; and what is
    sent between them.

    onward_s: what a piece takes from each stage but the last to the next one, and back; each way one after another.
    perform: runs a task on a device, after those before it and not before its input is there, at the given time.
    """
    last = len(onward_s)
    slots: list[list[Slot]] = [[] for _ in queues]
    hops: list[Slot] = []
    there: dict[Task, float] = {}  # when what a task needs of its neighbour has come
    done: set[Task] = set()
    free: dict[tuple[int, bool], float] = {}  # when a link has carried all before, each way

    def can(task: Task) -> bool:
        known = task.stage == (last if task.backward else 0) or task in there
        return known and (not task.backward or replace(task, backward=False) in done)

    def do(device: int, task: Task) -> None:
        slot = perform(device, task, there.get(task, 0.0))
        slots[device].append(slot)
        done.add(task)
        to = task.stage + (-1 if task.backward else 1)
        link = min(task.stage, to)
        if 0 <= link < last:
            start = max(slot.end_s, free.get((link, task.backward), 0.0))
            there[replace(task, stage=to)] = free[link, task.backward] = start + onward_s[link]
            hops.append(Slot(task=task, start_s=start, end_s=start + onward_s[link]))

    left = [deque(queue) for queue in queues]
    while any(left):
        before = len(done)
        for device, queue in enumerate(left):
            while queue and can(queue[0]):
                do(device, queue.popleft())
        assert len(done) > before, "tasks that wait for each other"
    return slots, hops


def pieces_under_way(slots: Sequence[Slot]) -> list[int]:
    """While each task runs, the pieces begun forward and not ended backward on the device, of all its stages."""
    begun = accumulate(-1 if slot.task.backward else 1 for slot in slots)
    return [count + slot.task.backward for count, slot in zip(begun, slots, strict=True)]


def balanced(weights: Sequence[Sequence[float]]) -> list[int]:
    """Where to cut a row of weights so that the heaviest part is lightest: the first of each part.

    weights: as each part has them, on the device that runs it. Raises InputError for fewer weights than parts.

    >>> balanced([[1, 1, 1, 3]] * 2), balanced([[1, 1, 1, 1], [3, 3, 3, 3]])
    ([0, 3], [0, 3])
    """
    parts, count = len(weights), len(weights[0])
    if count < parts:
        raise InputError(f"a pipeline of {parts} stages: the model has {count} blocks to put there")
    sums = [[0.0, *accumulate(row)] for row in weights]
    # best[j]: the heaviest part of the first j weights, and the first of each part
    best: list[tuple[float, list[int]]] = [(whole, [0]) for whole in sums[0]]
    for part, own in enumerate(sums[1:], 1):
        before = best
        best = [(math.inf, [])] * (count + 1)
        for j in range(part + 1, count + 1):
            heaviest, cut = min((max(before[i][0], own[j] - own[i]), i) for i in range(part, j))
            best[j] = heaviest, [*before[cut][1], cut]
    return best[count][1]


# When a pipeline of equal stages is done, and what layers wait for that gather their weights.


class Stage(NamedTuple):
    """What a chunk of layers takes for a micro-batch; their sum is both ways."""

    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """How a step runs before its optimizer."""

    busy_s: float  # of the GPU that computes most
    waits: Mapping[str, float]  # beside that, by cause
    under_way: tuple[int, ...] = (1,)  # micro-batches, each through a chunk, that a GPU keeps at once

    @property
    def total_s(self) -> float:
        """Seconds until the last task ends."""
        return self.busy_s + sum(self.waits.values())

    @classmethod
    def of(cls, run: Run) -> Scheduled:
        """What became of a GPU. While a layer's own groups send, copies are not what it waits for."""
        (device,), sent = run.devices, defaultdict[str, list[Interval]](list)
        for message in run.messages:
            sent[message.group.partition(" ")[0]].append((message.start_s, message.end_s))
        waits = {
            group: sum(end - start for start, end in overlap(busy, device.waits))
            for group, busy in sent.items() if group != "data"
        }  # fmt: skip
        exposed_s = device.exposed_s + device.straggling_s - sum(waits.values())
        waits |= {"copies": exposed_s} if "data" in sent else {}
        waits |= {"contention": device.contention_s} if sent else {}
        waits |= {"offload": device.offload_s} if device.offload_s else {}
        return cls(busy_s=device.end_s - sum(waits.values()), waits=waits)


def pipelined(stages: Sequence[Stage], pieces: int, chunks: int, hop_s: float) -> Scheduled:
    """1F1B, interleaved where a GPU has several chunks. Stage s is on GPU s mod GPUs.

    hop_s: what an activation takes to the next stage, for which sender and receiver wait (Megatron-LM's batched
    send and receive).
    """
    gpus = len(stages) // chunks
    if gpus == 1:
        return Scheduled(busy_s=pieces * sum(stages[0]), waits={"bubble": 0.0})
    interleaved = chunks > 1 and pieces % gpus == 0
    queues = orders("interleaved" if interleaved else "1f1b", gpus, pieces, chunks if interleaved else 1)
    own = stages if interleaved else whole(stages, gpus)
    ready = [0.0] * gpus
    last = len(own) - 1
    worked = [0.0] * gpus

    def perform(gpu: int, task: Task, ready_s: float) -> Slot:
        seconds = own[task.stage][task.backward]
        sends = task.stage > 0 if task.backward else task.stage < last
        start = max(ready[gpu], ready_s)
        ready[gpu] = start + seconds + (hop_s if sends else 0.0)
        worked[gpu] += seconds
        return Slot(task=task, start_s=start, end_s=start + seconds)

    slots, _ = run_pipeline([hop_s] * last, queues, perform)
    return Scheduled(
        busy_s=max(worked), waits={"bubble": max(ready) - max(worked)},
        under_way=tuple(max(pieces_under_way(own)) for own in slots),
    )  # fmt: skip


def whole(stages: Sequence[Stage], gpus: int) -> list[Stage]:
    """The chunks of each GPU joined into one stage."""
    return [Stage(*map(sum, zip(*stages[k::gpus], strict=True))) for k in range(gpus)]


def least_s(stages: Sequence[Stage], pieces: int, chunks: int) -> float:
    """A time below which no schedule of these stages is done: the slowest GPU's work and the way there and back."""
    gpus = len(stages) // chunks
    way = sum(map(sum, stages[:gpus])) * (1 - 1 / gpus)
    return pieces * max(map(sum, whole(stages, gpus))) + way


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer or a bucket of them, and what is sent for it: weights before it, gradients behind its backward."""

    items: Sequence[Sequence[Item]]  # forward, backward
    gather: tuple[CollectiveTiming, ...] = ()
    reduce: tuple[CollectiveTiming, ...] = ()


_ALIKE = 3  # micro-batches from which on each adds as much as the one before it


def sent_beside(
    layers: Sequence[Layer], pace: Pace, *, pieces: int = 1, again: bool = False, ahead: int = 1
) -> Scheduled:
    """Micro-batches whose weights are gathered so many layers ahead, and whose gradients are reduced behind.

    again: weights are gathered once more for backward (FSDP's FULL_SHARD), but for the last layer's, which are kept.
    """

    def run(count: int) -> Scheduled:
        items = [item for piece in range(count) for item in _piece(layers, str(piece), again=again, ahead=ahead)]
        return Scheduled.of(run_devices([(items, pace)]))

    found, more = run(min(pieces, _ALIKE)), max(0, pieces - _ALIKE)
    less = run(_ALIKE - 1) if more else found
    return Scheduled(
        busy_s=found.busy_s + more * (found.busy_s - less.busy_s),
        waits={cause: own + more * (own - less.waits[cause]) for cause, own in found.waits.items()},
    )


def _piece(layers: Sequence[Layer], name: str, *, again: bool, ahead: int) -> Iterator[Item]:
    """A micro-batch, forward and backward. A gather waits for what was launched before it: one ahead, for the layer
    before the last one, for no more than two are kept at once.
    """
    for backward in (False, True):
        order = layers[::-1] if backward else layers
        keys: list[tuple[str, ...]] = [()] * len(order)
        for k, one in enumerate(order):
            for i in range(0 if k == 0 else k + ahead, min(k + ahead + 1, len(order))):
                if not backward or (again and i > 0):
                    keys[i] = tuple(f"gather {i} {backward} {name} {n}" for n in range(len(order[i].gather)))
                    yield from (
                        Transmission(key=key, timing=one) for key, one in zip(keys[i], order[i].gather, strict=True)
                    )
            if keys[k]:
                yield Barrier(keys=keys[k])
            yield from one.items[backward]
            if backward:
                yield from (Transmission(key=f"reduce {k} {name} {n}", timing=own) for n, own in enumerate(one.reduce))
