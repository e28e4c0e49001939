"""What is known of a decoder's training step on many GPUs: time by cause, memory by account, utilization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.model.machine import Machine, deviations
from rooflinekit.serving.decoder import Decoder
from rooflinekit.step.accuracy import Accuracy, accuracy_of
from rooflinekit.step.bounds import SOURCES
from rooflinekit.step.energy import Draws, TeamEnergy
from rooflinekit.step.memory import CONTEXT_BYTES, USABLE_SHARE
from rooflinekit.step.verdict import CONTEXT_SPREAD
from rooflinekit.strategies.groups import Setting
from rooflinekit.strategies.prediction import named
from rooflinekit.training.layout import Layout
from rooflinekit.training.recipe import Recipe
from rooflinekit.units import format_quantity

#: Terms that are waits for links.
SENT = ("tensor", "context", "expert", "copies", "contention", "offload")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingStep(Draws):
    """One step of `batch` sequences of `seq` tokens. All times are seconds."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    cluster: Cluster
    device: Device  # of each GPU
    gpus: int
    batch: int
    seq: int
    pieces: int  # micro-batches of a copy
    terms: Mapping[str, float]  # they add up to `total_s`
    stages: tuple[Accounts, ...]  # memory of a GPU of each stage
    peak_flops: float  # FLOP/s of a GPU's dense products, by the datasheet
    deviation: float  # standard deviation of the logarithm of kernels' time
    link_deviation: float
    host_deviation: float
    energy: TeamEnergy | None = None  # of all GPUs; None where the specification states no power

    @property
    def memory(self) -> Accounts:
        """Of the GPU that needs most."""
        return self.stages[self.fullest]

    @property
    def fullest(self) -> int:
        """The stage of the GPUs that need most, from 0."""
        return max(range(len(self.stages)), key=lambda k: self.stages[k].allocated)

    @property
    def fullest_gpus(self) -> range:
        """Their numbers: stages are the outermost groups."""
        plane = self.gpus // self.layout.pipeline
        return range(self.fullest * plane, (self.fullest + 1) * plane)

    @property
    def total_s(self) -> float:
        """Wall time of the step."""
        return sum(self.terms.values())

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs together."""
        return self.batch * self.seq / self.total_s

    @property
    def model_flop(self) -> float:
        """FLOP that the model asks for: 6 · N · tokens + 12 · layers · width · seq · tokens / 2 (causal).

        N are the numbers of the matrices that a token passes, the output's included and the embedding's table not;
        width is that of all heads together. Forward and backward; nothing that is computed again.
        """
        return self.batch * self.seq * _flop_per_token(self.decoder, self.seq)

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: model FLOP / (time · GPUs · peak) (Chowdhery et al. 2022, appendix B)."""
        return self._utilization(self.model_flop)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilization: with what is computed again (Korthikanti et al. 2022, section 6.3)."""
        again = {"none": 0.0, "full": 1 / 3}.get(self.recipe.recompute)
        if again is None:
            d = self.decoder
            attention = 12 * d.layers * d.heads * d.head_dim * self.seq / 2 * self.batch * self.seq
            return self._utilization(self.model_flop + attention / 3)
        return self._utilization(self.model_flop * (1 + again))

    def _utilization(self, flop: float) -> float:
        return flop / (self.total_s * self.gpus * self.peak_flops) if self.peak_flops else 0.0

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability, by the spreads of kernels, links and host,
        of the load of experts that GPUs share out, and of programs (`step.sources`).

        Raises ValueError for a level outside (0, 1).
        """
        total = self.total_s
        sent = sum(self.terms.get(name, 0.0) for name in SENT) / total
        host = self.terms.get("overhead", 0.0) / total
        parts = ((1 - sent - host) * self.deviation, sent * self.link_deviation, host * self.host_deviation)
        load = (1 - sent - host) * _expert_share(self.decoder) * LOAD if self.layout.expert > 1 else 0.0
        width = math.exp(deviations(level) * math.hypot(*parts, load, SOURCES["decoder training"]))
        return total / width, total * width

    @property
    def accuracy(self) -> Accuracy | None:
        """How far such predictions were off where they were judged."""
        return accuracy_of("decoder training", self.device)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.decoder.name, "parameters": self.decoder.parameters, "cluster": self.cluster.name,
            "gpus": self.gpus, "layout": str(self.layout), "recipe": self.recipe.name,
            "recompute": self.recipe.recompute,
            "offload_layers": self.recipe.offload, "batch": self.batch, "seq": self.seq, "micro_batches": self.pieces,
            "total_s": self.total_s, "interval_s": list(self.interval()), "terms": dict(self.terms),
            "tokens_per_s": self.tokens_per_s, "mfu": self.mfu, "hfu": self.hfu, "memory": self.memory.to_dict(),
            "fullest": {"stage": self.fullest, "first_gpu": self.fullest_gpus[0], "last_gpu": self.fullest_gpus[-1]},
            "energy": None if self.energy is None else self.energy.to_dict(self.interval()),
            "accuracy": None if self.accuracy is None else self.accuracy.to_dict(),
        }  # fmt: skip

    def __str__(self) -> str:
        low, high = self.interval()
        time, least, most = (format_quantity(s, "s") for s in (self.total_s, low, high))
        memory = {name: value for name, value in self.memory.to_dict().items() if name not in ("fits", "probability")}
        lines = [
            f"{self.decoder.name}, {self.batch} × {self.seq} tokens on {self.gpus} GPUs of {self.cluster.name}: {time}"
            f" ({least} to {most}), {self.tokens_per_s:,.0f} tokens/s",
            f"layout {self.layout}; recipe {self.recipe.name}, recompute {self.recipe.recompute}"
            + (f", {self.recipe.offload} layers' activations on the CPU" if self.recipe.offload else ""),
            f"MFU {self.mfu:.1%} = model FLOP {self.model_flop:.3g} / (step · {self.gpus} · {self.peak_flops:.3g} "
            f"FLOP/s); HFU {self.hfu:.1%}",
            f"time: {named(self.terms)}",
            "memory: "
            + ", ".join(f"{k} {format_quantity(v, 'byte', binary=True)}" for k, v in memory.items() if v)
            + ("" if self.memory.fits else " (does not fit)"),
            self._verdict(),
            *([] if self.energy is None else [self.energy.line((low, high))]),
            *([] if self.accuracy is None else [f"judged: {self.accuracy}"]),
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        """Which GPUs are fullest, and how likely they are to have room."""
        first, last = self.fullest_gpus[0], self.fullest_gpus[-1]
        where = f"GPUs {first} to {last}" if last > first else f"GPU {first}"
        stage = f", stage {self.fullest + 1} of {len(self.stages)}" if len(self.stages) > 1 else ""
        return f"fullest: {where}{stage}; {self.memory.probability:.0%} that it fits"


#: Standard deviation of the logarithm of how many tokens come to the fullest GPU's experts, over the mean: models were
#: trained with room for 1.25 times the mean (Fedus et al. 2021, "Switch Transformers", section 2.2). Not fitted.
LOAD = math.log(1.25)


def _expert_share(d: Decoder) -> float:
    """Of a token's FLOP outside attention's scores those of experts."""
    own = 6.0 * d.layers * (3 if d.gated else 2) * d.hidden * d.ffn * d.experts_per_token
    return own / _flop_per_token(d, 0) if d.experts else 0.0


def _flop_per_token(d: Decoder, seq: int) -> float:
    matrices = 3 if d.gated else 2
    attention = d.hidden * d.head_dim * (2 * d.heads + 2 * d.kv_heads)
    network = matrices * d.hidden * (d.ffn * max(1, d.experts_per_token) + d.shared_ffn) + d.hidden * d.experts
    numbers = d.layers * (attention + network) + d.vocab * d.hidden
    return 6.0 * numbers + 12.0 * d.layers * d.heads * d.head_dim * seq / 2


def dense_peak(machine: Machine, recipe: Recipe) -> float:
    """FLOP/s of dense products, by the datasheet, in the format that is multiplied."""
    peaks = machine.device.matrix_peak
    word = "fp8" if recipe.fp8 else {"bfloat16": "bf16", "float16": "fp16"}.get(recipe.dtype.value, "fp32")
    return float(next(peak for name, peak in peaks.items() if str(name) == word)) if word in map(str, peaks) else 0.0


# Where a GPU's memory goes in a training step, by account.


#: Of cuBLAS, kept from its first product on: by PyTorch twice 4 MiB, from compute capability 9.0 on eight times
#: (aten/src/ATen/cuda/CUDABlas.cpp), as CUBLAS_WORKSPACE_CONFIG=:4096:8 of deterministic steps has it on every GPU;
#: and by Transformer Engine 4 and 32 MiB (transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes).
_MIB = 2**20
_WORKSPACE = {False: 8 * _MIB, True: 32 * _MIB}
_WORKSPACE_FUSED = {False: 4 * _MIB, True: 32 * _MIB}
#: By how much the allocator's reserve lies above what is allocated at most: blocks of other sizes, of 2 MiB and more.
#: Stated: 1.02 to 1.15 are commonly seen.
_RESERVED = 1.06
#: The least room in which it still places every block, over what is allocated: near the end of memory it gives back
#: what it keeps. `step.verdict` finds 1.000 to 1.011 for steps of decoders of 0.4 to 2.7 billion weights by four
#: recipes.
_LEAST = 1.01
#: Stated standard deviation, as a share, of what is allocated: by peaks of Megatron's ranks, of which nine of ten are
#: within 10 % (benchmarks/memory_accuracy.py).
_SPREAD = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Bytes of the GPU that needs most. `allocated` is what torch.cuda.max_memory_allocated gives."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from forward to backward, of all micro-batches under way
    working: float  # of what computes at the peak, beside what is kept
    buffers: float  # of collectives, and of cuBLAS
    capacity: float
    host: float = 0.0  # of the host's page-locked memory, for this GPU

    @property
    def allocated(self) -> float:
        """At the peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working + self.buffers

    @property
    def reserved(self) -> float:
        """What PyTorch's allocator has taken from the driver."""
        return self.allocated * _RESERVED

    @property
    def context(self) -> float:
        """Of CUDA and its libraries."""
        return float(CONTEXT_BYTES)

    @property
    def least(self) -> float:
        """Of the process in the least room in which it runs: near the end of memory the allocator keeps nothing."""
        return self.allocated * _LEAST + self.context

    @property
    def fits(self) -> bool:
        """Whether a GPU has the least room."""
        return self.least <= self.capacity * USABLE_SHARE

    @property
    def probability(self) -> float:
        """That it fits, by the spreads of what is allocated and of the context."""
        spread = math.hypot(_SPREAD * self.allocated * _LEAST, CONTEXT_SPREAD * self.context)
        return NormalDist(self.least, spread).cdf(self.capacity * USABLE_SHARE)

    def to_dict(self) -> dict[str, float | bool]:
        """Every account, and the sums."""
        names = ("weights", "gradients", "optimizer", "activations", "working", "buffers")
        sums = {
            "allocated": self.allocated, "reserved": self.reserved, "context": self.context, "host": self.host,
        }  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        return {**found, **sums, "probability": self.probability, "fits": self.fits}


def workspace(device: Device, recipe: Recipe) -> int:
    """Of cuBLAS, of the threads of forward and of backward."""
    major = (device.compute_capability or "").partition(".")[0]
    hopper = major.isdigit() and int(major) >= 9
    return 2 * _WORKSPACE[hopper or recipe.deterministic] + recipe.fused * _WORKSPACE_FUSED[hopper]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The first `layers` layers of a GPU: what each keeps leaves beside the next layer's forward, and comes back beside
    the backward of the layer behind it, as Transformer Engine's `get_cpu_offload_context` and torchtune do it.

    A layer's tensors are freed, or there, when both the copy and the layer beside it are done. `copy_s`: of a layer and
    micro-batch, one way.
    """

    layers: int
    layer_bytes: float
    copy_s: float

    @classmethod
    def of(cls, layers: int, layer_bytes: float, held: int, setting: Setting) -> Offload:
        """held: layers of a GPU. Raises InputError for as many as that: the last one's backward comes at once."""
        if layers and layers >= held:
            raise InputError(
                f"offload: {layers} layers of {held} on a GPU: expected {held - 1} or fewer; the last one's "
                "activations are needed at once"
            )
        # All GPUs of a node copy at the same time, from or to the same memory.
        own = setting.host.dram_bandwidth / min(setting.gpus, setting.cluster.per_node)
        rate = min(setting.copy_rate, own)
        return cls(layers=layers, layer_bytes=layer_bytes, copy_s=layer_bytes / rate if layers else 0.0)

    def wait_s(self, layer_s: float) -> float:
        """What a layer that takes so long waits for the copy beside it."""
        return max(0.0, self.copy_s - layer_s)

    def kept(self, held: int, under_way: float) -> float:
        """Layers' worth of activations on a GPU with so many layers, of as many micro-batches under way.

        Of the one that computes two layers are there at least: one computes, one is on its way.
        """
        stay = held - self.layers
        return (under_way - 1) * stay + max(stay, min(2, held) if self.layers else stay)

    def host_bytes(self, under_way: float) -> float:
        """Page-locked memory for a GPU."""
        return self.layers * self.layer_bytes * under_way
