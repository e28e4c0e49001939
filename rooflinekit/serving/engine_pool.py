"""The engine that requests go through, or the engines: memory, steps, and how they are played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import finite, shown, whole
from rooflinekit.serving.engine_steps import EngineSteps, ServingMemory, joules_of, serving_memory
from rooflinekit.serving.replay import BatchTime, replay
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import Chunk, StepTimes
from rooflinekit.serving.traffic import Answered, Played, Request, Traffic


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
        cls, engine: Engine, times: StepTimes, traffic: Traffic, apart: Disaggregation | None,
        prefill_times: StepTimes | None,
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
        engine, of, reading = self.engine, self.steps.times, self.prefill_steps.times
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
            return steps.step_s(chunks, sequences, context, factors)

        return step_s

    def moved_bytes(self, tokens: int) -> float:
        """Bytes of the cache of a prompt that go over each link: one GPU's, for each has one of its own."""
        of = self.prefill_steps.times
        return float(self.memory.sequence_bytes(of.decoder, tokens, of.kv, of.tp))

    def transfer_s(self, tokens: int) -> float:
        """Of the cache of a prompt from one engine to another; 0 where it stays."""
        if self.apart is None:
            return 0.0
        return self.apart.link_latency_s + self.moved_bytes(tokens) / self.apart.link_bytes_per_s


def _room(engine: Engine, times: StepTimes, traffic: Traffic) -> tuple[ServingMemory, float]:
    """Memory of a GPU, and the tokens that the caches of all groups hold."""
    steps = times
    memory = serving_memory(steps, engine, traffic.input)
    tokens = traffic.input + traffic.output
    # of sequences of average length: layers with a window hold no more than its part
    held = memory.cache_bytes * tokens / memory.sequence_bytes(steps.decoder, tokens, steps.kv, steps.tp)
    return memory, steps.dp * held


def _joules(engine: Engine, times: StepTimes) -> BatchTime | None:
    found = joules_of(engine, times)
    return None if found is None else found.gpu_s


# Engines of their own for prompts and for answers, and the link over which the cache of a prompt goes between them.


_MOST_COPIES = 2**12

#: Plays requests through an engine that reads prompts.
Reading = Callable[[Sequence[Request]], Played]
#: Plays requests that come with the cache of their prompts, and had their first tokens at these moments.
GoingOn = Callable[[Sequence[Request], Sequence[float]], Played]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prefill and decode on engines of their own (vLLM's and TensorRT-LLM's disaggregated serving, NVIDIA Dynamo).

    prefill, decode: engines of each kind, each a copy of the model; requests go to them in turn. prefill_tp: GPUs that
    share the layers of an engine that reads prompts (None for as many as of the others). link_bytes_per_s,
    link_latency_s: of each GPU of such an engine to the others, over which its part of the cache of prompts goes, one
    after the other, once they are read: by default what one port of 400 Gbit/s carries, and the latency of RDMA.

    Raises InputError for numbers out of range.
    """

    prefill: int = 1
    decode: int = 1
    prefill_tp: int | None = None
    link_bytes_per_s: float = (
        50e9  # NVIDIA ConnectX-7 data sheet: 400 Gbit/s, 8 bits a byte; protocols leave 90 to 98 %
    )
    link_latency_s: float = 5e-6  # of a message between hosts over InfiniBand, 1 to 10 µs with GPUDirect

    def __post_init__(self) -> None:
        numbers = {"prefill": self.prefill, "decode": self.decode, "prefill_tp": self.prefill_tp or 1}
        for name, value in numbers.items():
            number = whole(value)
            if number is None or not 1 <= number <= _MOST_COPIES:
                raise InputError(f"disaggregation {name}: expected 1 to {_MOST_COPIES:,}; got {shown(value)}")
        if not self.link_bytes_per_s > 0:
            raise InputError(
                f"disaggregation link_bytes_per_s: expected bytes a second, above 0; got {self.link_bytes_per_s!r}"
            )
        if not (finite(self.link_latency_s) and self.link_latency_s >= 0):
            raise InputError(f"disaggregation link_latency_s: expected seconds, 0 or more; got {self.link_latency_s!r}")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "prefill": self.prefill, "decode": self.decode, "prefill_tp": self.prefill_tp,
            "link_bytes_per_s": self.link_bytes_per_s, "link_latency_s": self.link_latency_s,
        }  # fmt: skip


def play_apart(
    requests: Sequence[Request],
    over: Disaggregation,
    reading: Reading,
    going_on: GoingOn,
    cache_bytes: Callable[[int], float],
    gpus: tuple[int, int] = (1, 1),
) -> Played:
    """The requests through both kinds of engines.

    A first token comes from the engine that read the prompt; the second waits for the cache's transfer, of
    `cache_bytes` of the prompt's tokens, and for room where it goes. gpus: of an engine of each kind.
    """
    answers = [Answered(request=request) for request in requests]
    plays: list[Played] = []
    passed: list[tuple[float, int]] = []  # when the cache of each request is there
    for copy in range(over.prefill):
        own = range(copy, len(requests), over.prefill)
        if not own:
            continue
        played = reading([replace(requests[i], output=1) for i in own])
        plays.append(played)
        for i, answer in zip(own, played.answers, strict=True):
            answers[i].scheduled_s, answers[i].first_s = answer.scheduled_s, answer.first_s
            answers[i].last_s = answer.first_s
        free_s = 0.0
        for i in sorted(own, key=lambda i: answers[i].first_s):
            if requests[i].output > 1:
                moved_s = cache_bytes(requests[i].input) / over.link_bytes_per_s
                free_s = max(free_s, answers[i].first_s) + moved_s
                passed.append((free_s + over.link_latency_s, i))
    passed.sort()
    for copy in range(over.decode):
        if not (own_passed := passed[copy :: over.decode]):
            continue
        log = [replace(requests[i], arrival_s=at, cached=0) for at, i in own_passed]
        played = going_on(log, [answers[i].first_s for _, i in own_passed])
        plays.append(played)
        for (_, i), answer in zip(own_passed, played.answers, strict=True):
            answers[i].last_s, answers[i].preempted = answer.last_s, answer.preempted
    return _together(answers, plays, min(over.prefill, len(requests)), gpus, over)


def _together(
    answers: list[Answered], plays: list[Played], prefills: int, gpus: tuple[int, int], over: Disaggregation
) -> Played:
    """Of all engines, the first of which read prompts."""
    drawn = [gpus[i >= prefills] * played.kernels_j for i, played in enumerate(plays) if played.kernels_j is not None]
    all_gpus = over.prefill * gpus[0] + over.decode * gpus[1]
    found = Played(
        answers=answers, engines=len(plays), peak_cache=max(played.peak_cache for played in plays),
        reading_s=sum(played.busy_s for played in plays[:prefills]),
        kernels_j=sum(drawn) / all_gpus if drawn else None,
    )  # fmt: skip
    for played in plays:
        for seconds, times in played.gaps.items():
            found.count_gap(seconds, times)
        for name in ("busy_s", "readings", "readings_s", "steps", "preemptions"):
            setattr(found, name, getattr(found, name) + getattr(played, name))
    # those that read hold nothing between prompts: their running sequences count for nothing
    decoding = [played for played in plays if played.gaps] or plays
    found.running_s = found.busy_s * sum(played.running for played in decoding) / len(decoding)
    return found
