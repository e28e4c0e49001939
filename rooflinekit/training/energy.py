"""What a training step draws: each part's kernels as often as they run, and every GPU standing by all the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from rooflinekit.model.energy import PARTS
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Timing
from rooflinekit.step.energy_together import Member, TeamEnergy, drawn_by, energy_together

#: Joules by part of the board (`model.energy.PARTS`), beside idling, of each part of the step.
DrawnParts = Mapping[str, Mapping[str, float]]


def drawn_by_part(
    timings: Sequence[Timing], machine: Machine, part_of: Callable[[str], str], layers: Mapping[str, int]
) -> DrawnParts | None:
    """Joules of one micro-batch on one GPU by part of the step, forward and backward together; None where no power is
    stated.

    part_of: the part that a module belongs to. layers: how many of a part the kernels are of, where not one.
    """
    found: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        found[part_of(timing.kernel.module)].append(timing)
    drawn = {}
    for part, own in found.items():
        joules = drawn_by(own, machine)
        if joules is None:
            return None
        drawn[part] = {name: j / layers.get(part, 1) for name, j in joules.items()}
    return drawn


def training_energy(
    machine: Machine, drawn: DrawnParts | None, update: Mapping[str, float] | None, *, total_s: float, gpus: int,
    pieces: int, layers: int, pipeline: int,
) -> TeamEnergy | None:  # fmt: skip
    """All GPUs over the step.

    Each GPU has layers / pipeline of the layers and passes `pieces` micro-batches through them; one of `pipeline` GPUs
    has the embedding, one the head. update: joules of the optimizer's step on each.
    """
    if drawn is None or update is None:
        return None
    runs = {"layer": pieces * layers / pipeline, "embedding": pieces / pipeline, "head": pieces / pipeline}
    each = {
        name: sum(runs[part] * joules[name] for part, joules in drawn.items()) + update[name] for name in PARTS
    }  # fmt: skip
    return energy_together([Member(count=gpus, machine=machine, kernels_j=each)], total_s)
