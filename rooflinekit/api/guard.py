"""The walk of a lock file: whether its workloads are as they were when it was written."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rooflinekit.errors import LockError, nearest
from rooflinekit.step.made import fingerprint, versions
from rooflinekit.study.guard.check import Checked, Predict, check, locked_as, read_lock


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
    for block in (block for block in lock.blocks if not only or block.name in only):
        predictions = predict(block)
        found += check(block, lock.graph(block.name), predictions)
        if update:
            locked = {p.machine.device.name: locked_as(block, p) for p in predictions}
            lock = lock.updated(block.name, predictions[0].graph, locked)
    return tuple(found)


def made_by(lock: Path) -> str:
    """The command and the versions that say the same again, and a hash of the file."""
    file = f"the file's SHA-256 begins with {fingerprint(lock.read_bytes())}"
    return f"rooflinekit guard --lock {lock} ({versions()}; {file})"


def lines_of(lock: Path) -> dict[str, int]:
    """At which line of the file each workload's table begins."""
    heads = {line.strip().strip('[]"'): place for place, line in enumerate(lock.read_text().splitlines(), 1)}
    return {block.name: heads.get(block.name, 1) for block in read_lock(lock).blocks}
