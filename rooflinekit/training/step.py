"""What is known of a decoder's training step on many GPUs: time by cause, memory by account, utilization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.model.machine import Machine
from rooflinekit.serving.decoder import Decoder
from rooflinekit.step.accuracy import Accuracy, accuracy_of
from rooflinekit.step.energy import Draws
from rooflinekit.step.energy_together import TeamEnergy
from rooflinekit.step.labels import MEANING
from rooflinekit.step.sources import SOURCES
from rooflinekit.training.layout import Layout
from rooflinekit.training.memory import Accounts
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
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1; got {level!r}")
        total = self.total_s
        sent = sum(self.terms.get(name, 0.0) for name in SENT) / total
        host = self.terms.get("overhead", 0.0) / total
        parts = ((1 - sent - host) * self.deviation, sent * self.link_deviation, host * self.host_deviation)
        load = (1 - sent - host) * _expert_share(self.decoder) * LOAD if self.layout.expert > 1 else 0.0
        width = math.exp(NormalDist().inv_cdf((1 + level) / 2) * math.hypot(*parts, load, SOURCES["decoder training"]))
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
            "time: "
            + ", ".join(f"{MEANING.get(k, k)} {format_quantity(v, 's')}" for k, v in self.terms.items() if v > 0),
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

    def __repr__(self) -> str:
        return f"<TrainingStep {str(self).splitlines()[0]}>"


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
