"""A workload held against what was locked: what changed, by how much, because of what, and whether it may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.step.made import constants_version
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.errors.ratio import Ratio, Ratios
from rooflinekit.study.explain.explanation import Explanation
from rooflinekit.study.guard.causes import Cause, causes_of
from rooflinekit.study.guard.limits import quantities
from rooflinekit.study.guard.lock import Block, Locked

_SAME = 1e-5  # of a locked number: its last digit


@dataclass(frozen=True, kw_only=True)  # no slots: the cached properties need a place
class Checked:
    """One workload on one GPU, as it was locked and as it is.

    before: the locked graph, predicted as rooflinekit does it today, so that between it and `now` lies only the
    model's own change, and between the locked numbers and it only rooflinekit's. None where nothing was locked, the
    graph is missing, or the workload was run in another way.
    """

    block: Block
    now: Prediction
    before: Prediction | None
    locked: Locked | None

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.now.machine.device.name

    @cached_property
    def base(self) -> Mapping[str, float] | None:
        """What the model's quantities are held against; None where nothing was locked."""
        if self.before is not None:
            return quantities(self.before)
        one = self.locked
        if one is None:
            return None
        return {
            "time": one.time_s, "memory": one.peak_memory_bytes, "kernels": one.kernels, "flop": one.flop,
            "traffic": one.traffic_bytes,
        }  # fmt: skip

    @property
    def changes(self) -> dict[str, tuple[float, float]]:
        """By quantity what was and what is, where the two differ."""
        now = quantities(self.now)
        return {name: (was, now[name]) for name, was in (self.base or {}).items() if _differ(was, now[name])}

    @property
    def own_s(self) -> float:
        """Seconds by which rooflinekit's own change moved the locked time; 0 where that cannot be told."""
        if self.before is None or self.locked is None or not _differ(self.locked.time_s, self.before.total_s):
            return 0.0
        return self.before.total_s - self.locked.time_s

    @cached_property
    def ratio(self) -> Ratio | None:
        """The time by what it was, without what both predictions are off by together."""
        if self.before is None:
            return None
        return Ratios((self.before, self.now), one_network=True).of(1, 0)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """Where the model's change begins, the largest effect first."""
        return causes_of(self.before, self.now) if self.before is not None and self.changes else ()

    @cached_property
    def explanation(self) -> Explanation | None:
        """What lies between the two steps."""
        return None if self.before is None else Explanation(a=self.before, b=self.now)

    @property
    def exceeded(self) -> tuple[str, ...]:
        """In words, the thresholds that do not hold."""
        return tuple(self._exceeded())

    def _exceeded(self) -> Iterator[str]:
        yield from self.block.limits.exceeded(self.now)
        if self.base is None:
            yield "nothing is locked for it: accept it with --update"
        else:
            yield from self.block.limits.grown(self.base, quantities(self.now))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why something cannot be told."""
        if self.locked is None or self.before is not None:
            return ()
        if self.locked.run != self.block.run:
            return (f"it was run in another way when it was locked ({self.locked.run}): no module is to blame",)
        return ("the locked graph is not beside the file, or not readable: --update keeps it, to blame modules",)

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON."""
        ratio = self.ratio
        return {
            "workload": self.block.name,
            "gpu": self.gpu,
            "status": "exceeded" if self.exceeded else "changed" if self.changes else "same",
            "total_s": self.now.total_s,
            "locked_s": None if self.locked is None else self.locked.time_s,
            "rooflinekit_s": self.own_s,
            "changes": {name: {"before": was, "now": now} for name, (was, now) in self.changes.items()},
            "ratio": None if ratio is None else {"times": ratio.times, "low": ratio.low, "high": ratio.high},
            "certain": ratio is not None and ratio.certain,
            "causes": [
                {"module": c.module, "kind": c.kind, "what": c.what, "s": c.delta_s, "following_s": c.following_s}
                for c in self.causes
            ],
            "exceeded": list(self.exceeded),
            "notes": list(self.notes),
        }


def check(block: Block, graph: Graph | None, predictions: Sequence[Prediction]) -> tuple[Checked, ...]:
    """A workload's predictions on its GPUs, held against what was locked. graph: the locked one, where it is there."""
    again = None if graph is None else replace(graph, priced=price_all(graph.ops))
    found = []
    for p in predictions:
        locked = block.locked.get(p.machine.device.name)
        alike = again is not None and locked is not None and locked.run == block.run
        before = predict_graph(again, p.machine, p.host, p.execution) if alike and again is not None else None
        found.append(Checked(block=block, now=p, before=before, locked=locked))
    return tuple(found)


def locked_as(block: Block, p: Prediction) -> Locked:
    """What the file keeps of a prediction."""
    low_s, high_s = p.interval(0.9)
    return Locked(
        time_s=p.total_s, low_s=low_s, high_s=high_s, regime=p.regime, flop=p.flop, traffic_bytes=p.bytes,
        kernels=p.launched, peak_memory_bytes=p.memory.peak_bytes, constants=constants_version(p), run=block.run,
    )  # fmt: skip


def _differ(was: float, now: float) -> bool:
    return abs(now - was) > _SAME * abs(was)
