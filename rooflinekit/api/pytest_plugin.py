"""A plug-in of pytest: the fixture `roofline`, by which tests hold a step to what it may take. No GPU is needed.

What takes long to import is imported when the fixture is used: pytest loads this file in every run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.study.guard.check import Checked

_UPDATE = "--roofline-update"
_NAMED = 3  # ops in a message
SNAPSHOTS = "roofline_snapshots.lock"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that accepts what steps take now."""
    group = parser.getgroup("rooflinekit")
    group.addoption(_UPDATE, action="store_true", help="lock the steps of assert_unchanged anew")


@pytest.fixture
def roofline(request: pytest.FixtureRequest) -> Roofline:
    """Predicts a step, as `rooflinekit.predict` does, with assertions on it."""
    update = bool(request.config.getoption(_UPDATE))
    return Roofline(folder=request.path.parent, name=request.node.name, update=update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Makes the steps of one test."""

    folder: Path
    name: str
    update: bool

    def __call__(self, model: Any, *inputs: Any, **options: Any) -> Step:
        """A step. Arguments, and what is raised, are those of `rooflinekit.predict`."""
        from rooflinekit.api.predict import predict

        return Step(prediction=predict(model, *inputs, **options), of=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A predicted step, and what may be asserted of it. Each assertion raises AssertionError where it does not hold."""

    prediction: Prediction
    of: Roofline

    def assert_step(self, *, bound: str = "", **limits: str) -> None:
        """That the step keeps to limits: assert_step(time="<12 ms", memory="<20 GB", kernels="<400", bound="memory").

        limits: of time, memory, kernels, flop and traffic, as in a lock file. bound: the regime. Raises LockError for
        a limit that is none, such as growth, which takes something to grow from.
        """
        from rooflinekit.errors import LockError
        from rooflinekit.study.guard.check import Limits

        for name, text in limits.items():
            if str(text).strip().startswith("+"):
                raise LockError(f"assert_step: {name}: {text!r} is growth; expected a limit such as '<12 ms'")
        given = limits | ({"regime": bound} if bound else {})
        exceeded = list(Limits.parse(given, "assert_step").exceeded(self.prediction))
        if exceeded:
            raise AssertionError("\n".join([f"{self._named}: {'; '.join(exceeded)}", *self._longest()]))

    def assert_no_slower_than(self, other: Step | Prediction, by: str = "+0 %") -> None:
        """That the step takes no longer than another version of it, or no longer by more than this share.

        Raises LockError for a share that is none.
        """
        from rooflinekit.study.guard.check import Block, Checked, Limits, locked_as

        before = other.prediction if isinstance(other, Step) else other
        limits = Limits.parse({"time": by}, "assert_no_slower_than")
        block = Block(name=self.prediction.graph_name, run="", limits=limits)
        self._tell(Checked(block=block, now=self.prediction, before=before, locked=locked_as(block, before)))

    def assert_unchanged(self, name: str = "", **limits: str) -> None:
        """That the step is what was locked of it in `roofline_snapshots.lock` beside the test; time may grow by 3 %.

        name: of the snapshot; by default the test's. limits: as in a lock file, growth among them. With
        --roofline-update the step is locked as it is.
        """
        from rooflinekit.study.guard.check import Block, Limits, Lock, check, locked_as, parse_lock

        name = re.sub(r"[^A-Za-z0-9._-]+", "-", name or self.of.name).strip("-._")
        path = self.of.folder / SNAPSHOTS
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lock = parse_lock(text, path) if text else Lock(path=path, text="", blocks=())
        old = next((block for block in lock.blocks if block.name == name), None)
        run = f"a test's: {self.prediction.graph_name}, {self.prediction.mode}"
        block = Block(name=name, run=run, limits=Limits.parse(limits, name), locked=old.locked if old else {})
        if self.of.update:
            head = "" if old else f'\n["{name}"]\nrun = "{run}"\n'
            kept = {**block.locked, self.prediction.machine.device.name: locked_as(block, self.prediction)}
            Lock(path=path, text=text + head, blocks=()).updated(name, self.prediction.graph, kept)
            return
        (found,) = check(block, lock.graph(name), [self.prediction])
        self._tell(found, _UPDATE)

    def _tell(self, found: Checked, accept: str = "--update") -> None:
        from rooflinekit.present.text.guard import details

        if found.exceeded:
            raise AssertionError("\n".join([f"{self._named}:", *details(found)]).replace("--update", accept))

    @property
    def _named(self) -> str:
        return f"{self.prediction.graph_name} on {self.prediction.machine.name}"

    def _longest(self) -> list[str]:
        from rooflinekit.units import format_quantity

        longest = sorted(self.prediction.timings, key=lambda timing: -timing.total_s)[:_NAMED]
        return [
            f"{format_quantity(one.total_s, 's')} in {one.kernel.kind} of {one.kernel.module or 'the root'}"
            for one in longest
        ]
