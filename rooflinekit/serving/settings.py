"""How an engine is set up, and what its CPU does between steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import LARGEST, finite, shown, whole
from rooflinekit.serving.adapters import Adapters
from rooflinekit.serving.engine import Policy
from rooflinekit.serving.releases import release_of
from rooflinekit.serving.speculation import Speculation

HostWork = Literal["overlapped", "serial"]
Reserve = Literal["grow", "whole"]
Sums = Literal["nccl", "one-shot"]
Heads = Literal["together", "apart"]

#: Seconds of the CPU in each step, and for each sequence in it: scheduling, inputs, sampling, handling of tokens. A
#: least-squares line through the 26 rows on an A100 without tensor parallelism of vidur's `cpu_overheads` (vLLM of
#: 2024, history blob bf106186; sum of the medians of schedule, sampler launch, prepare-inputs launch, model launch and
#: process outputs), standard errors 1.6 % and 0.4 %; `benchmarks/serving_accuracy.py` fits it again.
HOST_STEP_S = 0.802e-3
HOST_SEQUENCE_S = 42.3e-6
#: Seconds more in each step where the inputs are handed to the processes of other GPUs: the same table's 52 rows with
#: tensor parallelism of 2 and 4 less that line, median (by model 0.62 to 1.4: larger vocabularies take more).
HOST_SHARED_S = 0.75e-3
#: Seconds from a client's sending to the engine's queue, of each request and of each token of its prompt: HTTP,
#: template, tokenizer. By the first tokens of half of aiconfigurator's e2e_serving_h100_sxm and _b200_sxm (halves by a
#: hash of GPU, model, engine and tp), the shortest of those within half a point of the best (14.2 %; 14.5 here, 17.8
#: without). On the other half 12.5 instead of 15.7 %, on blis, which had no part in it, 7.0 instead of 14.0 %. Good to
#: 2 ms and 1 µs.
REQUEST_S = 5e-3
INPUT_TOKEN_S = 2e-6


@checked
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
    shorter than its layers' launches and the CPU's other work (0: never in the way; `releases.TRTLLM_LAYER_S`).
    request_s, input_s: seconds in which the server before the engine receives a request, and each token of its prompt
    besides;
    requests do not wait for each other there. wait_steps: that prompts wait for further ones while sequences go on,
    unless they fill a step (TensorRT-LLM's `batch_wait_timeout_iters`). memory_share: of the GPU's memory that
    the engine takes for weights, work space and cache. graph_sizes: numbers of sequences that decoding steps are
    captured for as CUDA graphs (`cudagraph_capture_sizes`): a step is filled up to the next; a larger one is launched
    kernel by kernel, `layer_s` a layer or more (None for 1, 2, 4 and multiples of 8 without end; () for no graphs, as
    vLLM's `enforce_eager`, and vLLM of 2023). speculation: tokens that a draft proposes. adapters: LoRA adapters that
    sequences use. sums: results are summed over GPUs by "nccl", or by the engine's own kernels, over links that let
    each GPU read the others' memory ("one-shot": all-reduces fused with the normalization, in vLLM and TensorRT-LLM on
    B200). heads: those that share keys read them "together" while
    decoding (FlashAttention, FlashInfer, TensorRT-LLM's XQA), or "apart", each once more from the L2 cache (vLLM's
    PagedAttention kernels; TensorRT-LLM's masked multi-head attention, up to 0.10 wherever not eight share).
    host_more_s: seconds of the CPU in each step besides (`HOST_SHARED_S`). release: the engine and version whose
    defaults `Engine.of` took, for what is said of them.

    Raises InputError for another word or number.
    """

    host: HostWork = "overlapped"
    policy: Policy = "mixed"
    step_tokens: int = 8192
    chunks: bool = True
    reserve: Reserve = "grow"
    sequences: int | None = None
    layer_s: float = 0.0
    request_s: float = REQUEST_S
    input_s: float = INPUT_TOKEN_S
    wait_steps: int = 0
    memory_share: float = 0.9
    graph_sizes: tuple[int, ...] | None = None
    speculation: Speculation | None = None
    adapters: Adapters | None = None
    sums: Sums = "nccl"
    heads: Heads = "together"
    host_more_s: float = 0.0
    release: str | None = None

    @classmethod
    def of(cls, release: str, **changes: Any) -> Engine:
        """An engine by name and version, such as "vllm:0.12", "sglang:0.5.8" or "tensorrt-llm:1.0".

        It is set as its server is by default on a GPU of 70 GiB or more, but for the changes; without a version as the
        newest known.

        Raises InputError for another engine or version, and as the class does.

        >>> Engine.of("sglang:0.5.8").policy, Engine.of("sglang:0.5.8", policy="mixed").policy
        ('prefill-first', 'mixed')
        """
        return cls(**{**release_of(release).settings, **changes, "release": release})

    def __post_init__(self) -> None:
        if self.release is not None:
            release_of(self.release)
        words = (("host", self.host, get_args(HostWork)), ("policy", self.policy, get_args(Policy)),
                 ("reserve", self.reserve, get_args(Reserve)), ("sums", self.sums, get_args(Sums)),
                 ("heads", self.heads, get_args(Heads)))  # fmt: skip
        for name, value, known in words:
            if value not in known:
                raise InputError(f"engine {name} {value!r}: expected {' or '.join(known)}{nearest(str(value), known)}")
        if not _is_count(self.step_tokens):
            raise InputError(f"engine step_tokens: expected 1 or more; got {shown(self.step_tokens)}")
        if not _is_count(self.wait_steps, least=0):
            raise InputError(f"engine wait_steps: expected 0 or more; got {shown(self.wait_steps)}")
        if self.sequences is not None and not _is_count(self.sequences):
            raise InputError(
                f"engine sequences: expected 1 or more, or None for any number; got {shown(self.sequences)}"
            )
        for name in ("layer_s", "request_s", "input_s", "host_more_s"):
            if not (finite(seconds := getattr(self, name)) and seconds >= 0):
                raise InputError(f"engine {name}: expected seconds, 0 or more; got {shown(seconds)}")
        if not (finite(self.memory_share) and 0 < self.memory_share <= 1):
            raise InputError(f"engine memory_share: expected a share above 0, up to 1; got {shown(self.memory_share)}")
        sizes = self.graph_sizes
        if sizes is not None and not _rising(sizes):
            raise InputError(
                "engine graph_sizes: expected numbers of sequences, 1 or more, each above the one before, such as "
                f"(1, 2, 4, 8); got {shown(sizes)}"
            )

    @property
    def name(self) -> str:
        """Of the engine that `Engine.of` was asked for; nothing of another."""
        return release_of(self.release).name if self.release else ""

    @property
    def given(self) -> float:
        """Tokens that a step gives a sequence, on average."""
        return self.speculation.given if self.speculation else 1.0

    @property
    def drafted(self) -> int:
        """Tokens of each sequence that a step checks beside the new one."""
        return self.speculation.tokens if self.speculation else 0

    def padded(self, sequences: int) -> int:
        """Sequences that a decoding step is filled up to: a captured size, where there is one."""
        if self.graph_sizes is None:
            return captured(sequences)
        return next((size for size in self.graph_sizes if size >= sequences), sequences)

    def launch_s(self, reads: bool, sequences: int, layers: int) -> float:
        """In which the CPU launches the layers of a step; 0 where the step is a CUDA graph."""
        sizes = self.graph_sizes
        launched = reads or (sizes is not None and (not sizes or sequences > sizes[-1]))
        return self.layer_s * layers if launched else 0.0

    def step_s(self, gpu_s: float, sequences: float, launch_s: float = 0.0) -> float:
        """A step with the CPU's part in it: overlapped, it is no shorter than launching and the CPU's other work."""
        host_s = self.host_s(sequences)
        return max(gpu_s, launch_s) + host_s if self.host == "serial" else max(gpu_s, launch_s + host_s)

    def received_s(self, tokens: float) -> float:
        """From sending a prompt of so many tokens to the engine's queue."""
        return self.request_s + self.input_s * tokens

    def host_s(self, sequences: float) -> float:
        """What the CPU does for a step, in seconds."""
        return HOST_STEP_S + self.host_more_s + HOST_SEQUENCE_S * sequences

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "host": self.host, "policy": self.policy, "step_tokens": self.step_tokens, "chunks": self.chunks,
            "reserve": self.reserve, "sequences": self.sequences, "layer_s": self.layer_s,
            "request_s": self.request_s, "input_s": self.input_s, "wait_steps": self.wait_steps,
            "memory_share": self.memory_share,
            "graph_sizes": None if self.graph_sizes is None else list(self.graph_sizes),
            "speculation": self.speculation and self.speculation.to_dict(),
            "adapters": self.adapters and self.adapters.to_dict(), "sums": self.sums,
            "heads": self.heads, "host_more_s": self.host_more_s, "release": self.release,
        }  # fmt: skip


def captured(batch: int) -> int:
    """The smallest size of a CUDA graph that engines capture by default (1, 2, 4, multiples of 8) and holds the batch.

    >>> [captured(batch) for batch in (1, 3, 8, 9, 100)]
    [1, 4, 8, 16, 104]
    """
    return next((size for size in (1, 2, 4) if batch <= size), -(-batch // 8) * 8)


def _is_count(value: object, least: int = 1) -> bool:
    """Whether this is a whole number that floating point can hold."""
    number = whole(value)
    return number is not None and least <= number <= LARGEST


def _rising(sizes: object) -> bool:
    """Whether these are whole numbers, 1 or more, each above the one before."""
    if not isinstance(sizes, tuple | list) or not all(_is_count(size) for size in sizes):
        return False
    return all(low < high for low, high in pairwise(sizes))
