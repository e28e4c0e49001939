"""Advice in sentences, made from numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rooflinekit.step.chains import chain_sentences
from rooflinekit.step.words import MEANING
from rooflinekit.study.explain.story import seconds, signed

if TYPE_CHECKING:
    from rooflinekit.study.explain.advice import Advice, Suggestion


def sentences(advice: Advice) -> Iterator[str]:
    """What it takes now, what saves time, what does not, and what was left out."""
    p = advice.base
    yield f"{p.graph_name} takes {seconds(p.total_s)} a step on {p.machine.name}, {p.regime}-bound."
    yield from chain_sentences(p)
    saving = [suggestion for suggestion in advice.suggestions if suggestion.saved_s > 0]
    for place, suggestion in enumerate(saving, 1):
        yield f"{place}. {_saving(suggestion)}"
    for suggestion in advice.suggestions[len(saving) :]:
        yield f"Saves nothing: {suggestion.what} ({signed(-suggestion.saved_s)}, {suggestion.prediction.regime}-bound)."
    for what, why in advice.left_out:
        yield f"Left out: {what}: {why}."


def _saving(suggestion: Suggestion) -> str:
    after = suggestion.prediction
    ratio = suggestion.ratio()
    samples = "" if suggestion.steps == 1 else " for as many samples"
    largest = [f"{MEANING[name]} {signed(-saved)}" for name, saved in suggestion.saved_terms().items() if saved][:2]
    return (
        f"{suggestion.what}: saves {seconds(suggestion.saved_s)}{samples} ({suggestion.speedup:.2f}×, "
        f"with 90 % {ratio.low:.2f} to {ratio.high:.2f}), {after.regime}-bound after it; {', '.join(largest)}."
    )
