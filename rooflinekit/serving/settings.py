"""How an engine is set up, and what its CPU does between steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import Adapters, Sampling
from rooflinekit.errors import InputError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.ir.arguments import checked, expect, expect_count
from rooflinekit.ir.sizes import LARGEST, finite, shown, whole
from rooflinekit.published.stated import ENGINES

HostWork = Literal["overlapped", "serial"]
Policy = Literal["mixed", "prefill-first"]
Reserve = Literal["grow", "own", "whole"]
Sums = Literal["nccl", "one-shot"]
Heads = Literal["together", "apart", "threads", "xqa", "tiles"]

HOST_STEP_S, HOST_SEQUENCE_S, HOST_SHARED_S, HOST_TOKEN_S, HOST_SHARED_TOKEN_S = (
    ENGINES[f"CPU of a {name}"].value for name in ("step", "sequence", "shared step", "token", "shared token")
)
REQUEST_S, INPUT_TOKEN_S, TRTLLM_REQUEST_S, SGLANG_TOKEN_S, SGLANG_REQUEST_S, THREAD_SPREAD = (
    ENGINES[name].value for name in (
        "request", "token of a request", "TensorRT-LLM's request", "SGLang's token", "SGLang's request",
        "SGLang's thread",
    )
)  # fmt: skip


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
    full the last one is read anew ("grow": vLLM), the same, but it is let in only where all its tokens would fit beside
    what the others have so far ("own": SGLang), or for all its tokens ("whole": TensorRT-LLM). sequences:
    most of them at once, beside what the cache holds (`max_num_seqs`, `max_batch_size`; None for any number). layer_s:
    seconds in which the CPU launches a layer of a step that reads prompts: such steps are no CUDA graphs, and none is
    shorter than its layers' launches and the CPU's other work (0: never in the way).
    launches_ahead: it launches them while the GPU works on layers before; otherwise their launches count beside the
    GPU's work (vLLM on Blackwell's data centre GPUs).
    request_s, input_s: seconds in which the server before the engine receives a request, and each token of its prompt
    besides; requests do not wait for each other there. token_s, request_work_s: in which one thread of that server
    hands out a token of an answer, and takes up a request, the tokens of whose prompt it then reads as well: whatever
    comes meanwhile waits, first come first served (SGLang; token_s 0: there is no such thread). wait_steps: that
    prompts wait for further ones while sequences go on, unless they fill a step (TensorRT-LLM's
    `batch_wait_timeout_iters`). memory_share: of the GPU's memory that the engine takes for weights, work space and
    cache; None for what SGLang takes by default (`left_bytes`). graph_sizes: numbers of sequences that decoding steps
    are captured for as CUDA graphs (`cudagraph_capture_sizes`): a step is filled up to the next; a larger one is
    launched kernel by kernel, `layer_s` a layer or more (None for 1, 2, 4 and multiples of 8 without end; () for no
    graphs, as vLLM's `enforce_eager`, and vLLM of 2023). speculation: tokens that a draft proposes. adapters: LoRA
    adapters that sequences use. sums: results are summed over GPUs by "nccl", or by the engine's own kernels, over
    links that let each GPU read the others' memory ("one-shot": all-reduces fused with the normalization, in vLLM and
    TensorRT-LLM on B200). heads: those that share keys read them "together" while decoding (FlashAttention, FlashInfer,
    TensorRT-LLM's XQA), or "apart", each once more from the L2 cache (vLLM's PagedAttention kernels), or by one block
    of a single SM for each head and sequence: "threads" (TensorRT-LLM's masked multi-head attention of 2023), "xqa"
    (the same up to 0.10, wherever XQA does not reach), or "tiles", by the kernel of prompts (DeepSpeed-MII).
    sampling: each next token is the most likely one ("greedy"), or drawn of the top p, for which all logits are sorted
    ("sorted": vLLM wherever a request or the model's generation_config.json has a top_p below 1; `drawn_of`), or
    whichever of the two that file asks for, which vLLM has followed since 0.7 ("published": `Decoder.sampling`).
    host_more_s: seconds of the CPU in each step besides. host_sequence_s, host_token_s: and for each sequence in
    it, and for each token that these hold. handed: where several GPUs share the layers it also hands the inputs of
    each step to their processes (`HOST_SHARED_S`, `HOST_SHARED_TOKEN_S`; vLLM up to 0.7). release: the engine and
    version whose defaults `Engine.of` took, for what is said of them.

    Raises InputError for another word or number.
    """

    host: HostWork = "overlapped"
    policy: Policy = "mixed"
    step_tokens: int = 8192
    chunks: bool = True
    reserve: Reserve = "grow"
    sequences: int | None = None
    layer_s: float = 0.0
    launches_ahead: bool = True
    request_s: float = REQUEST_S
    input_s: float = INPUT_TOKEN_S
    token_s: float = 0.0
    request_work_s: float = 0.0
    wait_steps: int = 0
    memory_share: float | None = 0.9
    graph_sizes: tuple[int, ...] | None = None
    speculation: Speculation | None = None
    adapters: Adapters | None = None
    sums: Sums = "nccl"
    heads: Heads = "together"
    sampling: Sampling = "published"
    host_more_s: float = 0.0
    host_sequence_s: float = HOST_SEQUENCE_S
    host_token_s: float = 0.0
    handed: bool = False
    release: str | None = None
    told: tuple[str, ...] = field(default=(), repr=False)  # names of what `Engine.of` was told beside the release

    @classmethod
    def of(cls, release: str, **changes: Any) -> Engine:
        """An engine by name and version, such as "vllm:0.12", "sglang:0.5.8" or "tensorrt-llm:1.0".

        It is set as its server is by default, but for the changes: on a GPU of 70 GiB or more, until a walk puts it on
        another (`on`). Without a version it is the newest known.

        Raises InputError for another engine or version, and as the class does.

        >>> Engine.of("sglang:0.5.8").policy, Engine.of("sglang:0.5.8", policy="mixed").policy
        ('prefill-first', 'mixed')
        """
        return cls(**{**release_of(release).settings, **changes, "release": release, "told": tuple(changes)})

    def on(self, device: Device) -> Engine:
        """The engine as its server sets itself on this GPU, where neither `Engine.of` nor a later change says else."""
        if self.release is None:
            return self
        release = release_of(self.release)
        if release.name == "tensorrt-llm" and device.vendor.lower() != "nvidia":
            maker = f"{device.name} is of {device.vendor}"
            raise InputError(f"engine {self.release!r}: runs on GPUs of NVIDIA alone; {maker}")
        plain = Engine(**release.settings)
        sized = {
            name: value for name, value in release.sized(device).items()
            if name not in self.told and getattr(self, name) == getattr(plain, name)
        }  # fmt: skip
        return replace(self, **sized)

    def __post_init__(self) -> None:
        if self.release is not None:
            release_of(self.release)
        words_of = {"host": HostWork, "policy": Policy, "reserve": Reserve, "sums": Sums, "heads": Heads,
                    "sampling": Sampling}  # fmt: skip
        for name, kind in words_of.items():
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise InputError(f"engine {name} {value!r}: expected {' or '.join(known)}{nearest(str(value), known)}")
        expect_count("engine step_tokens", self.step_tokens)
        expect_count("engine wait_steps", self.wait_steps, least=0)
        if self.sequences is not None:
            expect_count("engine sequences", self.sequences, words="1 or more, or None for any number")
        for name in (one.name for one in fields(self) if one.name.endswith("_s")):
            seconds = getattr(self, name)
            expect(finite(seconds) and seconds >= 0, f"engine {name}", "seconds, 0 or more", seconds)
        share = self.memory_share
        fits = share is None or (finite(share) and 0 < share <= 1)
        expect(fits, "engine memory_share", "a share above 0, up to 1", share)
        words = "numbers of sequences, 1 or more, each above the one before, such as (1, 2, 4, 8)"
        expect(self.graph_sizes is None or _rising(self.graph_sizes), "engine graph_sizes", words, self.graph_sizes)

    @property
    def name(self) -> str:
        """Of the engine that `Engine.of` was asked for; nothing of another."""
        return release_of(self.release).name if self.release else ""

    @property
    def named(self) -> str:
        """The name that `Engine.of` was asked for, with the version where that was told; nothing of another engine."""
        release = release_of(self.release) if self.release else None
        if release is None:
            return ""
        return f"{release.name}:{release.version}" if release.known else release.name

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
        """Seconds in which the CPU launches the layers of a step; 0 where the step is a CUDA graph."""
        sizes = self.graph_sizes
        launched = reads or (sizes is not None and (not sizes or sequences > sizes[-1]))
        return self.layer_s * layers if launched else 0.0

    def step_s(self, gpu_s: float, host_s: float, launch_s: float = 0.0) -> float:
        """A step with the CPU's part in it: overlapped, it is no shorter than launching and the CPU's other work."""
        if not self.launches_ahead:
            gpu_s, launch_s = gpu_s + launch_s, 0.0
        return max(gpu_s, launch_s) + host_s if self.host == "serial" else max(gpu_s, launch_s + host_s)

    def received_s(self, tokens: float) -> float:
        """From sending a prompt of so many tokens to the engine's queue."""
        return self.request_s + self.input_s * tokens

    def thread_s(self, input: int, output: int) -> float:
        """Seconds of the front end's thread for a request and its answer; 0 where there is no such thread."""
        return self.request_work_s + self.input_s * input + self.token_s * output if self.token_s else 0.0

    def host_s(self, sequences: float, tokens: float = 0.0, gpus: int = 1) -> float:
        """What the CPU does for a step of sequences that hold so many tokens together, on so many GPUs, in seconds."""
        step_s, token_s = HOST_STEP_S + self.host_more_s, self.host_token_s
        if self.handed and gpus > 1:
            step_s, token_s = step_s + HOST_SHARED_S, token_s + HOST_SHARED_TOKEN_S
        return step_s + self.host_sequence_s * sequences + token_s * tokens

    def left_bytes(self, tp: int) -> int:
        """What SGLang leaves beside weights and cache unless it is told otherwise: for steps of `step_tokens`, CUDA
        graphs of 256 sequences, of 512 over four GPUs or more, and GPUs that share layers (0.5.6, server_args.py).
        """
        graphs = 256 if tp < 4 else 512
        mib = 512 + 1.5 * max(self.step_tokens, 2048) + 2 * graphs + 128 * tp
        return int(max(mib, 10240) * 2**20)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "told"} | {
            "graph_sizes": None if self.graph_sizes is None else list(self.graph_sizes),
            "speculation": self.speculation and self.speculation.to_dict(),
            "adapters": self.adapters and self.adapters.to_dict(),
        }


