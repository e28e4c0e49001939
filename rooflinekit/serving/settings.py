"""How an engine is set up, and what its CPU does between steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rooflinekit.errors import InputError, nearest
from rooflinekit.serving.engine import Policy

HostWork = Literal["overlapped", "serial"]
Reserve = Literal["grow", "whole"]

#: Seconds of the CPU in each step, and for each sequence in it: scheduling, inputs, sampling, handling of tokens. A
#: least-squares line through the 26 rows on an A100 without tensor parallelism of vidur's `cpu_overheads` (vLLM of
#: 2024, history blob bf106186; sum of the medians of schedule, sampler launch, prepare-inputs launch, model launch and
#: process outputs), standard errors 1.6 % and 0.4 %; `benchmarks/serving_accuracy.py` fits it again.
HOST_STEP_S = 0.802e-3
HOST_SEQUENCE_S = 42.3e-6
#: Seconds in which TensorRT-LLM 1.0.0rc3 launches a layer of a step that reads prompts: Llama 3.1 8B on eight H100,
#: 1024 tokens in (aiconfigurator's e2e_serving_h100_sxm, five numbers of clients): by the times per token of answers of
#: 128 and of 512 tokens a prompt adds 15 to 18 ms to a step of 2.5 to 6 ms: 17 to 22 ms for 32 layers, where the GPU
#: needs 10. The same reckoning for Qwen3 32B, 64 layers, gives 34 to 40 ms.
TRTLLM_LAYER_S = 0.6e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The settings of an engine that its steps depend on.

    host: the CPU prepares the next step while the GPU works ("overlapped": TensorRT-LLM 1.0, SGLang), so that a new
    request misses one step more, or in between ("serial": vLLM up to 0.12). policy: prompts are read beside sequences
    that go on ("mixed": vLLM, TensorRT-LLM), or in steps of their own before these ("prefill-first": SGLang).
    step_tokens: most tokens of a step. chunks: a prompt is cut where these end, and goes on in the next step (vLLM,
    SGLang); otherwise it waits until it fits (TensorRT-LLM unless `enable_chunked_prefill`). reserve: what a
    request that comes at a rate sets aside of the cache: room for what it has read and given, and where the cache is
    full the last one is read anew ("grow": vLLM, SGLang), or for all its tokens ("whole": TensorRT-LLM). sequences:
    most of them at once, beside what the cache holds (`max_num_seqs`, `max_batch_size`; None for any number). layer_s:
    seconds in which the CPU launches a layer of a step that reads prompts: such steps are no CUDA graphs, and none is
    shorter than its layers' launches (0: never in the way; `TRTLLM_LAYER_S`). memory_share: of the GPU's memory that
    the engine takes for weights, work space and cache.

    Raises InputError for another word or number.
    """

    host: HostWork = "overlapped"
    policy: Policy = "mixed"
    step_tokens: int = 8192
    chunks: bool = True
    reserve: Reserve = "grow"
    sequences: int | None = None
    layer_s: float = 0.0
    memory_share: float = 0.9

    def __post_init__(self) -> None:
        words = (("host", self.host, get_args(HostWork)), ("policy", self.policy, get_args(Policy)),
                 ("reserve", self.reserve, get_args(Reserve)))  # fmt: skip
        for name, value, known in words:
            if value not in known:
                raise InputError(f"engine {name} {value!r}: expected {' or '.join(known)}{nearest(str(value), known)}")
        if self.step_tokens < 1:
            raise InputError(f"engine step_tokens: expected 1 or more; got {self.step_tokens!r}")
        if self.sequences is not None and self.sequences < 1:
            raise InputError(f"engine sequences: expected 1 or more, or None for any number; got {self.sequences!r}")
        if not (math.isfinite(self.layer_s) and self.layer_s >= 0):
            raise InputError(f"engine layer_s: expected seconds, 0 or more; got {self.layer_s!r}")
        if not (math.isfinite(self.memory_share) and 0 < self.memory_share <= 1):
            raise InputError(f"engine memory_share: expected a share above 0, up to 1; got {self.memory_share!r}")

    def step_s(self, gpu_s: float, sequences: float) -> float:
        """A step with the CPU's part in it."""
        host_s = self.host_s(sequences)
        return gpu_s + host_s if self.host == "serial" else max(gpu_s, host_s)

    def host_s(self, sequences: float) -> float:
        """What the CPU does for a step, in seconds."""
        return HOST_STEP_S + HOST_SEQUENCE_S * sequences
