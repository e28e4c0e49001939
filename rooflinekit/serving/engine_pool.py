"""The engine that requests go through, or the engines: memory, steps, and how they are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflinekit.serving.answers import Played
from rooflinekit.serving.batch_times import BatchTimes, Chunk
from rooflinekit.serving.disaggregation import Disaggregation, play_apart
from rooflinekit.serving.energy import joules_of
from rooflinekit.serving.engine_steps import EngineSteps
from rooflinekit.serving.memory import ServingMemory, serving_memory
from rooflinekit.serving.replay import BatchTime, replay
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.serving.traffic import Request, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePool:
    """One engine for prompts and answers, or with `apart` some of each kind."""

    engine: Engine
    steps: EngineSteps
    memory: ServingMemory
    cache_tokens: float
    apart: Disaggregation | None
    prefill_steps: EngineSteps
    prefill_tokens: float  # that the cache of an engine that reads prompts holds

    @classmethod
    def of(
        cls, engine: Engine, times: BatchTimes, traffic: Traffic, apart: Disaggregation | None,
        prefill_times: BatchTimes | None,
    ) -> EnginePool:  # fmt: skip
        """For requests of these lengths."""
        memory, held = _room(engine, times, traffic)
        reading = prefill_times or times
        return cls(
            engine=engine, steps=EngineSteps.of(engine, times), memory=memory, cache_tokens=held, apart=apart,
            prefill_steps=EngineSteps.of(engine, reading),
            prefill_tokens=held if reading is times else _room(engine, reading, traffic)[1],
        )  # fmt: skip

    def play(
        self, requests: Sequence[Request], factors: tuple[float, float] = (1.0, 1.0), hidden: bool | None = None,
        joules: bool = False,
    ) -> Played:  # fmt: skip
        """The requests, with steps so many times as long: those that read prompts, and the others. hidden: whether the
        CPU's work is, in the place of what the engine's settings say: requests are then received at once, or else in
        twice the time. joules: also those of the kernels.
        """
        engine, of, reading = self.engine, self.steps.times.times, self.prefill_steps.times.times
        if hidden is not None:
            times = 0 if hidden else 2
            engine = replace(engine, request_s=times * engine.request_s, input_s=times * engine.input_s)
        prefill_j, decode_j = (_joules(engine, one) if joules else None for one in (reading, of))
        if self.apart is None:
            return replay(requests, self._step_s(self.steps, factors, hidden), engine, self.cache_tokens,
                          groups=of.dp, step_j=decode_j)  # fmt: skip
        prefill_s, decode_s = (self._step_s(steps, factors, hidden) for steps in (self.prefill_steps, self.steps))
        return play_apart(
            requests,
            self.apart,
            lambda log: replay(log, prefill_s, engine, self.prefill_tokens, groups=reading.dp, step_j=prefill_j),
            lambda log, firsts_s: replay(log, decode_s, engine, self.cache_tokens, groups=of.dp, firsts_s=firsts_s,
                                         step_j=decode_j),
            self.moved_bytes,
            (reading.gpus, of.gpus),
        )  # fmt: skip

    def _step_s(self, steps: EngineSteps, factors: tuple[float, float], hidden: bool | None) -> BatchTime:
        if hidden is not None:
            steps = replace(steps, engine=replace(steps.engine, host="overlapped" if hidden else "serial"))

        def step_s(chunks: Sequence[Chunk], sequences: int, context: float) -> float:
            return steps.batch_s(chunks, sequences, context, factors)

        return step_s

    def moved_bytes(self, tokens: int) -> float:
        """Bytes of the cache of a prompt that go over each link: one GPU's, for each has one of its own."""
        of = self.prefill_steps.times.times
        return float(self.memory.sequence_bytes(of.decoder, tokens, of.kv, of.tp))

    def transfer_s(self, tokens: int) -> float:
        """Of the cache of a prompt from one engine to another; 0 where it stays."""
        if self.apart is None:
            return 0.0
        return self.apart.link_latency_s + self.moved_bytes(tokens) / self.apart.link_bytes_per_s


def _room(engine: Engine, times: BatchTimes, traffic: Traffic) -> tuple[ServingMemory, float]:
    """Memory of a GPU, and the tokens that the caches of all groups hold."""
    steps = times.times
    memory = serving_memory(steps, engine, traffic.input)
    tokens = traffic.input + traffic.output
    # of sequences of average length: layers with a window hold no more than its part
    held = memory.cache_bytes * tokens / memory.sequence_bytes(steps.decoder, tokens, steps.kv, steps.tp)
    return memory, steps.dp * held


def _joules(engine: Engine, times: StepTimes) -> BatchTime | None:
    found = joules_of(engine, times)
    return None if found is None else found.batch_gpu_s
