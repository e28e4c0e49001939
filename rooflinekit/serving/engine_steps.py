"""Seconds of an engine's steps: the model's on the GPUs, the draft's before them, and the CPU's part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.serving.batch_times import BatchTimes, Chunk
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """What the two kinds of play ask for. With groups of GPUs (`dp`) a step takes as long as that of the fullest group,
    for which the others wait where tokens are exchanged.
    """

    engine: Engine
    times: BatchTimes
    draft: BatchTimes | None  # of the model that proposes tokens

    @classmethod
    def of(cls, engine: Engine, times: BatchTimes) -> EngineSteps:
        """With the draft that the engine names, whole on each GPU."""
        return cls(engine=engine, times=times, draft=draft_times(engine, times.times))

    def stream_s(self, prompts: float, input: int, sequences: int, context: float) -> float:
        """Prompts of equal length, whole or in part, beside sequences that go on."""
        dp = self.times.times.dp
        gpu_s = self.stream_gpu_s(prompts, input, sequences, context)
        return self._with_cpu(gpu_s, math.ceil(min(prompts, math.ceil(prompts / dp))), -(-sequences // dp))

    def stream_gpu_s(self, prompts: float, input: int, sequences: int, context: float) -> float:
        """The same without the CPU."""
        of = self.times.times
        prompts, sequences = min(prompts, math.ceil(prompts / of.dp)), -(-sequences // of.dp)
        gpu_s = of.mixed_s(prompts, input, sequences, context)
        if self.draft is not None:
            drafting = self.draft.times
            gpu_s += drafting.mixed_s(prompts, input, 0, 0.0) if prompts else 0.0
            gpu_s += self.engine.drafted * drafting.decode_s(sequences, context) if sequences else 0.0
        return gpu_s

    def batch_s(
        self, chunks: Sequence[Chunk], sequences: int, context: float, factors: tuple[float, float] = (1.0, 1.0)
    ) -> float:
        """Prompts of any lengths beside sequences that go on. factors: on steps that read prompts, and on others."""
        dp = self.times.times.dp
        gpu_s = self.batch_gpu_s(chunks, sequences, context) * factors[0 if chunks else 1]
        return self._with_cpu(gpu_s, len(fullest(chunks, dp)), -(-sequences // dp))

    def batch_gpu_s(self, chunks: Sequence[Chunk], sequences: int, context: float) -> float:
        """The same without the CPU."""
        dp = self.times.times.dp
        chunks, sequences = fullest(chunks, dp), -(-sequences // dp)
        gpu_s = self.times.step_s(chunks, sequences, context)
        if self.draft is not None:
            gpu_s += self.draft.step_s(chunks, 0, 0.0) if chunks else 0.0
            gpu_s += self.engine.drafted * self.draft.step_s((), sequences, context) if sequences else 0.0
        return gpu_s

    def _with_cpu(self, gpu_s: float, prompts: int, sequences: int) -> float:
        layers = self.times.times.decoder.layers
        launch_s = self.engine.launch_s(bool(prompts), sequences, layers)
        return self.engine.step_s(gpu_s, prompts + sequences, launch_s)


def draft_times(engine: Engine, times: StepTimes) -> BatchTimes | None:
    """Of the model that proposes tokens, where there is one."""
    speculation = engine.speculation
    if speculation is None or speculation.draft is None:
        return None
    return BatchTimes(times=StepTimes(
        decoder=speculation.draft, machine=times.machine, weights=speculation.weights, kv=times.kv, padded=engine.padded
    ))  # fmt: skip


def fullest(chunks: Sequence[Chunk], groups: int) -> Sequence[Chunk]:
    """The part with the most tokens, where each chunk goes to the group that has the fewest so far.

    >>> [chunk.tokens for chunk in fullest([Chunk(0, 8), Chunk(0, 3), Chunk(0, 4)], 2)]
    [8]
    """
    if groups == 1 or not chunks:
        return chunks
    parts: list[list[Chunk]] = [[] for _ in range(groups)]
    for chunk in chunks:
        min(parts, key=_tokens).append(chunk)
    return max(parts, key=_tokens)


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)
