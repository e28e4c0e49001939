"""How long each step of an engine takes: steps of equal layers, timed by one layer of each kind and the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import KV_FORMATS, WEIGHT_FORMATS, Options
from rooflinekit.decoder.inference import EXCHANGE, step_graph
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import on_tensor_core
from rooflinekit.ir import keyed
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Family, Math
from rooflinekit.kernels.attention_backends import FLASH, TENSORRT
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.libraries import formats_channels_last
from rooflinekit.published.stated import ENGINES
from rooflinekit.serving.settings import Heads, captured
from rooflinekit.step.energy import kernels_j_of
from rooflinekit.timing.energy import PowerLaw
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing, time_kernels

ALL_REDUCE = "serving.all_reduce"
ATTENTION = "serving.paged_attention"
GROUPED = "serving.grouped_mm"


#: Tokens are rounded to so many parts of a power of two, and time is linear between: a step of this grid is 4 to 9 % of
#: the tokens, within which products of whole tiles differ by no more.
_PARTS = 8
#: Of a step's tokens, so many fill the tiles of its products: time jumps behind each multiple. Above so many tokens a
#: jump is less than the grid's step.
_TILE, _TILES_TO = 256, 8192


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one prompt that a step reads, behind `start` that the cache holds."""

    start: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class StepTimes(Options):
    """Seconds of the steps of one decoder on one machine (or on `tp` of them), or joules of one GPU's kernels in them,
    beside idling.

    A step is timed with at most two layers of each kind, and what the second takes stands for all further ones: they
    find in the cache what it finds. Decoding batches are filled up to the sizes that engines capture CUDA graphs for
    (`padded`); contexts lie between powers of two, where time is linear. Batches are those of one group of `tp` GPUs.

    Raises InputError for tp above 1 without `collective_s`.
    """

    decoder: Decoder
    machine: Machine
    padded: Callable[[int], int] = captured
    collective_s: CollectiveTime | None = None
    own_sums: bool = False  # by the engine's kernels, where these are faster than `collective_s`
    graphs: bool = True  # steps are CUDA graphs
    heads: Heads = "together"  # how those that share keys read them while decoding, as of `Engine`
    joules: bool = False
    _graphs: dict[tuple[str, bool], Graph] = field(default_factory=dict)
    _timings: dict[tuple[object, ...], tuple[Timing, ...]] = field(default_factory=dict)  # by step and sizes
    _known: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)  # by what `parts` is asked
    _sums: dict[tuple[float, int], float] = field(default_factory=dict)  # seconds of all-reduces, by bytes and GPUs

    def __post_init__(self) -> None:
        if self.gpus > 1 and self.collective_s is None:
            over = f"tp {self.tp}" if self.dp == 1 else f"dp {self.dp}"
            raise InputError(
                f"{over}: the GPUs sum their results over a link, whose speed a GPU's specification does not "
                "tell: name a cluster instead of the GPU, such as dgx-h100 (rooflinekit clusters lists them)"
            )

    def by_part(self, timings: Sequence[Timing]) -> Mapping[str, float]:
        """The sum of each layer by its name, and of the rest under ""."""
        each = map(self.step_part_s, timings)
        if self.joules:
            law = PowerLaw.of(self.machine)
            assert law is not None  # see `Installed.play`
            drawn = kernels_j_of(timings, self.launched, law).values()
            each = map(sum, zip(*(part.tolist() for part in drawn), strict=True))
        return keyed.sums(zip(map(part_of, timings), each, strict=True))

    def decode(self, sequences: int, context: float, part: int = 0) -> float:
        """One token for each sequence of, on average, `context` tokens; part 1: the attention alone of this step."""

        def at(size: int, tokens: int) -> float:
            return self.parts("decode", ATTENTION, batch=size, context=tokens)[part]

        return _on_grid(self.padded(sequences), lambda size: _on_grid(context, lambda tokens: at(size, tokens), 1))

    def step(self, chunks: Sequence[Chunk], sequences: int, context: float) -> float:
        """`chunks` of prompts beside `sequences` of `context` tokens on average, the new one included.

        Put together from few steps that are timed: all tokens pass the matrices together, as those of one prompt do;
        each sequence has an answer and adapters of its own; attention of prompts and of the others are apart.
        """
        if not chunks:
            return self.decode(sequences, context)
        tokens = sum(chunk.tokens for chunk in chunks) + sequences * (1 + self.drafted)
        going_on = self.decode(sequences, context, 1) if sequences else 0.0
        dense = _on_tiles(tokens, self._dense) + _on_grid(sequences + len(chunks), self._answers)
        return dense + self._reading(chunks) + going_on

    def _dense(self, tokens: int) -> float:
        whole, attention = self.parts("prefill", ATTENTION, batch=1, seq=tokens)
        return whole - attention

    def _answers(self, sequences: int) -> float:
        """What the same tokens take more, also without attention, where each is of a sequence of its own."""
        whole, attention = self.parts("decode", ATTENTION, batch=sequences, context=1)
        return max(0.0, whole - attention - self._dense(sequences * (1 + self.drafted)))

    def _reading(self, chunks: Sequence[Chunk]) -> float:
        """Attention of the prompts: of n whole ones that of n of their mean length, by their pairs of tokens; of a
        part what it adds to the prompt before it, and a launch.
        """
        whole = [chunk.tokens for chunk in chunks if not chunk.start]
        seconds = 0.0
        if whole:
            mean = sum(whole) / len(whole)
            pairs = sum(tokens**2 for tokens in whole) / (len(whole) * mean**2)
            seconds = pairs * self._prompts(len(whole), mean)
        for chunk in chunks:
            if chunk.start:
                end, start = (self._prompts(1, n) for n in (chunk.start + chunk.tokens, chunk.start))
                seconds += max(0.0, end - start) + self._prompts(1, 1)
        return seconds

    def _prompts(self, prompts: int, tokens: float) -> float:
        # More than four fill the GPU: theirs is in proportion to their number.
        timed = prompts if prompts <= 4 else 1 << (prompts - 1).bit_length()
        each = _on_grid(tokens, lambda count: self.parts("prefill", ATTENTION, batch=timed, seq=count)[1])
        return prompts / timed * each

    def graph(self, step: str, *, whole: bool = True) -> Graph:
        """The step named "prefill", "decode" or "mixed": of the decoder, or of one with two layers of each kind."""
        key = step, whole
        if key not in self._graphs:
            decoder = self.decoder if whole else thinned(self.decoder)
            self._graphs[key] = step_graph(decoder, step, self, block_cores=self._block_cores)
        return self._graphs[key]

    def parts(self, step: str, kind: str, **sizes: int) -> tuple[float, float]:
        """A whole step at these sizes, and its kernels of one kind; what was timed is kept."""
        key = self.joules, step, kind, *sizes.items()
        if key not in self._known:
            timings = self.timings(step, **sizes)
            of_kind = tuple(timing for timing in timings if timing.kernel.kind == kind)
            whole, part = (with_layers(self.decoder, self.by_part(some)) for some in (timings, of_kind))
            self._known[key] = whole, part
        return self._known[key]

    def timings(self, step: str, **sizes: int) -> tuple[Timing, ...]:
        """Timings of the kernels of a step of the thinned decoder, at these sizes."""
        key = step, *sizes.items()
        if key not in self._timings:
            graph, device = self.graph(step, whole=False).at(**sizes), self.machine.device
            kernels = [kernel for issue in issues_of(graph, formats_channels_last(device), device)
                       for kernel in issue.kernels]  # fmt: skip
            self._timings[key] = time_kernels(kernels, self.launched)
        return self._timings[key]

    @cached_property
    def _block_cores(self) -> bool:
        """Whether tensor cores take blocks of 4 bits with their scales."""
        return on_tensor_core(self.machine.device, Math.FP4)

    @cached_property
    def launched(self) -> Machine:
        """The machine with the gap between kernels that a CUDA graph leaves, or the stream without one."""
        gap = self.machine.values["kernel_gap_graph" if self.graphs else "kernel_gap"]
        return self.machine.with_values({**self.machine.values, "kernel_gap": gap})

    def prefill_s(self, prompts: int, seq: int) -> float:
        """Seconds to read `prompts` prompts of `seq` tokens together."""
        return self.parts("prefill", ATTENTION, batch=prompts, seq=seq)[0]

    def step_part_s(self, timing: Timing) -> float:
        """A kernel's time; of an all-reduce that of the collective."""
        if timing.kernel.family is Family.ATTENTION:
            alone_s = _by_itself_s(timing, self.machine, self.heads)
            more_s = max(0.0, alone_s - max(timing.memory_s, timing.compute_s))
            return timing.total_s + more_s + self._call_s(timing)
        engine = "" if self._fused_experts else self.release.partition(":")[0]
        if timing.kernel.kind == "serving.combine_experts":
            return timing.total_s + self.decoder.experts * EXPERT_CALL_S.get(engine, 0.0)
        slow = engine in GROUPED_SHARE and self.decoder.experts and WEIGHT_FORMATS[self.weights].bits < 16
        if timing.kernel.kind == GROUPED and slow:
            return timing.total_s + _more_s(timing, self.machine, GROUPED_SHARE[engine])
        if timing.kernel.kind != ALL_REDUCE or self.collective_s is None:
            return timing.total_s
        gpus = self.gpus if timing.kernel.module.endswith(f".{EXCHANGE}") else self.tp
        key = float(timing.kernel.cost.write_bytes), gpus
        if key not in self._sums:
            own, times = self.own_sums, self.collective_s
            self._sums[key] = one_shot_s(*key, times, self._barrier_s) if own else times(*key)
        return self._sums[key]

    @cached_property
    def _fused_experts(self) -> bool:
        """Whether kernels of FlashInfer's take experts: where tensor cores multiply 4 bits with their scales."""
        form = WEIGHT_FORMATS[self.weights]
        return form.bits == 4 and self._block_cores and not form.on_block_cores().weight_only

    @property
    def _barrier_s(self) -> float:
        """Seconds of a sum of few bytes by the engine's kernel."""
        barrier_s = _TENSORRT_BARRIER_S if self.release.startswith("tensorrt-llm") else _BARRIER_S
        return barrier_s * (_BLACKWELL_BARRIER if self.machine.device.cuda_generation >= 10 else 1)

    def _call_s(self, timing: Timing) -> float:
        """What a call of attention takes beside its traffic: of sequences that go on, of heads that share keys."""
        gemm, wide = timing.kernel.cost.gemms[0], KV_FORMATS[self.kv].itemsize > 1
        decodes = self.heads == "together" and gemm.needed is None and gemm.m > 1
        return CALL_S.get(timing.kernel.algorithm, 0.0) if decodes and wide else 0.0


