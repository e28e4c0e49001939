"""Seconds of an engine's steps: the model's on the GPUs, the draft's before them, and the CPU's part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.model.energy import PowerLaw
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.libraries import formats_channels_last
from rooflinekit.model.timing import Timing
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import Chunk, StepTimes, part_of
from rooflinekit.serving.traffic import Stream, Traffic
from rooflinekit.step.energy import Draws, Member, TeamEnergy, energy_together, kernels_j_of
from rooflinekit.step.execution import Execution
from rooflinekit.step.memory import CONTEXT_BYTES, USABLE_SHARE, memory_of
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.units import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """What a play asks for. With groups of GPUs (`dp`) a step takes as long as that of the fullest group,
    for which the others wait where tokens are exchanged.
    """

    engine: Engine
    times: StepTimes
    draft: StepTimes | None  # of the model that proposes tokens

    @classmethod
    def of(cls, engine: Engine, times: StepTimes) -> EngineSteps:
        """With the draft that the engine names, whole on each GPU."""
        return cls(engine=engine, times=times, draft=draft_times(engine, times))

    def step_s(
        self, chunks: Sequence[Chunk], sequences: int, context: float, factors: tuple[float, float] = (1.0, 1.0)
    ) -> float:
        """Prompts of any lengths beside sequences that go on. factors: on steps that read prompts, and on others."""
        dp = self.times.dp
        gpu_s = self.gpu_s(chunks, sequences, context) * factors[0 if chunks else 1]
        return self._with_cpu(gpu_s, len(fullest(chunks, dp)), -(-sequences // dp))

    def gpu_s(self, chunks: Sequence[Chunk], sequences: int, context: float) -> float:
        """The same without the CPU."""
        dp = self.times.dp
        chunks, sequences = fullest(chunks, dp), -(-sequences // dp)
        gpu_s = self.times.step_s(chunks, sequences, context)
        if self.draft is not None:
            gpu_s += self.draft.step_s(chunks, 0, 0.0) if chunks else 0.0
            gpu_s += self.engine.drafted * self.draft.step_s((), sequences, context) if sequences else 0.0
        return gpu_s

    def _with_cpu(self, gpu_s: float, prompts: int, sequences: int) -> float:
        layers = self.times.decoder.layers
        launch_s = self.engine.launch_s(bool(prompts), sequences, layers)
        return self.engine.step_s(gpu_s, prompts + sequences, launch_s)


def draft_times(engine: Engine, times: StepTimes) -> StepTimes | None:
    """Of the model that proposes tokens, where there is one."""
    speculation = engine.speculation
    if speculation is None or speculation.draft is None:
        return None
    return StepTimes(
        decoder=speculation.draft, machine=times.machine, weights=speculation.weights, kv=times.kv, padded=engine.padded
    )


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


def predictions_of(
    host: Host, asked: Stream | Traffic, times: StepTimes, running: int
) -> tuple[Prediction, Prediction]:
    """One GPU's part of a prompt, and of a step of so many sequences at the middle of an answer."""
    graphs = Execution(backend="cuda-graph", sync="none")
    sizes = {"batch": -(-running // times.dp), "context": asked.input + max(1, asked.output // 2)}
    return (
        predict_graph(times.graph("prefill").at(batch=1, seq=asked.input), times.machine, host, graphs),
        predict_graph(times.graph("decode").at(**sizes), times.machine, host, graphs),
    )


# What serving draws: each step's kernels, and every GPU standing by all the time, between steps too.


@dataclass(frozen=True, kw_only=True)
class StepJoules(StepTimes):
    """Joules of one GPU's kernels, beside idling, in the place of their seconds.

    What makes a step's seconds of few that are timed is linear in them, and so in joules.
    """

    def seconds_by_part(self, timings: Sequence[Timing]) -> Mapping[str, float]:
        """Joules of each layer by its name, and of the rest under ""."""
        law = PowerLaw.of(self.machine)
        assert law is not None  # see `joules_of`
        parts = kernels_j_of(timings, self.launched, law)
        found: dict[str, float] = defaultdict(float)
        for i, timing in enumerate(timings):
            found[part_of(timing)] += sum(float(joules[i]) for joules in parts.values())
        return found


def joules_of(engine: Engine, times: StepTimes) -> EngineSteps | None:
    """The joules of the same steps, made of the same graphs, without the CPU; None where no power is stated."""
    if PowerLaw.of(times.machine) is None:
        return None
    draft = draft_times(engine, times)
    return EngineSteps(engine=engine, times=_joules(times), draft=draft and _joules(draft))


def _joules(times: StepTimes) -> StepJoules:
    said = {one.name: getattr(times, one.name) for one in fields(times) if not one.name.startswith("_")}
    return StepJoules(**said, _graphs=times._graphs, _timings=times._timings)


def serving_energy(times: StepTimes, kernels_j: float | None, total_s: float, gpus: int) -> TeamEnergy | None:
    """All GPUs over so many seconds, of which each's kernels draw so many joules on average; None where not known."""
    if kernels_j is None:
        return None
    return energy_together([Member(count=gpus, machine=times.machine, kernels_j={"kernels": kernels_j})], total_s)


class ServingDraws(Draws):
    """What answers say of their joules, by what they have: `energy`, and the tokens that were given meanwhile."""

    __slots__ = ()

    energy: TeamEnergy | None  # of all GPUs that share the layers, while they answered; None where no power is stated

    @property
    def tokens_given(self) -> int:
        """Of all answers that `energy` is of."""
        raise NotImplementedError

    @property
    def decode(self) -> Prediction:
        """A step that gives a token to each sequence, by whose interval seconds are off."""
        raise NotImplementedError

    @property
    def joules_per_token(self) -> float | None:
        """Joules of a token of answers, with the reading of prompts and waits."""
        return None if self.energy is None else self.energy.joules / self.tokens_given

    def energy_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        if self.energy is None:
            return {"energy": None, "joules_per_token": None, "joules_per_token_interval": None}
        told = self.energy.to_dict(self._time_interval(self.energy))
        bounds = [told[name] / self.tokens_given for name in ("low_j", "high_j")]
        return {"energy": told, "joules_per_token": self.joules_per_token, "joules_per_token_interval": bounds}

    def energy_lines(self) -> list[str]:
        """In a line; none where nothing is known."""
        if self.energy is None:
            return []
        told = self.energy_document()
        each, low, high = (
            format_quantity(j, "J") for j in (told["joules_per_token"], *told["joules_per_token_interval"])
        )
        one = f", {format_quantity(self.energy.mean_w_per_gpu, 'W')} a GPU" if self.energy.gpus > 1 else ""
        mean = format_quantity(self.energy.mean_w, "W")
        idle = self.energy.parts_j["idle"] / self.energy.joules
        return [f"energy: {each} a token (90 %: {low} to {high}), {mean} on average{one}, {idle:.0%} of it idling"]

    def _time_interval(self, energy: TeamEnergy) -> tuple[float, float]:
        low, high = (energy.total_s * bound / self.decode.total_s for bound in self.decode.interval())
        return low, high


# Where the memory of a serving GPU goes: weights, work space, and room for the cache.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """Bytes of one GPU's memory."""

    weight_bytes: int
    workspace_bytes: int  # of the largest step: what its ops make
    context_bytes: int  # of CUDA and its libraries
    cache_bytes: int  # left for keys and values; below 0 where the rest does not fit
    kv_bytes_per_token: int
    capacity: float  # the device's, as its datasheet states it
    draft: Decoder | None = None  # that proposes tokens, with a cache of its own

    def sequence_bytes(self, decoder: Decoder, tokens: int, kv: str, tp: int) -> int:
        """Cache of a sequence of so many tokens."""
        return decoder.kv_bytes(tokens, kv, tp) + (self.draft.kv_bytes(tokens, kv) if self.draft else 0)

    def largest_batch(self, decoder: Decoder, context: int, kv: str, tp: int) -> int:
        """Sequences of so many tokens that the cache holds."""
        return max(0, self.cache_bytes // self.sequence_bytes(decoder, context, kv, tp))


def serving_memory(times: StepTimes, engine: Engine, input: int) -> ServingMemory:
    """What is left for the cache beside the weights and a step of the most tokens."""
    # Work space does not grow with the number of layers: each uses the memory of the one before.
    seq = min(input, engine.step_tokens)
    thin = times.graph("prefill", whole=False).at(batch=max(1, engine.step_tokens // seq), seq=seq)
    device = times.machine.device
    used = memory_of(thin, issues_of(thin, formats_channels_last(device)), device)
    standing = sum({spec.memory: int(spec.bytes) for spec in (*thin.weights, *thin.inputs)}.values())
    workspace = max(0, used.peak_bytes - standing)
    weight_bytes = weight_bytes_of(times.graph("prefill"))
    draft, kv_bytes = None, times.decoder.kv_bytes_per_token(times.kv, times.tp)
    if (proposing := draft_times(engine, times)) is not None:
        draft = proposing.decoder
        weight_bytes += weight_bytes_of(proposing.graph("prefill"))
        kv_bytes += draft.kv_bytes_per_token(times.kv)
    room = engine.memory_share * USABLE_SHARE * device.dram.capacity
    return ServingMemory(
        weight_bytes=weight_bytes,
        workspace_bytes=workspace,
        context_bytes=CONTEXT_BYTES,
        cache_bytes=int(room - weight_bytes - workspace - CONTEXT_BYTES),
        kv_bytes_per_token=kv_bytes,
        capacity=device.dram.capacity,
        draft=draft,
    )


def weight_bytes_of(graph: Graph) -> int:
    """Bytes of one GPU's weights, with their scales."""
    return sum(int(spec.bytes) for spec in graph.weights)
