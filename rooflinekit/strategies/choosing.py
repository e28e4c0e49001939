"""Which activations a step saves, computes again or sends to the host, so that it just fits: by op, and by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rooflinekit.step.entry import issues_for
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.prediction import ParallelPrediction
from rooflinekit.strategies.records import Savers
from rooflinekit.strategies.rewriting import PART, segments_of
from rooflinekit.strategies.saving import kind_and_place, repeated_of

Predict = Callable[[Savers], ParallelPrediction]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """An op of the blocks: seconds of computing it again in all of them, and bytes of keeping what it makes."""

    name: str
    seconds: float
    size: int


def choices(base: Savers, plain: ParallelPrediction, predict: Predict) -> Iterator[ParallelPrediction]:
    """The step with just so many activations saved that it fits, in four ways; those that do.

    By op: all blocks are checkpoints, and save what takes longest to compute again for its bytes. By block: the first
    ones are checkpoints, or the first ones' activations wait in the host's memory. Last, checkpoints whose inputs wait
    there. `plain` is the prediction of `base`, which does not fit.
    """
    units = [unit.name for unit in _worth(plain)]
    blocks = [path[0] for path in segments_of(plain.slowest.prediction.graph)]
    full = replace(base, checkpoint=True)

    def saving(count: int) -> Savers:
        return replace(full, save=tuple(units[:count]))

    def again(count: int) -> Savers:
        return replace(base, checkpoint=tuple(blocks[: len(blocks) - count]))

    def away(count: int) -> Savers:
        return replace(base, offload_activations=tuple(blocks[: len(blocks) - 1 - count]))

    for ways, least, most in ((saving, 1, len(units)), (again, 1, len(blocks) - 1), (away, 0, len(blocks) - 2)):
        if found := _most(ways, least, most, predict):
            yield found
    if not predict(full).fits:
        yield predict(replace(full, offload_activations=True))


def _most(savers: Callable[[int], Savers], least: int, most: int, predict: Predict) -> ParallelPrediction | None:
    """The prediction with the largest number from one to the other that fits, by halving; None where none does."""
    low, high, found = least - 1, most + 1, None
    while high - low > 1:
        middle = (low + high) // 2
        p = predict(savers(middle))
        low, high, found = (middle, high, p) if p.fits else (low, middle, found)
    return found


def _worth(plain: ParallelPrediction) -> list[_Kept]:
    """What the blocks compute again as checkpoints, that which takes longest for its bytes first."""
    p = plain.slowest.prediction
    seconds = _seconds(p)
    found: dict[str, _Kept] = {}
    once = replace(p.graph, priced=tuple(one for one in p.graph.priced if PART not in one.op.name))
    for path in segments_of(once):
        for one in repeated_of(once, path):
            if not one.costs or {spec.memory for spec in one.op.inputs} & {spec.memory for spec in one.op.outputs}:
                continue
            name = kind_and_place(one.op, path)[1]
            size = sum({spec.memory: int(spec.bytes) for spec in one.op.outputs}.values())
            before = found.get(name, _Kept(name=name, seconds=0.0, size=0))
            own = seconds.get(one.op.name, 0.0)
            found[name] = replace(before, seconds=before.seconds + own, size=before.size + size)
    return sorted(found.values(), key=lambda kept: kept.seconds / max(1, kept.size), reverse=True)


def _seconds(p: Prediction) -> dict[str, float]:
    """Of the kernels of each op, by its name."""
    spans = iter(p.spans)
    return {
        issue.op.name: sum(next(spans).timing.total_s for _ in issue.kernels)
        for issue in issues_for(p.graph, p.machine.device, p.execution)
    }
