"""The walk of a guard: each workload of a lock file predicted, held against what was locked, or locked anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rooflinekit.errors import LockError, nearest
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.guard.check import Block, Checked, check, locked_as, read_lock

Predict = Callable[[Block], Sequence[Prediction]]  # a workload's predictions, one a GPU


def guard(path: Path, predict: Predict, *, only: Collection[str] = (), update: bool = False) -> tuple[Checked, ...]:
    """What has changed since the file's workloads were locked. only: the names of some. update: then accept it.

    Raises LockError for a file that is missing or wrong, or a name that it does not have; what `predict` raises; and
    OutputError where the file cannot be written.
    """
    lock = read_lock(path)
    names = [block.name for block in lock.blocks]
    for name in only:
        if name not in names:
            raise LockError(f"{path}: has no workload {name!r}{nearest(name, names)}; it has {', '.join(names)}")
    found: list[Checked] = []
    for block in lock.blocks:
        if only and block.name not in only:
            continue
        predictions = predict(block)
        found += check(block, lock.graph(block.name), predictions)
        if update:
            locked = {p.machine.device.name: locked_as(block, p) for p in predictions}
            lock = lock.updated(block.name, predictions[0].graph, locked)
    return tuple(found)