#: Of a decoding call, what it takes beside its traffic. Of others, on Blackwell and over fp8 aiconfigurator's tables
#: show less than 5 µs.
CALL_S = {
    TENSORRT: ENGINES["TensorRT-LLM's decoding call"].value, FLASH: ENGINES["FlashAttention's decoding call"].value
}  # fmt: skip
#: Few rows of an expert wait for operands and not for this. FlashInfer's kernels, which Blackwell has for 4 bits with
#: their scales, have neither: they sort by themselves and are as fast as plain ones. Kimi K2 and MiniMax M2 in nvfp4 on
#: B200, which told nothing, are 31 to 51 and 20 to 30 % off per token with the former, 3 to 6 and 4 to 10 without.
EXPERT_CALL_S = {"vllm": ENGINES["expert of a layer"].value}
GROUPED_SHARE = {"vllm": ENGINES["grouped products"].value}


def _more_s(timing: Timing, machine: Machine, share: float) -> float:
    """Seconds that a grouped product takes longer at this share of the peak; unpacking weights takes what it does."""
    cost = timing.kernel.cost
    unpacked_s = float(cost.vector_flop) / machine.device.vector_peak["fp32"]
    needed = 2 * sum(float(gemm.multiply_adds) for gemm in cost.gemms)
    slower_s = unpacked_s + needed / (share * machine.matrix_rate(timing.kernel.math).peak)
    return timing.longer_s(max(timing.compute_s, slower_s))


