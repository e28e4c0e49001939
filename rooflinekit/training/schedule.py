"""When a pipeline of equal stages is done, and what layers wait for that gather their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.strategies.pipeline import Slot, Task, orders, pieces_under_way, run_pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a chunk of layers takes for a micro-batch."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """A pipeline's step before what copies send."""

    total_s: float
    busy_s: float  # of the GPU that computes most
    under_way: tuple[int, ...]  # micro-batches, each through a chunk, that a GPU keeps at once


def pipelined(stages: Sequence[Stage], pieces: int, chunks: int, hop_s: float) -> Pipelined:
    """1F1B, interleaved where a GPU has several chunks. Stage s is on GPU s mod GPUs.

    hop_s: what an activation takes to the next stage, for which sender and receiver wait (Megatron-LM's batched
    send and receive).
    """
    gpus = len(stages) // chunks
    if gpus == 1:
        busy = pieces * (stages[0].forward_s + stages[0].backward_s)
        return Pipelined(total_s=busy, busy_s=busy, under_way=(1,))
    interleaved = chunks > 1 and pieces % gpus == 0
    queues = orders("interleaved" if interleaved else "1f1b", gpus, pieces, chunks if interleaved else 1)
    own = stages if interleaved else _whole(stages, gpus)
    ready = [0.0] * gpus
    last = len(own) - 1
    worked = [0.0] * gpus

    def perform(gpu: int, task: Task, ready_s: float) -> Slot:
        stage = own[task.stage]
        seconds = stage.backward_s if task.backward else stage.forward_s
        sends = task.stage > 0 if task.backward else task.stage < last
        start = max(ready[gpu], ready_s)
        ready[gpu] = start + seconds + (hop_s if sends else 0.0)
        worked[gpu] += seconds
        return Slot(task=task, start_s=start, end_s=start + seconds)

    slots, _ = run_pipeline([hop_s] * last, queues, perform)
    return Pipelined(
        total_s=max(ready), busy_s=max(worked), under_way=tuple(pieces_under_way(row) for row in slots)
    )  # fmt: skip


def _whole(stages: Sequence[Stage], gpus: int) -> list[Stage]:
    """All chunks of a GPU in one stage."""
    return [
        Stage(
            forward_s=sum(stage.forward_s for stage in stages[k::gpus]),
            backward_s=sum(stage.backward_s for stage in stages[k::gpus]),
        )
        for k in range(gpus)
    ]  # fmt: skip


def least_s(stages: Sequence[Stage], pieces: int, chunks: int) -> float:
    """A time below which no schedule of these stages is done: the slowest GPU's work and the way there and back."""
    gpus = len(stages) // chunks
    own = _whole(stages, gpus)
    way = sum(stage.forward_s + stage.backward_s for stage in stages[:gpus])
    return max(pieces * (s.forward_s + s.backward_s) + way * (1 - 1 / gpus) * (gpus > 1) for s in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A step whose layers gather their weights."""

    total_s: float
    exposed_s: float  # waits for the links
    contention_s: float  # by which collectives slow what computes beside them


def gathered(
    blocks: Sequence[Stage], gather_s: Sequence[float], reduce_s: Sequence[float], *, pieces: int, progress: float,
    again: bool, across_s: Sequence[float] = (),
) -> Gathered:  # fmt: skip
    """FSDP: weights gathered one block ahead, gradients reduced behind, all on one queue of the links.

    blocks: forward and backward of each; gather_s, reduce_s: of its collectives. progress: how fast kernels go beside a
    collective, over what they do alone. again: weights are gathered once more for backward (FULL_SHARD). across_s: of
    hybrid sharding, the all-reduce between nodes that follows each reduce-scatter.
    """
    run = _Links(progress=progress)
    count = len(blocks)
    for _ in range(pieces):
        there = [0.0] * count
        begun: list[float] = []
        for i, block in enumerate(blocks):
            # the CPU holds a gather back until the block before the last one is done: two are kept at once
            there[i] = run.send(gather_s[i], begun[i - 2] if i > 1 else 0.0)
            begun.append(run.compute(block.forward_s, there[i]))
        for i in reversed(range(count)):
            if again and i == count - 1:
                there[i] = run.gpu  # the last block's weights are kept
            if again and i > 0:
                there[i - 1] = run.send(gather_s[i - 1], run.gpu)
            run.compute(blocks[i].backward_s, there[i])
            run.send(reduce_s[i], run.gpu)
            if across_s:
                run.send(across_s[i], run.gpu)
    end = max(run.gpu, run.link)
    return Gathered(total_s=end, exposed_s=run.waited + end - run.gpu, contention_s=run.contention)


@dataclass(slots=True)
class _Links:
    """The GPU and its links, each one thing after another."""

    progress: float
    gpu: float = 0.0
    link: float = 0.0
    waited: float = 0.0
    contention: float = 0.0
    busy: list[tuple[float, float]] | None = None

    def send(self, seconds: float, not_before_s: float) -> float:
        start = max(self.link, not_before_s)
        self.link = start + seconds
        self.busy = [*(self.busy or [])[-3:], (start, self.link)]
        return self.link

    def compute(self, seconds: float, ready_s: float) -> float:
        start = max(self.gpu, ready_s)
        self.waited += start - self.gpu
        beside = sum(max(0.0, min(end, start + seconds) - max(begin, start)) for begin, end in self.busy or ())
        extra = min(beside, seconds) * (1 - self.progress)
        self.contention += extra
        self.gpu = start + seconds + extra
        return self.gpu
