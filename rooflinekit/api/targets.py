"""A model that a command line names → its graph, traced once and kept between commands."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rooflinekit.api.predict import Progress, trace
from rooflinekit.api.trace_basis import digest, watched
from rooflinekit.api.trace_store import TraceStore, cache_folder, surroundings
from rooflinekit.ir.graph import Graph, Origin
from rooflinekit.ir.inputs import Input

if TYPE_CHECKING:
    from rooflinekit.tracing.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTrace:
    """How a model is named, and how it is traced. A call traces it; torch is imported where no trace is kept.

    optimizer, loss: by their names. kept: whether traces are kept at all.
    following: makes what follows a trace of that name. unkept: is told why a trace cannot be kept, in one line.
    """

    target: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    optimizer: str | None
    loss: str | None
    following: Callable[[str], AbstractContextManager[Progress | None]]
    kept: bool = True
    unkept: Callable[[str], None] | None = None
    loaded: list[Target] = field(default_factory=list)  # the model, once it was needed

    def __call__(self, **changes: Any) -> Graph:
        """The graph, with other options of `rooflinekit.trace` where they are given; raises what that raises."""
        folder = cache_folder() if self.kept else None
        found = self._trace(changes) if folder is None else self._kept(TraceStore(folder), changes)
        optimizer = None if self.optimizer is None else functools.partial(_built, self.optimizer)
        again = replace(self, options={**self.options, **changes})
        return replace(found, origin=Origin(trace=again, optimizer=optimizer))

    def _kept(self, store: TraceStore, changes: Mapping[str, Any]) -> Graph:
        key, reasons = self._key(changes), ["an option is no plain value"]
        found = None if key is None else store.load(key)
        if found is None:
            with watched() as record:
                found = self._trace(changes)
            if key is not None:
                reasons = store.save(key, found, record, f"{self.target}, {found.mode}")
            if reasons and self.unkept is not None:
                self.unkept(f"the trace of {self.target} is not kept: {'; '.join(reasons)}")
        return found

    def _trace(self, changes: Mapping[str, Any]) -> Graph:
        from rooflinekit.tracing.targets import load_target, loss_of, optimizer_of

        wanted = {"optimizer": optimizer_of(self.optimizer), "loss": loss_of(self.loss), **self.options, **changes}
        if not self.loaded:
            self.loaded.append(load_target(self.target))
        (target,) = self.loaded
        with self.following(target.name) as advance:
            return trace(target.model, *self.args, name=target.name, progress=advance, **wanted)

    def _key(self, changes: Mapping[str, Any]) -> str | None:
        try:
            described = {
                **surroundings(),
                "target": self.target,
                "folder": os.getcwd(),
                "args": self.args,
                "optimizer": self.optimizer and self.optimizer.lower(),
                "loss": self.loss,
                "options": {**self.options, **changes},
            }
            return digest(json.dumps(described, sort_keys=True, default=_plain).encode(errors="surrogateescape"))
        except (TypeError, ValueError, OSError):
            return None


def _built(name: str, parameters: Any, **options: Any) -> Any:
    from rooflinekit.tracing.targets import optimizer_of

    found = optimizer_of(name)
    return found and found(parameters, **options)


def _plain(value: Any) -> Any:
    """A value that JSON does not have, equal for equal values. Raises TypeError for one that no key can be made of."""
    if isinstance(value, Input):
        return repr(value)
    if isinstance(value, functools.partial) and value.func is _built:
        (name,) = value.args
        return [name.lower(), value.keywords]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(value)
