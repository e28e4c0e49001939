"""A described step: where a GPU's memory goes, at the moments that may be its fullest; time by cause, utilization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.distributed.prediction import SharedStep, fullest_told, gpus_named, named, told
from rooflinekit.distributed.records import Layout, Recipe
from rooflinekit.hardware.device import Device
from rooflinekit.published.stated import PROGRAMS, SPREADS
from rooflinekit.step.accuracy import Accuracy, accuracy_of
from rooflinekit.step.bounds import SOURCES
from rooflinekit.step.energy import Energy
from rooflinekit.step.memory import product_workspace, too_large
from rooflinekit.step.verdict import Verdict
from rooflinekit.timing.estimate import Estimate
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_bytes, format_quantity

#: Of cuBLAS where CUBLAS_WORKSPACE_CONFIG=:4096:8 is set, as deterministic steps ask for on every GPU.
_DETERMINISTIC = 8 * 4 * 2**20
#: Of Transformer Engine's products, by whether the GPU is Hopper or later
#: (transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes).
_FUSED = {False: 4 * 2**20, True: 32 * 2**20}
_RESERVED, _LEAST = (PROGRAMS[name].value for name in ("reserve", "least room"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Bytes of a GPU at a moment. `allocated` is what torch.cuda.memory_allocated gives.

    moment: "backward begins", of the micro-batch beside which most others are under way; "backward ends", of the same;
    or "update", the optimizer's.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from forward to backward, of all micro-batches under way
    working: float  # of what computes at the peak, beside what is kept
    buffers: float  # of collectives, and of cuBLAS
    beside: Mapping[str, int]  # bytes of the process that no segment holds, see `step.memory.beside_segments`
    capacity: float
    host: float = 0.0  # of the host's page-locked memory, for this GPU
    moment: str = "backward begins"

    def parts(self) -> dict[str, float]:
        """The bytes that are allocated, by account."""
        names = ("weights", "gradients", "optimizer", "activations", "working", "buffers")
        return {name: getattr(self, name) for name in names}

    @property
    def allocated(self) -> float:
        """Bytes that are allocated at the peak."""
        return sum(self.parts().values())

    @property
    def reserved(self) -> float:
        """Bytes that PyTorch's allocator has taken from the driver."""
        return self.allocated * _RESERVED

    @property
    def context(self) -> int:
        """Bytes of CUDA's context and its libraries."""
        return sum(self.beside.values())

    def verdict(self, level: float = 0.9) -> Verdict:
        """Bytes allocated, reserved and of the process, and how likely it is that they fit: see `Verdict.of`."""
        return Verdict.of(
            allocated=self.allocated, reserved=self.reserved, least=self.allocated * _LEAST, beside=self.beside,
            capacity=self.capacity, level=level, spread=SPREADS["described memory"].value,
        )  # fmt: skip

    @property
    def probability(self) -> float:
        """The probability that the step fits the memory."""
        return self.verdict().probability

    @property
    def fits(self) -> bool:
        """Whether a GPU has the least room in which it runs."""
        return self.probability >= 0.5

    def to_dict(self) -> dict[str, float | bool]:
        """Every account and their sums, ready for JSON."""
        sums = ("allocated", "reserved", "context", "host", "probability", "fits")
        return self.parts() | {name: getattr(self, name) for name in sums}


def workspace_of(device: Device, recipe: Recipe) -> int:
    """Bytes that cuBLAS keeps for the threads of forward and of backward, and Transformer Engine for its products."""
    own = 2 * (_DETERMINISTIC if recipe.deterministic else product_workspace(device))
    return own + recipe.fused * _FUSED[device.cuda_generation >= 9]


def weight_itemsize(device: Device, recipe: Recipe) -> int:
    """Bytes for each weight of a layer.

    Those that are kept in 8 bits, with a scale for each tensor, lie there in both orders where the GPU's products of 8
    bits take but one: on all but compute capability 10 and 11 (transformer_engine/pytorch/utils.py,
    is_non_tn_fp8_gemm_supported).
    """
    if not (recipe.fp8 and recipe.eight_bit_weights):
        return recipe.dtype.itemsize
    return 1 if device.cuda_generation in (10, 11) else 2


