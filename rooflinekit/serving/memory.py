"""Where the memory of a serving GPU goes: weights, work space, and room for the cache."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.graph import Graph
from rooflinekit.model.convolution import formats_channels_last
from rooflinekit.model.kernels import issues_of
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.engine_steps import draft_times
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.step.memory import CONTEXT_BYTES, USABLE_SHARE, memory_of


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
        draft = proposing.times.decoder
        weight_bytes += weight_bytes_of(proposing.times.graph("prefill"))
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