#: Threads of a block of TensorRT-LLM's masked multi-head attention, numbers that one loads at once, and loads that it
#: has under way, of keys and of values (decoderMaskedMultiheadAttentionTemplate.h, as remembered). By them a token of
#: 128 numbers takes `load_cycles` · 0.023: 10.7 ns on an H100 and 15.0 on an A100; llm_inference_bench's steps grow by
#: 8.4 to 12.6 and 10.6 to 15.2 ns a token and layer, on 1, 2 and 4 GPUs alike.
_THREADS, _AT_ONCE, _LOADS = 256, 8, (4, 8)
#: Heads that may share keys where TensorRT-LLM's kernel reads them together, XQA as compiled beforehand, and the part
#: of the SMs that its blocks have to fill (decoderXQARunner: nbQHeadsPerKV, kEnableMinBlockFactor; as remembered).
_XQA, _XQA_PART = (1, 8), 1 / 4
#: Queries of a block of a kernel for prompts.
_TILE = 128


def _by_itself_s(timing: Timing, machine: Machine, heads: Heads) -> float:
    """Seconds of heads that read the cache each by itself; 0 of prompts, and of heads that read it together.

    Apart, blocks of the heads that share keys run side by side, so that DRAM gives them once and the L2 to each. By
    threads or by tiles one block, and so one SM, takes a head of a sequence: its cycles count, and rounds of blocks.
    """
    gemm = timing.kernel.cost.gemms[0]
    if heads == "together" or gemm.needed is not None:  # of prompts the product is needed for a triangle alone
        return 0.0
    if heads == "apart":
        return float(gemm.m * timing.kernel.cost.read_bytes / machine.l2_bandwidth) if gemm.m > 1 else 0.0
    values, sms = machine.values, machine.sm_count
    if heads == "xqa" and gemm.m in _XQA and gemm.batch >= sms * _XQA_PART:
        return 0.0
    if heads != "tiles":
        loads = gemm.k / (_THREADS * _AT_ONCE) * sum(1 / loads for loads in _LOADS)
        token_s = values["load_cycles"] * loads / machine.clock
    else:
        rate = min(machine.matrix_rate(timing.kernel.math).peak, values["warp_mma_flop"] * sms * machine.clock)
        token_s = 4 * _TILE * gemm.k * sms / (rate * values["attention_share"])
    return float(math.ceil(gemm.batch * gemm.m / sms) * gemm.n * token_s)


