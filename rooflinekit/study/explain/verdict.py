"""A prediction in two sentences, and one more for a chain of steps, made from numbers only."""

from __future__ import annotations

from itertools import islice

from rooflinekit.step.chains import chain_sentences
from rooflinekit.step.labels import MEANING, REGIME_TERMS
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import shown_terms
from rooflinekit.study.explain.explanation import seconds
from rooflinekit.units import format_quantity

_NAMED = 0.1  # share of the step from which a term is named


def verdict(p: Prediction) -> str:
    """What bounds the step, where its time goes, how busy the device is, and whether it fits.

    The terms of its regime stand first.
    """
    own = REGIME_TERMS[p.regime]
    terms = sorted(shown_terms(p).items(), key=lambda item: (item[0] not in own, -item[1]))
    shares = [(name, s, s / p.total_s if p.total_s else 0.0) for name, s in terms]
    named = [part for part in shares if part[2] >= _NAMED] or shares[:1]
    parts = [f"{MEANING[name]} {share:.0%} ({seconds(s)})" for name, s, share in named]
    busy = p.gpu_s / p.total_s if p.total_s else 0.0
    unit = "GPU" if p.machine.device.kind == "gpu" else "CPU"
    need, have = (format_quantity(size, "byte", binary=True) for size in (p.memory.peak_bytes, p.memory.capacity))
    fits = f"at its peak it takes {need} of {have} of memory"
    if not p.memory.fits:
        fits = f"at its peak it needs {need} of {have} of memory and does not fit"
    longest = "".join(f" {sentence}" for sentence in islice(chain_sentences(p), 1))
    return (
        f"The step is {p.regime}-bound ({p.shares[p.regime]:.0%}): {_listed(parts)}. "
        f"The {unit} executes kernels for {busy:.0%} of the time; {fits}.{longest}"
    )


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
