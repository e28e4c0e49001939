"""What a device of a pipeline's stage runs: for each piece of the batch forward and backward, once the optimizer.

A step of two pieces holds all that there is: the first piece, whose gradients are new, and a later one, which adds to
them. Copies agree on gradients in the last piece alone; weights that are shared out are gathered before the
first one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflinekit.ir.op import EAGER, Op, Phase
from rooflinekit.step.entry import entry_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.strategies.items import Barrier, Item, Work
from rooflinekit.strategies.pipeline import Task
from rooflinekit.strategies.program import Wiring, copied_s, entry_s, is_issued_anew, items_of
from rooflinekit.strategies.rewriting import is_ours

_Pairs = list[tuple[Op, Item]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The items of each task of a stage, and of what follows the last one."""

    first_forward: tuple[Item, ...]
    forward: tuple[Item, ...]
    first_backward: tuple[Item, ...]
    backward: tuple[Item, ...]
    last_backward: tuple[Item, ...]
    finish: tuple[Item, ...]  # waits for what was sent, then the optimizer

    def of(self, task: Task, pieces: int) -> tuple[Item, ...]:
        """Those of a task, of so many pieces."""
        if not task.backward:
            return self.forward if task.piece else self.first_forward
        if task.piece == pieces - 1:
            return self.last_backward
        return self.backward if task.piece else self.first_backward


def tasks_of(p: Prediction, wiring: Wiring, *, first: bool, last: bool) -> Tasks:
    """Of the prediction of a stage's step of one piece, or of two.

    first, last: whether the stage is; others receive a piece before, or send it on after, which the CPU issues.
    """
    runs: list[tuple[Phase, _Pairs]] = []
    for op, item in items_of(p, wiring):
        if not runs or runs[-1][0] is not op.phase:
            runs.append((op.phase, []))
        runs[-1][1].append((op, item))
    forward, backward, steps = ([own for phase, own in runs if phase is wanted] for wanted in Phase)
    plain = is_issued_anew(p)
    hop = (Work(what="send or receive", cpu_s=p.host.dispatch_s("default")),) if plain else ()
    enter = (Work(what="compiled graph", cpu_s=entry_s(p)),) if plain and p.execution.fused else ()
    replay_s = entry_of(p.host, p.execution).replay_s if p.execution.fused else 0.0
    again = (Work(what="CUDA graph", cpu_s=replay_s),) if plain and replay_s else ()

    def forth(items: Iterable[Item]) -> tuple[Item, ...]:
        return (*(() if first else hop), *enter, *items, *(() if last else hop))

    def back(items: Iterable[Item]) -> tuple[Item, ...]:
        return (*(() if last else hop), *again, *items, *(() if first else hop))

    sent, waits = _until_the_waits(backward[-1] if backward else [])
    return Tasks(
        first_forward=forth(item for _, item in forward[0]) if forward else forth(()),
        forward=forth(_alone(forward[-1] if forward else [])),
        first_backward=back(_alone(backward[0] if backward else [])),
        backward=back(_alone(sent)),
        last_backward=back(item for _, item in sent),
        finish=tuple(item for _, item in (*waits, *(pair for own in steps for pair in own))),
    )  # fmt: skip


def _until_the_waits(pairs: _Pairs) -> tuple[_Pairs, _Pairs]:
    """A backward, and from the first wait for copies on what is done when all that was sent has come."""
    waits = (i for i, (op, item) in enumerate(pairs) if isinstance(item, Barrier) and of_copies(op))
    cut = next(waits, len(pairs))
    return pairs[:cut], pairs[cut:]


def _alone(pairs: _Pairs) -> list[Item]:
    """Without what only a piece does whose gradients, or weights, go to other copies."""
    return [item for op, item in pairs if not (EAGER in op.attrs or of_copies(op))]


def of_copies(op: Op) -> bool:
    """Whether it sends what copies agree on, or waits for it."""
    return is_ours(op) and op.attrs.get("group") in ("data", "expert data")


def start_of(p: Prediction, parts: int, pieces: int) -> tuple[list[Item], float]:
    """What the CPU does before the first piece, inputs of all pieces copied at once, and the time of these copies.

    parts: how many pieces the prediction has.
    """
    copied = copied_s(p) * pieces / parts
    if not is_issued_anew(p):
        return [], copied
    host, calls = p.host, len(p.timeline.copies) / parts
    waits = calls * (host.dispatch_s("default") + host.launch_latency + host.sync)
    return [Work(what="step and inputs", cpu_s=host.step + waits + copied)], copied