#: Terms that are waits for links.
SENT = ("tensor", "context", "expert", "copies", "contention", "offload")


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingStep(SharedStep):
    """One step of `batch` sequences of `seq` tokens. All times are seconds."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    machine: Machine  # of each GPU
    seq: int
    pieces: int  # micro-batches of a copy
    again_flop: float  # of products that backward computes again, all GPUs together
    terms: Mapping[str, float]  # they add up to `total_s`
    courses: tuple[tuple[Accounts, ...], ...]  # memory of a GPU of each stage, at the moments that may be its fullest
    deviation: float  # standard deviation of the logarithm of kernels' time
    link_deviation: float
    host_deviation: float
    energy: Energy | None = None  # of all GPUs; None where the specification states no power

    @property
    def device(self) -> Device:
        """The specification of each GPU."""
        return self.machine.device

    @property
    def graph_name(self) -> str:
        """The decoder's name."""
        return self.decoder.name

    @property
    def sizes(self) -> dict[str, int]:
        """Sequences of the whole step, and tokens of each."""
        return {"batch": self.batch, "seq": self.seq}

    @property
    def peak_flops(self) -> float:
        """FLOP/s of a GPU's dense products, by the datasheet, in the format that is multiplied."""
        peaks = {str(name): float(peak) for name, peak in self.device.matrix_peak.items()}
        word = {"bfloat16": "bf16", "float16": "fp16"}.get(self.recipe.dtype.value, "fp32")
        return peaks.get("fp8" if self.recipe.fp8 else word, 0.0)

    @property
    def stages(self) -> tuple[Accounts, ...]:
        """Memory of a GPU of each stage, at its fullest moment."""
        return tuple(max(course, key=lambda one: one.allocated) for course in self.courses)

    @property
    def memory(self) -> Accounts:
        """The accounts of the GPU that needs most memory."""
        return self.stages[self.fullest]

    def memory_verdict(self, level: float = 0.9) -> Verdict:
        """The verdict of this GPU, see `Accounts.verdict`. Raises ValueError for a level outside (0, 1)."""
        return self.memory.verdict(level)

    @property
    def fullest(self) -> int:
        """The stage of the GPUs that need most, from 0."""
        stages = self.stages
        return max(range(len(stages)), key=lambda k: stages[k].allocated)

    @property
    def fullest_gpus(self) -> range:
        """The numbers of the GPUs that need most memory."""
        return self._gpus_of(self.fullest)

    def _gpus_of(self, stage: int) -> range:
        """Stages are the outermost groups."""
        plane = self.gpus // self.layout.pipeline
        return range(stage * plane, (stage + 1) * plane)

    @property
    def total_s(self) -> float:
        """Wall time of the step."""
        return sum(self.terms.values())

    @property
    def counted(self) -> tuple[str, int]:
        """What a step gets done: so many "tokens"."""
        return "tokens", self.batch * self.seq

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all GPUs together."""
        return self.counted[1] / self.total_s

    @property
    def model_flop(self) -> float:
        """FLOP that the model asks for: 6 · N · tokens + 12 · layers · width · seq · tokens / 2 (causal).

        N are the numbers of the matrices that a token passes, the output's included and the embedding's table not;
        width is that of all heads together. Forward and backward; nothing that is computed again.
        """
        return self.counted[1] * _flop_per_token(self.decoder, self.seq)

    @property
    def _utilization(self) -> tuple[float, float]:
        of_peak = self.total_s * self.gpus * self.peak_flops
        model, all_of = self.model_flop, self.model_flop + self.again_flop
        return (model / of_peak, all_of / of_peak) if of_peak else (0.0, 0.0)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability, by the spreads of kernels, links and host,
        of the load of experts that GPUs share out, and of programs (`step.bounds`).

        Raises ValueError for a level outside (0, 1).
        """
        total = self.total_s
        sent = sum(self.terms.get(name, 0.0) for name in SENT) / total
        host = self.terms.get("overhead", 0.0) / total
        d, load = self.decoder, 0.0
        if self.layout.expert > 1:
            of_experts = 6.0 * d.layers * (3 if d.gated else 2) * d.hidden * d.ffn * d.experts_per_token
            load = of_experts / _flop_per_token(d, 0) * LOAD
        shares = {
            "kernels": (1 - sent - host) * self.deviation, "links": sent * self.link_deviation,
            "host": host * self.host_deviation, "experts": (1 - sent - host) * load,
            "program": SOURCES["decoder training"],
        }  # fmt: skip
        return (total * Estimate(seconds=1.0, shared=shares)).interval(level)

    @property
    def accuracy(self) -> Accuracy | None:
        """How far such predictions were off where they were judged."""
        return accuracy_of("decoder training", self.device)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        courses = [{one.moment: one.to_dict() for one in course} for course in self.courses]
        ends = [{"first_gpu": gpus[0], "last_gpu": gpus[-1]} for gpus in map(self._gpus_of, range(len(courses)))]
        return self._document(self.terms) | {
            "model": self.decoder.name, "parameters": self.decoder.parameters, "layout": str(self.layout),
            "recipe": self.recipe.name, "recompute": self.recipe.recompute, "offload_layers": self.recipe.offload,
            "seq": self.seq, "micro_batches": self.pieces, "interval_s": list(self.interval()),
            "tokens_per_s": self.tokens_per_s, "memory": self.memory.to_dict(),
            "fullest": {"stage": self.fullest, **ends[self.fullest]},
            "stages": [{**own, "moments": moments} for own, moments in zip(ends, courses, strict=True)],
            "accuracy": None if self.accuracy is None else self.accuracy.to_dict(),
        }  # fmt: skip

    def __str__(self) -> str:
        flop, byte = partial(format_quantity, unit="flop"), partial(format_quantity, unit="byte", binary=True)
        memory = self.memory
        accounts = {name: value for name, value in memory.to_dict().items() if name not in ("fits", "probability")}
        what = f"{self.decoder.name}, {self.batch} × {self.seq} tokens on {self.gpus} GPUs of {self.cluster.name}"
        used = "memory: " + ", ".join(f"{name} {byte(value)}" for name, value in accounts.items() if value)
        layout = f"layout {self.layout}; recipe {self.recipe.name}, recompute {self.recipe.recompute}"
        layout += f", {self.recipe.offload} layers' activations on the CPU" if self.recipe.offload else ""
        if not memory.fits:
            need = too_large(memory.reserved, memory.beside, memory.capacity)
            advice = "split or recompute more, take more GPUs, or search the layouts that fit (--search)"
            return "\n".join([f"{what}: does not fit: {need} a GPU", layout, used, self._verdict(), f"to do: {advice}"])
        return "\n".join([
            f"{what}: {self._took()}, {self.tokens_per_s:,.0f} tokens/s",
            layout,
            f"MFU {self.mfu:.1%} = {flop(self.model_flop)} of the model / (step · {self.gpus} · "
            f"{flop(self.peak_flops)}/s); HFU {self.hfu:.1%}",
            f"time: {named(self.terms)}",
            used,
            self._verdict(),
            *self._judged([self.accuracy]),
        ])  # fmt: skip

    @property
    def memory_text(self) -> str:
        """Memory by the GPUs of each stage, at each moment that may be its fullest."""
        return "\n".join(
            told(gpus_named(self._gpus_of(k)), {one.moment: one.parts() for one in course})
            for k, course in enumerate(self.courses)
        )

    def _verdict(self) -> str:
        """Which GPUs are fullest, and how likely they are to have room."""
        where = gpus_named(self.fullest_gpus)
        stages, memory = self.stages, self.memory
        stage = f" (stage {self.fullest + 1} of {len(stages)})" if len(stages) > 1 else ""
        others = [
            f"stage {k + 1}: {format_bytes(stages[k].allocated)}" for k in {0, len(stages) - 1} - {self.fullest}
        ]  # fmt: skip
        held = ", ".join([f"{format_bytes(memory.allocated)} allocated when {memory.moment}", *others])
        return f"{fullest_told(f'{where}{stage}', memory.verdict(), fits=memory.fits)}; {held}"


#: Standard deviation of the logarithm of how many tokens come to the fullest GPU's experts, over the mean.
LOAD = math.log(PROGRAMS["fullest experts"].value)


def _flop_per_token(d: Decoder, seq: int) -> float:
    passed_by = (3 if d.gated else 2) * d.hidden * d.ffn * (d.experts - d.experts_per_token)  # experts of others
    numbers = d.layers * (d.layer_parameters - passed_by) + d.vocab * d.hidden
    return 6.0 * numbers + 12.0 * d.layers * d.heads * d.head_dim * seq / 2