def captured(batch: int) -> int:
    """The smallest size of a CUDA graph that engines capture by default (1, 2, 4, multiples of 8) and holds the batch.

    >>> [captured(batch) for batch in (1, 3, 8, 9, 100)]
    [1, 4, 8, 16, 104]
    """
    return next((size for size in (1, 2, 4) if batch <= size), -(-batch // 8) * 8)


def _rising(sizes: object) -> bool:
    if not isinstance(sizes, tuple | list) or None in map(whole, sizes):
        return False
    return all(low < high <= LARGEST for low, high in pairwise((0, *sizes)))


# Engines by name and version: which scheduler each has, and what it is set to unless it is told otherwise.
#
# A row holds from its version on, until the next row of the same engine. Defaults are those of the engine's own server
# on a GPU of 70 GiB or more; docs/serving.md has the table with its sources.


_LAYER_S = ENGINES["launches of a layer"].value
_BLACKWELL = 10  # generation of its data centre GPUs
_VLLM_V0 = {"host": "serial", "policy": "prefill-first", "chunks": False, "sequences": 256, "sampling": "greedy",
            "host_token_s": HOST_TOKEN_S, "handed": True}  # fmt: skip
_VLLM_V1 = {"host": "serial", "sequences": 1024, "layer_s": _LAYER_S}
_SGLANG = {"policy": "prefill-first", "reserve": "own", "memory_share": None, "token_s": SGLANG_TOKEN_S,
           "request_work_s": SGLANG_REQUEST_S, "sampling": "greedy"}  # fmt: skip
_TRTLLM = {"chunks": False, "reserve": "whole", "sampling": "greedy"}

#: By engine, the oldest first: the version from which on a row holds, and how `Engine` is set there.
RELEASES: Mapping[str, tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...]] = {
    "vllm": (
        ((0, 6), _VLLM_V0),
        ((0, 8), _VLLM_V1),
        ((0, 14), {**_VLLM_V1, "host": "overlapped"}),
    ),
    "sglang": (
        ((0, 3), {**_SGLANG, "host": "serial"}),
        ((0, 4), _SGLANG),
    ),
    "tensorrt-llm": (
        ((0, 8), {**_TRTLLM, "graph_sizes": (), "heads": "xqa"}),
        ((0, 11), {**_TRTLLM, "graph_sizes": ()}),
        ((1, 0), {**_TRTLLM, "sequences": 2048, "layer_s": _LAYER_S, "request_s": TRTLLM_REQUEST_S}),
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """An engine's name and version, and how it is set by default."""

    name: str
    version: str  # as asked for, or of the newest row
    since: str  # of the row
    known: bool  # whether a version was asked for
    settings: Mapping[str, Any]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to compare with: 0.5.6.post2 is (0, 5, 6)."""
        return _numbers(self.version)

    def sized(self, device: Device) -> Mapping[str, Any]:
        """What its server sets by the GPU's memory (vllm/engine/arg_utils.py, `get_batch_defaults`, which asks for
        "a100" in the name too; python/sglang/srt/server_args.py; both as remembered), and how it runs on Blackwell's
        data centre GPUs, as aiconfigurator's B200 tells: vLLM and TensorRT-LLM sum over GPUs by kernels of their own,
        and steps of vLLM that read prompts take the launches of their layers beside the GPU's work.

        Why the latter is not known: TensorRT-LLM launches ahead there, and so does vLLM on H100, where first tokens
        of ten sets would be 1.1 to 1.5 times too long otherwise.
        """
        gib = device.dram.capacity / 2**30
        if self.name == "sglang":
            least = {160: 16384, 60: 8192, 35: 4096, 0: 2048}
            return {"step_tokens": next(tokens for above, tokens in least.items() if gib >= above)}
        if self.numbers < ((0, 8) if self.name == "vllm" else (1, 0)):
            return {}
        blackwell = device.cuda_generation == _BLACKWELL
        found: dict[str, Any] = {"sums": "one-shot"} if blackwell else {}
        if self.name == "vllm":
            found["launches_ahead"] = not blackwell
            if gib < 70 or "a100" in device.title.lower():
                found |= {"step_tokens": 2048, "sequences": 256}
        return found

    def __str__(self) -> str:
        since = f"the defaults since {self.since}"
        return f"{self.name} {self.version} ({since})" if self.known else f"{self.name} ({since}, the newest known)"


def release_of(text: str) -> Release:
    """The row of an engine and version such as "vllm:0.12"; without a version the newest.

    Raises InputError for another engine, for what is no version, and for one before the first row.

    >>> str(release_of("sglang:0.5.8")), release_of("vllm:0.7.3").settings["policy"]
    ('sglang 0.5.8 (the defaults since 0.4)', 'prefill-first')
    """
    if not isinstance(text, str):
        raise InputError(f"engine: expected a name such as 'vllm:0.12'; got {shown(text)}")
    name, colon, version = text.strip().lower().partition(":")
    rows = RELEASES.get(name)
    if rows is None:
        raise InputError(f"engine {text!r}: expected {', '.join(RELEASES)}, as vllm:0.12{nearest(name, RELEASES)}")
    if colon and not _numbers(version):
        raise InputError(f"engine {text!r}: expected a version behind the colon, such as {name}:{_text(rows[-1][0])}")
    held = [row for row in rows if not colon or row[0] <= (*_numbers(version), 0)]
    if not held:
        raise InputError(f"engine {text!r}: known from {name} {_text(rows[0][0])} on")
    since, settings = _text(held[-1][0]), held[-1][1]
    return Release(name, version.removeprefix("v") if colon else since, since, bool(colon), settings)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)([.+-]?[a-z][\w.+-]*)?", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_MOST_TOKENS = 64


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """In each step a draft proposes `tokens` tokens, and the model works on these and one more of each sequence.

    acceptance: chance that a proposed token is kept, each independently of the others; those behind the first that is
    not are lost. Or by position: the share of steps in which the first, the second, … is kept, as vLLM logs it
    (`spec_decode_num_accepted_tokens_per_pos` over `num_drafts`). draft: the model that proposes, one step a token,
    whole on each GPU; None for proposals that cost the GPU nothing (looked up in the prompt). A head that goes with the
    model (EAGLE, MTP, Medusa) is a decoder of one layer. weights: format of the draft's.

    Raises InputError for numbers out of range.
    """

    tokens: int
    acceptance: float | tuple[float, ...]
    draft: Decoder | None = field(default=None)
    weights: str = "bf16"

    def __post_init__(self) -> None:
        expect_count("speculation tokens", self.tokens, most=_MOST_TOKENS)
        by_position = isinstance(self.acceptance, tuple)
        shares = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        inside = all(finite(share) and 0 <= share <= 1 for share in shares)
        expect(inside, "speculation acceptance", "the chance that a proposed token is kept, 0 to 1", self.acceptance)
        falling = all(second <= first for first, second in pairwise(shares))
        expect(
            not by_position or (len(shares) == self.tokens and falling),
            "speculation acceptance",
            f"one share for each of {self.tokens} proposed tokens, none above the one before",
            self.acceptance,
        )

    @property
    def given(self) -> float:
        """Tokens that a step gives a sequence on average: 1 + a + a² + … + a^tokens (arXiv 2211.17192, eq. 1), or one
        and the shares by position.

        >>> Speculation(tokens=3, acceptance=0.5).given, Speculation(tokens=2, acceptance=(0.75, 0.5)).given
        (1.875, 2.25)
        """
        if isinstance(self.acceptance, tuple):
            return 1 + math.fsum(self.acceptance)
        return math.fsum(self.acceptance**i for i in range(self.tokens + 1))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        a = self.acceptance
        return {
            "tokens": self.tokens, "acceptance": list(a) if isinstance(a, tuple) else a, "given": self.given,
            "weights": self.weights,
            "draft": None if self.draft is None else self.draft.name,
        }  # fmt: skip


_MOST_COPIES = 2**12


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
        for name, value in (("prefill", self.prefill), ("decode", self.decode), ("prefill_tp", self.prefill_tp or 1)):
            expect_count(f"disaggregation {name}", value, most=_MOST_COPIES)
        rate, latency_s = self.link_bytes_per_s, self.link_latency_s
        expect(rate > 0, "disaggregation link_bytes_per_s", "bytes a second, above 0", rate)
        expect(finite(latency_s) and latency_s >= 0, "disaggregation link_latency_s", "seconds, 0 or more", latency_s)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check_price(price_usd_per_hour: float | None) -> None:
    """Raises InputError for a price that is not above 0."""
    fits = price_usd_per_hour is None or (finite(price_usd_per_hour) and price_usd_per_hour > 0)
    expect(fits, "price_usd_per_hour", "dollars for one hour of a GPU, above 0", price_usd_per_hour)