def part_of(timing: Timing) -> str:
    """The layer that a kernel belongs to; "" for none."""
    first, _, rest = timing.kernel.module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "layers" else ""


def _kinds(decoder: Decoder) -> tuple[int, int, int]:
    """Layers of each kind, in their order: dense before experts, others that see everything, those with a window."""
    return (
        decoder.dense_layers, decoder.full_layers - decoder.dense_layers, decoder.layers - decoder.full_layers
    )  # fmt: skip


def thinned(decoder: Decoder) -> Decoder:
    """The decoder with no more than two layers of each kind."""
    dense, full, windowed = (min(2, layers) for layers in _kinds(decoder))
    return replace(
        decoder,
        layers=dense + full + windowed,
        dense_layers=dense,
        windowed_layers=windowed if decoder.window else None,
    )


def with_layers(decoder: Decoder, seconds: Mapping[str, float]) -> float:
    """What the whole decoder takes, by the parts of the thinned one."""
    total, last = sum(seconds.values()), -1
    for thin, whole in zip(_kinds(thinned(decoder)), _kinds(decoder), strict=True):
        last += thin
        if whole > thin:
            total += (whole - thin) * seconds.get(f"layers.{last}", 0.0)
    return total


def _on_grid(value: float, at: Callable[[int], float], parts: int = _PARTS) -> float:
    """A function of whole numbers at any number of 1 or more: on the line between the points of a grid around it.

    The grid has `parts` points between powers of two; up to so many, and up to 2, each whole number is one.
    """
    octave = math.floor(math.log2(value)) if value >= 1 else 0
    step = max(1, 2**octave // parts)
    low = math.floor(value / step) * step if value >= 1 else 1
    return _between(low, low + step, max(value, 1), at)


def _on_tiles(value: float, at: Callable[[int], float]) -> float:
    """The same where a function jumps behind each multiple of `_TILE`: on the line between two jumps."""
    if not _TILE < value <= _TILES_TO:
        return _on_grid(value, at)
    last = math.ceil(value / _TILE) * _TILE
    return _between(last, last - _TILE + 1, max(value, last - _TILE + 1), at)


def _between(first: int, other: int, value: float, at: Callable[[int], float]) -> float:
    """At a number between two: on the line; the other is not worked out where it is the first."""
    known, share = at(first), (value - first) / (other - first)
    return known if share == 0 else known + share * (at(other) - known)


_BARRIER_S, _TENSORRT_BARRIER_S, _BLACKWELL_BARRIER, _SECOND = (
    ENGINES[name].value for name in ("barrier", "TensorRT-LLM's barrier", "Blackwell's barrier", "second barrier")
)
_MIB = 2**20


#: Seconds of an all-reduce of so many bytes over so many GPUs.
CollectiveTime = Callable[[float, int], float]


def one_shot_s(size_bytes: float, gpus: int, collective_s: CollectiveTime, barrier_s: float = _BARRIER_S) -> float:
    """Seconds of a sum by the fastest of three: each GPU reads all of all others (one shot), or sums a part and gathers
    the rest (two shots), or the collective that `collective_s` times.

    Bytes pass at the rate of that collective's large messages: 2·(n − 1)/n of each byte. barrier_s: of a sum of few
    bytes; a second barrier takes as much longer.
    """
    share = 2 * (gpus - 1) / gpus
    small_s, large_s = (collective_s(size, gpus) for size in (16 * _MIB, 64 * _MIB))
    rate = share * 48 * _MIB / (large_s - small_s)
    return min(
        barrier_s + (gpus - 1) * size_bytes / rate,
        barrier_s * (1 + _SECOND) + share * size_bytes / rate,
        collective_s(size_bytes, gpus),
    )
