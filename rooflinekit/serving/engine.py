"""An engine on its GPUs: its memory, seconds and joules of its steps, and requests played through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.ir.graph import Graph
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.libraries import formats_channels_last
from rooflinekit.serving.replay import play_apart, replay
from rooflinekit.serving.settings import Disaggregation, Engine
from rooflinekit.serving.step_times import Chunk, StepTimes
from rooflinekit.serving.traffic import Played, Request, Stream, Traffic
from rooflinekit.step.memory import beside_segments, memory_of, room_of
from rooflinekit.timing.energy import PowerLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An engine on its GPUs. With groups of them (`dp`) a step takes as long as that of the fullest group,
    for which the others wait where tokens are exchanged.
    """

    engine: Engine
    times: StepTimes
    draft: StepTimes | None  # of the model that proposes tokens, whole on each GPU
    memory: ServingMemory
    cache_tokens: float  # that the caches of all groups hold

    @classmethod
    def of(cls, engine: Engine, times: StepTimes, asked: Stream | Traffic) -> Installed:
        """The engine, set up for requests of these lengths."""
        memory, tokens = serving_memory(times, engine, asked.input), asked.input + asked.output
        # of sequences of average length: layers with a window hold no more than its part
        held = memory.cache_bytes * tokens / memory.sequence_bytes(tokens)
        return cls(
            engine=engine, times=times, draft=draft_times(engine, times), memory=memory, cache_tokens=times.dp * held
        )

    def step_s(
        self, chunks: Sequence[Chunk], sequences: int, context: float, factors: tuple[float, float] = (1.0, 1.0)
    ) -> float:
        """Prompts of any lengths beside sequences that go on. factors: on steps that read prompts, and on others."""
        dp, engine = self.times.dp, self.engine
        gpu_s = self._with_draft(self.times, self.draft, chunks, sequences, context) * factors[0 if chunks else 1]
        read, going_on = fullest(chunks, dp), -(-sequences // dp)
        held = going_on * context + sum(chunk.start + chunk.tokens for chunk in read)
        host_s = engine.host_s(len(read) + going_on, held, self.times.tp)
        return engine.step_s(gpu_s, host_s, engine.launch_s(bool(read), going_on, self.times.decoder.layers))

    def _with_draft(
        self, model: StepTimes, draft: StepTimes | None, chunks: Sequence[Chunk], sequences: int, context: float
    ) -> float:
        """What a step of the fullest group takes, with those of the model that proposes tokens."""
        chunks, sequences = fullest(chunks, model.dp), -(-sequences // model.dp)
        total = model.step(chunks, sequences, context)
        if draft is not None:
            total += draft.step(chunks, 0, 0.0) if chunks else 0.0
            total += self.engine.drafted * draft.step((), sequences, context) if sequences else 0.0
        return total

    def play(
        self, requests: Sequence[Request] | Stream, *, factors: tuple[float, float] = (1.0, 1.0),
        joules: bool = False, firsts_s: Sequence[float] | None = None,
    ) -> Played:  # fmt: skip
        """The requests, with steps so many times as long: those that read prompts, and the others.

        joules: also those of the kernels, where power is stated. firsts_s: as of `replay`.
        """
        step_j = None
        if joules and PowerLaw.of(self.times.machine) is not None:  # of the same steps, without the CPU
            step_j = partial(
                self._with_draft, replace(self.times, joules=True), self.draft and replace(self.draft, joules=True)
            )
        return replay(
            requests, partial(self.step_s, factors=factors), self.engine, self.cache_tokens,
            groups=self.times.dp, firsts_s=firsts_s, step_j=step_j,
        )  # fmt: skip


def draft_times(engine: Engine, times: StepTimes) -> StepTimes | None:
    """The step times of the model that drafts tokens, or None without one."""
    speculation = engine.speculation
    if speculation is None or speculation.draft is None:
        return None
    return StepTimes(
        decoder=speculation.draft,
        machine=times.machine,
        weights=speculation.weights,
        kv=times.kv,
        release=times.release,
        padded=engine.padded,
    )


def fullest(chunks: Sequence[Chunk], groups: int) -> Sequence[Chunk]:
    """The part with the most tokens, where each chunk goes to the group that has the fewest so far.

    >>> [chunk.tokens for chunk in fullest([Chunk(0, 8), Chunk(0, 3), Chunk(0, 4)], 2)]
    [8]
    """
    if groups == 1 or not chunks:
        return chunks

    def read(part: Sequence[Chunk]) -> int:
        return sum(chunk.tokens for chunk in part)

    parts: list[list[Chunk]] = [[] for _ in range(groups)]
    for chunk in chunks:
        min(parts, key=read).append(chunk)
    return max(parts, key=read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """Bytes of one GPU's memory."""

    weight_bytes: int
    workspace_bytes: int  # of the largest step: what its ops make
    context_bytes: int  # of CUDA and its libraries
    cache_bytes: int  # left for keys and values; below 0 where the rest does not fit
    kv_bytes_per_token: int
    capacity: float  # the device's, as its datasheet states it
    decoder: Decoder
    kv: str
    tp: int
    draft: Decoder | None = None  # that proposes tokens, with a cache of its own

    def sequence_bytes(self, tokens: int) -> int:
        """Cache of a sequence of so many tokens."""
        drafted = self.draft.kv_bytes(tokens, self.kv) if self.draft else 0
        return self.decoder.kv_bytes(tokens, self.kv, self.tp) + drafted

    def largest_batch(self, context: int) -> int:
        """Sequences of so many tokens that the cache holds."""
        return max(0, self.cache_bytes // self.sequence_bytes(context))


def serving_memory(times: StepTimes, engine: Engine, input: int) -> ServingMemory:
    """What is left for the cache beside the weights and a step of the most tokens."""
    # Work space does not grow with the number of layers: each uses the memory of the one before.
    seq = min(input, engine.step_tokens)
    thin = times.graph("prefill", whole=False).at(batch=max(1, engine.step_tokens // seq), seq=seq)
    device = times.machine.device
    used = memory_of(thin, issues_of(thin, formats_channels_last(device)), device)
    beside = beside_segments(device)
    standing = sum({spec.memory: int(spec.bytes) for spec in (*thin.weights, *thin.inputs)}.values())
    workspace = max(0, used.peak_bytes - standing)
    weight_bytes = weight_bytes_of(times.graph("prefill"))
    draft, kv_bytes = None, times.decoder.kv_bytes_per_token(times.kv, times.tp)
    if (proposing := draft_times(engine, times)) is not None:
        draft = proposing.decoder
        weight_bytes += weight_bytes_of(proposing.graph("prefill"))
        kv_bytes += draft.kv_bytes_per_token(times.kv)
    if engine.memory_share is None:
        room = room_of(device.dram.capacity, beside) - engine.left_bytes(times.tp)
    else:
        room = room_of(engine.memory_share * device.dram.capacity, beside) - workspace
    return ServingMemory(
        weight_bytes=weight_bytes,
        workspace_bytes=workspace,
        context_bytes=sum(beside.values()),
        cache_bytes=int(room - weight_bytes),
        kv_bytes_per_token=kv_bytes,
        capacity=device.dram.capacity,
        decoder=times.decoder,
        kv=times.kv,
        tp=times.tp,
        draft=draft,
    )


def weight_bytes_of(graph: Graph) -> int:
    """Bytes of one GPU's weights, with their scales."""
    return sum(int(spec.bytes) for spec in graph.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to serve: an engine and its steps; with `apart` engines of their own for prompts and answers.

    prefill_times: steps of those that read prompts, where they have GPUs of another number. words: that name it among
    others. price_usd_per_hour: of one GPU; None where none is stated.
    """

    engine: Engine
    times: StepTimes
    apart: Disaggregation | None = None
    prefill_times: StepTimes | None = None
    words: str = ""
    price_usd_per_hour: float | None = None

    @property
    def gpus(self) -> int:
        """The GPUs of one copy of the model; with engines of their own for prompts, of all engines."""
        return gpus_of(self.times.gpus, self.apart)

    def cost(self, copies: float) -> float:
        """Dollars an hour of so many copies, or their GPUs where no price is stated."""
        return copies * self.gpus * (1.0 if self.price_usd_per_hour is None else self.price_usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePool:
    """The engine that gives tokens, and the one that reads prompts: another with `apart`, and some of each."""

    going_on: Installed
    reading: Installed
    apart: Disaggregation | None

    @classmethod
    def of(cls, setup: Setup, traffic: Traffic) -> EnginePool:
        """The engines, set up for requests of these lengths."""
        reading = going_on = Installed.of(setup.engine, setup.times, traffic)
        if setup.prefill_times is not None:
            reading = Installed.of(setup.engine, setup.prefill_times, traffic)
        return cls(going_on=going_on, reading=reading, apart=setup.apart)

    def play(
        self, requests: Sequence[Request], factors: tuple[float, float] = (1.0, 1.0), *, joules: bool = False
    ) -> Played:
        """The requests; all else as of `Installed.play`."""
        read, go_on = (partial(one.play, factors=factors, joules=joules) for one in (self.reading, self.going_on))
        if self.apart is None:
            return go_on(requests)
        return play_apart(
            requests, self.apart, read, lambda log, firsts_s: go_on(log, firsts_s=firsts_s),
            self.reading.memory.sequence_bytes, (self.reading.times.gpus, self.going_on.times.gpus),
        )  # fmt: skip

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move a prompt's cache from one engine to another; 0 where it stays."""
        if self.apart is None:
            return 0.0
        return self.apart.link_latency_s + self.reading.memory.sequence_bytes(tokens) / self.apart.link_bytes_per_s


def gpus_of(a_copy: int, apart: Disaggregation | None) -> int:
    """GPUs of all engines, where one copy of the model has so many."""
    return a_copy if apart is None else apart.decode * a_copy + apart.prefill * (apart.prefill_tp or a_copy)
