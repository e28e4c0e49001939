"""A model that a command line names → its graph, traced once and kept between commands."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rooflinekit.api.predict import Progress, trace
from rooflinekit.api.trace_basis import watched
from rooflinekit.api.trace_states import digest
from rooflinekit.api.trace_store import TraceStore, cache_folder, surroundings
from rooflinekit.ir.graph import Graph, Origin
from rooflinekit.ir.inputs import Input, Release

if TYPE_CHECKING:
    from rooflinekit.tracing.targets import Target


class _NotPlainError(Exception):
    """An option that no key can be made of."""


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
        store = self._store()
        found = self._trace(changes) if store is None else self._kept(store, changes)
        optimizer = None if self.optimizer is None else functools.partial(_built, self.optimizer)
        again = _Again(replace(self, options={**self.options, **changes}))
        return replace(found, origin=Origin(trace=again, optimizer=optimizer))

    def _kept(self, store: TraceStore, changes: Mapping[str, Any]) -> Graph:
        """The graph as it is kept, or made and kept for the next command."""
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

    def _store(self) -> TraceStore | None:
        folder = cache_folder() if self.kept else None
        return None if folder is None else TraceStore(folder)

    def _key(self, changes: Mapping[str, Any]) -> str | None:
        try:
            described = {
                **surroundings(),
                "target": self.target,
                "folder": os.getcwd(),
                "args": _plain(self.args),
                "optimizer": self.optimizer and self.optimizer.lower(),
                "loss": self.loss,
                "options": _plain({**self.options, **changes}),
            }
        except (_NotPlainError, OSError):
            return None
        return digest(json.dumps(described, sort_keys=True).encode(errors="surrogateescape"))


@dataclass(frozen=True, slots=True)
class _Again:
    """Traces a target again."""

    target: TargetTrace

    def __call__(self, **changes: Any) -> Graph:
        return self.target(**changes)


def _built(name: str, parameters: Any, **options: Any) -> Any:
    """The optimizer of this name."""
    from rooflinekit.tracing.targets import optimizer_of

    found = optimizer_of(name)
    return found and found(parameters, **options)


def _plain(value: Any) -> Any:
    """A value for JSON, equal for equal values."""
    if isinstance(value, Input):
        return repr(value)
    if isinstance(value, StrEnum | Release):
        return [type(value).__name__, str(value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, Collection):
        parts = [_plain(part) for part in value]
        return parts if isinstance(value, list | tuple) else sorted(parts, key=str)
    raise _NotPlainError
