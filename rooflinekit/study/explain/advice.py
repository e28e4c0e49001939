"""What would make a step faster: each candidate predicted again, ranked by the time that it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.errors import ComparisonError, RooflinekitError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import device_of
from rooflinekit.ir import notebook
from rooflinekit.ir.graph import Graph, resized, traced_with
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.ir.op import DType, Family, Math
from rooflinekit.kernels.attention_backends import BACKENDS, LATER, backend_of, other_backends
from rooflinekit.kernels.recurrence import RECURRENT
from rooflinekit.step.chains import chain_sentences, chains_of, without_recurrence
from rooflinekit.step.entry import attending
from rooflinekit.step.execution import Backend
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import title
from rooflinekit.step.variants import BATCH
from rooflinekit.study.errors.components import Ratio, Ratios
from rooflinekit.study.explain.explanation import seconds, signed
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_quantity

_BACKENDS: dict[Backend, str] = {
    "compiled": "torch.compile",
    "cuda-graph": "a CUDA graph",
    "reduce-overhead": "torch.compile with CUDA graphs (mode 'reduce-overhead')",
}
_TOLD, _WORTH = 5, 0.01  # suggestions with a sentence of their own, and the share of the step that each saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change, and the step with it."""

    what: str
    base: Prediction
    prediction: Prediction
    steps: float  # of it, for as many samples as one step of the base has

    @property
    def saved_s(self) -> float:
        """Seconds that it saves of a step, for as many samples; below 0 where it takes longer."""
        return self.base.total_s - self.steps * self.prediction.total_s

    @property
    def speedup(self) -> float:
        """How many times faster, for as many samples."""
        return self.base.total_s / (self.steps * self.prediction.total_s)

    def ratio(self) -> Ratio:
        """The speed-up with its 90 % interval: what both steps are off by together is not in it."""
        return Ratios((self.prediction, self.base), one_network=True).of(1, 0, 1 / self.steps)

    def saved_terms(self) -> dict[str, float]:
        """The saving by term; they add up to `saved_s`, the largest first."""
        after = self.prediction.terms()
        saved = {name: value - self.steps * after[name] for name, value in self.base.terms().items()}
        return dict(sorted(saved.items(), key=lambda item: -abs(item[1])))

    @property
    def mainly(self) -> str:
        """The two terms that it changes most, in words."""
        terms = [f"{MEANING[name]} {signed(-saved)}" for name, saved in self.saved_terms().items() if saved]
        return ", ".join(terms[:2])

    def to_dict(self) -> dict[str, Any]:
        """The change and its effect, ready for JSON."""
        after, ratio = self.prediction, self.ratio()
        return {
            "what": self.what, "saved_s": self.saved_s, "speedup": self.speedup, "speedup_low": ratio.low,
            "speedup_high": ratio.high, "saved_terms": self.saved_terms(), "total_s": after.total_s,
            **dict(zip(("low_s", "high_s"), after.interval(0.9), strict=True)), "steps": self.steps,
            "regime": after.regime, "peak_bytes": after.memory.peak_bytes,
            "notes": [note for note in after.notes if note not in self.base.notes],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(FirstLine):
    """What would change a step: predicted candidates, the largest saving first, and those left out, with the reason."""

    base: Prediction
    suggestions: tuple[Suggestion, ...]
    left_out: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the kernels, ready for JSON."""
        return {
            "base": self.base.to_dict(),
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
            "left_out": [{"what": what, "why": why} for what, why in self.left_out],
        }

    def __str__(self) -> str:
        return "\n".join(sentences(self))

    def _repr_html_(self) -> str:
        first, *rest = sentences(self)
        rows = [
            (s.what, format_quantity(s.prediction.total_s, "s"), f"{s.speedup:.2f}×", s.prediction.regime)
            for s in self.suggestions
        ]
        return notebook.block(
            first, notebook.table(["change", "step", "speed-up", "regime"], rows), notebook.paragraphs(rest)
        )


#: A change, and how to predict it; or why there is nothing to predict.
_Candidate = tuple[str, Callable[[], Prediction] | str]
Traced = Callable[..., Graph]
_USED = "it is used already"


def advise(
    p: Prediction, gpus: Sequence[str | Path | Device] = (), corrected: Callable[[Prediction], Prediction] | None = None
) -> Advice:
    """What would make this step faster; `rooflinekit.advise` says what is tried, and what is raised.

    corrected: makes of each prediction the one that counts, such as a measured step's transfer.
    """
    base = p if corrected is None else corrected(p)
    devices = [device_of(gpu) for gpu in gpus]
    found: list[Suggestion] = []
    left_out: list[tuple[str, str]] = []

    @cache  # several candidates are of one trace
    def traced(**options: Any) -> Graph:
        return resized(traced_with(p.graph, **options), **p.sizes)

    groups = (
        _sizes(p), _formats(p, traced), _executions(p), _pairs(p, traced), _recurrence(p), _attention(p),
        _optimizers(p), _gpus(p, devices),
    )  # fmt: skip
    for what, predict in chain(*groups):
        try:
            if isinstance(predict, str):
                raise ComparisonError(predict)
            after = predict() if corrected is None else corrected(predict())
            if not after.memory.fits:
                raise ComparisonError(after.memory.note(after.machine.name))
        except RooflinekitError as error:
            left_out.append((what, str(error)))
            continue
        steps = p.sizes[BATCH] / after.sizes[BATCH] if BATCH in p.sizes else 1.0
        found.append(Suggestion(what=what, base=base, prediction=after, steps=steps))
    ranked = tuple(sorted(found, key=lambda suggestion: -suggestion.saved_s))
    return Advice(base=base, suggestions=ranked, left_out=tuple(left_out))


def _with(p: Prediction, graph: Graph | None = None, **changes: Any) -> Prediction:
    return p.again(graph=graph, execution=replace(p.execution, **changes))


def _again(p: Prediction, traced: Traced, backend: Backend | None = None, **options: Any) -> Prediction:
    return _with(p, traced(**options), backend=backend or p.execution.backend)


def _sizes(p: Prediction) -> Iterator[_Candidate]:
    if BATCH not in p.sizes:
        yield "a larger batch", "no size of the inputs is named batch"
        return
    batch = 2 * p.sizes[BATCH]
    yield f"batch {batch} instead of {p.sizes[BATCH]}", lambda: _with(p, resized(p.graph, **{BATCH: batch}))


def _formats(p: Prediction, traced: Traced) -> Iterator[_Candidate]:
    what = "channels last"
    if p.graph.channels_last:
        yield what, _USED
    elif not any(timing.kernel.family is Family.CONVOLUTION for timing in p.timings):
        yield what, "there is no convolution"
    else:
        yield what, partial(_again, p, traced, channels_last=True)
    for wanted in (DType.BFLOAT16, DType.FLOAT16):
        again = partial(_again, p, traced, autocast=wanted)
        yield f"autocast in {wanted}", _USED if p.graph.autocast == wanted else again


def _executions(p: Prediction) -> Iterator[_Candidate]:
    for backend, what in _BACKENDS.items():
        if p.execution.backend == backend:
            yield what, _USED
        elif p.machine.device.kind == "cpu" and backend != "compiled":
            yield what, f"{p.machine.name} is a CPU"
        else:
            yield what, partial(_with, p, backend=backend)
    if p.execution.copy == "pageable":
        what = "inputs from pinned memory, copied without blocking"
        yield what, partial(_with, p, copy="pinned", non_blocking=True)


def _pairs(p: Prediction, traced: Traced) -> Iterator[_Candidate]:
    """Autocast and torch.compile together: compiled, the casts are no kernels, and the CPU issues less."""
    wanted = DType.BFLOAT16 if p.machine.device.matrix_peak.get(Math.BF16) else DType.FLOAT16
    if p.graph.autocast is not None or p.execution.fused:
        return
    for backend, what in _BACKENDS.items():
        if backend == "compiled" or (backend == "reduce-overhead" and p.machine.device.kind == "gpu"):
            yield f"autocast in {wanted} and {what}", partial(_again, p, traced, backend, autocast=wanted)


def _recurrence(p: Prediction) -> Iterator[_Candidate]:
    """Where layers are chains of steps: the same products with all steps at once, as other layers have them."""
    if any(one.kind in RECURRENT for one in chains_of(p)):
        what = "another network: layers of the same products without recurrence"
        yield what, lambda: _with(p, without_recurrence(p.graph))


#: How a program comes to a kernel of attention: names of `model.attention_backends`.
_ATTENTION = {
    "cudnn": "cuDNN's attention, by sdpa_kernel",
    "flash": "FlashAttention 2, by sdpa_kernel",
    "flash-3": "FlashAttention 3, by its package",
    "flash-4": "FlashAttention 4, by its package",
    "aiter": "aiter, AMD's kernels of attention, by its package",
}


def _attention(p: Prediction) -> Iterator[_Candidate]:
    """Other kernels of attention that the step's GPU has, where there is some."""
    device, like = p.machine.device, p.graph.like
    others: dict[str, bool] = {}  # whether today's PyTorch runs it by itself
    for op in attending(p.graph, device, p.execution).ops:
        for name in other_backends(op, device, like):
            others[name] = others.get(name, True) and backend_of(op, device) == BACKENDS[name]

    for backend, what in _ATTENTION.items():
        if backend in others:
            itself = f"; {LATER} does so by itself" * (backend == "cudnn" and others[backend])
            yield what + itself, partial(_with, p, attention=backend)


def _optimizers(p: Prediction) -> Iterator[_Candidate]:
    if p.mode != "training":
        return
    what, origin = "the optimizer's fused form", p.graph.origin
    kinds = [timing.kernel.kind for timing in p.timings if timing.kernel.phase == "optimizer"]
    if not kinds:
        yield what, "no optimizer is in the step"
    elif any("_fused_" in kind for kind in kinds):
        yield what, _USED
    elif (trace := origin.trace) is None or origin.optimizer is None:
        yield what, "the graph does not know its optimizer; trace the model with fused=True"
    else:
        factory = partial(origin.optimizer, fused=True)
        yield what, lambda: _with(p, resized(trace(optimizer=factory), **p.sizes))


def _gpus(p: Prediction, devices: Sequence[Device]) -> Iterator[_Candidate]:
    for device in devices:
        machine = Machine.of(device, constants_for(device), burst=p.machine.burst)
        again = partial(p.again, machine=machine)
        yield device.name, "it is the one used" if device == p.machine.device else again


def sentences(advice: Advice) -> Iterator[str]:
    """What it takes now, what saves time, what does not, and what was left out."""
    p = advice.base
    yield f"{title(p)}, {p.machine.name}: {seconds(p.total_s)} a step, {p.regime}-bound"
    yield from chain_sentences(p)
    saving = [suggestion for suggestion in advice.suggestions if suggestion.saved_s > 0]
    told = [suggestion for suggestion in saving[:_TOLD] if suggestion.saved_s >= _WORTH * p.total_s] or saving[:1]
    for place, one in enumerate(told, 1):
        samples, ratio = "" if one.steps == 1 else " for as many samples", one.ratio()
        yield (
            f"{place}. {one.what}: saves {seconds(one.saved_s)}{samples} ({one.speedup:.2f}×, "
            f"90 % interval {ratio.low:.2f} to {ratio.high:.2f}), then {one.prediction.regime}-bound; {one.mainly}."
        )
    if rest := saving[len(told) :]:
        less = (f"{one.what} {seconds(one.saved_s)} ({one.speedup:.2f}×)" for one in rest)
        yield f"Saves less: {', '.join(less)}."
    for suggestion in advice.suggestions[len(saving) :]:
        yield f"Saves nothing: {suggestion.what} ({signed(-suggestion.saved_s)}, {suggestion.prediction.regime}-bound)."
    for what, why in advice.left_out:
        yield f"Left out: {what}: {why}."
