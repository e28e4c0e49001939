"""The fastest layouts of a decoder's training on many GPUs, by bounds that skip what cannot win."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rooflinekit.errors import InputError, RooflinekitError
from rooflinekit.serving.decoder import Decoder
from rooflinekit.strategies.groups import Setting
from rooflinekit.training.layout import Layout
from rooflinekit.training.plan import Planner
from rooflinekit.training.recipe import RECOMPUTES, Recipe
from rooflinekit.training.step import TrainingStep
from rooflinekit.units import format_quantity

_MICRO_BATCHES = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True, repr=False)
class LayoutSearch:
    """What was found: `steps` that were worked out in full, the fastest first; others are slower, or do not fit."""

    steps: tuple[TrainingStep, ...]
    considered: int  # layouts and recomputations that the sizes allow
    too_large: int  # that do not fit the memory

    @property
    def best(self) -> TrainingStep:
        """The fastest that fits."""
        return self.steps[0]

    @property
    def front(self) -> tuple[TrainingStep, ...]:
        """Those that no other beats in time and memory both, the fastest first (Pareto)."""
        found: list[TrainingStep] = []
        for step in self.steps:
            if not found or step.memory.allocated < found[-1].memory.allocated:
                found.append(step)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The front and the counts, ready for JSON."""
        return {
            "considered": self.considered, "too_large": self.too_large, "worked_out": len(self.steps),
            "front": [step.to_dict() for step in self.front],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.considered} layouts, {self.too_large} too large for the memory, {len(self.steps)} worked out",
            *(_line(step) for step in self.steps[:5]),
            "least time for its memory:",
            *(_line(step) for step in self.front),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<LayoutSearch {_line(self.best)}>"


def _line(step: TrainingStep) -> str:
    time, memory = format_quantity(step.total_s, "s"), format_quantity(step.memory.allocated, "byte", binary=True)
    return f"{time:>9}  {memory:>9}  MFU {step.mfu:5.1%}  {step.layout}, recompute {step.recipe.recompute}"


def search_layouts(
    decoder: Decoder, recipe: Recipe, place: Setting, *, batch: int, seq: int, keep: int = 10,
    progress: Callable[[int], None] | None = None,
) -> LayoutSearch:  # fmt: skip
    """The `keep` fastest layouts that fit, and those that need less memory than any faster one.

    A layout is worked out in full in the order of its bound, until no bound is below what has been found. Raises
    InputError where nothing fits.
    """
    plans: list[tuple[float, float, Planner]] = []
    considered = too_large = 0
    for layout, recompute in candidates(decoder, place, batch, seq):
        try:
            planner = Planner(
                decoder=decoder, layout=layout, recipe=recipe.with_changes(recompute=recompute), batch=batch, seq=seq,
                place=place,
            )  # fmt: skip
        except RooflinekitError:
            continue
        considered += 1
        if progress is not None:
            progress(considered)
        memory = max(planner.accounts(), key=lambda accounts: accounts.allocated)
        if memory.fits:
            plans.append((planner.bound_s(), memory.allocated, planner))
        else:
            too_large += 1
    found = _worked_out(sorted(plans, key=lambda plan: plan[:2]), keep)
    if not found:
        raise InputError(
            f"{decoder.name}: none of {considered} layouts fits {place.gpus} GPUs of {place.cluster.name}; choose more "
            "GPUs or a shorter sequence"
        )
    return LayoutSearch(steps=tuple(found), considered=considered, too_large=too_large)


def _worked_out(plans: Sequence[tuple[float, float, Planner]], keep: int) -> list[TrainingStep]:
    """Those that can be among the fastest, or on the front of time and memory."""
    found: list[TrainingStep] = []
    for bound, allocated, planner in plans:
        slower = sum(step.total_s <= bound for step in found)
        beaten = any(step.total_s <= bound and step.memory.allocated <= allocated for step in found)
        if slower >= keep and beaten:
            continue
        step = planner.step()
        if step.memory.fits:
            found.append(step)
    return sorted(found, key=lambda step: step.total_s)


def candidates(decoder: Decoder, place: Setting, batch: int, seq: int) -> Iterator[tuple[Layout, str]]:
    """Layouts that the sizes allow: tensor groups inside a node, stages of equal layers, experts within copies."""
    gpus, per_node = place.gpus, place.cluster.per_node
    tensors = [t for t in _powers(min(per_node, gpus)) if not decoder.heads % t and not decoder.ffn % t]
    contexts = [c for c in _powers(min(16, gpus)) if seq // c >= 2048 or c == 1]
    stages = [p for p in range(1, min(decoder.layers, gpus) + 1) if not decoder.layers % p and not gpus % p]
    experts = [e for e in _powers(min(decoder.experts, gpus)) if not decoder.experts % e] if decoder.experts else [1]
    for tensor, context, pipeline in product(tensors, contexts, stages):
        inner = tensor * context * pipeline
        if gpus % inner or batch % (gpus // inner):
            continue
        own = batch // (gpus // inner)
        for micro, chunks, expert in product(_MICRO_BATCHES, _CHUNKS, experts):
            if own % micro or (decoder.layers // pipeline) % chunks or (chunks > 1 and pipeline == 1):
                continue
            if (chunks > 1 and (own // micro) % pipeline) or gpus // pipeline % expert:
                continue
            layout = Layout(
                tensor=tensor, sequence=tensor > 1, context=context, pipeline=pipeline, chunks=chunks, expert=expert,
                micro_batch=micro,
            )  # fmt: skip
            yield from ((layout, recompute) for recompute in RECOMPUTES)
            if inner == 1 and expert == 1:
                yield from ((layout.with_changes(sharding="fsdp"), recompute) for recompute in RECOMPUTES)


def _powers(most: int) -> list[int]:
    """1, 2, 4 … up to a number."""
    return [2**k for k in range(most.bit_length()) if 2**k <= most]
